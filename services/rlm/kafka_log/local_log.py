"""One partition's log on the local disk, as it is at one moment."""

import os
import threading
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path

from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.remote_log_manager import Problem, ProblemKind
from services.rlm.kafka_log.checkpoints import read_partition_metadata
from services.rlm.kafka_log.errors import LogFileError, SegmentVanishedError
from services.rlm.kafka_log.log_dir import PartitionDir
from services.rlm.kafka_log.partition_dir import (
    LEADER_EPOCH_CHECKPOINT,
    LocalSegment,
    Looks,
    is_settled,
    list_segments,
    looks_of,
    read_lineage,
    reading,
    reading_segment,
)
from services.rlm.kafka_log.transactions import LogTail

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class LocalLog:
    """What the disk has of a partition.

    Attributes:
        segments: at least one; the last one is active.
        lineage: empty where `lineage_problem` says why.
        log_start_offset: the first offset that may be read here.
        last_stable_offset: below it every record is settled: all in-sync replicas have it, and no
            transaction that is open began before it. Nothing else is copied.
        log_end_offset: the offset that the next record will get.
        active_end_position: where the last whole batch of the active segment ends.
        removed_before_offset: the log start that the broker wrote down; it does so only where
            records were deleted on request (DeleteRecords) and some are still in the first segment.
        high_watermark: the offset behind the last record that all in-sync replicas have, as the
            broker last wrote it down; the log's end where no broker has.
        high_watermark_problem: why it is not known, and is taken for the log's start.
    """

    segments: tuple[LocalSegment, ...]
    lineage: Lineage
    lineage_problem: Problem | None
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    active_end_position: int
    removed_before_offset: int = 0
    high_watermark: int = 0
    high_watermark_problem: Problem | None = None

    @property
    def rolled(self) -> tuple[LocalSegment, ...]:
        return self.segments[:-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def from_offset(self, log_start_offset: int) -> "LocalLog":
        """This log as the tier's log start bounds it: what lies below is neither read nor copied,
        though the broker still has it.

        Source: UnifiedLog.maybeIncrementLogStartOffset, which takes the local log start along.
        """
        start = min(max(self.log_start_offset, log_start_offset), self.log_end_offset)
        return replace(self, log_start_offset=start)

    def segment_for(self, offset: int) -> LocalSegment | None:
        """The segment in whose range `offset` lies; None where it is not here."""
        if not self.log_start_offset <= offset < self.log_end_offset:
            return None
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset)
        return self.segments[at - 1] if at else None


@dataclass(frozen=True, slots=True)
class _FolderLooks:
    """
    Attributes:
        inode: another one where another topic's folder has its name.
        mtime_ns: moves with the names in it.
    """

    inode: int
    mtime_ns: int


