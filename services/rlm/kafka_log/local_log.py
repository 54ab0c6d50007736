"""Read one partition's log on the local disk."""

import os
import threading
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, replace

from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.remote_log_manager import Problem, ProblemKind
from services.common.retry import replan
from services.rlm.kafka_log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    read_log_start_offsets,
    read_partition_metadata,
)
from services.rlm.kafka_log.log_dir import PartitionDir
from services.rlm.kafka_log.partition_dir import (
    LEADER_EPOCH_CHECKPOINT,
    CachedFile,
    LocalSegment,
    LogFileError,
    SegmentVanishedError,
    is_settled,
    list_segments,
    read_lineage,
    reading,
    reading_segment,
)
from services.rlm.kafka_log.transactions import LogTail


@dataclass(frozen=True, slots=True)
class LocalLog:
    """The state of a partition's log on the disk, at one moment.

    Attributes:
        segments: at least one; the last one is active, and has the size up to its last whole batch.
        lineage: empty if there is a `lineage_problem`.
        log_start_offset: the first offset that may be read here.
        last_stable_offset: every lower record is settled: all in-sync replicas have it, and no open
            transaction began before it. Only settled records are copied.
        log_end_offset: the offset of the next record.
        removed_before_offset: the log start of the broker's checkpoint, which it writes only if
            records were deleted on request (DeleteRecords) and some are still in the first segment.
        high_watermark: the offset after the last record that all in-sync replicas have, as the
            broker last wrote it; the log's end if no broker has written one.
        awaited_log_start_offset: where the leader epochs begin, if the broker cut them there since
            it last wrote its checkpoint: it deletes records on request, which its next one says; 0
            if it does not.
        high_watermark_problem: why the high watermark is unknown; then it is the log's start.
    """

    segments: tuple[LocalSegment, ...]
    lineage: Lineage
    lineage_problem: Problem | None
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    removed_before_offset: int = 0
    high_watermark: int = 0
    high_watermark_problem: Problem | None = None
    awaited_log_start_offset: int = 0

    @property
    def rolled(self) -> tuple[LocalSegment, ...]:
        return self.segments[:-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def from_offset(self, log_start_offset: int) -> "LocalLog":
        """Return the log with its start raised to the tier's.

        Lower offsets are neither read nor copied, though the broker still has them.

        Source: UnifiedLog.maybeIncrementLogStartOffset, which moves the local log start too.
        """
        start = min(max(self.log_start_offset, log_start_offset), self.log_end_offset)
        return replace(self, log_start_offset=start)

    def segment_for(self, offset: int) -> LocalSegment | None:
        """Find the segment that contains `offset`; None if there is none here."""
        if not self.log_start_offset <= offset < self.log_end_offset:
            return None
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset)
        return self.segments[at - 1] if at else None


@dataclass(frozen=True, slots=True)
class _FolderFingerprint:
    """The state of a folder by which changes are detected.

    Attributes:
        inode: differs if another topic's folder has the name.
        mtime_ns: changes with the names in the folder.
    """

    inode: int
    mtime_ns: int


