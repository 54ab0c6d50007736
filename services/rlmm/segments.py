"""Adding a segment and moving it through its states, under the partition's lock."""

from datetime import timedelta

from sqlalchemy import ColumnElement, Label, and_, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    InvalidStateTransitionError,
    SegmentAlreadyExistsError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.rlmm import visibility
from services.rlmm.events import record
from services.rlmm.guards import require_expected
from services.rlmm.partition_view import PartitionView
from services.rlmm.partitions import fence, raise_leader_epoch
from services.rlmm.rows import COPY_LEASED, AnyRow, event_key, row_values, segment_from_row
from services.rlmm.tables import NOW, EventRow, PartitionRow, SegmentRow
from services.rlmm.transitions import Guards, may_move, unknown_segment

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def add(
    session: Session,
    partition: PartitionRow,
    metadata: RemoteLogSegmentMetadata,
    context: MutationContext,
    lease_ms: int | None = None,
) -> MutationOutcome:
    """Register a copy that begins, or find that it is registered already."""
    epoch = require_may_add(partition, metadata, context)
    row = insert(SegmentRow).values(**row_values(metadata), state_revision=partition.revision + 1)
    if lease_ms is not None:
        row = row.values(copy_lease_until=NOW + timedelta(milliseconds=lease_ms))
    added = row.on_conflict_do_nothing().returning(SegmentRow.segment_id)
    if session.execute(added).one_or_none() is None:
        stored = _stored(session, metadata.remote_log_segment_id)
        return MutationOutcome(applied=False, revision=added_before(stored, metadata))
    require_expected(session, partition, context)
    visibility.note_copies_started(session, [metadata])
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


def require_may_add(
    partition: PartitionView, metadata: RemoteLogSegmentMetadata, context: MutationContext
) -> int | None:
    """The broker leader epoch of the call.

    Raises:
        InvalidStateTransitionError: the partition is being deleted.
        FencedLeaderEpochError: the epoch is below the partition's highest.
    """
    tp, epoch = metadata.topic_id_partition, context.broker_leader_epoch
    if epoch is None:
        epoch = metadata.broker_leader_epoch
    if partition.delete_state is not None:
        raise InvalidStateTransitionError(f"partition {tp} is in {partition.delete_state}")
    fence(partition, tp, epoch)
    return epoch


def added_before(stored: AnyRow, metadata: RemoteLogSegmentMetadata) -> int:
    """The revision that carries the stored segment, which is to be added again.

    Raises:
        InvalidStateTransitionError: it is in a later state.
        SegmentAlreadyExistsError: it has other content.
    """
    segment_id = metadata.remote_log_segment_id
    if stored.state != STARTED.value:
        raise InvalidStateTransitionError(
            f"segment {segment_id}: {stored.state} to {STARTED.value}"
        )
    if segment_from_row(stored, segment_id.topic_id_partition) != metadata:
        raise SegmentAlreadyExistsError(f"segment {segment_id} is there with other content")
    revision: int = stored.state_revision
    return revision


def move(
    session: Session,
    partition: PartitionRow,
    change: RemoteLogSegmentMetadataUpdate,
    context: MutationContext,
    guards: Guards | None = None,
) -> MutationOutcome:
    """Take a segment to `change.state`, or find that it is there already. A refusal leaves no
    trace in the transaction.

    Args:
        guards: of a call that moves several; None: of this move alone.
    """
    stored = _stored(session, change.remote_log_segment_id)
    if not may_move(guards or Guards(session, partition), stored, change, context):
        return MutationOutcome(applied=False, revision=stored.state_revision)
    moved = _moved(session, partition, change, context, stored.state)
    metadata = segment_from_row(moved, change.remote_log_segment_id.topic_id_partition)
    if change.state is FINISHED:
        visibility.show(session, [metadata.remote_log_segment_id])
    elif change.state is DELETE_STARTED:
        visibility.hide(session, [metadata.remote_log_segment_id])
    else:
        visibility.forget(session, [metadata.remote_log_segment_id])
    epoch = context.broker_leader_epoch
    event = EventRow(
        kind="SEGMENT",
        from_state=stored.state,
        to_state=change.state.value,
        segment_id=metadata.remote_log_segment_id.id,
        key=event_key(metadata),
        broker_id=change.broker_id,
        broker_leader_epoch=metadata.broker_leader_epoch if epoch is None else epoch,
    )
    return MutationOutcome(applied=True, revision=record(session, partition, event, context))


def _moved(
    session: Session,
    partition: PartitionRow,
    change: RemoteLogSegmentMetadataUpdate,
    context: MutationContext,
    present: str,
) -> AnyRow:
    """Move the segment from the state it was judged in; its row after that."""
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
    elif change.state is DELETE_STARTED:
        values["plan_id"] = context.plan_id
    return session.execute(
        update(SegmentRow)
        .where(_is(change.remote_log_segment_id), SegmentRow.state == present)
        .values(values)
        .returning(*SegmentRow.__table__.columns)
        .execution_options(synchronize_session=False)
    ).one()


def _stored(session: Session, segment_id: RemoteLogSegmentId) -> AnyRow:
    columns = SegmentRow.__table__.columns
    copy_leased: Label[bool] = literal_column(COPY_LEASED).label("copy_leased")
    row = session.execute(select(*columns, copy_leased).where(_is(segment_id))).one_or_none()
    if row is None:
        raise unknown_segment(segment_id)
    return row


def _is(segment_id: RemoteLogSegmentId) -> ColumnElement[bool]:
    tp = segment_id.topic_id_partition
    return and_(
        SegmentRow.topic_id == tp.topic_id,
        SegmentRow.partition == tp.partition,
        SegmentRow.segment_id == segment_id.id,
    )
