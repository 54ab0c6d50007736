"""A cluster that tiers with Kafka's own classes, and what a test compares while it moves."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from benchmarks.local_tiered_storage import local_tiered_storage_settings
from services.api.ids import TopicIdPartition
from services.api.offset_queries import SpecialTime
from services.rlm.kafka_log.log_dir import find_partitions
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_client import Cluster
from tests.harness.kafka_cluster import REPLICATED, ClusterAdmin, KafkaCluster
from tests.kafka.records import consumed
from tests.plugin.deployment import IMPATIENT
from tests.plugin.seen import ISOLATION_LEVELS

NODES = (1, 2, 3)
DEADLINE_MS = 180_000
METADATA_TOPIC = "__remote_log_metadata"
SETTINGS: Mapping[str, str] = {
    **IMPATIENT,
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    # A broker that is stopped in order gives its leaders away first.
    "controlled.shutdown.enable": "true",
}


def own_tier(directory: Path) -> dict[str, str]:
    """Return the broker properties of Kafka's own classes, with a tier in a directory."""
    settings = local_tiered_storage_settings(directory)
    replicas = "rlmm.config.remote.log.metadata.topic.replication.factor"
    return {**SETTINGS, **settings, replicas: "3"}


@dataclass(frozen=True)
class Contents:
    """What consumers of one isolation level read of one partition, up to an offset.

    Attributes:
        digest: over offset, timestamp, key, value and headers of each record.
    """

    records: int
    digest: str


def contents_of(
    cluster: Cluster, ends: Mapping[TopicIdPartition, int]
) -> dict[tuple[TopicIdPartition, str], Contents]:
    """Read every partition as far as `ends`, in both isolation levels."""
    found = {}
    for name, end in ends.items():
        for level in ISOLATION_LEVELS:
            records = [r for r in consumed(cluster, name, level) if r.offset < end]
            digest = sha256("\n".join(map(repr, records)).encode()).hexdigest()
            found[name, level] = Contents(len(records), digest)
    return found


@dataclass(frozen=True)
class Migrating:
    """Three brokers whose tier changes under them."""

    brokers: KafkaCluster

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.brokers.bootstrap_servers)

    @property
    def admin(self) -> ClusterAdmin:
        return ClusterAdmin(self.brokers.bootstrap_servers)

    def partitions(self, *topics: str) -> list[TopicIdPartition]:
        """Return the partitions of topics that some broker has on its disk."""
        found = {
            name
            for broker in self.brokers.brokers
            for name in find_partitions(broker.log_dirs).partitions
            if name.topic in topics
        }
        return sorted(found, key=lambda name: (name.topic, name.partition))

    def ends(self, names: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, int]:
        """Return the log ends, once all transactions before them have ended."""

        return {name: self._stable_end(name) for name in names}

    def _stable_end(self, name: TopicIdPartition) -> int:
        def stable_end() -> int:
            found = self.cluster.offsets(name.topic, name.partition)
            return found.log_end_offset if found.last_stable_offset == found.log_end_offset else 0

        return eventually(stable_end, DEADLINE_MS)

    def tiered_through(self, name: TopicIdPartition) -> int:
        """Return the last offset that the leader knows the tier to have."""
        return self.admin.offset(name.topic, name.partition, SpecialTime.LATEST_TIERED)

    def local_start(self, name: TopicIdPartition) -> int:
        """Return the first offset on the leader's disk."""
        return self.admin.offset(name.topic, name.partition, SpecialTime.EARLIEST_LOCAL)

    def wait_until_read_from_tier(self, names: Sequence[TopicIdPartition]) -> None:
        """Wait until a part of each partition is in the tier alone."""

        def is_there() -> None:
            for name in names:
                assert self.local_start(name) > 0, name

        eventually_holds(is_there, DEADLINE_MS)

    def wait_until_in_sync(self, names: Sequence[TopicIdPartition]) -> None:
        for name in names:
            self.admin.wait_until_in_sync(name.topic, name.partition, len(NODES))

    def switch(
        self, node_id: int, tier: Mapping[str, str], names: Sequence[TopicIdPartition]
    ) -> None:
        """Restart one broker with another tier; let it lead, and not lead, each partition."""
        broker = self.brokers.broker(node_id)
        broker.stop()
        broker.reconfigure({**REPLICATED, **tier})
        broker.start()
        self.wait_until_in_sync(names)
        for name in names:
            self.admin.lead(name.topic, name.partition, node_id)

    def replace_tier(self, tier: Mapping[str, str], names: Sequence[TopicIdPartition]) -> None:
        """Restart all brokers, one after the other, with another tier."""
        for node_id in NODES:
            self.switch(node_id, tier, names)


@contextmanager
def migrating(directory: Path, tier: Mapping[str, str]) -> Iterator[Migrating]:
    with KafkaCluster(directory, [dict(tier)] * len(NODES)) as brokers:
        yield Migrating(brokers)
