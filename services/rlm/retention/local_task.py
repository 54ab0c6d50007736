"""Delete local segments that are in the tier: the rules, the checks and one pass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from services.api.errors import RemoteResourceNotFoundError, RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_manager import ProblemKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import (
    UNLIMITED,
    RetentionOwner,
    StoredTopicConfig,
    TopicConfig,
    is_internal_topic,
)
from services.common.bounded_file import open_regular
from services.common.cancellation import Flag
from services.records.batches import HEADER_BYTES
from services.rlm.kafka_log.checkpoints import LOG_START_OFFSETS
from services.rlm.kafka_log.indexes import largest_timestamp_ms
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition, log_end_problem
from services.rlm.kafka_log.partition_dir import (
    LocalSegment,
    LogDirError,
    LogFileError,
    SegmentVanishedError,
    read_producer_snapshot,
    reading_segment,
    rolled_log_bytes,
)
from services.rlm.metrics import LOCALLY_DELETED_BYTES, LOCALLY_DELETED_SEGMENTS
from services.rlm.partition import Leadership, Partition
from services.rlm.retention.local_files import (
    FolderChangedError,
    LogDirLocks,
    OwnedFolder,
    delete_segment_files,
    finish_deletions,
    opened,
)
from services.rlm.tier_state import OffsetRanges

ReadsTimestamp = Callable[[LocalSegment], int | None]
"""Returns a segment's largest timestamp, ms; None if it cannot be read."""


class LocalDeletionReason(Enum):
    """The reason why a local segment is deleted; the values appear in logs."""

    LOG_START_OFFSET = "below the log start offset"
    SIZE = "local.retention.bytes breached"
    TIME = "local.retention.ms breached"


@dataclass(frozen=True, slots=True)
class LocalDeletion:
    segment: LocalSegment
    reason: LocalDeletionReason


@dataclass(frozen=True, slots=True)
class LocalLimits:
    """The limits of a partition's local log; UNLIMITED: no limit.

    While copying is disabled these are retention.ms and retention.bytes (KIP-950).
    """

    ms: int = UNLIMITED
    size_bytes: int = UNLIMITED


def local_limits(config: TopicConfig) -> LocalLimits:
    return LocalLimits(config.effective_local_retention_ms, config.effective_local_retention_bytes)


def due_local_deletions(
    segments: Sequence[LocalSegment],
    log_start_offset: int,
    limits: LocalLimits,
    now_ms: int,
    largest_timestamp_ms: ReadsTimestamp,
) -> list[LocalDeletion]:
    """Return the rolled segments that the rules delete, from the oldest up to the first that stays.

    The rules delete segments below the log start; as many as leave local.retention.bytes or more;
    and segments whose newest record is older than local.retention.ms.

    Args:
        segments: the whole local log, the active segment last.
        log_start_offset: lower offsets are no longer read, here or in the tier.
    """
    total_bytes = sum(segment.size_bytes for segment in segments)
    has_size = limits.size_bytes != UNLIMITED
    excess_bytes = total_bytes - limits.size_bytes if has_size else -1
    due: list[LocalDeletion] = []
    for segment in segments:
        if not segment.is_rolled:
            break
        if segment.end_offset < log_start_offset:
            reason = LocalDeletionReason.LOG_START_OFFSET
        elif excess_bytes >= segment.size_bytes:
            reason = LocalDeletionReason.SIZE
        elif _is_old(segment, limits.ms, now_ms, largest_timestamp_ms):
            reason = LocalDeletionReason.TIME
        else:
            break
        excess_bytes -= segment.size_bytes
        due.append(LocalDeletion(segment, reason))
    return due


def _is_old(
    segment: LocalSegment, ms: int, now_ms: int, largest_timestamp_ms: ReadsTimestamp
) -> bool:
    """Return whether the segment is too old; future or unreadable timestamps count as young."""
    if ms == UNLIMITED:
        return False
    timestamp_ms = largest_timestamp_ms(segment)
    return timestamp_ms is not None and now_ms - timestamp_ms > ms


