"""Refuse changes that expectations, owners, a freeze, bounds or the state machine do not allow."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy import Connection, select, text
from sqlalchemy.orm import Session

from services.api.calls import MutationContext, current_call
from services.api.errors import (
    ConcurrentUpdateError,
    CorruptMetadataError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.operations import DeletionFreeze
from services.api.partitions import RemotePartitionDeleteState, SegmentTotals, totals_of_segment
from services.api.segments import (
    ExportPosition,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    export_that_keeps,
    predecessors,
)
from services.api.topic_config import RetentionOwner, TopicConfig, topic_config
from services.rlmm.database.rows import AnyRow, ms_of
from services.rlmm.database.tables import NOW, DeploymentRow, PartitionRow, TopicRow

_log = logging.getLogger(__name__)

FROZEN_AT = select(DeploymentRow.frozen_at).scalar_subquery().label("frozen_at")
"""When a rebuild froze all deletions; null if they are not frozen."""
_BEING_REMOVED = (
    RemotePartitionDeleteState.DELETE_PARTITION_STARTED.value,
    RemotePartitionDeleteState.DELETE_PARTITION_FINISHED.value,
)
"""States in which no retention rule applies any more. A mark alone may be removed again."""
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
FINISHED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
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
    exports: tuple[ExportPosition, ...] = ()
    """Those whose leases lasted when the partition was locked."""

    def move_totals(
        self,
        before: RemoteLogSegmentState | None,
        after: RemoteLogSegmentState,
        size_bytes: int,
    ) -> None:
        """Count a change of one segment's state; `before` is None for a new segment."""
        self.totals += totals_of_segment(after, size_bytes)
        self.totals -= totals_of_segment(before, size_bytes)


def require_owner_may_delete(
    connection: Connection, tp: TopicIdPartition, owner: RetentionOwner
) -> None:
    """Refuse a deletion before anything is deleted; accept it if the partition is unknown.

    Raises:
        InvalidRequestError: the topic id has another name.
        DeletionRefusedError: a rebuild or the topic's settings forbid the deletion.
    """
    found = connection.execute(
        select(TopicRow.name, TopicRow.config, PartitionRow.delete_state, FROZEN_AT)
        .join(PartitionRow, PartitionRow.topic_id == TopicRow.topic_id)
        .where(PartitionRow.topic_id == tp.topic_id, PartitionRow.partition == tp.partition)
    ).one_or_none()
    if found is not None:
        check_topic_name(tp, found.name)
        check_not_frozen(found.name, found.frozen_at)
        check_may_delete(found.name, topic_config(found.config), found.delete_state, owner)


def check_may_delete(
    topic: str, config: TopicConfig, delete_state: str | None, caller: RetentionOwner | None
) -> None:
    """Raise DeletionRefusedError if the settings forbid `caller` to delete finished segments.

    Args:
        caller: None counts as the broker.
    """
    _check_no_hold(topic, config)
    if delete_state in _BEING_REMOVED:
        return
    caller = caller or RetentionOwner.BROKER
    if config.retention_owner not in (None, caller):
        raise DeletionRefusedError(
            f"topic {topic}: sediment.retention.owner is {config.retention_owner.value}, "
            f"not {caller.value}; only the owner may delete its segments"
        )
    if caller is RetentionOwner.SWEEP and config.sweep_paused:
        raise DeletionRefusedError(
            f"topic {topic}: sediment.sweep.paused is set; unset it to delete segments"
        )


def check_not_frozen(topic: str, frozen_at: datetime | None) -> None:
    """Raise DeletionRefusedError if a rebuild has frozen deletions."""
    if frozen_at is not None:
        raise DeletionRefusedError(
            f"topic {topic}: all deletions are frozen since "
            f"{frozen_at.astimezone(UTC).isoformat(timespec='seconds')} for a rebuild; check its "
            "report, then run `sediment db confirm-rebuild`"
        )


def _check_no_hold(topic: str, config: TopicConfig) -> None:
    if config.hold:
        raise DeletionRefusedError(
            f"topic {topic}: sediment.hold is set; unset it to delete segments"
        )


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


def is_older_leader(partition: Partition, broker_leader_epoch: int | None) -> bool:
    highest = partition.highest_broker_leader_epoch
    if broker_leader_epoch is None or highest is None:
        return False
    return broker_leader_epoch < highest


