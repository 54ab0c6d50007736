"""May a segment move to another state?"""

from collections.abc import Callable
from datetime import UTC

from services.api.calls import MutationContext
from services.api.errors import (
    DeletionRefusedError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.segments import (
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    predecessors,
)
from services.api.topic_config import TopicConfig
from services.rlmm.guards import Topic, check_expected, check_may_delete
from services.rlmm.partition_view import PartitionView
from services.rlmm.partitions import fence
from services.rlmm.rows import AnyRow

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class Guards:
    """What may refuse changes of one partition of a batch.

    The caller holds the partition's lock as long as it uses this: nothing of it changes meanwhile.
    """

    def __init__(
        self,
        partition: PartitionView,
        topic: Callable[[], Topic],
        config: Callable[[], TopicConfig],
    ) -> None:
        """`topic`, `config`: read what they are since the partition is locked."""
        self.partition = partition
        self._topic = topic
        self._config = config
        self._revision = partition.revision

    def require_expected(self, context: MutationContext) -> None:
        """Raise ConcurrentUpdateError where the context was made for another revision."""
        check_expected(self.partition.partition, self._revision, self._topic, context)

    def require_may_delete(self, context: MutationContext) -> None:
        """Raise DeletionRefusedError where the topic's settings forbid it."""
        topic, caller = self._topic().name, context.retention_owner
        check_may_delete(topic, self._config(), self.partition.delete_state, caller)


def may_move(
    guards: Guards,
    stored: AnyRow,
    change: RemoteLogSegmentMetadataUpdate,
    context: MutationContext,
) -> bool:
    """True: the segment is to move; False: it did so before, which no guard looks at.

    Changes nothing.

    Args:
        stored: the segment's state, broker_id and custom_metadata, copy_leased and
            copy_lease_until.

    Raises:
        InvalidStateTransitionError, SegmentAlreadyExistsError, FencedLeaderEpochError,
        ConcurrentUpdateError, DeletionRefusedError: as
            RemoteLogMetadataManager.update_remote_log_segment_metadata says.
    """
    segment_id, target = change.remote_log_segment_id, change.state
    present = RemoteLogSegmentState(stored.state)
    # A second deleter finds the deletion over: Kafka lists a segment once for each leader epoch.
    is_over = present is DELETE_FINISHED and target is DELETE_STARTED
    if present is target or is_over:
        if change.custom_metadata not in (None, stored.custom_metadata):
            raise SegmentAlreadyExistsError(
                f"segment {segment_id} is in {present.value} with other custom metadata"
            )
        return False
    if present not in predecessors(target):
        raise InvalidStateTransitionError(
            f"segment {segment_id}: {present.value} to {target.value}"
        )
    # An older leader may finish a copy, and clean up what it failed to copy itself.
    is_own_copy = present is STARTED and stored.broker_id == change.broker_id
    if target is DELETE_STARTED and not is_own_copy:
        fence(guards.partition, segment_id.topic_id_partition, context.broker_leader_epoch)
    guards.require_expected(context)
    if target is DELETE_STARTED and present is FINISHED:
        guards.require_may_delete(context)
    if target is DELETE_STARTED and stored.copy_leased and not is_own_copy:
        raise DeletionRefusedError(
            f"segment {segment_id}: broker {stored.broker_id} copies it under a lease that ends "
            f"{stored.copy_lease_until.astimezone(UTC).isoformat(timespec='milliseconds')} by the "
            "database's clock"
        )
    return True


def unknown_segment(segment_id: RemoteLogSegmentId) -> RemoteResourceNotFoundError:
    return RemoteResourceNotFoundError(f"segment {segment_id} is not known")