@dataclass(frozen=True, slots=True)
class Copied:
    """The part of a local log that is in the tier.

    An offset counts only if the tier has it in the leader epoch of the local record, and the
    partition's lineage in RLMM agrees: another leader's records at the same offsets differ.

    Attributes:
        ranges: the offsets in finished segments, by leader epoch.
        tier_lineage: the partition's, as RLMM has it.
        local_lineage: the log's own.
    """

    ranges: Mapping[int, OffsetRanges]
    tier_lineage: Lineage
    local_lineage: Lineage

    def epoch_ranges(
        self, segment: LocalSegment, log_start_offset: int
    ) -> list[tuple[int, int, int]]:
        """Return (leader epoch, first offset, last offset) of a rolled segment, ends inclusive.

        The ranges begin at the log start. The list is empty if an epoch is unknown, or the lineages
        disagree.
        """
        first, following = max(segment.base_offset, log_start_offset), segment.end_offset + 1
        epochs = self.local_lineage.between(first, following)
        if not epochs or epochs[0].start_offset != first:
            return []
        if self.tier_lineage.between(first, following) != epochs:
            return []
        ends = [epoch.start_offset - 1 for epoch in epochs[1:]] + [segment.end_offset]
        return [
            (epoch.leader_epoch, epoch.start_offset, end)
            for epoch, end in zip(epochs, ends, strict=True)
        ]

    def has(self, segment: LocalSegment, log_start_offset: int) -> bool:
        """Return whether a rolled segment, from the log start on, is in finished segments."""
        ranges = self.epoch_ranges(segment, log_start_offset)
        return bool(ranges) and all(
            epoch in self.ranges and self.ranges[epoch].covers(first, last)
            for epoch, first, last in ranges
        )


def allowed_local_deletions(
    due: Sequence[LocalDeletion], copied: Copied, log_start_offset: int
) -> list[LocalDeletion]:
    """Return the due segments up to the first one that may not be deleted.

    A segment may be deleted if it is below the log start or in the tier.
    """
    allowed: list[LocalDeletion] = []
    for deletion in due:
        is_below = deletion.reason is LocalDeletionReason.LOG_START_OFFSET
        if not is_below and not copied.has(deletion.segment, log_start_offset):
            break
        allowed.append(deletion)
    return allowed


def require_start_of_this_log(local: LocalPartition, log: LocalLog) -> None:
    """Raise if the broker's recorded log start is not this log's.

    Raises:
        LogFileError: if it is after the end of the log: it belongs to an older topic of the same
            name, or to a later state than the restored one.
    """
    if log.removed_before_offset > log.log_end_offset:
        path = local.found.path.parent / LOG_START_OFFSETS
        reason = (
            f"has log start {log.removed_before_offset} for {local.found.path.name}, which ends at "
            f"offset {log.log_end_offset}: the entry belongs to another log; remove that line from "
            "the checkpoint"
        )
        raise LogFileError(ProblemKind.LOG_END_BELOW_LOG_START, path, reason)


def with_known_producers(allowed: Sequence[LocalDeletion]) -> Sequence[LocalDeletion]:
    """Return the longest prefix of the deletions after which the log begins with a snapshot.

    Without a producer snapshot at its beginning, the log's open transactions are unknown.

    Raises:
        LogFileError: if not even the first segment may be deleted.
    """
    for count in range(len(allowed), 0, -1):
        try:
            read_producer_snapshot(allowed[count - 1].segment.producer_snapshot_path)
        except LogFileError:
            if count == 1:
                raise
        else:
            return allowed[:count]
    return ()


class NotInTierError(Exception):
    """The error if the tier lacks a segment that it should have, or has another one."""


