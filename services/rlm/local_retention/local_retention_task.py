"""One pass of local retention over one partition: what the rules let go, and the tier has, leaves
the folder, oldest first.

Source: UnifiedLog.deleteOldSegments, which a broker runs as `kafka-log-retention`.

Beside the copy pass and reads of the same partition, with no lock between them: a copy takes what
is not in the tier, and a read that meets a segment which has gone finds it there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.errors import RemoteResourceNotFoundError, RemoteStorageError
from services.api.partition_queries import all_partitions
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.topic_config import (
    UNLIMITED,
    RetentionOwner,
    StoredTopicConfig,
    TopicConfig,
    is_internal_topic,
)
from services.rlm.ending import Flag
from services.rlm.kafka_log.errors import LogDirError, LogFileError, SegmentVanishedError
from services.rlm.kafka_log.timestamps import largest_timestamp_ms
from services.rlm.leadership import Leadership
from services.rlm.local_log import LocalLog, LocalPartition
from services.rlm.local_retention.directory_locks import LogDirLocks
from services.rlm.local_retention.log_checks import (
    require_start_of_this_log,
    with_known_producers,
)
from services.rlm.local_retention.owned_folder import FolderChangedError, OwnedFolder, opened
from services.rlm.local_retention.rules import (
    Copied,
    LocalDeletion,
    LocalDeletionReason,
    allowed_local_deletions,
    due_local_deletions,
    local_limits,
)
from services.rlm.local_retention.segment_files import delete_segment_files, finish_deletions
from services.rlm.local_retention.tier_check import NotInTierError, TierCheck
from services.rlm.log_end import log_end_problem
from services.rlm.metrics import LOCALLY_DELETED_BYTES, LOCALLY_DELETED_SEGMENTS
from services.rlm.partition import Partition

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
        local, leadership = self._partition.local, self._partition.leadership
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
        log = local.look()
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
