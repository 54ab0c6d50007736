"""Download the jars that a pom names from Maven Central into the user's cache, once.

`pom.xml` in tests/kafka/broker, tests/spark/s3a and tests/spark/kafka_source names the versions.
`python -m tests.harness.jars` prints where a Kafka broker's jars are.
"""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

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


def run_to_end(
    command: Sequence[str],
    failed: Callable[[str], Exception],
    timeout_s: float,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a program; raise what `failed` makes of the end of its output unless it ends with 0."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        raise failed(done.stdout[-_TAIL_CHARACTERS:])


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

        def failed(tail: str) -> JarsUnavailableError:
            return JarsUnavailableError(f"mvn could not fetch {name}:\n{tail}")

        for _ in range(_ATTEMPTS - 1):
            with suppress(JarsUnavailableError):
                run_to_end(command, failed, _MAVEN_TIMEOUT_S)
                break
        else:
            run_to_end(command, failed, _MAVEN_TIMEOUT_S)
        incoming.rename(jars)


_POMS = Path(__file__).resolve().parents[1] / "kafka"
POM = _POMS / "broker" / "pom.xml"
TOOLS_POM = _POMS / "tools" / "pom.xml"
S3A_POM = _POMS.parent / "spark" / "s3a" / "pom.xml"
SPARK_KAFKA_POM = _POMS.parent / "spark" / "kafka_source" / "pom.xml"


def ensure_kafka_jars(version: str | None = None) -> Path:
    """Return a directory with all jars of a broker; raises as `ensure_jars` does.

    ``version`` is Kafka's, by default the one in the pom.
    """
    version = version or pinned_kafka_version()
    return ensure_jars(POM, f"kafka-{version}", [f"kafka.version={version}"])


def ensure_tools_jars() -> Path:
    """Return a directory with Kafka's tools, which need a broker's jars; raises likewise."""
    version = pinned_kafka_version()
    return ensure_jars(TOOLS_POM, f"kafka-tools-{version}", [f"kafka.version={version}"])


def pinned_kafka_version() -> str:
    """Return Kafka's version in the pom, the only place that names it."""
    version = ElementTree.parse(POM).findtext(".//{*}properties/{*}kafka.version")
    if version is None:
        raise JarsUnavailableError(f"{POM.name} names no kafka.version")
    return version


def ensure_s3a_jars() -> Path:
    """Return a directory with Hadoop's connector of S3 and the AWS SDK; raises as `ensure_jars`."""
    return ensure_jars(S3A_POM, "s3a")


def ensure_spark_kafka_jars() -> Path:
    """Return a directory with Spark's source and Kafka's clients; raises as `ensure_jars`."""
    return ensure_jars(SPARK_KAFKA_POM, "spark-kafka")


if __name__ == "__main__":
    print(ensure_kafka_jars())
