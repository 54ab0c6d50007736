"""Which finished segment answers for an offset: Kafka's rules, as sets.

Kafka keeps a map from start offset to segment for each leader epoch (RemoteLogLeaderEpochState);
a row's `referenced` says that it is in that map. A segment that finishes and reaches at least as
far as anything before it displaces every one that starts at or after it; one that ends short of
that replaces only the one with the same start.

Beside that, `overlapped` marks segments that had offsets in common when one of them finished.
Where Kafka's map has no answer, only these can have one, and they are few.
"""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    INTEGER,
    ColumnElement,
    Uuid,
    and_,
    any_,
    delete,
    exists,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT64_MAX
from services.rlmm.tables import HighestOffsetRow, PartitionRow, SegmentEpochRow


@dataclass(frozen=True, slots=True)
class _EpochRange:
    """What a finishing segment has in one epoch; both offsets inclusive."""

    topic_id_partition: TopicIdPartition
    leader_epoch: int
    start_offset: int
    end_offset: int

    @property
    def is_epoch(self) -> ColumnElement[bool]:
        return and_(
            SegmentEpochRow.topic_id == self.topic_id_partition.topic_id,
            SegmentEpochRow.partition == self.topic_id_partition.partition,
            SegmentEpochRow.leader_epoch == self.leader_epoch,
        )


def note_copy_started(session: Session, metadata: RemoteLogSegmentMetadata) -> None:
    """Lists by epoch show the segment; look-ups do not."""
    tp = metadata.topic_id_partition
    rows = [
        {
            "topic_id": tp.topic_id,
            "partition": tp.partition,
            "segment_id": metadata.remote_log_segment_id.id,
            "leader_epoch": epoch,
            "segment_start_offset": metadata.start_offset,
            "start_offset": start,
            "end_offset": end,
            "referenced": False,
            "overlapped": False,
        }
        for epoch, start, end in metadata.epoch_ranges()
    ]
    session.execute(insert(SegmentEpochRow), rows)


def show(session: Session, metadata: RemoteLogSegmentMetadata) -> None:
    """The segment finished: look-ups may find it from now on. The order matters: neighbours are
    flagged while they are still referenced, and all look at the highest offset before it rises."""
    tp = metadata.topic_id_partition
    finished_before = _finished_before(session, metadata)
    overlapped_in = []
    for epoch, start, end in metadata.epoch_ranges():
        own = _EpochRange(tp, epoch, start, end)
        before = finished_before.get(epoch)
        if before is None:
            continue  # the first segment to finish in this epoch
        if _flag_neighbours(session, own, before.longest_reach):
            overlapped_in.append(epoch)
        _displace(session, own, before.highest_offset)
    _reference(session, metadata.remote_log_segment_id, overlapped_in)
    _raise_highest_offset(session, metadata.remote_log_segment_id)


def hide(session: Session, partition: PartitionRow, segment_ids: Collection[UUID]) -> None:
    """The segments' deletion started: look-ups no longer find them."""
    session.execute(
        update(SegmentEpochRow)
        .where(_of(partition, segment_ids))
        .values(referenced=False, overlapped=False)
        .execution_options(synchronize_session=False)
    )


def forget(session: Session, partition: PartitionRow, segment_ids: Collection[UUID]) -> None:
    """The segments are deleted: lists by epoch no longer show them."""
    session.execute(
        delete(SegmentEpochRow)
        .where(_of(partition, segment_ids))
        .execution_options(synchronize_session=False)
    )


def _finished_before(
    session: Session, metadata: RemoteLogSegmentMetadata
) -> dict[int, HighestOffsetRow]:
    """By leader epoch, for those of the segment's epochs in which something finished."""
    tp = metadata.topic_id_partition
    epochs = [each.leader_epoch for each in metadata.segment_leader_epochs]
    rows = session.scalars(
        select(HighestOffsetRow).where(
            HighestOffsetRow.topic_id == tp.topic_id,
            HighestOffsetRow.partition == tp.partition,
            HighestOffsetRow.leader_epoch == any_(literal(epochs, ARRAY(INTEGER))),
        )
    )
    return {row.leader_epoch: row for row in rows}


def _flag_neighbours(session: Session, own: _EpochRange, longest_reach: int) -> bool:
    """Mark the finished segments that share offsets with `own`; True where there are any.

    The lower bound is no rule but a limit: nothing that starts before it reaches `own`.
    """
    shares_offsets = and_(
        own.is_epoch,
        SegmentEpochRow.start_offset.between(own.start_offset - longest_reach, own.end_offset),
        SegmentEpochRow.end_offset >= own.start_offset,
    )
    # A finished segment that is not referenced was flagged when it was displaced.
    session.execute(
        update(SegmentEpochRow)
        .where(shares_offsets, SegmentEpochRow.referenced, ~SegmentEpochRow.overlapped)
        .values(overlapped=True)
        .execution_options(synchronize_session=False)
    )
    neighbours = exists().where(shares_offsets, SegmentEpochRow.overlapped)
    return bool(session.scalar(select(neighbours)))


def _displace(session: Session, own: _EpochRange, highest_offset: int) -> None:
    last = INT64_MAX if highest_offset <= own.end_offset else own.start_offset
    session.execute(
        update(SegmentEpochRow)
        .where(
            own.is_epoch,
            SegmentEpochRow.referenced,
            SegmentEpochRow.start_offset.between(own.start_offset, last),
        )
        # Flagged here too: an epoch without offsets replaces its equal start and shares nothing.
        .values(referenced=False, overlapped=True)
        .execution_options(synchronize_session=False)
    )


def _reference(session: Session, segment_id: RemoteLogSegmentId, overlapped_in: list[int]) -> None:
    overlapped = SegmentEpochRow.leader_epoch == any_(literal(overlapped_in, ARRAY(INTEGER)))
    session.execute(
        update(SegmentEpochRow)
        .where(_is(segment_id))
        .values(referenced=True, overlapped=overlapped)
        .execution_options(synchronize_session=False)
    )


def _raise_highest_offset(session: Session, segment_id: RemoteLogSegmentId) -> None:
    own = SegmentEpochRow
    columns = ["topic_id", "partition", "leader_epoch", "highest_offset", "longest_reach"]
    finished = insert(HighestOffsetRow).from_select(
        columns,
        select(
            own.topic_id,
            own.partition,
            own.leader_epoch,
            own.end_offset,
            own.end_offset - own.start_offset,
        ).where(_is(segment_id)),
    )
    stored, new = HighestOffsetRow, finished.excluded
    session.execute(
        finished.on_conflict_do_update(
            index_elements=columns[:3],
            set_={
                "highest_offset": func.greatest(stored.highest_offset, new.highest_offset),
                "longest_reach": func.greatest(stored.longest_reach, new.longest_reach),
            },
        )
    )


def _is(segment_id: RemoteLogSegmentId) -> ColumnElement[bool]:
    tp = segment_id.topic_id_partition
    return and_(
        SegmentEpochRow.topic_id == tp.topic_id,
        SegmentEpochRow.partition == tp.partition,
        SegmentEpochRow.segment_id == segment_id.id,
    )


def _of(partition: PartitionRow, segment_ids: Collection[UUID]) -> ColumnElement[bool]:
    return and_(
        SegmentEpochRow.topic_id == partition.topic_id,
        SegmentEpochRow.partition == partition.partition,
        SegmentEpochRow.segment_id == any_(literal(list(segment_ids), ARRAY(Uuid))),
    )
