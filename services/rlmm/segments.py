"""Adding a segment and moving it through its states, under the partition's lock."""

from sqlalchemy import ColumnElement, and_, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    FencedLeaderEpochError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    predecessors,
)
from services.rlmm import visibility
from services.rlmm.events import record
from services.rlmm.partitions import fence, is_older_leader, raise_leader_epoch
from services.rlmm.rows import AnyRow, event_key, row_values, segment_from_row
from services.rlmm.tables import EventRow, PartitionRow, SegmentRow

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def add(
    session: Session,
    partition: PartitionRow,
    metadata: RemoteLogSegmentMetadata,
    context: MutationContext,
) -> MutationOutcome:
    """Register a copy that begins, or find that it is registered already."""
    tp, epoch = metadata.topic_id_partition, context.broker_leader_epoch
    if epoch is None:
        epoch = metadata.broker_leader_epoch
    if partition.delete_state is not None:
        raise InvalidStateTransitionError(f"partition {tp} is in {partition.delete_state}")
    fence(partition, tp, epoch)
    row = insert(SegmentRow).values(**row_values(metadata), state_revision=partition.revision + 1)
    added = row.on_conflict_do_nothing().returning(SegmentRow.segment_id)
    if session.execute(added).one_or_none() is None:
        return _added_before(session, metadata)
    visibility.note_copy_started(session, metadata)
    raise_leader_epoch(partition, epoch)
    event = EventRow(
        kind="SEGMENT",
        to_state=STARTED.value,
        segment_id=metadata.remote_log_segment_id.id,
        key=event_key(metadata),
        broker_id=metadata.broker_id,
        broker_leader_epoch=epoch,
    )
    return MutationOutcome(applied=True, revision=record(session, partition, event, context))


def _added_before(session: Session, metadata: RemoteLogSegmentMetadata) -> MutationOutcome:
    segment_id = metadata.remote_log_segment_id
    row = _stored(session, segment_id)
    if row.state != STARTED.value:
        raise InvalidStateTransitionError(f"segment {segment_id}: {row.state} to {STARTED.value}")
    if segment_from_row(row, segment_id.topic_id_partition) != metadata:
        raise SegmentAlreadyExistsError(f"segment {segment_id} is there with other content")
    return MutationOutcome(applied=False, revision=row.state_revision)


def move(
    session: Session,
    partition: PartitionRow,
    change: RemoteLogSegmentMetadataUpdate,
    context: MutationContext,
) -> MutationOutcome:
    """Take a segment to `change.state`, or find that it is there already."""
    moved = _move_if_allowed(session, partition, change, context)
    if moved is None:
        return _moved_before(session, partition, change, context)
    metadata = segment_from_row(moved, change.remote_log_segment_id.topic_id_partition)
    if change.state is FINISHED:
        visibility.show(session, metadata)
    elif change.state is DELETE_STARTED:
        visibility.hide(session, metadata.remote_log_segment_id)
    else:
        visibility.forget(session, metadata.remote_log_segment_id)
    epoch = context.broker_leader_epoch
    event = EventRow(
        kind="SEGMENT",
        from_state=moved.from_state,
        to_state=change.state.value,
        segment_id=metadata.remote_log_segment_id.id,
        key=event_key(metadata),
        broker_id=change.broker_id,
        broker_leader_epoch=metadata.broker_leader_epoch if epoch is None else epoch,
    )
    return MutationOutcome(applied=True, revision=record(session, partition, event, context))


def _move_if_allowed(
    session: Session,
    partition: PartitionRow,
    change: RemoteLogSegmentMetadataUpdate,
    context: MutationContext,
) -> AnyRow | None:
    """The segment's row after the move and its state before; None where it was not allowed."""
    before = aliased(SegmentRow)
    values: dict[str, object] = {
        "state": change.state.value,
        "broker_id": change.broker_id,
        "event_timestamp_ms": change.event_timestamp_ms,
        "state_revision": partition.revision + 1,
    }
    if change.custom_metadata is not None:
        values["custom_metadata"] = change.custom_metadata
    if change.state is FINISHED:
        values["finished_revision"] = partition.revision + 1
    return session.execute(
        update(SegmentRow)
        .where(
            _is(SegmentRow, change.remote_log_segment_id),
            before.topic_id == SegmentRow.topic_id,
            before.partition == SegmentRow.partition,
            before.segment_id == SegmentRow.segment_id,
            before.state.in_([state.value for state in predecessors(change.state)]),
            _not_fenced(before, partition, change, context),
        )
        .values(values)
        .returning(before.state.label("from_state"), *SegmentRow.__table__.columns)
        .execution_options(synchronize_session=False)
    ).one_or_none()


def _not_fenced(
    before: type[SegmentRow],
    partition: PartitionRow,
    change: RemoteLogSegmentMetadataUpdate,
    context: MutationContext,
) -> ColumnElement[bool]:
    """An older leader may finish a copy, and clean up what it failed to copy itself."""
    fenced = change.state is DELETE_STARTED and is_older_leader(
        partition, context.broker_leader_epoch
    )
    own_copy = and_(before.state == STARTED.value, before.broker_id == change.broker_id)
    return or_(own_copy, literal(not fenced))


def _moved_before(
    session: Session,
    partition: PartitionRow,
    change: RemoteLogSegmentMetadataUpdate,
    context: MutationContext,
) -> MutationOutcome:
    """Nothing moved: because it is a repeat, or for which reason."""
    segment_id, target = change.remote_log_segment_id, change.state
    row = _stored(session, segment_id)
    if row.state == target.value:
        if change.custom_metadata not in (None, row.custom_metadata):
            raise SegmentAlreadyExistsError(
                f"segment {segment_id} is in {row.state} with other custom metadata"
            )
        return MutationOutcome(applied=False, revision=row.state_revision)
    if RemoteLogSegmentState(row.state) in predecessors(target):
        raise FencedLeaderEpochError(
            f"broker leader epoch {context.broker_leader_epoch} is older than "
            f"{partition.highest_broker_leader_epoch} of partition {segment_id.topic_id_partition}"
        )
    raise InvalidStateTransitionError(f"segment {segment_id}: {row.state} to {target.value}")


def _stored(session: Session, segment_id: RemoteLogSegmentId) -> AnyRow:
    columns = SegmentRow.__table__.columns
    row = session.execute(select(*columns).where(_is(SegmentRow, segment_id))).one_or_none()
    if row is None:
        raise RemoteResourceNotFoundError(f"segment {segment_id} is not known")
    return row


def _is(row: type[SegmentRow], segment_id: RemoteLogSegmentId) -> ColumnElement[bool]:
    tp = segment_id.topic_id_partition
    return and_(
        row.topic_id == tp.topic_id,
        row.partition == tp.partition,
        row.segment_id == segment_id.id,
    )
