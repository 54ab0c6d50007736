"""Three brokers, an RLM beside each, and partitions that are written and read all the while."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import gt
from pathlib import Path

from confluent_kafka import KafkaException

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage, SegmentLineage
from services.api.remote_log_manager import PartitionRole
from services.api.segments import RemoteLogSegmentMetadata, SegmentLeaderEpoch
from services.api.superseded import is_tail
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import list_segments
from tests.harness.databases import Store
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_client import Cluster, Topic
from tests.harness.kafka_cluster import ClusterAdmin, KafkaCluster
from tests.harness.proxy import TcpProxy
from tests.harness.world import World, running_world
from tests.kafka.sidecar import BROKER_SETTINGS, DEADLINE_MS, Sidecar, running_sidecar
from tests.kafka.tiered_broker import FINISHED
from tests.kafka.traffic import Traffic
from tests.kafka.whole_log import BatchLog, BrokersLog

NODES = (1, 2, 3)
SPARE = 4
SEED = 405
SEGMENT_BYTES = 32_768
KEPT_SEGMENTS = 4
"""On a leader's disk, when its log is trimmed."""

_KINDS = [("none", True), ("zstd", True)]
_SETTINGS = {
    **BROKER_SETTINGS,
    # Four brokers on two cores: each looks for something to do twice a second.
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "15000",
}
_RLM_SETTINGS = {
    # The topics that the story has, without a setting for each.
    "RLM_TIERED_TOPICS": "*",
    "RLM_REMOTE_LOG_MANAGER_TASK_INTERVAL_MS": "500",
    # Longer than the copies of a machine that is busy wait between two renewals.
    "RLM_COPY_LEASE_MS": "3000",
}


@dataclass(frozen=True)
class Actor:
    """A partition of the story.

    Attributes:
        truth: what its leaders had of it, read before they deleted it.
        lost: the keys of records that an unclean election has lost.
    """

    name: TopicIdPartition
    topic: Topic
    traffic: Traffic
    truth: BrokersLog
    lost: set[bytes] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.name.topic}-{self.name.partition}"


