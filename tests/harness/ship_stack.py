"""Provide RSM on files and RLMM on PostgreSQL in this process, without gRPC, to ship and read a
log.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    IsolationLevel,
    PartitionDescription,
    RemoteLogManager,
    all_descriptions,
)
from services.api.remote_log_metadata_manager import all_segments
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.retry import Backoff
from services.rlm.copy.report import Progress as ShipProgress
from services.rlm.copy.ship import ShipReport, ShipSettings, ship
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from tests.harness.eventually import eventually
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles

BUNDLED = Path(__file__).parents[1] / "data" / "kafka-log"
EVERYTHING = 64 * 1024 * 1024
ONE_TRY = ShipSettings(threads=2, retry_for_s=0.0)
SOME_TRIES = ShipSettings(threads=2, retry_for_s=0.5, backoff=Backoff(initial_s=0.1, max_s=0.1))
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass
class Stack:
    """The two managers, the folder in which RSM keeps its objects, and a broker's log directory."""

    rlmm: SqlRemoteLogMetadataManager
    rsm: ObjectRemoteStorageManager
    objects: Path
    log_dir: Path
    database_url: str = ""
    readers: list[BrokerRemoteLogManager] = field(default_factory=list)
    files: PartitionFiles = field(init=False)
    """The partition that a test file has written into the log directory."""

    def ship(self, log_dir: Path | None = None, settings: ShipSettings = ONE_TRY) -> ShipReport:
        return ship([log_dir or self.log_dir], self.rsm, self.rlmm, settings)

    def rlm(
        self, *log_dirs: Path, rsm: Any = None, rlmm: Any = None, limits: RlmLimits | None = None
    ) -> BrokerRemoteLogManager:
        """Make an RLM over the log directories; without any, over the stack's own."""
        return self._rlm(log_dirs or (self.log_dir,), rsm, rlmm, limits)

    def tier_reader(
        self, rsm: Any = None, rlmm: Any = None, limits: RlmLimits | None = None
    ) -> BrokerRemoteLogManager:
        """Make an RLM without a log, which reads the tier alone."""
        return self._rlm((), rsm, rlmm, limits)

    def _rlm(
        self, log_dirs: tuple[Path, ...], rsm: Any, rlmm: Any, limits: RlmLimits | None
    ) -> BrokerRemoteLogManager:
        rlm = BrokerRemoteLogManager(log_dirs, rsm or self.rsm, rlmm or self.rlmm, limits)
        self.readers.append(rlm)
        return rlm

    def segments(self, name: TopicIdPartition = NAME) -> list[RemoteLogSegmentMetadata]:
        return list(all_segments(self.rlmm, name))

    def ranges(self, name: TopicIdPartition = NAME) -> list[tuple[int, int]]:
        """Return the ranges of the finished segments; fail if there is any other segment."""
        found = self.segments(name)
        assert {segment.state for segment in found} <= {FINISHED}
        return [(segment.start_offset, segment.end_offset) for segment in found]

    def object_of(self, segment: RemoteLogSegmentMetadata) -> Path:
        (path,) = self.objects.rglob(f"*{segment.remote_log_segment_id.id.hex}*.log")
        return path

    def keys(self) -> list[Path]:
        return [path for path in self.objects.rglob("*") if path.is_file()]


@contextmanager
def running_stack(database_url: str, objects: Path, log_dir: Path | None = None) -> Iterator[Stack]:
    engine = create_database_engine(database_url)
    objects.mkdir()
    buffers = PartBuffers(4, 8 * 1024 * 1024, 10_000)
    locations = Locations(Location(1, FilesystemStorage(objects), ""))
    rsm = ObjectRemoteStorageManager(locations, buffers, 2)
    log_dir = log_dir or objects.parent / "logs"
    stack = Stack(SqlRemoteLogMetadataManager(engine), rsm, objects, log_dir, database_url)
    yield stack
    # A read that was late for its request goes on; it must not outlast its database.
    eventually(lambda: all(rlm.tier_calls.queue.idle_ratio == 1 for rlm in stack.readers))
    eventually(lambda: all(rlm.tier_calls.is_idle for rlm in stack.readers))
    for rlm in stack.readers:
        rlm.tier_calls.close()
    rsm.close()
    engine.dispose()


def bundled_name(topic: str, partition: int = 0) -> TopicIdPartition:
    found = find_partitions([BUNDLED]).partitions
    return next(n for n in found if (n.topic, n.partition) == (topic, partition))


_LATE_MS = 1


def fetch(
    rlm: RemoteLogManager,
    offset: int,
    name: TopicIdPartition = NAME,
    max_bytes: int = EVERYTHING,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> list[FetchPart]:
    """Fetch, and again as long as the store is slower than RLM waits: the machine may be busy."""
    while True:
        parts = fetch_once(rlm, offset, name, max_bytes, isolation)
        first = parts[0]
        if first.record_batches or first.throttle_time_ms != _LATE_MS:
            return parts


def fetch_once(
    rlm: RemoteLogManager,
    offset: int,
    name: TopicIdPartition = NAME,
    max_bytes: int = EVERYTHING,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> list[FetchPart]:
    wanted = FetchPartition(name, offset, max_bytes)
    return list(rlm.fetch(FetchRequest((wanted,), EVERYTHING, isolation)))


def read(rlm: RemoteLogManager, offset: int, name: TopicIdPartition = NAME) -> bytes | FetchError:
    parts = fetch(rlm, offset, name)
    if parts[0].error is not FetchError.NONE:
        return parts[0].error
    return b"".join(part.record_batches for part in parts)


def description(rlm: BrokerRemoteLogManager, topic: str = "t") -> PartitionDescription:
    (found,) = all_descriptions(rlm, [topic])
    return found


def lose_rolled_segments(log_dir: Path) -> None:
    for folder in log_dir.iterdir():
        if folder.is_dir():
            for log in sorted(folder.glob("*.log"))[:-1]:
                for file in folder.glob(f"{log.stem}.*"):
                    file.unlink()


def bytes_of(folder: Path) -> bytes:
    return b"".join(log.read_bytes() for log in sorted(folder.glob("*.log")))


@dataclass
class Counting(ShipProgress):
    """Records the progress that a ship reports."""

    planned_bytes: int = 0
    sent_bytes: int = 0
    copied_segments: int = 0

    def planned(self, name: TopicIdPartition, segments: int, size_bytes: int) -> None:
        self.planned_bytes += size_bytes

    def sent(self, name: TopicIdPartition, size_bytes: int) -> None:
        self.sent_bytes += size_bytes

    def copied(self, name: TopicIdPartition, start_offset: int, size_bytes: int) -> None:
        self.copied_segments += 1


def names_of(partitions: Sequence[PartitionDescription]) -> list[tuple[str, int]]:
    found = (p.topic_id_partition for p in partitions)
    return [(name.topic, name.partition) for name in found]
