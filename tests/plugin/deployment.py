"""A broker that tiers through the plugin, the services behind it, and how a test looks at them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

from demos.kafka_broker import KafkaBroker, plugin_settings
from services.api.ids import TopicIdPartition
from services.api.offset_queries import SpecialTime
from services.api.segments import RemoteLogSegmentMetadata
from services.local.stack import ServiceProcess
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LocalSegment, list_segments
from tests.harness.broker_answers import NotLeaderError, broker_answers
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import Cluster, Topic
from tests.harness.world import World
from tests.plugin.tiered_partition import DEADLINE_MS, TieredPartition

IMPATIENT = {
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
    "log.segment.delete.delay.ms": "0",
    "remote.log.manager.task.interval.ms": "200",
    "broker.heartbeat.interval.ms": "200",
}
"""So that what a broker does every half minute, or every five, is seen at once. Its session is as
long as ever, though one that was killed is let in again only when its last session has ended: on
a machine that others use, a broker that stands still for a second must not lose its partitions."""

TIERED = {"remote.storage.enable": "true"}


@dataclass(frozen=True)
class Deployment:
    """Nothing here is cached but the address of the broker, which restarts keep."""

    broker: KafkaBroker
    world: World

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.broker.bootstrap_servers)

    def create(self, *topics: Topic) -> list["Partition"]:
        """Make tiered topics; answer all their partitions, once their folders are there."""
        tiered = [replace(topic, config={**TIERED, **topic.config}) for topic in topics]
        self.cluster.create(*tiered)
        expected = sum(topic.partitions for topic in topics)
        return eventually(lambda: self._partitions(tiered, expected))

    def create_one(self, name: str, segment_bytes: int = 8192, **config: str) -> "Partition":
        """A topic of one partition, by a name of its own; underscores stand for dots."""
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        (made,) = self.create(Topic(f"{name}-{uuid4().hex[:8]}", 1, segment_bytes, dotted))
        return made

    def broker_log(self) -> list[str]:
        """What the broker printed since it was last started."""
        return (self.broker.directory / "broker.log").read_text().splitlines()

    def calls_of_rsm(self, method: str) -> int:
        """How many calls of a method RSM has served since it was started, however they ended."""
        return served_calls(self.world.rsm, method)

    def calls_of_rlmm(self, method: str) -> int:
        """The same of RLMM."""
        return served_calls(self.world.rlmm, method)

    def _partitions(self, topics: Sequence[Topic], expected: int) -> list["Partition"]:
        by_name = {topic.name: topic for topic in topics}
        found = find_partitions(self.broker.log_dirs).partitions
        ours = {name: found[name].path for name in sorted(found) if name.topic in by_name}
        if len(ours) < expected:
            return []
        return [Partition(self, by_name[name.topic], name, path) for name, path in ours.items()]


@dataclass(frozen=True)
class Partition(TieredPartition):
    """A tiered partition as the broker's disk, RLMM and the bucket have it."""

    deployment: Deployment
    topic: Topic
    name: TopicIdPartition
    folder: Path

    # --- the broker ---------------------------------------------------------------------------

    def listed(self, time: SpecialTime) -> int:
        """Asked again while the broker does not know yet, or has forgotten, that it leads."""
        address = self.deployment.broker.bootstrap_servers

        def answered() -> list[int]:
            try:
                with broker_answers(address) as broker:
                    return [broker.offsets(self.name, [time])[0][1]]
            except NotLeaderError:
                return []

        (offset,) = eventually(answered, DEADLINE_MS)
        return offset

    def local_segments(self) -> list[LocalSegment]:
        return list(list_segments(self.folder))

    def local_start(self) -> int:
        """The first offset on the disk."""
        return self.local_segments()[0].base_offset

    def rolled(self) -> list[LocalSegment]:
        """The segments on the disk that may be tiered."""
        return [segment for segment in self.local_segments() if segment.is_rolled]

    # --- waiting ------------------------------------------------------------------------------

    def wait_until_logged(self, words: str) -> None:
        """Wait until the broker has printed a line with these words about the partition."""

        def is_logged() -> bool:
            return any(words in line and str(self) in line for line in self.deployment.broker_log())

        eventually(is_logged, DEADLINE_MS)

    def wait_until_ready(self) -> None:
        """Wait until the broker has told RLMM that it leads the partition, and has asked it what
        the tier has: before the first copy, in another thread than the one that tells the client
        of the topic."""
        self.wait_until_logged("Found the highest copiedRemoteOffset")

    def wait_until_tiered(self) -> list[RemoteLogSegmentMetadata]:
        def all_is_there() -> None:
            active = self.local_segments()[-1].base_offset
            ends = [row.end_offset for row in self.finished()]
            assert max(ends, default=-1) == active - 1, f"{self}: {ends}, active from {active}"

        eventually_holds(all_is_there, DEADLINE_MS)
        self.keep_nothing()
        return self.finished()

    def wait_until_only_active_is_local(self) -> None:
        """Wait until the broker has removed every rolled segment, and knows that it has."""

        def rolled_are_gone() -> None:
            assert self.rolled() == [], self
            assert self.listed(SpecialTime.EARLIEST_LOCAL) == self.local_start(), self

        eventually_holds(rolled_are_gone, DEADLINE_MS)

    def wait_until_read_from_memory(self, values: list[bytes]) -> None:
        """Wait until a read of these values needs no look-up in RLMM."""

        def needs_none() -> bool:
            before = self.deployment.calls_of_rlmm("GetRemoteLogSegmentMetadata")
            assert self.values() == values
            return self.deployment.calls_of_rlmm("GetRemoteLogSegmentMetadata") == before

        eventually(needs_none, DEADLINE_MS)

    # --- what always holds --------------------------------------------------------------------

    def assert_nothing_left_before_it_was_copied(self) -> None:
        """From the log start on every offset is in a FINISHED segment or on the disk.

        The disk is read first, for what leaves it between the two readings is no fault.
        """
        local_start = self.local_start()
        covered = self.listed(SpecialTime.EARLIEST)
        for row in self.finished():
            if row.start_offset <= covered:
                covered = max(covered, row.end_offset + 1)
        assert covered >= local_start, f"{self}: a gap from {covered} to {local_start}"


@contextmanager
def tiering_broker(
    jar: Path,
    world: World,
    directory: Path,
    *,
    rsm: str | None = None,
    settings: Mapping[str, str] | None = None,
    version: str | None = None,
) -> Iterator[Deployment]:
    """Run a broker that tiers through the plugin.

    Args:
        rsm: the endpoint of RSM, if the broker does not call the world's.
        settings: further ones.
    """
    own = plugin_settings(jar, rsm or world.rsm.address, world.rlmm.address)
    given = {**IMPATIENT, **own, **(settings or {})}
    with kafka_broker(directory, given, version=version) as broker:
        yield Deployment(broker, world)


def served_calls(service: ServiceProcess, method: str) -> int:
    """Return how many calls of a method a service has served since it was started."""
    with urlopen(f"http://{service.announcement.metrics}/metrics", timeout=10) as page:
        text = page.read().decode()
    line = rf'^sediment_rpc_seconds_count{{.*method="[^"]*/{method}".*}} (.+)$'
    return sum(int(float(count)) for count in re.findall(line, text, re.MULTILINE))