@dataclass
class Scene:
    """Where the story happens.

    Attributes:
        sidecars: by node id - 1; all have the same RLMM and RSM.
        ways: each RLM's own to RSM.
        clean: the partitions whose leaders are always elected of those in sync.
        unclean: the one that has also others, with two replicas.
        moves: leaders that the story has chosen.
        trims: how often records that the tier has were deleted from the brokers.
        has_tails: records are copied before their segments roll, too.
    """

    brokers: KafkaCluster
    world: World
    sidecars: Sequence[Sidecar]
    ways: Sequence[TcpProxy]
    clean: list[Actor] = field(default_factory=list)
    unclean: list[Actor] = field(default_factory=list)
    moves: int = 0
    trims: int = 0
    has_tails: bool = False

    @property
    def admin(self) -> ClusterAdmin:
        return ClusterAdmin(self.brokers.bootstrap_servers)

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.brokers.bootstrap_servers)

    @property
    def actors(self) -> list[Actor]:
        return [*self.clean, *self.unclean]

    def sidecar(self, node_id: int) -> Sidecar:
        return self.sidecars[node_id - 1]

    # --- leaders ----------------------------------------------------------------------------

    def leader(self, actor: Actor) -> int:
        return self.admin.wait_for_leader(actor.name.topic, actor.name.partition)

    def lead(self, actor: Actor, node_id: int) -> None:
        self.moves += self.leader(actor) != node_id
        self.admin.lead(actor.name.topic, actor.name.partition, node_id)

    def other_than(self, actor: Actor, node_id: int) -> int:
        """Return another replica, in sync by now."""
        self.wait_until_in_sync(actor)
        assigned = self.admin.replicas(actor.name.topic, actor.name.partition).assigned
        return next(each for each in sorted(assigned) if each != node_id)

    def wait_until_in_sync(self, *actors: Actor) -> None:
        for actor in actors or self.actors:
            count = 2 if actor in self.unclean else len(NODES)
            self.admin.wait_until_in_sync(actor.name.topic, actor.name.partition, count)

    # --- topics -----------------------------------------------------------------------------

    def create(self, topic: Topic, assignments: Sequence[Sequence[int]]) -> list[TopicIdPartition]:
        """Make a topic; return its partitions, once RLMs have announced them."""
        self.admin.create(topic.name, assignments, topic.configs())
        names = eventually(partial(self._names, topic), DEADLINE_MS)
        for name in names:
            eventually(partial(self._is_led, name), DEADLINE_MS)
        return names

    def _names(self, topic: Topic) -> list[TopicIdPartition]:
        found = {
            name
            for node_id in NODES
            for name in find_partitions(self.brokers.broker(node_id).log_dirs).partitions
            if name.topic == topic.name
        }
        return sorted(found) if len(found) == topic.partitions else []

    def _is_led(self, name: TopicIdPartition) -> bool:
        leader = self.admin.wait_for_leader(name.topic, name.partition)
        return self.sidecar(leader).describe(name).role is PartitionRole.LEADER

    # --- the tier ---------------------------------------------------------------------------

    def rows(self, name: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """Waits for RLMM, which the story restarts."""
        (found,) = eventually(partial(self._rows, name), DEADLINE_MS)
        return found

    def _rows(self, name: TopicIdPartition) -> list[list[RemoteLogSegmentMetadata]]:
        try:
            return [self.sidecars[0].rows(name)]
        except RetriableRemoteStorageError:
            return []

    def objects(self, name: TopicIdPartition) -> list[str]:
        keys = self.sidecars[0].objects(name)
        return [key for key in keys if key.split("/")[1] == str(name.partition)]

    def finished(self, actor: Actor) -> list[RemoteLogSegmentMetadata]:
        """The segments that readers get, by offset: those of the leaders' log."""
        lineage = lineage_of(actor.truth)
        if lineage is None:
            return []
        rows = [row for row in self.rows(actor.name) if row.state is FINISHED]
        return sorted(
            filter(SegmentLineage(lineage, actor.truth.end_offset).contains, rows),
            key=lambda row: (row.start_offset, row.end_offset),
        )

    def copy_tails(self) -> None:
        self.has_tails, sidecar = True, self.sidecars[0]
        settings = {"sediment.tail.copy.ms": "1000"}
        for name in {actor.name.topic_id: actor.name for actor in self.actors}.values():
            eventually(partial(sidecar.is_known, name), DEADLINE_MS)
            sidecar.rlmm.put_topic_config(name.topic_id, settings, now=True)

    def copied_end(self, actor: Actor, *, with_tails: bool = False) -> int:
        """Return the end of what the tier has without a hole."""
        end = 0
        for row in self.finished(actor):
            if row.start_offset <= end and (with_tails or not is_tail(row)):
                end = max(end, row.end_offset + 1)
        return end

    def wait_until_copying_continues(self, *actors: Actor) -> None:
        """Wait until the tier has more of each partition, without a hole."""

        def ends() -> list[int]:
            for actor in chosen:
                actor.truth.read_on()
            return [self.copied_end(actor) for actor in chosen]

        chosen = actors or self.actors
        before = ends()
        try:
            eventually(lambda: all(map(gt, ends(), before)), DEADLINE_MS, poll_ms=500)
        except AssertionError as e:
            self._note(e, before, ends())
            raise

    def _note(self, error: AssertionError, *what: object) -> None:
        error.add_note(f"before and after: {what}")
        for actor in self.actors:
            leader = self.leader(actor)
            error.add_note(f"{actor} is led by {leader}")
            if leader in NODES:
                error.add_note(f"its RLM: {self.sidecar(leader).describe(actor.name)}")

    def trim(self, actor: Actor) -> None:
        """Delete from the brokers what the tier has, but for the latest segments."""
        actor.truth.read_on()
        leader = self.leader(actor)
        folder = find_partitions(self.brokers.broker(leader).log_dirs).partitions[actor.name].path
        rolled = list_segments(folder)[:-KEPT_SEGMENTS]
        copied_end = self.copied_end(actor)
        borders = [s.base_offset for s in rolled[1:] if s.base_offset <= copied_end]
        if borders:
            try:
                self.cluster.delete_records(actor.name.topic, actor.name.partition, borders[-1])
            except KafkaException:
                return  # The leader has moved; the next trim comes soon.
            self.trims += 1

    # --- the end ----------------------------------------------------------------------------

    def wait_until_all_is_tiered(self, actor: Actor) -> None:
        """Wait until the leader's RLM has nothing to do, and the leader no open transaction."""

        def is_tiered() -> None:
            end = actor.truth.read_on()
            seen = self.sidecar(self.leader(actor)).describe(actor.name)
            assert seen.role is PartitionRole.LEADER, seen
            assert seen.lag_segments == 0, seen
            assert seen.last_stable_offset == seen.log_end_offset == end, seen

        eventually_holds(is_tiered, DEADLINE_MS, poll_ms=200)


def lineage_of(log: BatchLog) -> Lineage | None:
    """The leader epochs of a log that have records."""
    entries: list[SegmentLeaderEpoch] = []
    for batch in log.batches:
        if not entries or entries[-1].leader_epoch != batch.leader_epoch:
            entries.append(SegmentLeaderEpoch(batch.leader_epoch, batch.base_offset))
    return Lineage(tuple(entries)) if entries else None


STORY = Topic("story", 2, SEGMENT_BYTES)
ELECTED = Topic("elected", 1, SEGMENT_BYTES, {"min.insync.replicas": "1"})


@contextmanager
def running_scene(
    store: Store, directory: Path, pause_s: float, spare: Mapping[str, str] | None = None
) -> Iterator[Scene]:
    """Three brokers and a spare one that does not run, three RLMs, and the topics of the story.

    Args:
        pause_s: of each producer, between two batches or transactions.
        spare: further properties of the spare broker.
    """
    of_spare = {**_SETTINGS, **(spare or {})}
    with ExitStack() as cleanup:
        brokers = cleanup.enter_context(
            KafkaCluster(directory, [*[_SETTINGS] * len(NODES), of_spare], spare=1)
        )
        world = cleanup.enter_context(running_world(directory / "services", *store, directory))
        ways = [cleanup.enter_context(TcpProxy(world.rsm.address)) for _ in NODES]
        sidecars = [
            cleanup.enter_context(
                running_sidecar(
                    broker,
                    world,
                    directory / f"rlm-{broker.node_id}",
                    broker.log_dirs,
                    bootstrap_servers=brokers.bootstrap_servers,
                    rsm_address=way.address,
                    further=_RLM_SETTINGS,
                )
            )
            for broker, way in zip(brokers.brokers, ways, strict=False)
        ]
        scene = Scene(brokers, world, sidecars, ways)

        def actors(topic: Topic, assignments: Sequence[Sequence[int]]) -> list[Actor]:
            return [
                Actor(
                    name,
                    topic,
                    Traffic(
                        scene.cluster,
                        topic,
                        SEED,
                        partition=name.partition,
                        kinds=_KINDS,
                        pause_s=pause_s,
                    ),
                    BrokersLog(brokers, name),
                )
                for name in scene.create(topic, assignments)
            ]

        scene.clean = actors(STORY, [(1, 2, 3), (3, 2, 1)])
        # RLM 1 has no log of it: it knows what RLMM and the tier say.
        scene.unclean = actors(ELECTED, [(2, 3)])
        yield scene
