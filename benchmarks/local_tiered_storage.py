"""Set up Kafka's LocalTieredStorage with its topic of metadata: the tier that Kafka tests with."""

import subprocess
from pathlib import Path

from tests.harness.jars import ensure_kafka_jars, pinned_kafka_version

_TIMEOUT_S = 300.0
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.11.0:copy"
_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
_METADATA = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"


def local_tiered_storage_settings(directory: Path) -> dict[str, str]:
    """Return the broker properties of a tier in a directory; downloads the jar once."""
    directory.mkdir(parents=True)
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": _STORAGE,
        "remote.log.storage.manager.class.path": str(fixtures_jar()),
        "rsm.config.dir": str(directory),
        "remote.log.metadata.manager.class.name": _METADATA,
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    }


def fixtures_jar() -> Path:
    """Return the jar of Kafka's test fixtures, of the broker's release."""
    version = pinned_kafka_version()
    directory = ensure_kafka_jars().parent / "test-fixtures"
    jar = directory / f"kafka-storage-{version}-test-fixtures.jar"
    if not jar.exists():
        artifact = f"org.apache.kafka:kafka-storage:{version}:jar:test-fixtures"
        command = ["mvn", "-q", "-B", _COPY, f"-Dartifact={artifact}"]
        command.append(f"-DoutputDirectory={directory}")
        subprocess.run(command, check=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
    return jar
