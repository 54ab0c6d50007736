"""Download a Kafka broker's jars from Maven Central.

``tests/kafka/broker/pom.xml`` names the version; the jars are kept in the user's cache directory,
outside the repository. `python -m tests.harness.kafka_jars` prints where.
"""

from pathlib import Path
from xml.etree import ElementTree

from tests.harness.maven_jars import JarsUnavailableError, ensure_jars

_POMS = Path(__file__).resolve().parents[1] / "kafka"
POM = _POMS / "broker" / "pom.xml"
TOOLS_POM = _POMS / "tools" / "pom.xml"


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


if __name__ == "__main__":
    print(ensure_kafka_jars())
