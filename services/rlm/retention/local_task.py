"""Run one pass of local retention: delete local segments that the tier has."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.errors import RemoteResourceNotFoundError, RemoteStorageError
from services.api.ids import TopicIdPartition
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
from services.common.cancellation import Flag
from services.rlm.kafka_log.batches import HEADER_BYTES
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
from services.rlm.retention.local_rules import (
    Copied,
    LocalDeletion,
    LocalDeletionReason,
    allowed_local_deletions,
    due_local_deletions,
    local_limits,
)


def require_start_of_this_log(local: LocalPartition, log: LocalLog) -> None:
    """
    Raises:
        LogFileError: the log start that the broker wrote down, by the partition's name alone, is
            another log's: of an older topic, or of a later state than the one that was restored.
    """
    if log.removed_before_offset > log.log_end_offset:
        path = local.found.path.parent / LOG_START_OFFSETS
        reason = (
            f"has log start {log.removed_before_offset} for {local.found.path.name}, which ends at "
            f"offset {log.log_end_offset}: not this log's; take its line out"
        )
        raise LogFileError(ProblemKind.LOG_END_BELOW_LOG_START, path, reason)


def with_known_producers(allowed: Sequence[LocalDeletion]) -> Sequence[LocalDeletion]:
    """So many that the log still begins with the state of its producers: without it nobody could
    tell which transactions are open.

    Raises:
        LogFileError: not even the first may go.
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
    """What should be in the tier is not found there, or is something else."""


class TierCheck:
    """By look-ups in RLMM, and by the first bytes of what they find, from the store: a store that
    is away, or has lost the segment, is found out while the local copy is still there."""

    def __init__(
        self, rsm: RemoteStorageManager, rlmm: RemoteLogMetadataManager, name: TopicIdPartition
    ) -> None:
        self._rsm = rsm
        self._rlmm = rlmm
        self._name = name

    def require(self, segment: LocalSegment, epoch_ranges: Sequence[tuple[int, int, int]]) -> None:
        """
        Args:
            epoch_ranges: (leader epoch, first offset, last offset) of what must be there.

        Raises:
            NotInTierError: a fetch would not find it.
            LogFileError, SegmentVanishedError: the local segment cannot be read.
            RemoteStorageError: RLMM or the store cannot be asked.
        """
        if not epoch_ranges:
            raise NotInTierError(f"{segment.log_path}: in which leader epochs it lies is not known")
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
            raise NotInTierError(f"no finished segment holds offset {offset} of epoch {epoch}")
        return found

    def _require_bytes(self, segment: LocalSegment, found: RemoteLogSegmentMetadata) -> None:
        try:
            head = b"".join(self._rsm.fetch_log_segment(found, 0, HEADER_BYTES - 1))
        except RemoteResourceNotFoundError as e:
            raise NotInTierError(
                f"{found.remote_log_segment_id} ({found.start_offset} to {found.end_offset}) is "
                "not in the store"
            ) from e
        if found.start_offset != segment.base_offset:
            return
        if found.end_offset == segment.end_offset and (
            found.segment_size_in_bytes != segment.size_bytes
        ):
            raise NotInTierError(
                f"{found.remote_log_segment_id} ({found.start_offset} to {found.end_offset}) has "
                f"{found.segment_size_in_bytes} bytes, and here it has {segment.size_bytes}"
            )
        if head != _head_of(segment):
            raise NotInTierError(
                f"{found.remote_log_segment_id} begins at offset {found.start_offset} with another "
                f"batch than {segment.log_path}"
            )


def _end_of_epoch(segment: RemoteLogSegmentMetadata, epoch: int) -> int:
    return max((last for of, _, last in segment.epoch_ranges() if of == epoch), default=-1)


def _head_of(segment: LocalSegment) -> bytes:
    with reading_segment(segment.log_path), segment.log_path.open("rb") as file:
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
    """What one pass did.

    Attributes:
        failure: why it did not do all that was due; empty: it did. What is not in the tier yet is
            not due, but its copy.
        more: there is more to do at once.
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
    """What the tasks of all partitions share.

    Attributes:
        locks: of the log directories, which makes them this process's to change.
    """

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    locks: LogDirLocks


@dataclass(frozen=True, slots=True)
class _DecidedBy:
    """What a pass has seen of tier and settings."""

    copied: Copied
    log_start_offset: int
    settings_revision: int


class LocalRetentionTask:
    """Passes over one partition, one at a time.

    Args:
        stopping: set: no other segment is begun.
        max_segments: a pass deletes so many, and has more to do then.
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
        """One pass. What is wrong with files, the directory's lock, the services or what the tier
        has is in the report; nothing was deleted after it was found.
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
        # All that decides is read anew, the log before the tier: RLMM's answers are its present.
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
        """The topic is tiered, nobody holds it, and its retention is not a broker's to keep."""
        return (
            not is_internal_topic(self._name.topic)
            and config.remote_storage_enable is not False
            and not config.hold
            and config.retention_owner is not RetentionOwner.BROKER
        )

    def _cannot_be_due(self, log: LocalLog, log_start_offset: int, config: TopicConfig) -> bool:
        """By what is at hand, without the time."""
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
        """Its tier is going, or gone, and may yet be brought back (undelete)."""
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
                report.more = True  # What is due, and whether any of it, is to be decided anew.
                return
            folder.require_owned()
            folder.require_rolled(segment)
            delete_segment_files(segment, folder.fd)
            report.deleted(deletion)
