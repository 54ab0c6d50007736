"""Three brokers that tier through the plugin, and how a test looks at their partitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from services.api.ids import TopicIdPartition
from services.api.offset_queries import SpecialTime
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LocalSegment, list_segments
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_client import Cluster, Topic
from tests.harness.kafka_cluster import Assignments, ClusterAdmin, KafkaCluster
from tests.harness.world import World
from tests.plugin.deployment import IMPATIENT, TIERED
from tests.plugin.tiered_partition import DEADLINE_MS, TieredPartition

NODES = (1, 2, 3)
CLUSTER_SETTINGS: Mapping[str, str] = {
    **IMPATIENT,
    # Three brokers list what they lead this often; on two cores more is felt by all.
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
}


@dataclass(frozen=True)
class ClusterDeployment:
    """Brokers and the services behind them. Nothing is cached but addresses, which stay."""

    brokers: KafkaCluster
    world: World

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.brokers.bootstrap_servers)

    @property
    def admin(self) -> ClusterAdmin:
        return ClusterAdmin(self.brokers.bootstrap_servers)

    def create(
        self, name: str, assignments: Assignments, segment_bytes: int = 8192, **config: str
    ) -> list["ReplicatedPartition"]:
        """Make a tiered topic with these replicas; underscores stand for dots."""
        own = {key.replace("_", "."): value for key, value in config.items()}
        unique = f"{name}-{uuid4().hex[:8]}"
        topic = Topic(unique, len(assignments), segment_bytes, {**TIERED, **own})
        self.admin.create(topic.name, assignments, topic.configs())
        return self.partitions(topic)

    def partitions(self, topic: Topic) -> list["ReplicatedPartition"]:
        """All partitions of a topic, once each of their brokers has its folder."""

        def names() -> list[TopicIdPartition]:
            found = [
                name
                for broker in self.brokers.brokers
                for name in find_partitions(broker.log_dirs).partitions
                if name.topic == topic.name
            ]
            unique = sorted(set(found), key=lambda name: name.partition)
            return unique if len(unique) == topic.partitions else []

        return [ReplicatedPartition(self, topic, name) for name in eventually(names, DEADLINE_MS)]


@dataclass(frozen=True)
class ReplicatedPartition(TieredPartition):
    """A tiered partition as each of its brokers, RLMM and the bucket have it."""

    deployment: ClusterDeployment
    topic: Topic
    name: TopicIdPartition

    # --- leaders and replicas ---------------------------------------------------------------

    @property
    def leader(self) -> int:
        return self.deployment.admin.wait_for_leader(self.name.topic, self.name.partition)

    def lead(self, node_id: int) -> None:
        self.deployment.admin.lead(self.name.topic, self.name.partition, node_id)

    def reassign(self, replicas: Sequence[int]) -> None:
        self.deployment.admin.reassign(self.name.topic, self.name.partition, replicas)

    def wait_until_in_sync(self, count: int = len(NODES)) -> None:
        self.deployment.admin.wait_until_in_sync(self.name.topic, self.name.partition, count)

    def offset(self, time: SpecialTime) -> int:
        """The leader's answer."""
        return self.deployment.admin.offset(self.name.topic, self.name.partition, time)

    def folder(self, node_id: int) -> Path | None:
        """A broker's folder of the partition, if it has one."""
        found = find_partitions(self.deployment.brokers.broker(node_id).log_dirs).partitions
        return found[self.name].path if self.name in found else None

    def local_segments(self, node_id: int) -> list[LocalSegment]:
        folder = self.folder(node_id)
        return [] if folder is None else list(list_segments(folder))

    def local_start(self, node_id: int) -> int:
        """The first offset on a broker's disk."""
        return self.local_segments(node_id)[0].base_offset

    # --- waiting ----------------------------------------------------------------------------

    def wait_until_tiered(self) -> list[RemoteLogSegmentMetadata]:
        """Wait until the leader knows the tier to have every offset below its active segment."""

        def all_is_there() -> None:
            active = self.local_segments(self.leader)[-1].base_offset
            tiered = self.offset(SpecialTime.LATEST_TIERED)
            assert tiered == active - 1, f"{self}: {tiered}, active from {active}"

        eventually_holds(all_is_there, DEADLINE_MS)
        self.keep_nothing()
        return self.finished()

    def wait_until_only_active_is_local(self) -> None:
        """Wait until every replica has removed its rolled segments."""

        def rolled_are_gone() -> None:
            for node_id in NODES:
                rolled = [s.base_offset for s in self.local_segments(node_id) if s.is_rolled]
                assert rolled == [], f"{self} on {node_id}: {rolled}"
            assert self.offset(SpecialTime.EARLIEST_LOCAL) == self.local_start(self.leader)

        eventually_holds(rolled_are_gone, DEADLINE_MS)

    # --- what always holds ------------------------------------------------------------------

    def assert_nothing_wrong(self) -> None:
        self.assert_finished_is_complete()
        self.assert_every_object_has_a_row()
