"""Provide a Kafka broker of the release to which the tests are pinned, or of another."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from demos.kafka_broker import KafkaBroker
from tests.harness.class_archives import ensure_kafka_archive
from tests.harness.kafka_jars import ensure_kafka_jars


def kafka_broker(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *,
    log_dirs: int = 1,
    listeners: Sequence[str] = (),
    version: str | None = None,
) -> KafkaBroker:
    """Create a broker without starting it; the first time, download its jars with ``mvn``.

    Raises:
        JarsUnavailableError, JavaMissingError: the jars cannot be obtained.
    """
    jars = ensure_kafka_jars(version)
    ensure_kafka_archive(jars)
    return KafkaBroker(directory, jars, settings, log_dirs=log_dirs, listeners=listeners)
