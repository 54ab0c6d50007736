"""Download a Kafka broker's jars from Maven Central.

``tests/kafka/broker/pom.xml`` names the version; the jars are kept in the user's cache directory,
outside the repository. `python -m tests.harness.kafka_jars` prints where.
"""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import platformdirs

from demos.kafka_broker import find_java

POM = Path(__file__).resolve().parents[1] / "kafka" / "broker" / "pom.xml"
_MAVEN_TIMEOUT_S = 900.0
_ATTEMPTS = 3
"""A repository on the internet sometimes refuses or breaks off; Maven keeps the downloaded
files.
"""
_TAIL_CHARACTERS = 4096


class KafkaUnavailableError(RuntimeError):
    """A dependency of the broker is not on this machine and cannot be obtained."""


def ensure_kafka_jars(version: str | None = None) -> Path:
    """Return a directory with all jars of a broker, downloading them once per version and pom.

    The directory appears complete or not at all, and any number of processes may call at the same
    time: one downloads, the others wait. ``version`` is Kafka's, by default the one in the pom.

    Raises:
        KafkaUnavailableError: the jars are not there yet, and ``mvn`` is missing or failed.
        JavaMissingError: the jars are not there yet, and there is no Java to run them.
    """
    version = version or pinned_kafka_version()
    pom_digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    jars = platformdirs.user_cache_path("sediment") / f"kafka-{version}" / pom_digest
    if jars.is_dir():
        return jars
    mvn = _find_program("mvn", "Apache Maven, to fetch Kafka's jars")
    find_java()
    jars.parent.mkdir(parents=True, exist_ok=True)
    with (jars.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a crash
        if not jars.is_dir():
            _download_jars(mvn, version, jars)
    return jars


def pinned_kafka_version() -> str:
    """Return Kafka's version in the pom, the only place that names it."""
    version = ElementTree.parse(POM).findtext(".//{*}properties/{*}kafka.version")
    if version is None:
        raise KafkaUnavailableError(f"{POM.name} names no kafka.version")
    return version


def _download_jars(mvn: str, version: str, jars: Path) -> None:
    """Download into a sibling and rename: a reader without the lock sees all jars or none."""
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="download-") as parent:
        incoming = Path(parent) / "jars"
        command = [
            mvn,
            "-q",
            "-B",
            "-Dstyle.color=never",
            f"--file={POM}",
            "dependency:copy-dependencies",
            f"-Dkafka.version={version}",
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
            raise KafkaUnavailableError(f"mvn could not fetch Kafka {version}:\n{tail}")
        incoming.rename(jars)


def _find_program(name: str, purpose: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise KafkaUnavailableError(f"{name} is not on the PATH: it is needed as {purpose}")
    return found


if __name__ == "__main__":
    print(ensure_kafka_jars())
