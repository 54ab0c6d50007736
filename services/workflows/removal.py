"""Remove deleted partitions from the tier (KIP-405: remote partition remover)."""

from collections.abc import Iterator
from dataclasses import dataclass

from services.api.calls import MutationContext
from services.api.errors import InvalidStateTransitionError, RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.remote_storage_manager import MAX_DELETE_BATCH, RemoteStorageManager
from services.api.retention import Deletion, DeletionReason
from services.api.segments import RemoteLogSegmentMetadata
from services.common.batches import batches
from services.common.failpoints import failpoint
from services.workflows.deletion import Deleter, DeletionOutcome, begin_deletion, finish_deletion

_State = RemotePartitionDeleteState
_LEFT = (
    "the store still has objects of the partition, such as {}; run the removal again, then "
    "`sediment reconcile` if they stay; those of kept segments go when they are due (`sediment "
    "segments TOPIC --kept`)"
)


@dataclass(frozen=True, slots=True)
class Removal:
    """The result of one run of remove_partition.

    Attributes:
        outcomes: one for each segment that was left.
        left: why the partition is not DELETE_PARTITION_FINISHED; empty if it is.
    """

    outcomes: tuple[DeletionOutcome, ...]
    left: str = ""


def remove_partition(
    rlmm: RemoteLogMetadataManager,
    rsm: RemoteStorageManager,
    topic_id_partition: TopicIdPartition,
    deleter: Deleter,
    now_ms: int,
) -> Removal:
    """Remove a partition that is MARKED or STARTED. Idempotent.

    Does nothing if the partition is FINISHED or unknown.

    Raises:
        InvalidStateTransitionError: the partition is not marked for deletion.
        DeletionRefusedError: its topic is on hold.
        RetriableRemoteStorageError: a service is unreachable; retry.
    """
    try:
        begin_removal(rlmm, topic_id_partition, deleter, now_ms)
        outcomes = tuple(remove_segments(rlmm, rsm, topic_id_partition, deleter, now_ms))
    except RemoteResourceNotFoundError:
        return Removal(())
    return Removal(outcomes, finish_removal(rlmm, rsm, topic_id_partition, deleter, now_ms))


def begin_removal(
    rlmm: RemoteLogMetadataManager,
    topic_id_partition: TopicIdPartition,
    deleter: Deleter,
    now_ms: int,
    expected_revision: int | None = None,
) -> None:
    """Move the partition to DELETE_PARTITION_STARTED.

    Args:
        expected_revision: of the partition when the removal was decided; None accepts any. A
            partition that is STARTED stays so at any revision.

    Raises:
        RemoteResourceNotFoundError: the partition is FINISHED or unknown.
        ConcurrentUpdateError: the partition changed since; it may have been undeleted and marked
            again.
        InvalidStateTransitionError, DeletionRefusedError, RetriableRemoteStorageError: as
            remove_partition does.
    """
    started = _State.DELETE_PARTITION_STARTED
    try:
        _put(rlmm, topic_id_partition, started, deleter, now_ms, expected_revision)
    except InvalidStateTransitionError:
        # The partition is either FINISHED, so that this read fails, or not MARKED.
        rlmm.partition_state(topic_id_partition)
        raise
    failpoint("removal.partition_started")


def finish_removal(
    rlmm: RemoteLogMetadataManager,
    rsm: RemoteStorageManager,
    topic_id_partition: TopicIdPartition,
    deleter: Deleter,
    now_ms: int,
) -> str:
    """Move the partition to DELETE_PARTITION_FINISHED; return what is left, empty for nothing.

    Lists the partition in every location of RSM first, and moves nothing while an object is left,
    also one that no metadata names. Segments are left if copies finished meanwhile or deletions
    failed. Run the removal again.
    """
    failpoint("removal.segments_gone")
    if (found := rsm.find_partition_object(topic_id_partition)) is not None:
        return _LEFT.format(found)
    try:
        _put(rlmm, topic_id_partition, _State.DELETE_PARTITION_FINISHED, deleter, now_ms)
    except InvalidStateTransitionError:
        return "segments remain, such as copies that have finished since; run the removal again"
    failpoint("removal.partition_finished")
    return ""


def removal_of(segment: RemoteLogSegmentMetadata) -> Deletion:
    """Return the deletion of a segment whose partition was deleted."""
    return Deletion(segment, DeletionReason.PARTITION_DELETED, "")


def remove_segments(
    rlmm: RemoteLogMetadataManager,
    rsm: RemoteStorageManager,
    topic_id_partition: TopicIdPartition,
    deleter: Deleter,
    now_ms: int,
) -> Iterator[DeletionOutcome]:
    """Delete the segments of a STARTED partition and yield an outcome each.

    Deletes only as far as the iterator is consumed, with MAX_DELETE_BATCH segments in memory.

    Raises:
        RemoteResourceNotFoundError: the partition was removed meanwhile.
        RetriableRemoteStorageError: a service is unreachable.
    """
    for batch in batches(all_segments(rlmm, topic_id_partition), MAX_DELETE_BATCH):
        deletions = [removal_of(segment) for segment in batch]
        begun = begin_deletion(rlmm, topic_id_partition, deletions, None, None, deleter, now_ms)
        marked = [outcome.segment for outcome in begun if outcome.error is None]
        yield from (outcome for outcome in begun if outcome.error is not None)
        yield from finish_deletion(rlmm, rsm, marked, deleter, now_ms)


def _put(
    rlmm: RemoteLogMetadataManager,
    topic_id_partition: TopicIdPartition,
    state: RemotePartitionDeleteState,
    deleter: Deleter,
    now_ms: int,
    expected_revision: int | None = None,
) -> None:
    context = MutationContext(
        reason="partition removal",
        plan_id=deleter.plan_id,
        broker_leader_epoch=deleter.broker_leader_epoch,
        expected_revision=expected_revision,
    )
    event = RemotePartitionDeleteMetadata(topic_id_partition, state, now_ms, deleter.broker_id)
    rlmm.put_remote_partition_delete_metadata(event, context)