class LocalPartition:
    """Looks at a partition's folder again and again, reading only what is new. Thread-safe.

    What lies at its path may be the log of another topic by now, made anew under the name: that is
    none of this partition's (KIP-516).
    """

    def __init__(self, found: PartitionDir) -> None:
        self.found = found
        self._lock = threading.Lock()
        self._tail = LogTail()
        self._segments: tuple[LocalSegment, ...] = ()
        self._listed_as: _FolderLooks | None = None
        self._checkpoint = _Checkpoint(found.path)
        self._log: LocalLog | None = None

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.found.topic_id_partition

    @property
    def last_seen(self) -> LocalLog | None:
        """The log as it was looked at last; None: it was not yet."""
        return self._log

    def look(self) -> LocalLog | None:
        """The log as it is now, the same object for as long as nothing changes; None where nothing
        is left of it.

        Raises:
            LogFileError: UNREADABLE; PARTITION_METADATA_MISSING, PARTITION_METADATA_INVALID where
                it is not known whose log lies there.
            SegmentVanishedError: segments vanish faster than they can be looked at.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    return self._look()
                except FileNotFoundError:
                    return None
                except SegmentVanishedError:
                    self._listed_as = None
            raise SegmentVanishedError(f"{self.found.path}: segments vanish while it is read")

    def require_there(self) -> None:
        """The folder is still the partition's, and all that was read in it before has been.

        Raises:
            FileNotFoundError: nothing lies there, or the log of another topic id.
            LogFileError: UNREADABLE, PARTITION_METADATA_MISSING, PARTITION_METADATA_INVALID.
        """
        path, name = self.found.path, self.topic_id_partition
        try:
            lies_here = read_partition_metadata(path, name.topic, name.partition)
        except LogFileError as e:
            if e.kind is ProblemKind.PARTITION_METADATA_MISSING and not path.exists():
                raise FileNotFoundError(str(path)) from e
            raise
        if lies_here != name:
            raise FileNotFoundError(f"{path}: now a log of topic id {lies_here.topic_id}")

    def is_there(self) -> bool:
        """As require_there; a folder that cannot be looked at is there."""
        try:
            self.require_there()
        except FileNotFoundError:
            return False
        except LogFileError:
            return True
        return True

    def _look(self) -> LocalLog | None:
        folder = self._folder()
        segments = self._list(folder)
        if not segments:
            return None
        end_before = self._tail.log_end_offset
        self._tail.follow(segments)
        lineage, problem = self._lineage(len(segments) - 1)
        if self._was_cut(segments[-1].base_offset, end_before, lineage):
            self._tail = LogTail()
            self._tail.follow(segments)
        removed_before = self.found.log_start_offset or 0
        end = self._tail.log_end_offset
        start = min(max(segments[0].base_offset, removed_before), end)
        high_watermark, unknown = self._high_watermark(start, end, len(segments) - 1)
        if self._folder().inode != folder.inode:
            raise SegmentVanishedError(f"{self.found.path}: another folder since it was listed")
        # The lowest of all that is known: no bound makes up for another one.
        last_stable_offset = min(self._tail.last_stable_offset, high_watermark)
        log = LocalLog(
            segments,
            lineage,
            problem,
            start,
            last_stable_offset,
            end,
            self._tail.end_position,
            removed_before,
            high_watermark,
            unknown,
        )
        if self._log is None or self._log != log:
            self._log = log
        return self._log

    def _folder(self) -> _FolderLooks:
        with reading(self.found.path):
            told = os.stat(self.found.path)
        return _FolderLooks(told.st_ino, told.st_mtime_ns)

    def _list(self, folder: _FolderLooks) -> tuple[LocalSegment, ...]:
        """The segments; an unchanged folder is not listed again, only its active log measured."""
        if folder == self._listed_as and self._segments:
            active = self._segments[-1]
            path = active.log_path
            with reading_segment(path):
                size = os.stat(path).st_size
            if size != active.size_bytes:
                now = LocalSegment(active.directory, active.base_offset, size, None)
                self._segments = (*self._segments[:-1], now)
            return self._segments
        settled = is_settled(folder.mtime_ns)
        self.require_there()
        self._segments = list_segments(self.found.path)
        self._listed_as = folder if settled else None
        return self._segments

    def _was_cut(self, base_offset: int, end_before: int, lineage: Lineage) -> bool:
        """Whether the active segment was cut below where it ended when it was looked at last. It
        may have grown past that by now; what it has from the cut on is of a later leader."""
        if self._log is None or lineage == self._log.lineage:
            return False
        seen = self._log.lineage.between(base_offset, end_before)
        return lineage.between(base_offset, end_before) != seen

    def _high_watermark(
        self, start: int, end: int, rolled_segments: int
    ) -> tuple[int, Problem | None]:
        """Within the log, as in Kafka (UnifiedLog.updateHighWatermark); what is not known is the
        log's start (Partition.createLog)."""
        name = self.found.topic_id_partition
        try:
            written = self.found.high_watermarks.of(name.topic, name.partition)
        except LogFileError as e:
            return start, e.problem(rolled_segments)
        return (end if written is None else min(max(written, start), end)), None

    def _lineage(self, rolled_segments: int) -> tuple[Lineage, Problem | None]:
        try:
            return self._checkpoint.lineage(), None
        except LogFileError as e:
            return Lineage(), e.problem(rolled_segments)


class _Checkpoint:
    """The leader epochs of a folder, read again when their file is another one. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / LEADER_EPOCH_CHECKPOINT
        self._read_as: Looks | None = None
        self._lineage = Lineage()

    def lineage(self) -> Lineage:
        """As read_lineage."""
        looks = looks_of(self._path)
        if looks is None or looks != self._read_as:
            self._read_as = None
            self._lineage = read_lineage(self._directory)
            self._read_as = looks
        return self._lineage


def log_end_problem(local: LocalPartition, log: LocalLog, log_start_offset: int) -> Problem | None:
    """Why nothing of the log may be copied under the tier's log start; None: it may be.

    A log start is only raised to what all in-sync replicas had reached. A log that ends below it
    has lost its tail, or is a new one on an empty disk: its offsets mean other records than those
    that were there. Kafka (LogLoader) would delete such a log and begin anew at the log start; the
    files are the broker's, so that here a person decides.

    Raises:
        LogFileError, SegmentVanishedError: the folder cannot be read now.
    """
    if log.log_end_offset >= log_start_offset:
        return None
    # The log start may be younger than the look, and the log have grown up to it since.
    now = local.look()
    if now is None or now.log_end_offset >= log_start_offset:
        return None
    reason = (
        f"the log ends at offset {now.log_end_offset}, below the tier's log start "
        f"{log_start_offset}: it is not the log that was copied (a replaced disk, a lost tail, a "
        "leader that was elected uncleanly), and none of it is copied nor can be read here; bring "
        "the partition's log back from a replica or a backup. What producers have written to it "
        "since is on the brokers only: move it to another topic before their retention takes it, "
        "and only then delete this one and create it anew"
    )
    kind = ProblemKind.LOG_END_BELOW_LOG_START
    return Problem(
        kind, str(local.found.path), reason, now.segments[0].base_offset, len(now.rolled)
    )
