"""Download the jars that a pom names from Maven Central into the user's cache, once."""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from demos.kafka_broker import find_java

_MAVEN_TIMEOUT_S = 900.0
_ATTEMPTS = 3
"""A repository on the internet sometimes refuses or breaks off; Maven keeps the downloaded
files.
"""
_TAIL_CHARACTERS = 4096


class JarsUnavailableError(RuntimeError):
    """Jars are not on this machine and cannot be obtained."""


def ensure_jars(pom: Path, name: str, properties: Sequence[str] = ()) -> Path:
    """Return a directory with all jars of a pom, downloading them once per name and pom.

    The directory appears complete or not at all, and any number of processes may call at the same
    time: one downloads, the others wait.

    Args:
        name: of the jars, with their version.
        properties: of Maven, each NAME=VALUE.

    Raises:
        JarsUnavailableError: the jars are not there yet, and ``mvn`` is missing or failed.
        JavaMissingError: the jars are not there yet, and there is no Java to run them.
    """
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    jars = platformdirs.user_cache_path("sediment") / name / digest
    if jars.is_dir():
        return jars
    mvn = shutil.which("mvn")
    if mvn is None:
        raise JarsUnavailableError(f"mvn is not on the PATH: Apache Maven fetches {name}")
    find_java()
    jars.parent.mkdir(parents=True, exist_ok=True)
    with (jars.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a crash
        if not jars.is_dir():
            _download(mvn, pom, name, properties, jars)
    return jars


def _download(mvn: str, pom: Path, name: str, properties: Sequence[str], jars: Path) -> None:
    """Download into a sibling and rename: a reader without the lock sees all jars or none."""
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="download-") as parent:
        incoming = Path(parent) / "jars"
        command = [
            mvn,
            "-q",
            "-B",
            "-Dstyle.color=never",
            f"--file={pom}",
            "dependency:copy-dependencies",
            *(f"-D{each}" for each in properties),
            f"-DoutputDirectory={incoming}",
        ]
        for _ in range(_ATTEMPTS):
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_MAVEN_TIMEOUT_S,
                check=False,
            )
            if done.returncode == 0:
                break
        else:
            tail = done.stdout[-_TAIL_CHARACTERS:]
            raise JarsUnavailableError(f"mvn could not fetch {name}:\n{tail}")
        incoming.rename(jars)
