"""A live broker beside RSM and RLMM, and how a test looks at both."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demos.kafka_broker import KafkaBroker
from demos.stage import link_log_dir, unlink_segments
from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import PartitionDescription
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlm.copy.ship import ShipOutcome, ShipReport, ship
from services.rlm.kafka_log.checkpoints import HIGH_WATERMARKS, read_offset_checkpoint
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import (
    LEADER_EPOCH_CHECKPOINT,
    LocalSegment,
    list_segments,
    read_side_file,
)
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.eventually import eventually
from tests.harness.kafka_client import NOW, Cluster, Offsets, Record, Topic, send_batch
from tests.harness.world import World

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
NO_END = 2**62
IMPATIENT = {
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
    "log.cleaner.backoff.ms": "200",
    "log.segment.delete.delay.ms": "0",
    "log.flush.start.offset.checkpoint.interval.ms": "200",
    "replica.high.watermark.checkpoint.interval.ms": "200",
}
"""A broker looks for something to do several times a second."""
Range = tuple[int, int]


@dataclass(frozen=True)
class TieredBroker:
    """A running broker, and clients of the processes that keep its tier."""

    broker: KafkaBroker
    world: World
    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    cluster: Cluster

    def create(self, topic: Topic) -> tuple[TopicIdPartition, Path]:
        """Make a topic of one partition; answer its name and its folder, once that is there and
        the broker has written down that it leads the partition."""
        self.cluster.create(topic)
        ((name, folder),) = eventually(lambda: self.partitions(topic)).items()
        eventually(lambda: read_side_file(folder / LEADER_EPOCH_CHECKPOINT))
        return name, folder

    def create_shipped(self, topic: Topic) -> tuple[TopicIdPartition, Path]:
        """Make a topic of one partition, as `create`, and ship a few segments of it."""
        name, folder = self.create(topic)
        produce_segments(self.cluster, topic)
        self.ship(topic)
        return name, folder

    def partitions(self, *topics: Topic) -> dict[TopicIdPartition, Path]:
        """The folders of these topics' partitions."""
        names = {topic.name for topic in topics}
        found = find_partitions(self.broker.log_dirs).partitions
        return {name: p.path for name, p in found.items() if name.topic in names}

    def ship(self, *topics: Topic) -> ShipReport:
        """Ship these topics from the directories of the running broker, once it has written down
        how far they have come; nothing may be amiss."""
        for name in self.partitions(*topics):
            self.wait_for_checkpoint(name)
        names = [topic.name for topic in topics]
        report = ship(self.broker.log_dirs, self.rsm, self.rlmm, topics=names)
        assert report.outcome is ShipOutcome.DONE, report
        assert [p for partition in report.partitions for p in partition.problems] == []
        return report

    def finished(self, name: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """The partition's segments in the tier; fails if any is not finished."""
        found = list(all_segments(self.rlmm, name))
        assert {segment.state for segment in found} <= {FINISHED}
        return found

    def objects(self) -> dict[str, tuple[str, str]]:
        """Every object of the tier: key to ETag and time of writing."""
        listed = self.world.s3.client().list_objects(self.world.bucket, recursive=True)
        return {str(o.object_name): (str(o.etag), str(o.last_modified)) for o in listed}

    def manager(self, *log_dirs: Path) -> BrokerRemoteLogManager:
        """RLM over these directories; it serves and describes, and copies nothing."""
        return BrokerRemoteLogManager(log_dirs, self.rsm, self.rlmm)

    def describe(self, name: TopicIdPartition) -> PartitionDescription:
        """What RLM sees of a partition in the broker's own directories."""
        page = self.manager(*self.broker.log_dirs).describe_partitions([name.topic])
        return next(d for d in page.partitions if d.topic_id_partition == name)

    def wait_for_checkpoint(self, name: TopicIdPartition) -> None:
        """Return when the broker has written down how far the partition has come."""
        end = self.cluster.offsets(name.topic, name.partition).log_end_offset
        eventually(lambda: self._is_written_down(name, end))

    def _is_written_down(self, name: TopicIdPartition, offset: int) -> bool:
        found = find_partitions(self.broker.log_dirs).partitions[name]
        written = read_offset_checkpoint(found.path.parent / HIGH_WATERMARKS) or {}
        return written.get((name.topic, name.partition), -1) >= offset

    def bounds(self, name: TopicIdPartition) -> Offsets:
        """What RLM makes of the broker's files, once it has written down how far it has come."""
        self.wait_for_checkpoint(name)
        seen = self.describe(name)
        return Offsets(seen.log_start_offset, seen.last_stable_offset, seen.log_end_offset)

    def index(self, segment: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """An index of a remote segment; empty where it has none."""
        try:
            return b"".join(self.rsm.fetch_index(segment, index_type))
        except RemoteResourceNotFoundError:
            return b""

    def without_rolled_segments(self, scratch: Path) -> BrokerRemoteLogManager:
        """RLM over links to the broker's files, of which those of rolled segments are gone."""
        links = [scratch / log_dir.name for log_dir in self.broker.log_dirs]
        for log_dir, target in zip(self.broker.log_dirs, links, strict=True):
            link_log_dir(log_dir, target)
        for found in find_partitions(links).partitions.values():
            unlink_segments(found.path, NO_END)
        return self.manager(*links)


def produce_segments(cluster: Cluster, topic: Topic, records: int = 10) -> None:
    """Records of now into partition 0, three to a segment."""
    with cluster.idempotent("none") as producer:
        for number in range(records):
            value = f"{number:04}".encode() * 600
            send_batch(producer, topic, 0, [Record(b"key", value, NOW)])


def rolled(folder: Path) -> list[LocalSegment]:
    return [segment for segment in list_segments(folder) if segment.is_rolled]


def ranges_on_disk(folder: Path, below_offset: int = NO_END) -> list[Range]:
    """The rolled segments that lie below an offset as a whole."""
    found = ((s.base_offset, s.end_offset) for s in rolled(folder))
    return [(first, last) for first, last in found if last < below_offset]


def ranges_in_tier(segments: list[RemoteLogSegmentMetadata]) -> list[Range]:
    return [(segment.start_offset, segment.end_offset) for segment in segments]


@contextmanager
def tiered(broker: KafkaBroker, world: World) -> Iterator[TieredBroker]:
    with world.storage() as rsm, world.metadata() as rlmm:
        yield TieredBroker(broker, world, rsm, rlmm, Cluster(broker.bootstrap_servers))
