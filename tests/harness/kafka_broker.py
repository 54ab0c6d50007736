"""A Kafka broker of the release that the tests are pinned to, or of another."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from demos.kafka_broker import KafkaBroker
from tests.harness.kafka_jars import ensure_kafka_jars


def kafka_broker(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *,
    log_dirs: int = 1,
    listeners: Sequence[str] = (),
    version: str | None = None,
) -> KafkaBroker:
    """A broker that does not run yet; fetches its jars the first time, for which it needs ``mvn``.

    Raises:
        KafkaUnavailableError, JavaMissingError: the jars cannot be had.
    """
    jars = ensure_kafka_jars(version)
    return KafkaBroker(directory, jars, settings, log_dirs=log_dirs, listeners=listeners)