def fence(partition: Partition, tp: TopicIdPartition, broker_leader_epoch: int | None) -> None:
    highest = partition.highest_broker_leader_epoch
    if is_older_leader(partition, broker_leader_epoch):
        raise FencedLeaderEpochError(
            f"broker leader epoch {broker_leader_epoch} is older than {highest} of partition {tp}; "
            f"a later leader has changed {tp}. If {highest} is wrong, run `sediment partitions "
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
    ) -> None:
        """Wrap a row; `topic` and `config` are read under the partition's lock."""
        self.row = row
        self.topic_name = topic_name
        self.revision = row.revision
        self._revision_before_call = row.revision
        self._topic = topic
        self._config = config

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

    def require_not_frozen(self) -> None:
        """Raise DeletionRefusedError if a rebuild has frozen deletions."""
        check_not_frozen(self.topic_name, self._topic().frozen_at)

    def require_frozen(self) -> None:
        """Raise DeletionRefusedError unless a rebuild has frozen deletions."""
        if self._topic().frozen_at is None:
            raise DeletionRefusedError(
                f"topic {self.topic_name}: a log start can be restored only while deletions are "
                "frozen; run `sediment db rebuild --apply` first"
            )

    def require_may_delete(self, context: MutationContext) -> None:
        """Raise DeletionRefusedError if a rebuild or the topic's settings forbid the deletion."""
        self.require_not_frozen()
        state, caller = self.row.delete_state, context.retention_owner
        check_may_delete(self.topic_name, self._config(), state, caller)

    def require_exported(self, end_offset: int) -> None:
        """Raise DeletionRefusedError if an export has yet to read a segment with this end.

        A partition that is being removed goes, whatever exports have read.
        """
        row = self.row
        if row.delete_state in _BEING_REMOVED:
            return
        export = export_that_keeps(row.exports, end_offset, row.log_start_offset)
        if export is not None:
            raise DeletionRefusedError(
                f"topic {self.topic_name}, partition {row.partition}: {export}; retry after that, "
                "or end its lease with `sediment partitions release-export`"
            )

    def is_kept(self) -> bool:
        """Return whether no deletion may begin: the topic is on hold, or deletions are frozen."""
        return self._config().hold or self._topic().frozen_at is not None

    def require_no_hold(self) -> None:
        """Raise DeletionRefusedError if the topic is on hold."""
        _check_no_hold(self.topic_name, self._config())


def may_move(
    locked: LockedPartition,
    stored: AnyRow,
    change: RemoteLogSegmentMetadataUpdate,
    context: MutationContext,
) -> bool:
    """Return whether a segment moves to its next state; False if it moved before.

    A repeat passes no guard. Changes nothing.

    Args:
        stored: the segment's state, end_offset, broker_id and custom_metadata, copy_leased and
            copy_lease_until.

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
    if target is DELETE_STARTED:
        # What looks like a failed copy may have finished after the backup of a restored database.
        locked.require_not_frozen()
    if target is DELETE_STARTED and present is COPY_FINISHED:
        locked.require_may_delete(context)
        locked.require_exported(stored.end_offset)
    if target is DELETE_STARTED and stored.copy_leased and not is_own_copy:
        raise DeletionRefusedError(
            f"segment {segment_id}: broker {stored.broker_id} copies it under a lease that ends "
            f"{stored.copy_lease_until.astimezone(UTC).isoformat(timespec='milliseconds')} by the "
            "database's clock; retry after that"
        )
    return True


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


# Every change locks rows of this table first, and a deletion reads the freeze after that. So this
# waits for the deletions that read no freeze, and all later ones wait for the freeze.
_WAIT_FOR_CHANGES = text("LOCK TABLE partitions IN EXCLUSIVE MODE")


def freeze_deletions(session: Session, reason: str) -> DeletionFreeze:
    """Freeze all deletions; see RemoteLogMetadataManager.begin_rebuild."""
    row = _deployment(session)
    present = _freeze_of(row)
    if present is not None:
        return present
    session.execute(_WAIT_FOR_CHANGES)
    row.frozen_at = session.scalars(select(NOW)).one()
    row.frozen_by, row.frozen_reason = current_call().actor, reason
    _log.warning("%s froze all deletions: %s", row.frozen_by, reason or "no reason given")
    return DeletionFreeze(ms_of(row.frozen_at), row.frozen_by, reason)


def end_freeze(session: Session, reason: str) -> DeletionFreeze | None:
    """End the freeze; see RemoteLogMetadataManager.confirm_rebuild."""
    row = _deployment(session)
    ended = _freeze_of(row)
    if ended is not None:
        row.frozen_at = row.frozen_by = row.frozen_reason = None
        actor, why = current_call().actor, reason or "no reason given"
        _log.warning("%s ended the freeze of deletions by %s: %s", actor, ended.actor, why)
    return ended


def _deployment(session: Session) -> DeploymentRow:
    row = session.scalars(select(DeploymentRow).with_for_update()).one_or_none()
    if row is None:
        raise CorruptMetadataError(
            "the table deployment has lost its row; restore it from a backup"
        )
    return row


def _freeze_of(row: DeploymentRow) -> DeletionFreeze | None:
    if row.frozen_at is None:
        return None
    return DeletionFreeze(ms_of(row.frozen_at), row.frozen_by or "", row.frozen_reason or "")
