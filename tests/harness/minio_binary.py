"""Build real MinIO from its Go module.

The program is kept in the user's cache directory, outside the repository, by version.
`python -m tests.harness.minio_binary` builds it unless it is there, and prints where.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import platformdirs

MODULE = "github.com/minio/minio"
# The latest version by the Go module proxy: a commit, because MinIO has no semantic versions.
VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
OLDEST_GO = (1, 24)
_BUILD_TIMEOUT_S = 3_600.0
_TAIL_CHARACTERS = 4096


class MinioUnavailableError(RuntimeError):
    """MinIO is not built yet and cannot be."""


def minio_path() -> Path:
    """Return the path of the pinned version, which exists once it is built."""
    return platformdirs.user_cache_path("sediment") / f"minio-{VERSION}" / "minio"


def ensure_minio() -> Path:
    """Return MinIO's program, building it once per version, which takes minutes.

    It appears complete or not at all, and any number of processes may call at the same time: one
    builds, the others wait.

    Raises:
        MinioUnavailableError: it is not there yet, and Go is missing, too old, or failed.
    """
    program = minio_path()
    if program.is_file():
        return program
    go = _find_go()
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a crash
        if not program.is_file():
            _build(go, program)
    return program


def built_minio() -> Path:
    """Return MinIO's program.

    Raises:
        MinioUnavailableError: MinIO is not built yet.
    """
    program = minio_path()
    if not program.is_file():
        raise MinioUnavailableError(f"{program} is not there: `make minio` builds it")
    return program


def go_version(printed: str) -> tuple[int, int]:
    """Parse major and minor of the output of `go env GOVERSION`; (0, 0) for a development build."""
    found = re.match(r"go(\d+)\.(\d+)", printed)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _find_go() -> str:
    needed = f"Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer"
    go = shutil.which("go")
    if go is None:
        raise MinioUnavailableError(f"`go` is not on the PATH: building MinIO needs {needed}")
    done = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=False
    )
    version = done.stdout.strip()
    if go_version(version) < OLDEST_GO:
        raise MinioUnavailableError(f"{go} is {version or 'broken'}: building MinIO needs {needed}")
    return go


def _build(go: str, program: Path) -> None:
    """Build into a sibling and rename: a reader without the lock sees the whole program or none."""
    _say(f"building MinIO {VERSION} from its Go module; the first time takes 5 to 15 minutes")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=program.parent, prefix="build-") as directory:
        done = subprocess.run(
            [go, "install", "-trimpath", "-ldflags=-s -w", f"{MODULE}@{VERSION}"],
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
            raise MinioUnavailableError(f"go could not build MinIO {VERSION}:\n{tail}")
        (Path(directory) / program.name).rename(program)
    _say(f"built MinIO in {time.monotonic() - started:.0f} s")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{ensure_minio()}\n")
    except MinioUnavailableError as e:
        sys.exit(f"minio: {e}")
