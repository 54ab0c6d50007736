"""Build and run real MinIO and other programs from their Go modules.

They are kept in the user's cache directory, outside the repository, by version.
`python -m tests.harness.minio minio` builds one unless it is there, and prints where.
"""

import fcntl
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from minio.error import MinioException
from urllib3.exceptions import HTTPError

from services.local.process import LOOPBACK, ChildProcess, ServerProcess
from services.local.seaweedfs import S3Endpoint
from tests.harness.jars import run_to_end

_PROBE_TIMEOUT_S = 5.0
_ACCESS_KEY = "sediment"
KMS_KEY_ID = "sediment-tests"


class MinioServer(ServerProcess):
    """Run MinIO with its data in `directory`, kept between runs.

    The secret key stays the same as long as this object exists. Not thread-safe.
    """

    _START_TIMEOUT_MS = 90_000

    def __init__(self, directory: Path, *, encrypts: bool = False) -> None:
        """Set up a server; one that `encrypts` has the key KMS_KEY_ID, for objects that ask."""
        super().__init__()
        self._encrypts = encrypts
        self._directory = directory.absolute()
        self._secret_key = secrets.token_urlsafe(30)

    @property
    def endpoint(self) -> S3Endpoint:
        if not self._ports:
            raise RuntimeError("MinIO was never started")
        return S3Endpoint(f"{LOOPBACK}:{self._ports[0]}", _ACCESS_KEY, self._secret_key)

    def start(self) -> None:
        """Start the server and wait until it answers a signed request.

        Raises:
            ProcessError: the server did not start; the message has the end of its log.
            GoProgramError: MinIO is not built yet.
        """
        (self._directory / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
        super().start()

    def _program(self) -> ChildProcess:
        address = f"--address={LOOPBACK}:{self._ports[0]}"
        data = self._directory / "data"
        argv: list[str | Path] = [MINIO.built(), "server", "--quiet", address, data]
        # An environment of its own: MinIO reads MINIO_* and files below HOME.
        environment = {
            "HOME": str(self._directory),
            "MINIO_ROOT_USER": _ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": self._secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "MINIO_CI_CD": "on",  # the drive may be a folder of the root file system
        }
        if self._encrypts:
            key = b64encode(bytes(32)).decode("ascii")
            environment["MINIO_KMS_SECRET_KEY"] = f"{KMS_KEY_ID}:{key}"
        return ChildProcess("minio", argv, self._directory, environment)

    def _is_ready(self) -> bool:
        try:
            self.endpoint.client(_PROBE_TIMEOUT_S).list_buckets()
        except (HTTPError, MinioException):
            return False
        return True


_BUILD_TIMEOUT_S = 3_600.0


class GoProgramError(RuntimeError):
    """A program is not built yet and cannot be."""


@dataclass(frozen=True)
class GoProgram:
    """A program at a pinned version.

    Attributes:
        package: what `go install` builds; the last part of its path is the program's name.
        oldest_go: major and minor version of the oldest Go that builds it.
        takes: how long the first build takes, for messages.
    """

    package: str
    version: str
    oldest_go: tuple[int, int]
    takes: str

    @property
    def name(self) -> str:
        return self.package.rpartition("/")[2]

    @property
    def path(self) -> Path:
        """Where the program is once it is built."""
        return platformdirs.user_cache_path("sediment") / f"{self.name}-{self.version}" / self.name

    def ensure(self) -> Path:
        """Return the program's path, building it once per version.

        It appears complete or not at all, and any number of processes may call at the same time:
        one builds, the others wait.

        Raises:
            GoProgramError: it is not there yet, and Go is missing, too old, or failed.
        """
        program = self.path
        if program.is_file():
            return program
        go = self._find_go()
        program.parent.mkdir(parents=True, exist_ok=True)
        with (program.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a crash
            if not program.is_file():
                self._build(go, program)
        return program

    def built(self) -> Path:
        """Return the program's path.

        Raises:
            GoProgramError: it is not built yet.
        """
        if not self.path.is_file():
            how = f"python -m tests.harness.minio {self.name}"
            raise GoProgramError(f"{self.path} is not there: `{how}` builds it")
        return self.path

    def _find_go(self) -> str:
        needed = f"building {self.name} needs Go {self.oldest_go[0]}.{self.oldest_go[1]} or newer"
        go = shutil.which("go")
        if go is None:
            raise GoProgramError(f"`go` is not on the PATH: {needed}")
        done = subprocess.run(
            [go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=False
        )
        version = done.stdout.strip()
        if go_version(version) < self.oldest_go:
            raise GoProgramError(f"{go} is {version or 'broken'}: {needed}")
        return go

    def _build(self, go: str, program: Path) -> None:
        """Build into a sibling and rename: a reader sees the whole program or none."""
        _say(f"building {self.name} {self.version}; the first time takes {self.takes}")
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=program.parent, prefix="build-") as directory:
            run_to_end(
                [go, "install", "-trimpath", "-ldflags=-s -w", f"{self.package}@{self.version}"],
                lambda tail: GoProgramError(f"go could not build {self.name}:\n{tail}"),
                _BUILD_TIMEOUT_S,
                Path(directory),
                {**os.environ, "GOBIN": directory, "CGO_ENABLED": "0"},
            )
            (Path(directory) / self.name).rename(program)
        _say(f"built {self.name} in {time.monotonic() - started:.0f} s")


# The latest version by the Go module proxy: a commit, because MinIO has no semantic versions.
MINIO = GoProgram(
    "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c", (1, 24), "5 to 15 minutes"
)
GRPCURL = GoProgram(
    "github.com/fullstorydev/grpcurl/cmd/grpcurl", "v1.9.3", (1, 24), "one to three minutes"
)
PROGRAMS = {program.name: program for program in (MINIO, GRPCURL)}


def go_version(printed: str) -> tuple[int, int]:
    """Parse major and minor of the output of `go env GOVERSION`; (0, 0) for a development build."""
    found = re.match(r"go(\d+)\.(\d+)", printed)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{PROGRAMS[sys.argv[1]].ensure()}\n")
    except GoProgramError as e:
        sys.exit(f"{sys.argv[1]}: {e}")
