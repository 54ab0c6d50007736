"""Check a whole rolled segment, or a tail of one, before it is registered."""

from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from services.api.lineage import Lineage, checkpoint_text
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.remote_storage_manager import SegmentFile
from services.api.segments import MAX_SEGMENT_SIZE_IN_BYTES, SegmentLeaderEpoch
from services.api.validation import INT32_MAX
from services.records.batches import Batch, BatchError, FileWindow, walk_batches
from services.rlm.kafka_log.indexes import SegmentIndexes
from services.rlm.kafka_log.partition_dir import (
    LEADER_EPOCH_CHECKPOINT,
    LocalSegment,
    LogFileError,
    list_indexes,
    read_producer_snapshot,
    reading_segment,
    rolled_log_bytes,
)
from services.rlm.kafka_log.transactions import ProducerReplay, transactions_at


@dataclass(frozen=True, slots=True)
class InspectedSegment:
    """The rolled segment, or tail, that passed all checks and may be copied.

    Attributes:
        first_position, size_bytes: where it lies in the segment's log file.
        crc32c: of these bytes.
        max_timestamp_ms: the largest record timestamp; the log file's modification time if no
            record has one (LogSegment.largestTimestamp).
        side_files: the bytes of all other files of the copy; without TRANSACTION if no transaction
            was aborted in the segment and the broker has no such file.
        rebuilt: indexes and a snapshot that were rebuilt from the log, as INDEX_REBUILT.
    """

    segment: LocalSegment
    size_bytes: int
    crc32c: int
    max_timestamp_ms: int
    leader_epochs: tuple[SegmentLeaderEpoch, ...]
    side_files: dict[SegmentFile, bytes]
    rebuilt: tuple[Problem, ...]
    start_offset: int
    end_offset: int
    first_position: int = 0
    is_tail: bool = False

    @property
    def txn_idx_empty(self) -> bool:
        return not self.side_files.get(SegmentFile.TRANSACTION)


def inspect(
    segments: Sequence[LocalSegment],
    segment: LocalSegment,
    lineage: Lineage,
    log_start_offset: int,
    *,
    may_have_holes: bool = False,
    producers: ProducerReplay | None = None,
) -> InspectedSegment:
    """Check a whole rolled segment and return its files.

    A missing or wrong index is rebuilt, as Kafka does, and a missing or damaged producer snapshot
    is replayed. A log that ends before the next
    segment begins was compacted, or cut between two batches: then an index has an offset behind
    the log's end, or belongs to a segment without a log in the hole.

    Args:
        segments: the partition's, for the transactions that are open where `segment` begins.
        may_have_holes: the topic was perhaps compacted: a hole without signs of a cut is no damage.
        producers: of this log; pass it again for later segments.
        log_start_offset: offsets below it get no leader epoch, as in Kafka: they are not readable.

    Raises:
        LogFileError: TRUNCATED_BATCH, CORRUPT_BATCH, OLD_MESSAGE_FORMAT, LEADER_EPOCHS_MISSING,
            PRODUCER_SNAPSHOT_MISSING, UNREADABLE.
    """
    start, end = segment.base_offset, segment.end_offset
    epochs = leader_epochs(segment, start, end, lineage, log_start_offset)
    snapshot, replayed = _producer_snapshot(
        segment, lineage, segments, producers or ProducerReplay()
    )
    indexes = SegmentIndexes(segment, transactions_at(segments, segment.base_offset))
    walk = _Walk(segment, indexes, may_have_holes)
    walk.run()
    index_files, rebuilt = indexes.finish()
    history = checkpoint_text(lineage.before(end + 1).entries)
    side_files = index_files | {
        SegmentFile.PRODUCER_SNAPSHOT: snapshot,
        SegmentFile.LEADER_EPOCH: history.encode("ascii"),
    }
    return InspectedSegment(
        segment,
        walk.size_bytes,
        walk.crc,
        _largest_timestamp_ms(indexes, walk),
        epochs,
        side_files,
        (*rebuilt, *replayed),
        start,
        end,
    )


def _largest_timestamp_ms(indexes: SegmentIndexes, walk: "_Walk") -> int:
    known = indexes.max_timestamp_ms >= 0
    return indexes.max_timestamp_ms if known else walk.last_modified_ms


