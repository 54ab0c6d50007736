"""RLM as a process beside a broker that knows nothing of it, and how a test looks at all of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demos.kafka_broker import KafkaBroker
from services.api.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import PartitionDescription, RemoteLogManager
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlm_settings
from services.rlm.kafka_log.log_dir import find_partitions
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.eventually import eventually
from tests.harness.kafka_client import Cluster, Topic
from tests.harness.world import World
from tests.kafka.tiered_broker import IMPATIENT

DEADLINE_MS = 600_000
LISTENER = "RLM_CONSUMER_LISTEN_ADDRESS"
# The session is as long as ever, though a broker that was killed is let in again only when its last
# one has ended: one that stands still for a second must not lose its partitions.
BROKER_SETTINGS = {
    **IMPATIENT,
    "broker.heartbeat.interval.ms": "200",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    # Transactions that the broker's end left open keep all that is behind them out of the tier.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
RLM_SETTINGS = {
    "RLM_PARTITION_SOURCE": "poller",
    "RLM_DELETION_CONFIRM_MS": "1500",
    "RLM_DELETION_GRACE_MS": "500",
    "RLM_REMOTE_PARTITION_REMOVER_TASK_INTERVAL_MS": "500",
    "RLM_REMOTE_LOG_MANAGER_TASK_RETRY_BACKOFF_MAX_MS": "1000",
    "RLM_COPY_LEASE_MS": "1000",
}
"""So that what takes an hour, or half a minute, is seen at once."""


@dataclass(frozen=True)
class Sidecar:
    """A running broker, an RLM that may be away, and clients of all that is behind it."""

    broker: KafkaBroker
    world: World
    process: ServiceProcess
    rlm: RemoteLogManager
    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.broker.bootstrap_servers)

    @property
    def listener(self) -> str:
        """The address at which RLM serves consumers of Kafka."""
        return self.process.listen_address(LISTENER)

    def create_tiered(self, *topics: Topic) -> list[TopicIdPartition]:
        """Make topics of one partition, and say that they are tiered as soon as RLM has told RLMM
        of them; in their order."""
        self.cluster.create(*topics)
        return [self._tier(topic) for topic in topics]

    def _tier(self, topic: Topic) -> TopicIdPartition:
        (name,) = eventually(lambda: self._here(topic), DEADLINE_MS)
        eventually(lambda: self.is_known(name), DEADLINE_MS)
        self.rlmm.put_topic_config(name.topic_id, {"remote.storage.enable": "true"})
        return name

    def _here(self, topic: Topic) -> list[TopicIdPartition]:
        found = find_partitions(self.broker.log_dirs).partitions
        return [name for name in found if name.topic == topic.name]

    def is_known(self, name: TopicIdPartition) -> bool:
        known = all_partitions(self.rlmm, topic=name.topic)
        return name in {summary.topic_id_partition for summary in known}

    def describe(self, name: TopicIdPartition) -> PartitionDescription:
        """Waits for RLM: a client that found it away does not find it at once when it is back."""
        (found,) = eventually(lambda: self._described(name), DEADLINE_MS)
        return found

    def _described(self, name: TopicIdPartition) -> list[PartitionDescription]:
        try:
            page = self.rlm.describe_partitions([name.topic])
        except RetriableRemoteStorageError:
            return []
        return [d for d in page.partitions if d.topic_id_partition == name]

    def folder(self, name: TopicIdPartition) -> Path:
        """Where the broker's log lies."""
        return find_partitions(self.broker.log_dirs).partitions[name].path

    def local_start(self, name: TopicIdPartition) -> int:
        """The first offset that the broker has."""
        return self.cluster.offsets(name.topic, name.partition).log_start_offset

    def rows(self, name: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """In any state; none of a partition that RLMM does not know, or not any more."""
        try:
            return list(all_segments(self.rlmm, name))
        except RemoteResourceNotFoundError:
            return []

    def objects(self, name: TopicIdPartition) -> list[str]:
        prefix = f"{name.topic_id.hex}/"
        listed = self.world.s3.client().list_objects(self.world.bucket, prefix, recursive=True)
        return [str(item.object_name) for item in listed]


@contextmanager
def running_sidecar(
    broker: KafkaBroker,
    world: World,
    directory: Path,
    log_dirs: Sequence[Path],
    *,
    bootstrap_servers: str | None = None,
    rsm_address: str | None = None,
    further: Mapping[str, str] | None = None,
) -> Iterator[Sidecar]:
    """RLM beside a running broker; ended at the end.

    Args:
        bootstrap_servers: of a cluster with further brokers.
        rsm_address: the way to RSM, if it is not the direct one.
        further: settings of RLM.
    """
    rsm_address = rsm_address or world.rsm.address
    settings = {
        **rlm_settings(rsm_address, world.rlmm.address, log_dirs, task_interval_ms=200),
        **RLM_SETTINGS,
        "RLM_BOOTSTRAP_SERVERS": bootstrap_servers or broker.bootstrap_servers,
        **(further or {}),
    }
    process = ServiceProcess("rlm", settings, directory, more_addresses=[LISTENER])
    process.start()
    try:
        with (
            open_channel(process.address, PLAINTEXT) as channel,
            world.metadata() as rlmm,
            world.storage() as rsm,
        ):
            rlm = RemoteLogManagerClient(channel, process.address)
            yield Sidecar(broker, world, process, rlm, rlmm, rsm)
    finally:
        process.kill()
