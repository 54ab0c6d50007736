"""Refuse changes that expectations, holds, settings, bounds or the state machine forbid."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC
from uuid import UUID

from sqlalchemy import Connection

from services.api.calls import MutationContext
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.holds import Hold, HoldKind, Mark, keeping_hold
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, uuid_to_text
from services.api.partitions import RemotePartitionDeleteState, SegmentTotals, totals_of_segment
from services.api.retention import DeletionReason
from services.api.segments import (
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    predecessors,
)
from services.api.topic_config import (
    LOCAL_RETENTION_OWNER,
    RetentionOwner,
    TopicConfig,
    topic_config,
)
from services.api.validation import INT64_MAX
from services.rlmm.database.db import PARTITIONS, execute, key_of, key_values
from services.rlmm.database.rows import AnyRow, holds_of, live_holds, ms_of

_OF_PARTITION = f"""
    SELECT t.name, t.config, p.delete_state, {live_holds("p")} AS holds
    FROM {PARTITIONS}
    WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s"""
_BEING_REMOVED = (
    RemotePartitionDeleteState.DELETE_PARTITION_STARTED.value,
    RemotePartitionDeleteState.DELETE_PARTITION_FINISHED.value,
)
"""States in which no retention rule applies any more. A mark alone may be removed again."""
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
FINISHED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
_DELETERS_OF_KEPT = (RetentionOwner.RLM, RetentionOwner.SWEEP)
"""Who deletes the objects of kept segments. A broker only repeats what it has finished."""
TOPIC_FIELD = "topic_id_partition.topic"
COPY_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
COPY_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


@dataclass(slots=True)
class Partition:
    """A locked partition, in the state in which its batch leaves it."""

    topic_id: UUID
    partition: int
    revision: int
    highest_broker_leader_epoch: int | None
    delete_state: str | None
    log_start_offset: int
    totals: SegmentTotals
    marked_bytes: int = 0
    """Of finished segments that the batch marks for deletion."""

    @property
    def key(self) -> tuple[UUID, int]:
        return self.topic_id, self.partition

    def move_totals(
        self,
        before: RemoteLogSegmentState | None,
        after: RemoteLogSegmentState,
        size_bytes: int,
        custom_metadata: tuple[bytes | None, bytes | None],
        *,
        is_superseded: bool = False,
    ) -> None:
        """Count a change of one segment's state.

        Args:
            before: None for a new segment.
            custom_metadata: before and after.
            is_superseded: the bound of a day does not count it.
        """
        self.totals += totals_of_segment(after, size_bytes, custom_metadata[1])
        self.totals -= totals_of_segment(before, size_bytes, custom_metadata[0])
        if before is COPY_FINISHED and after is DELETE_STARTED and not is_superseded:
            self.marked_bytes += max(size_bytes, 0)


def require_owner_may_delete(
    connection: Connection, tp: TopicIdPartition, owner: RetentionOwner
) -> None:
    """Refuse a deletion before anything is deleted; accept it if the partition is unknown.

    A broker raises its own log start before it marks a segment, so any hold of the partition but an
    export's refuses it.

    Raises:
        InvalidRequestError: the topic id has another name.
        DeletionRefusedError: a hold or the topic's settings forbid the deletion.
    """
    row = execute(connection, _OF_PARTITION, key_values(key_of(tp))).fetchone()
    if row is not None:
        check_topic_name(tp, row.name)
        where = f"topic {row.name}, partition {tp.partition}"
        check_not_held(where, holds_of(row.holds), Mark.REMOVED_SEGMENT)
        check_owner(row.name, topic_config(row.config), row.delete_state, owner)


def check_owner(
    topic: str, config: TopicConfig, delete_state: str | None, caller: RetentionOwner | None
) -> None:
    """Raise DeletionRefusedError if `caller` is not the retention owner of finished segments.

    Args:
        caller: None counts as the broker.
    """
    if delete_state in _BEING_REMOVED:
        return
    caller = caller or RetentionOwner.BROKER
    if config.retention_owner not in (None, caller):
        raise DeletionRefusedError(
            f"topic {topic}: sediment.retention.owner is {config.retention_owner.value}, "
            f"not {caller.value}; only the retention owner may delete"
        )


def check_not_held(tp: str, holds: Iterable[Hold], mark: Mark, *offsets: int) -> None:
    """Raise DeletionRefusedError, naming the hold, if one keeps what is to be deleted.

    Args:
        offsets: see keeping_hold.
    """
    hold = keeping_hold(holds, mark, *offsets)
    if hold is not None:
        raise DeletionRefusedError(f"{tp}: {hold}; `{hold.how_to_end}` ends it")


def check_topic_name(tp: TopicIdPartition, name: str, field: str = TOPIC_FIELD) -> None:
    """Raise InvalidRequestError, naming `field`, if the topic's name is not `name`.

    Otherwise a caller that may use one topic could read another by its id. The message does not
    have the stored name for the same reason.
    """
    if tp.topic != name:
        raise InvalidRequestError(
            f"{field}: topic id {tp.topic_id} belongs to another topic than {tp.topic!r}; send the "
            "topic's own name"
        )


def unknown_partition(tp: TopicIdPartition) -> RemoteResourceNotFoundError:
    return RemoteResourceNotFoundError(
        f"RLMM has no partition {tp}; check the topic's id and name (`sediment topics list`)"
    )


def removed_partition(tp: TopicIdPartition) -> InvalidStateTransitionError:
    return InvalidStateTransitionError(
        f"partition {tp} was removed from the tier; its topic id cannot be used again"
    )


def fence(partition: Partition, tp: TopicIdPartition, broker_leader_epoch: int | None) -> None:
    highest = partition.highest_broker_leader_epoch
    if broker_leader_epoch is None or highest is None or broker_leader_epoch >= highest:
        return
    raise FencedLeaderEpochError(
        f"broker leader epoch {broker_leader_epoch} is older than {highest} of partition {tp}; a "
        f"later leader has changed {tp}. If {highest} is wrong, run `sediment partitions "
        "reset-epoch`"
    )


def raise_leader_epoch(partition: Partition, broker_leader_epoch: int | None) -> bool:
    """Raise the partition's highest broker leader epoch to `broker_leader_epoch`; return whether it
    rose.
    """
    highest = partition.highest_broker_leader_epoch
    if broker_leader_epoch is None or (highest is not None and broker_leader_epoch <= highest):
        return False
    partition.highest_broker_leader_epoch = broker_leader_epoch
    return True


class LockedPartition:
    """A partition whose lock is held, and the checks that refuse changes of it.

    Attributes:
        row: the state in which the batch leaves the partition.
        topic_name: the name that belongs to the topic id.
        revision: before the batch.
    """

    def __init__(
        self,
        row: Partition,
        topic_name: str,
        topic: Callable[[], AnyRow],
        config: Callable[[], TopicConfig],
        holds: Callable[[], tuple[Hold, ...]],
        within_bound: Callable[..., None],
        better_copies: Callable[[AnyRow], Iterable[UUID]],
    ) -> None:
        """Wrap a row; `topic`, `config` and `holds` are read under the partition's lock.

        Args:
            within_bound: DeletionBound.require, but for its connection.
            better_copies: reads the finished segments that have all records of another one.
        """
        self.row = row
        self.topic_name = topic_name
        self.revision = row.revision
        self._revision_before_call = row.revision
        self._topic = topic
        self._config = config
        self._holds = holds
        self._within_bound = within_bound
        self._better_copies = better_copies
        self._marked = set[UUID]()

    def begin_call(self) -> None:
        """Let another call begin, which expects the revision that the calls before it left."""
        self._revision_before_call = self.row.revision

    def require_expected(self, context: MutationContext) -> None:
        """Refuse a change that was decided on another revision than the present one.

        Raises:
            ConcurrentUpdateError: the revision before the call is not the context's
                expected_revision, or the settings' is not its expected_config_revision.
        """
        revision = self._revision_before_call
        if context.expected_revision not in (None, revision):
            raise ConcurrentUpdateError(
                f"context.expected_revision: partition {self.row.partition} of topic "
                f"{self.topic_name} has revision {revision}, "
                f"not {context.expected_revision}; read it again"
            )
        if context.expected_config_revision is None:
            return
        revision = self._topic().config_revision
        if context.expected_config_revision != revision:
            raise ConcurrentUpdateError(
                f"context.expected_config_revision: the settings of topic {self.topic_name} have "
                f"revision {revision}, not {context.expected_config_revision}; read them again"
            )

    def require_not_held(
        self, mark: Mark, first_offset: int = 0, last_offset: int = INT64_MAX
    ) -> None:
        """Raise DeletionRefusedError, naming the hold, if one keeps what is to be deleted.

        This is the one guard that every mark passes. It reads under the partition's lock, which
        setting a hold takes too: once a hold is set, nothing that it keeps begins to go.
        """
        row = self.row
        if mark is Mark.SEGMENT and row.delete_state in _BEING_REMOVED:
            mark = Mark.REMOVED_SEGMENT
        tp = f"topic {self.topic_name}, partition {row.partition}"
        start = row.log_start_offset
        check_not_held(tp, self._holds(), mark, first_offset, last_offset, start)

    def is_held(self, first_offset: int, last_offset: int) -> bool:
        """Return whether a hold keeps a segment."""
        holds, start = self._holds(), self.row.log_start_offset
        return keeping_hold(holds, Mark.SEGMENT, first_offset, last_offset, start) is not None

    def require_within_bound(self, size_bytes: int, *, marks: bool) -> None:
        """Raise DeletionRefusedError if a day would delete too much; see DeletionBound.require."""
        self._within_bound(self._topic(), size_bytes, marks=marks)

    def require_superseded(self, stored: AnyRow) -> None:
        """Raise ConcurrentUpdateError unless another finished segment has all of its records.

        One that this batch has marked does not count: of two equal segments one stays.
        """
        if self._marked.issuperset(self._better_copies(stored)):
            raise ConcurrentUpdateError(
                f"topic {self.topic_name}, partition {self.row.partition}: no other finished "
                f"segment has all records of segment {uuid_to_text(stored.segment_id)}; list again"
            )

    def mark(self, segment_id: UUID) -> None:
        """Remember that this batch marks a finished segment for deletion."""
        self._marked.add(segment_id)

    def require_owner(self, context: MutationContext) -> None:
        """Raise DeletionRefusedError if another service than the context's owns retention."""
        state, caller = self.row.delete_state, context.retention_owner
        check_owner(self.topic_name, self._config(), state, caller)

    def require_copier(self, context: MutationContext) -> None:
        """Raise InvalidStateTransitionError if a broker copies a topic that RLM looks after."""
        if context.retention_owner is RetentionOwner.BROKER and self._config().is_trimmed_by_rlm:
            raise InvalidStateTransitionError(
                f"topic {self.topic_name}: RLM copies it and deletes its local records "
                f"({LOCAL_RETENTION_OWNER}=rlm), so that its brokers may not tier it; set "
                "remote.storage.enable=false there, or unset the former"
            )

    def require_rebuild(self) -> None:
        """Raise DeletionRefusedError unless a rebuild holds all topics."""
        if all(hold.kind is not HoldKind.REBUILD for hold in self._holds()):
            raise DeletionRefusedError(
                f"topic {self.topic_name}: a log start can be restored only while a rebuild keeps "
                "all topics; run `sediment db rebuild --apply` first"
            )

    def kept_until_ms(self, context: MutationContext) -> int | None:
        """Return until when the objects stay of a finished segment that is marked now.

        Returns:
            None if the marker's own rules have delays: a broker deletes at once what its topic's
            settings say.
        """
        grace_ms = self._config().delete_grace_ms
        if context.retention_owner is not RetentionOwner.BROKER or not grace_ms:
            return None
        return ms_of(self._topic().read_at) + grace_ms

    def may_forget_objects(self, stored: AnyRow, context: MutationContext) -> bool:
        """Return whether the objects of a tombstone are kept no longer; False for a repeat.

        Args:
            stored: the segment's state and kept_until, and its id.

        Raises:
            DeletionRefusedError: they are to be kept for longer.
        """
        if stored.kept_until is None or context.retention_owner not in _DELETERS_OF_KEPT:
            return False
        if stored.kept_until > self._topic().read_at:
            raise DeletionRefusedError(
                f"topic {self.topic_name}, partition {self.row.partition}: the objects of segment "
                f"{uuid_to_text(stored.segment_id)} are kept until "
                f"{stored.kept_until.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}; delete them after that"
            )
        return True