class LocalPartition:
    """Read a partition's folder repeatedly, each time only the new data. Thread-safe.

    If the topic was deleted and created again, the path has the log of another topic id, which does
    not belong to this partition (KIP-516).
    """

    def __init__(self, folder: PartitionDir) -> None:
        self.folder = folder
        self.trimmed_before_offset = 0
        """Where RLM let the broker begin the log; the broker's checkpoint has that later."""
        self._lock = threading.Lock()
        self._tail = LogTail()
        self._segments: tuple[LocalSegment, ...] = ()
        self._listed_as: _FolderFingerprint | None = None
        self._checkpoint = CachedFile(
            folder.path / LEADER_EPOCH_CHECKPOINT, lambda: read_lineage(folder.path)
        )
        self._log: LocalLog | None = None

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.folder.topic_id_partition

    @property
    def cached(self) -> LocalLog | None:
        """Return the log as it was last read; None if it was not read yet."""
        return self._log

    def read(self) -> LocalLog | None:
        """Read the log's current state.

        The result is the same object as long as nothing changes, and None if no log is left.

        Raises:
            LogFileError: UNREADABLE; PARTITION_METADATA_MISSING, PARTITION_METADATA_INVALID if the
                topic id of the log is unknown.
            SegmentVanishedError: if segments vanish faster than they can be read.
        """
        with self._lock, suppress(FileNotFoundError):
            return replan(self._read, lambda: True, first=False, stale=SegmentVanishedError)
        return None

    def require_present(self) -> None:
        """Check that the folder is still the partition's; if so, all earlier reads were of it.

        Raises:
            FileNotFoundError: if the folder is missing, or has the log of another topic id.
            LogFileError: UNREADABLE, PARTITION_METADATA_MISSING, PARTITION_METADATA_INVALID.
        """
        path, name = self.folder.path, self.topic_id_partition
        try:
            found_here = read_partition_metadata(path, name.topic, name.partition)
        except LogFileError as e:
            if e.kind is ProblemKind.PARTITION_METADATA_MISSING and not path.exists():
                raise FileNotFoundError(str(path)) from e
            raise
        if found_here != name:
            raise FileNotFoundError(f"{path}: now a log of topic id {found_here.topic_id}")

    def is_present(self) -> bool:
        """Return whether require_present succeeds; it does for a folder that cannot be read."""
        try:
            with suppress(LogFileError):
                self.require_present()
        except FileNotFoundError:
            return False
        return True

    def _read(self, is_retry: bool) -> LocalLog | None:
        if is_retry:
            self._listed_as = None
        fingerprint = self._fingerprint()
        segments = self._list(fingerprint)
        if not segments:
            return None
        end_before = self._tail.log_end_offset
        self._tail.follow(segments)
        is_empty = self._tail.log_end_offset == segments[0].base_offset
        lineage, problem = self._lineage(len(segments) - 1, is_empty)
        if self._was_cut(segments[-1].base_offset, end_before, lineage):
            self._tail = LogTail()
            self._tail.follow(segments)
        removed_before, awaited = self.folder.log_start_offset or 0, 0
        epochs_begin_at = lineage.entries[0].start_offset if lineage.entries else 0
        if epochs_begin_at >= self.trimmed_before_offset:  # Else it is another log by now.
            removed_before = max(removed_before, self.trimmed_before_offset)
        if epochs_begin_at > max(segments[0].base_offset, removed_before):
            removed_before, is_awaited = self._log_start_now(removed_before)
            awaited = epochs_begin_at if is_awaited and epochs_begin_at > removed_before else 0
        end = self._tail.log_end_offset
        start = min(max(segments[0].base_offset, removed_before), end)
        high_watermark, unknown = self._high_watermark(start, end, len(segments) - 1)
        last_stable_offset = self._tail.last_stable_offset(segments, high_watermark)
        if self._fingerprint().inode != fingerprint.inode:
            raise SegmentVanishedError(f"{self.folder.path}: replaced during a read")
        log = LocalLog(
            (*segments[:-1], segments[-1].ending_at(self._tail.end_position)),
            lineage,
            problem,
            start,
            last_stable_offset,
            end,
            removed_before,
            high_watermark,
            unknown,
            awaited,
        )
        if self._log is None or self._log != log:
            self._log = log
        return self._log

    def _fingerprint(self) -> _FolderFingerprint:
        with reading(self.folder.path):
            status = os.stat(self.folder.path)
        return _FolderFingerprint(status.st_ino, status.st_mtime_ns)

    def _list(self, fingerprint: _FolderFingerprint) -> tuple[LocalSegment, ...]:
        """List the segments; in an unchanged folder only the active log is measured."""
        if fingerprint == self._listed_as and self._segments:
            active = self._segments[-1]
            path = active.log_path
            with reading_segment(path):
                size = os.stat(path).st_size
            if size != active.size_bytes:
                now = LocalSegment(active.directory, active.base_offset, size, None)
                self._segments = (*self._segments[:-1], now)
            return self._segments
        settled = is_settled(fingerprint.mtime_ns)
        self.require_present()
        self._segments = list_segments(self.folder.path)
        self._listed_as = fingerprint if settled else None
        return self._segments

    def _was_cut(self, base_offset: int, end_before: int, lineage: Lineage) -> bool:
        """Return whether the active segment was truncated below its end at the last read.

        The segment may have grown past that end since; a later leader wrote the records after the
        cut.
        """
        if self._log is None or lineage == self._log.lineage:
            return False
        before = self._log.lineage.between(base_offset, end_before)
        return lineage.between(base_offset, end_before) != before

    def _high_watermark(
        self, start: int, end: int, rolled_segments: int
    ) -> tuple[int, Problem | None]:
        """Return the high watermark, bounded to the log, and the problem if it is unknown.

        Source: UnifiedLog.updateHighWatermark. An unknown one is the log's start
        (Partition.createLog).
        """
        name = self.folder.topic_id_partition
        if start == end:
            return end, None
        try:
            written = self.folder.high_watermarks.of(name.topic, name.partition)
        except LogFileError as e:
            return start, e.problem(rolled_segments)
        return (end if written is None else min(max(written, start), end)), None

    def _log_start_now(self, removed_before_offset: int) -> tuple[int, bool]:
        """Read the broker's checkpoint now; return the log start, and whether it may be old.

        DeleteRecords cuts the leader epochs at once. The broker writes all log starts once a minute
        (log.flush.start.offset.checkpoint.interval.ms), and the first time half a minute after it
        first started.
        """
        name, log_dir = self.topic_id_partition, self.folder.path.parent
        try:
            cut_ns = os.stat(self.folder.path / LEADER_EPOCH_CHECKPOINT).st_mtime_ns
            # In this order: what is read may be newer than its time.
            written_ns = os.stat(log_dir / LOG_START_OFFSETS).st_mtime_ns
            start = read_log_start_offsets(log_dir).get((name.topic, name.partition), 0)
        except LogFileError:
            return removed_before_offset, False
        except FileNotFoundError:
            return removed_before_offset, (log_dir / HIGH_WATERMARKS).exists()
        return max(removed_before_offset, start), written_ns <= cut_ns

    def _lineage(self, rolled_segments: int, is_empty: bool) -> tuple[Lineage, Problem | None]:
        try:
            lineage = self._checkpoint.value()
            if lineage.entries or is_empty:
                return lineage, None
            path = self.folder.path / LEADER_EPOCH_CHECKPOINT
            raise LogFileError(ProblemKind.LEADER_EPOCHS_MISSING, path, "no leader epochs in it")
        except LogFileError as e:
            return Lineage(), e.problem(rolled_segments)


