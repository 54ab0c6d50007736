"""Build programs of others from their Go modules.

They are kept in the user's cache directory, outside the repository, by version.
`python -m tests.harness.go_programs minio` builds one unless it is there, and prints where.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs

_BUILD_TIMEOUT_S = 3_600.0
_TAIL_CHARACTERS = 4096


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
            how = f"python -m tests.harness.go_programs {self.name}"
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
            done = subprocess.run(
                [go, "install", "-trimpath", "-ldflags=-s -w", f"{self.package}@{self.version}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_BUILD_TIMEOUT_S,
                check=False,
                cwd=directory,
                env={**os.environ, "GOBIN": directory, "CGO_ENABLED": "0"},
            )
            if done.returncode != 0:
                tail = done.stdout[-_TAIL_CHARACTERS:]
                raise GoProgramError(f"go could not build {self.name} {self.version}:\n{tail}")
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
