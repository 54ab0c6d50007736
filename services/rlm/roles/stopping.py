"""Stop partitions, and delete their segments from the tier if required."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from itertools import islice

from services.api.calls import MutationContext
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.holds import Hold, Mark, keeping_hold
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_manager import LifecycleOutcome
from services.api.remote_log_metadata_manager import (
    MAX_UPDATE_BATCH,
    RemoteLogMetadataManager,
    all_segments,
)
from services.api.remote_storage_manager import MAX_DELETE_BATCH, RemoteStorageManager
from services.api.retention import Deletion, DeletionReason
from services.api.segments import RemoteLogSegmentState
from services.api.topic_config import RetentionOwner, StoredTopicConfig, reason_to_retain
from services.common.batches import batches
from services.common.retry import replan
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError
from services.rlm.partition import Partition
from services.rlm.reporting import LineageUnknownError, Reporter, report_of
from services.rlm.scheduler import PassFailedError
from services.workflows.deletion import (
    Deleter,
    DeletionOutcome,
    ExpectedRevisions,
    begin_deletion,
    finish_deletion,
)

STEPS_AT_ONCE = 4
"""More than one, because a partition that is locked in RLMM delays its step for seconds."""

_log = logging.getLogger(__name__)

_COPIES = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)

_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_REASON = DeletionReason.TIERING_DISABLED


StepResult = RemoteStorageError | Callable[[], "StepResult"] | None
"""The next step of a stop, or its outcome."""


class BatchedDeletion:
    """Delete the segments that `begin` yields, one batch per call. Not thread-safe.

    Args:
        size: segments per batch.
    """

    def __init__(
        self, begin: Callable[[], Iterator[DeletionOutcome]], size: int = MAX_DELETE_BATCH
    ) -> None:
        self._begin = begin
        self._size = size
        self._outcomes: Iterator[DeletionOutcome] | None = None
        self.failure = ""
        """Why the first segment failed since the beginning; empty if none has."""

    def delete_batch(self) -> bool:
        """Delete the next batch; return False after the last one.

        After that, and after an error, the next call begins from the start.

        Raises:
            DeletionRefusedError: if each segment of the batch was refused.
            PassFailedError: if no segment of the batch was deleted.
            RemoteStorageError: if the deletion itself failed.
        """
        if self._outcomes is None:
            self._outcomes, self.failure = self._begin(), ""
        outcomes, self._outcomes = self._outcomes, None
        batch = list(islice(outcomes, self._size))
        failed = [o for o in batch if o.error is not None]
        first = next((f"{o.segment.remote_log_segment_id}: {o.error}" for o in failed), "")
        self.failure = self.failure or first
        if failed and len(failed) == len(batch):
            is_refused = all(isinstance(o.error, DeletionRefusedError) for o in failed)
            raise DeletionRefusedError(first) if is_refused else PassFailedError(first)
        if len(batch) < self._size:
            return False
        self._outcomes = outcomes
        return True


def run_steps(stops: Sequence[StepResult], is_rlmm_ready: Callable[[], bool]) -> list[StepResult]:
    """Do the next step of each stop that has one, in any order.

    Once RLMM is down, it is not called again, because each call would wait for its whole deadline.

    Args:
        is_rlmm_ready: raises RemoteStorageError or returns False while RLMM is down.
    """
    unreachable: RetriableRemoteStorageError | None = None

    def run(step: StepResult) -> StepResult:
        nonlocal unreachable
        if not callable(step):
            return step
        if unreachable is not None:
            return unreachable
        result = _result_of(step)
        # The failure may concern only this partition; other threads continue meanwhile.
        if isinstance(result, RetriableRemoteStorageError) and not is_reachable():
            unreachable = result
        return result

    def is_reachable() -> bool:
        try:
            return is_rlmm_ready()
        except RemoteStorageError:
            return False

    # Calls to RLMM carry the request id of the call that is served.
    context = copy_context()
    with ThreadPoolExecutor(STEPS_AT_ONCE, thread_name_prefix="stops") as pool:
        return list(pool.map(lambda step: context.copy().run(run, step), stops))


def outcome_of(result: StepResult) -> LifecycleOutcome:
    assert not callable(result), "no stop has a third step"
    return result


def _result_of(step: Callable[[], StepResult]) -> StepResult:
    try:
        return step()
    except RemoteStorageError as e:
        return e
    except (LogFileError, SegmentVanishedError, LineageUnknownError) as e:
        return ConcurrentUpdateError(f"the log cannot be read, so its start is unknown; retry: {e}")
    except Exception as e:  # noqa: BLE001 - a boundary: no partition stops another
        _log.exception("stopping a partition failed")
        return RemoteStorageError(f"{type(e).__name__}; see the log of RLM")


def removal_hold(rlmm: RemoteLogMetadataManager, name: TopicIdPartition) -> Hold | None:
    """Return a hold of the partition that lets none of its removal begin.

    Raises:
        RemoteResourceNotFoundError: the partition is not known.
    """
    return keeping_hold(rlmm.partition_state(name).value.holds, Mark.PARTITION)


@dataclass(frozen=True, slots=True)
class TierDeletion:
    """Delete the tiered data of partitions that were deleted or disabled.

    Attributes:
        now_ms: the timestamp of events.
    """

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    broker_id: int
    reporter: Reporter
    now_ms: Callable[[], int]

    def mark_partition(self, name: TopicIdPartition, leader_epoch: int | None) -> None:
        """Move the partition to DELETE_PARTITION_MARKED. Idempotent.

        Raises:
            FencedLeaderEpochError: if RLMM knows a later leader epoch.
        """
        marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        event = RemotePartitionDeleteMetadata(name, marked, self.now_ms(), self.broker_id)
        why = MutationContext(reason="topic deleted", broker_leader_epoch=leader_epoch)
        self.rlmm.put_remote_partition_delete_metadata(event, why)

    def require_no_segments(self, name: TopicIdPartition) -> None:
        """Raise if the tier has segments of the partition that are not marked for deletion.

        Raises:
            InvalidStateTransitionError: if it has some.
        """
        try:
            segment = next(all_segments(self.rlmm, name, states=_COPIES), None)
        except RemoteResourceNotFoundError:
            return
        if segment is not None:
            raise InvalidStateTransitionError(
                f"{name}: this broker does not lead the partition, which has segments in the tier; "
                "send the stop to its leader, which deletes them"
            )

    def require_allowed(
        self, name: TopicIdPartition, *, by_settings: bool = False
    ) -> StoredTopicConfig:
        """Return the topic's settings if they allow deleting its tiered data.

        Args:
            by_settings: the settings must disable tiering, because no call has.

        Raises:
            DeletionRefusedError: if the settings do not allow it, or a hold keeps some of it.
            RemoteResourceNotFoundError: if RLMM does not know the partition: there is nothing to
                delete.
        """
        stored = self.rlmm.topic_config(name.topic_id)
        if by_settings and stored.config.remote_storage_enable is not False:
            raise DeletionRefusedError(
                f"topic {name.topic}: remote.storage.enable is no longer false"
            )
        reason = reason_to_retain(stored)
        if reason:
            raise DeletionRefusedError(f"topic {name.topic}: {reason}")
        hold = removal_hold(self.rlmm, name)
        if hold is not None:
            raise DeletionRefusedError(f"{name}: the tier keeps its data: {hold}")
        return stored

    def mark_segments(self, partition: Partition, topic: StoredTopicConfig) -> None:
        """Raise the tier's log start to the local one and mark every segment.

        Raises:
            ConcurrentUpdateError: if the topic's settings changed meanwhile.
            DeletionRefusedError: if the settings forbid it, or another broker is copying a segment.
            FencedLeaderEpochError: if another broker leads the partition.
            InvalidStateTransitionError: if its log is not here.
        """
        name, now_ms = partition.topic_id_partition, self.now_ms()
        # The report of another task may overtake this one: then make and send a new one.
        deleter, log_start_offset = replan(
            lambda _: self._reported(partition, topic), lambda: None, first=None
        )
        expected = ExpectedRevisions(None, topic.revision)
        begin_deletion(
            self.rlmm, name, [], log_start_offset, expected, deleter, now_ms, _REASON.value
        )
        refusal = None
        for batch in batches(all_segments(self.rlmm, name, states=_COPIES), MAX_UPDATE_BATCH):
            deletions = [Deletion(segment, _REASON, "") for segment in batch]
            begun = begin_deletion(self.rlmm, name, deletions, None, expected, deleter, now_ms)
            errors = (outcome.error for outcome in begun if outcome.error is not None)
            refusal = refusal or next(errors, None)
        partition.tier.refresh()
        if refusal is not None:
            raise refusal
        _log.info(
            "%s: tiering is disabled; its segments are marked for deletion, log start %d",
            name,
            log_start_offset,
        )

    def finishing(self, name: TopicIdPartition) -> Callable[[], bool]:
        """Return a function that deletes the objects of marked segments, one batch per call.

        The function returns False after the last batch. It raises PassFailedError if some segments
        could not be deleted, and RemoteStorageError; the next call begins from the start.
        """
        deletion = BatchedDeletion(lambda: self._finish(name))

        def delete_batch() -> bool:
            try:
                if deletion.delete_batch():
                    return True
            except RemoteResourceNotFoundError:
                return False
            if deletion.failure:
                raise PassFailedError(deletion.failure)
            return False

        return delete_batch

    def _reported(self, partition: Partition, topic: StoredTopicConfig) -> tuple[Deleter, int]:
        """Report the log; return the deleter and the local log start.

        RLMM accepts a local log start only after a report of the log.
        """
        name = partition.topic_id_partition
        log = partition.role.local.read() if partition.role.local else None
        report = report_of(partition, self.broker_id)
        if log is None or report is None:
            raise InvalidStateTransitionError(
                f"{name}: this broker has no log of it, or not the one that was copied, so that "
                "the start of what remains is unknown; send the stop to the broker with the log"
            )
        self.reporter.report(partition, report)
        # RLMM requires a retention owner; remote.log.delete.on.disable applies to any.
        owner = topic.config.retention_owner or RetentionOwner.RLM
        deleter = Deleter(self.broker_id, owner, broker_leader_epoch=report.leader_epoch)
        return deleter, log.log_start_offset

    def _finish(self, name: TopicIdPartition) -> Iterator[DeletionOutcome]:
        marked, deleter = all_segments(self.rlmm, name, states=[_DELETING]), Deleter(self.broker_id)
        for batch in batches(marked, MAX_DELETE_BATCH):
            yield from finish_deletion(self.rlmm, self.rsm, batch, deleter, self.now_ms())