def may_move(
    locked: LockedPartition,
    stored: AnyRow,
    change: RemoteLogSegmentMetadataUpdate,
    context: MutationContext,
) -> bool:
    """Return whether a segment moves to its next state; False if it moved before.

    A repeat passes no guard. Changes nothing but what `locked` counts: the bound of a day, and the
    marked segments. The rules of retention do not apply to a superseded segment: nothing is lost.

    Args:
        stored: the segment's state, offsets, segment_size_in_bytes, broker_id and custom_metadata,
            copy_leased and copy_lease_until.

    Raises:
        InvalidStateTransitionError, SegmentAlreadyExistsError, FencedLeaderEpochError,
        ConcurrentUpdateError, DeletionRefusedError: as in
            RemoteLogMetadataManager.update_remote_log_segment_metadata.
    """
    segment_id, target = change.remote_log_segment_id, change.state
    present = RemoteLogSegmentState(stored.state)
    # A second deleter may find the deletion finished: Kafka lists a segment once for each leader
    # epoch.
    is_over = present is DELETE_FINISHED and target is DELETE_STARTED
    if present is target or is_over:
        if change.custom_metadata not in (None, stored.custom_metadata):
            raise SegmentAlreadyExistsError(
                f"segment {segment_id} is already in {present.value} with different custom "
                "metadata; send the stored one or none"
            )
        return False
    if present not in predecessors(target):
        raise illegal_move(f"segment {segment_id}", present.value, target.value)
    # An older leader may finish its copy, and delete the remains of its own failed copy.
    is_own_copy = present is COPY_STARTED and stored.broker_id == change.broker_id
    if target is DELETE_STARTED and not is_own_copy:
        fence(locked.row, segment_id.topic_id_partition, context.broker_leader_epoch)
    locked.require_expected(context)
    superseded = present is COPY_FINISHED and is_superseded(context)
    if target is DELETE_STARTED:
        mark = Mark.SEGMENT if present is COPY_FINISHED else Mark.FAILED_COPY
        mark = Mark.SUPERSEDED if superseded else mark
        locked.require_not_held(mark, stored.start_offset, stored.end_offset)
    if target is DELETE_STARTED and superseded:
        locked.require_superseded(stored)
    elif target is DELETE_STARTED and present is COPY_FINISHED:
        locked.require_owner(context)
    if target is DELETE_STARTED and stored.copy_leased and not is_own_copy:
        raise DeletionRefusedError(
            f"segment {segment_id}: broker {stored.broker_id} copies it under a lease that ends "
            f"{stored.copy_lease_until.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ} by the "
            "database's clock; retry after that"
        )
    if target is DELETE_STARTED and present is COPY_FINISHED:
        if not superseded:
            locked.require_within_bound(stored.segment_size_in_bytes, marks=True)
        locked.mark(stored.segment_id)
    return True


def is_superseded(context: MutationContext) -> bool:
    """Return whether a mark is for a superseded segment; RLMM checks that under the lock."""
    return context.reason == DeletionReason.SUPERSEDED.value


def unknown_segment(segment_id: RemoteLogSegmentId) -> RemoteResourceNotFoundError:
    return RemoteResourceNotFoundError(
        f"RLMM has no segment {segment_id}; it was never added, or its row was purged"
    )


def illegal_move(what: str, present: str | None, target: str) -> InvalidStateTransitionError:
    """Return the error for a change of state that the state machine does not have.

    Args:
        what: "segment X" or "partition P".
        present: None for a partition that is not being removed.
    """
    return InvalidStateTransitionError(
        f"{what} cannot move from {present or 'no deletion state'} to {target}; read its state "
        "again"
    )