def leader_epochs(
    segment: LocalSegment,
    start_offset: int,
    end_offset: int,
    lineage: Lineage,
    log_start_offset: int,
) -> tuple[SegmentLeaderEpoch, ...]:
    """Return the leader epochs of offsets of a segment; raises as `inspect`."""
    first = max(start_offset, log_start_offset)
    epochs = lineage.between(first, end_offset + 1)
    if not epochs or epochs[0].start_offset > first:
        path = segment.directory / LEADER_EPOCH_CHECKPOINT
        kind = ProblemKind.LEADER_EPOCHS_MISSING
        raise LogFileError(kind, path, f"no leader epoch for offset {first}", first)
    return epochs


def _producer_snapshot(
    segment: LocalSegment,
    lineage: Lineage,
    segments: Sequence[LocalSegment],
    producers: ProducerReplay,
) -> tuple[bytes, tuple[Problem, ...]]:
    """Return the snapshot at the segment's end, and an INDEX_REBUILT if it was damaged.

    A missing one is no problem: a broker before Kafka 2.8 kept the newest alone.
    """
    path = segment.producer_snapshot_path
    try:
        return read_producer_snapshot(path)[0], ()
    except LogFileError as e:
        if e.kind is ProblemKind.PRODUCER_SNAPSHOT_MISSING:
            replayed = producers.snapshot_at(segments, lineage, segment.end_offset + 1)
            if replayed is not None:
                message = f"{e.reason}; it was replayed from the log"
                problem = Problem(ProblemKind.INDEX_REBUILT, str(path), message)
                return replayed, (problem,) if path.exists() else ()
        raise LogFileError(e.kind, e.path, e.reason, segment.base_offset) from e


class _Walk:
    """Read and check the log file once."""

    def __init__(
        self, segment: LocalSegment, indexes: SegmentIndexes, may_have_holes: bool
    ) -> None:
        self._segment = segment
        self._indexes = indexes
        self._may_have_holes = may_have_holes
        self.size_bytes = 0
        self.crc = 0
        self.last_modified_ms = 0
        self._last_offset = segment.base_offset - 1

    def run(self) -> None:
        path = self._segment.log_path
        try:
            with reading_segment(path), FileWindow(path) as window:
                self.size_bytes = rolled_log_bytes(self._segment)
                self.last_modified_ms = window.last_modified_ms
                self._check_size()
                base = self._segment.base_offset
                for batch in walk_batches(window, 0, self.size_bytes, base, verify=True):
                    self._observe(batch)
        except BatchError as e:
            raise LogFileError(e.kind, path, str(e), e.offset) from e
        self._check_end()

    def _check_size(self) -> None:
        if self.size_bytes > MAX_SEGMENT_SIZE_IN_BYTES:
            reason = f"{self.size_bytes} bytes; no segment of Kafka is over 2^31-1"
            raise LogFileError(ProblemKind.CORRUPT_BATCH, self._segment.log_path, reason)

    def _observe(self, batch: Batch) -> None:
        if batch.last_offset - self._segment.base_offset > INT32_MAX:
            reason = (
                f"offset {batch.last_offset} in the segment that begins at "
                f"{self._segment.base_offset}; no segment of Kafka has over 2^31 offsets"
            )
            kind = ProblemKind.CORRUPT_BATCH
            raise LogFileError(kind, self._segment.log_path, reason, batch.base_offset)
        self.crc = crc32c(batch.data, self.crc)
        self._indexes.observe(batch)
        self._last_offset = batch.last_offset

    def _check_end(self) -> None:
        segment, found = self._segment, self._last_offset + 1
        if found > segment.end_offset + 1:
            kind = ProblemKind.CORRUPT_BATCH
            reason = f"ends at offset {found - 1}, the next segment begins at or below it"
            raise LogFileError(kind, segment.log_path, reason, found - 1)
        if found <= segment.end_offset and (cut := self._cut(found)):
            reason = (
                f"ends before offset {found}, the next segment begins at {segment.end_offset + 1}: "
                f"{cut}"
            )
            raise LogFileError(ProblemKind.TRUNCATED_BATCH, segment.log_path, reason, found)

    def _cut(self, position: int) -> str:
        """Return why the offsets from `position` on are missing; "" if they were compacted away."""
        if not self._may_have_holes:
            return (
                "records are missing, or the topic is or was compacted; with "
                "RLM_PARTITION_SOURCE=poller RLM reads its cleanup.policy, and copies what was "
                "compacted before it became delete"
            )
        segment = self._segment
        indexed = [self._indexes.last_indexed_offset]
        indexed += [base for base in list_indexes(segment.directory) if base > segment.base_offset]
        lost = [offset for offset in indexed if position <= offset <= segment.end_offset]
        return f"records are missing, an index has offset {lost[0]}" if lost else ""