def log_end_problem(local: LocalPartition, log: LocalLog, log_start_offset: int) -> Problem | None:
    """Describe why the log may not be copied, if it ends below the tier's log start.

    A log start is raised only to offsets that all in-sync replicas had reached. A log that ends
    below it has lost its tail, or is a new one on an empty disk: its offsets have other records
    than before. Kafka (LogLoader) would delete such a log and start again at the log start. Here
    the files are the broker's, so an operator decides.
    """
    if log.log_end_offset >= log_start_offset:
        return None
    # The log start may be newer than the read, and the log may have grown up to it since.
    now = local.read()
    if now is None or now.log_end_offset >= log_start_offset:
        return None
    reason = (
        f"the log ends at offset {now.log_end_offset}, below the tier's log start "
        f"{log_start_offset}: it is not the log that was copied (a replaced disk, a lost tail, an "
        "unclean leader election), so RLM neither copies nor serves it; restore the partition's "
        "log from a replica or a backup. What producers have written to it since is on the brokers "
        "only: move it to another topic before their retention deletes it, and only then delete "
        "this topic and create it again"
    )
    kind = ProblemKind.LOG_END_BELOW_LOG_START
    return Problem(
        kind, str(local.folder.path), reason, now.segments[0].base_offset, len(now.rolled)
    )