class TierCheck:
    """Check that the tier has a segment, by look-ups in RLMM and the first bytes in the store.

    The check detects a store that is down or has lost the segment while the local copy exists.
    """

    def __init__(
        self, rsm: RemoteStorageManager, rlmm: RemoteLogMetadataManager, name: TopicIdPartition
    ) -> None:
        self._rsm = rsm
        self._rlmm = rlmm
        self._name = name

    def require(self, segment: LocalSegment, epoch_ranges: Sequence[tuple[int, int, int]]) -> None:
        """Raise unless a fetch finds the whole segment in the tier.

        Args:
            epoch_ranges: (leader epoch, first offset, last offset) that the tier must have.

        Raises:
            NotInTierError: if a fetch would not find it.
            LogFileError, SegmentVanishedError: if the local segment cannot be read.
            RemoteStorageError: if RLMM or the store fails.
        """
        if not epoch_ranges:
            raise NotInTierError(f"{segment.log_path}: its leader epochs are unknown, so it stays")
        seen: set[object] = set()
        for epoch, first, last in epoch_ranges:
            offset = first
            while offset <= last:
                found = self._find(epoch, offset)
                if found.remote_log_segment_id not in seen:
                    seen.add(found.remote_log_segment_id)
                    self._require_bytes(segment, found)
                offset = _end_of_epoch(found, epoch) + 1

    def _find(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata:
        found = self._rlmm.remote_log_segment_metadata(self._name, epoch, offset).value
        if (
            found is None
            or found.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            or not found.start_offset <= offset <= _end_of_epoch(found, epoch)
        ):
            raise NotInTierError(
                f"the tier has no finished segment with offset {offset} of epoch {epoch}"
            )
        return found

    def _require_bytes(self, segment: LocalSegment, found: RemoteLogSegmentMetadata) -> None:
        try:
            head = b"".join(self._rsm.fetch_log_segment(found, 0, HEADER_BYTES - 1))
        except RemoteResourceNotFoundError as e:
            raise NotInTierError(
                f"{found.remote_log_segment_id} ({found.start_offset} to {found.end_offset}) is "
                "not in the store; `sediment scrub` checks the tier"
            ) from e
        if found.start_offset != segment.base_offset:
            return
        with reading_segment(segment.log_path):
            size_bytes = rolled_log_bytes(segment)
        if found.end_offset == segment.end_offset and found.segment_size_in_bytes != size_bytes:
            raise NotInTierError(
                f"{found.remote_log_segment_id} ({found.start_offset} to {found.end_offset}) has "
                f"{found.segment_size_in_bytes} bytes in the tier and {size_bytes} here"
            )
        if head != _head_of(segment):
            raise NotInTierError(
                f"{found.remote_log_segment_id} begins with another batch at offset "
                f"{found.start_offset} than {segment.log_path}"
            )


def _end_of_epoch(segment: RemoteLogSegmentMetadata, epoch: int) -> int:
    return max((last for of, _, last in segment.epoch_ranges() if of == epoch), default=-1)


def _head_of(segment: LocalSegment) -> bytes:
    with reading_segment(segment.log_path), open(open_regular(segment.log_path), "rb") as file:
        return file.read(HEADER_BYTES)


MAX_SEGMENTS_A_PASS = 1000
_BEING_DELETED = tuple(RemotePartitionDeleteState)

_FAILURES = (
    LogDirError,
    LogFileError,
    SegmentVanishedError,
    FolderChangedError,
    NotInTierError,
    RemoteStorageError,
)


@dataclass
class LocalRetentionReport:
    """The result of one pass of local retention.

    Attributes:
        failure: why the pass did not delete everything that was due; empty if it did. A segment
            that is not in the tier yet is not due.
        more: more segments are due now.
    """

    deleted_segments: int = 0
    deleted_bytes: int = 0
    failure: str = ""
    more: bool = False

    def deleted(self, deletion: LocalDeletion) -> None:
        size_bytes = deletion.segment.size_bytes
        self.deleted_segments += 1
        self.deleted_bytes += size_bytes
        LOCALLY_DELETED_SEGMENTS.inc()
        LOCALLY_DELETED_BYTES.inc(size_bytes)


@dataclass(frozen=True, slots=True)
class LocalRetention:
    """The dependencies that the tasks of all partitions share.

    Attributes:
        locks: of the log directories; they make this process the owner of the directories.
    """

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    locks: LogDirLocks


@dataclass(frozen=True, slots=True)
class _DecidedBy:
    """The tier and the settings on which a pass based its decisions."""

    copied: Copied
    log_start_offset: int
    settings_revision: int


class LocalRetentionTask:
    """Run passes of local retention over one partition, one at a time.

    Args:
        stopping: once set, begin no other segment.
        max_segments: the maximum of one pass; the next one deletes more.
    """

    def __init__(
        self,
        partition: Partition,
        shared: LocalRetention,
        stopping: Flag,
        max_segments: int = MAX_SEGMENTS_A_PASS,
    ) -> None:
        self._partition = partition
        self._name = partition.topic_id_partition
        self._shared = shared
        self._stopping = stopping
        self._max_segments = max_segments
        self._check = TierCheck(shared.rsm, shared.rlmm, self._name)

    def run(self) -> LocalRetentionReport:
        """Run one pass; the first failure of files, lock, services or tier ends it.

        The failure is in the report.
        """
        report = LocalRetentionReport()
        local, leadership = self._partition.role.local, self._partition.role.leadership
        if local is None or leadership is None or not leadership.is_leader:
            return report
        try:
            with opened(self._name, local.found, self._shared.locks) as folder:
                self._pass(local, folder, leadership, report)
        except FileNotFoundError:
            pass  # its folder is gone
        except _FAILURES as e:
            report.failure = f"local retention: {e}"
        return report

    def _pass(
        self,
        local: LocalPartition,
        folder: OwnedFolder,
        leadership: Leadership,
        report: LocalRetentionReport,
    ) -> None:
        folder.require_owned()
        finish_deletions(local.found.path, folder.fd)
        log = local.read()
        if log is None or len(log.segments) == 1 or leadership.is_overtaken(log.lineage):
            return
        # All inputs of the decision are read now, the log before the tier.
        stored = self._settings()
        if stored is None or not self._may_delete(stored.config):
            return
        config = stored.config
        tier = self._partition.tier.refresh()
        log_start = max(tier.log_start_offset, log.log_start_offset)
        if not tier.known or self._cannot_be_due(log, log_start, config):
            return
        state = self._shared.rlmm.partition_state(self._name).value
        due = due_local_deletions(
            log.segments, log_start, local_limits(config), state.read_at_ms, largest_timestamp_ms
        )
        if not due or self._is_being_deleted():
            return
        require_start_of_this_log(local, log)
        problem = log.lineage_problem or log_end_problem(local, log, tier.log_start_offset)
        if problem is not None:
            report.failure = f"local retention: {problem.path}: {problem.message}"
            return
        copied = Copied(tier.ranges, state.lineage, log.lineage)
        allowed = with_known_producers(allowed_local_deletions(due, copied, log_start))
        self._delete(folder, allowed, _DecidedBy(copied, log_start, stored.revision), report)

    def _settings(self) -> StoredTopicConfig | None:
        try:
            return self._shared.rlmm.topic_config(self._name.topic_id)
        except RemoteResourceNotFoundError:
            return None

    def _may_delete(self, config: TopicConfig) -> bool:
        """Return whether the topic is tiered, not on hold, and not owned by the broker."""
        return (
            not is_internal_topic(self._name.topic)
            and config.remote_storage_enable is not False
            and not config.hold
            and config.retention_owner is not RetentionOwner.BROKER
        )

    def _cannot_be_due(self, log: LocalLog, log_start_offset: int, config: TopicConfig) -> bool:
        """Return whether nothing can be due, without reading timestamps."""
        limits = local_limits(config)
        oldest = log.segments[0]
        return (
            limits.ms == UNLIMITED
            and oldest.end_offset >= log_start_offset
            and (
                limits.size_bytes == UNLIMITED
                or log.size_bytes - limits.size_bytes < oldest.size_bytes
            )
        )

    def _is_being_deleted(self) -> bool:
        """Return whether the partition is marked for deletion or deleted; it may be undeleted."""
        found = all_partitions(
            self._shared.rlmm, topic=self._name.topic, delete_states=_BEING_DELETED
        )
        return any(summary.topic_id_partition == self._name for summary in found)

    def _delete(
        self,
        folder: OwnedFolder,
        allowed: Sequence[LocalDeletion],
        by: _DecidedBy,
        report: LocalRetentionReport,
    ) -> None:
        report.more = len(allowed) > self._max_segments
        for deletion in allowed[: self._max_segments]:
            if self._stopping.is_set():
                report.more = False
                return
            segment = deletion.segment
            if deletion.reason is not LocalDeletionReason.LOG_START_OFFSET:
                self._check.require(segment, by.copied.epoch_ranges(segment, by.log_start_offset))
            stored = self._settings()
            if stored is None or stored.revision != by.settings_revision:
                report.more = True  # What is due has to be decided again.
                return
            folder.require_owned()
            folder.require_rolled(segment)
            delete_segment_files(segment, folder.fd)
            report.deleted(deletion)
