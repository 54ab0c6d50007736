"""What becomes of the tier's part of a partition that its broker gives up.

Source: KIP-950 (TIERING_DISABLED); KIP-405, topic deletion (TOPIC_DELETED).
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from services.api.calls import MutationContext
from services.api.errors import (
    DeletionRefusedError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import MAX_DELETE_BATCH, RemoteStorageManager
from services.api.retention import Deletion, DeletionReason
from services.api.segment_changes import MAX_UPDATE_BATCH
from services.api.segment_deletion import (
    Deleter,
    DeletionOutcome,
    ExpectedRevisions,
    begin_deletion,
    finish_deletion,
)
from services.api.segment_queries import all_segments
from services.api.segments import RemoteLogSegmentState
from services.api.topic_config import RetentionOwner, StoredTopicConfig, TopicConfig
from services.rlm.lifecycle.turns import DeletionTurns
from services.rlm.partition import Partition
from services.rlm.reporting import Reporter, report_of
from services.rlm.scheduler import PassFailedError

_COPIES = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_REASON = DeletionReason.TIERING_DISABLED
_log = logging.getLogger(__name__)


def kept_because(config: TopicConfig) -> str:
    """Why the tier's part of a topic is kept when its tiering is disabled; empty: it is deleted."""
    if not config.remote_log_delete_on_disable:
        return (
            "remote.log.delete.on.disable is not true, so what is in the tier is kept; set it for "
            "the topic first"
        )
    if config.hold:
        return "sediment.hold is set"
    if config.retention_owner is RetentionOwner.SWEEP and config.sweep_paused:
        return "sediment.sweep.paused is set, and sediment.retention.owner is sweep"
    return ""


@dataclass(frozen=True, slots=True)
class TierDeletion:
    """
    Attributes:
        now_ms: the time that events bear.
    """

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    broker_id: int
    reporter: Reporter
    now_ms: Callable[[], int]

    def is_rlmm_ready(self, name: TopicIdPartition) -> bool:
        """
        Raises:
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        return self.rlmm.is_ready(name)

    def mark_partition(self, name: TopicIdPartition, leader_epoch: int | None) -> None:
        """Move the partition to DELETE_PARTITION_MARKED; again is once.

        Raises:
            FencedLeaderEpochError: RLMM knows of a later leader epoch.
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        event = RemotePartitionDeleteMetadata(name, marked, self.now_ms(), self.broker_id)
        why = MutationContext(reason="topic deleted", broker_leader_epoch=leader_epoch)
        self.rlmm.put_remote_partition_delete_metadata(event, why)

    def require_nothing_left(self, name: TopicIdPartition) -> None:
        """
        Raises:
            InvalidStateTransitionError: there is something in the tier that is not marked.
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        try:
            left = next(all_segments(self.rlmm, name, states=_COPIES), None)
        except RemoteResourceNotFoundError:
            return
        if left is not None:
            raise InvalidStateTransitionError(
                f"{name}: this broker was not told to lead it, and it has segments in the tier; "
                "only its leader deletes them"
            )

    def require_allowed(
        self, name: TopicIdPartition, *, by_settings: bool = False
    ) -> StoredTopicConfig:
        """The topic's settings, under which the tier's part of it may be deleted.

        Args:
            by_settings: nobody but these says that tiering is disabled.

        Raises:
            DeletionRefusedError: it may not.
            RemoteResourceNotFoundError: the topic is not known: there is nothing to delete.
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        stored = self.rlmm.topic_config(name.topic_id)
        if by_settings and stored.config.remote_storage_enable is not False:
            raise DeletionRefusedError(
                f"topic {name.topic}: remote.storage.enable is not false any more"
            )
        reason = kept_because(stored.config)
        if reason:
            raise DeletionRefusedError(f"topic {name.topic}: {reason}")
        return stored

    def mark_segments(self, partition: Partition, topic: StoredTopicConfig) -> None:
        """Raise the tier's log start to the local one and mark every segment.

        Raises:
            ConcurrentUpdateError: the topic's settings changed meanwhile.
            DeletionRefusedError: they forbid it; or another broker copies a segment.
            FencedLeaderEpochError: another broker leads the partition.
            InvalidStateTransitionError: its log is not here.
            LogFileError, SegmentVanishedError, LineageUnknownError: it cannot be read now.
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        name, now_ms = partition.topic_id_partition, self.now_ms()
        deleter, log_start_offset = self._reported(partition, topic)
        expected = ExpectedRevisions(None, topic.revision)
        begin_deletion(
            self.rlmm, name, [], log_start_offset, expected, deleter, now_ms, _REASON.value
        )
        segments = all_segments(self.rlmm, name, states=_COPIES)
        refusal = None
        while batch := list(islice(segments, MAX_UPDATE_BATCH)):
            deletions = [Deletion(segment, _REASON, "") for segment in batch]
            begun = begin_deletion(self.rlmm, name, deletions, None, expected, deleter, now_ms)
            errors = (outcome.error for outcome in begun if outcome.error is not None)
            refusal = refusal or next(errors, None)
        partition.tier.refresh()
        if refusal is not None:
            raise refusal
        _log.info("%s: tiering is disabled, log start %d", name, log_start_offset)

    def finishing(self, name: TopicIdPartition) -> Callable[[], bool]:
        """What deletes the objects of all that is marked, a batch a turn; False: they are gone.

        It raises PassFailedError where some could not be deleted, and RemoteStorageError; the next
        turn begins anew.
        """
        turns = DeletionTurns(lambda: self._finish(name))

        def go_on() -> bool:
            try:
                if turns.go_on():
                    return True
            except RemoteResourceNotFoundError:
                return False
            if turns.failure:
                raise PassFailedError(turns.failure)
            return False

        return go_on

    def _reported(self, partition: Partition, topic: StoredTopicConfig) -> tuple[Deleter, int]:
        """Who deletes, and the local log start, which RLMM takes for one only where it was told how
        far the log goes."""
        name = partition.topic_id_partition
        log = partition.local.look() if partition.local else None
        report = report_of(partition, self.broker_id)
        if log is None or report is None:
            raise InvalidStateTransitionError(
                f"{name}: its log is not here, or is not the one that was copied: not known where "
                "what remains begins"
            )
        self.reporter.report(partition, report)
        # Whose retention it is does not matter: remote.log.delete.on.disable is a decision of the
        # topic's own. RLMM asks for an owner, so the topic's is named.
        owner = topic.config.retention_owner or RetentionOwner.RLM
        deleter = Deleter(self.broker_id, owner, broker_leader_epoch=report.leader_epoch)
        return deleter, log.log_start_offset

    def _finish(self, name: TopicIdPartition) -> Iterator[DeletionOutcome]:
        marked, deleter = all_segments(self.rlmm, name, states=[_DELETING]), Deleter(self.broker_id)
        while batch := list(islice(marked, MAX_DELETE_BATCH)):
            yield from finish_deletion(self.rlmm, self.rsm, batch, deleter, self.now_ms())
