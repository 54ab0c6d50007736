"""Store leaders' reports, the lineage of the tier and export positions, and read them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from services.api.calls import AtRevision, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    InvalidRangeError,
    InvalidRequestError,
)
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import NOTHING_COPIED, PartitionReport, PartitionState
from services.api.segments import MAX_EXPORTS, ExportPosition, segment_leader_epochs
from services.rlmm.changes import gaps, polled_log_rows
from services.rlmm.changes.audit import NO_BROKER, Event
from services.rlmm.changes.batch import Batch, Change
from services.rlmm.changes.locked_partitions import LockedPartitions
from services.rlmm.changes.partitions import KNOWN, note_leader
from services.rlmm.database.rows import EPOCH, LIVE_EXPORTS, AnyRow, exports_of, ms_of
from services.rlmm.database.tables import (
    NOW,
    Base,
    HighestOffsetRow,
    PartitionRow,
    PartitionStateRow,
    PolledLogRow,
    TopicRow,
)
from services.rlmm.guards import (
    FINISHED,
    Partition,
    check_topic_name,
    fence,
    removed_partition,
    unknown_partition,
)

COLUMNS = PartitionStateRow.__table__.columns
LINEAGE = ("leader_epochs", "epoch_start_offsets")

OVERRULED_AT = EPOCH
"""The time of a report that was overruled. To a release that does not know this value, the report
is far too old to act on.
"""

_ORDER = ("leader_epoch", "report_number")

REPORT = (
    *_ORDER,
    "broker_id",
    "reported_leader_epochs",
    "reported_epoch_start_offsets",
    "local_log_start_offset",
    "log_end_offset",
    "high_watermark",
    "last_stable_offset",
    "only_local_bytes",
    "copied_through_offset",
)


def only(names: Sequence[str]) -> list[ColumnElement[Any]]:
    return [COLUMNS[name] for name in names]


def row_of(report: PartitionReport) -> dict[str, object]:
    tp, epochs = report.topic_id_partition, report.lineage.entries
    return {
        "topic_id": tp.topic_id,
        "partition": tp.partition,
        "leader_epochs": [],
        "epoch_start_offsets": [],
        "broker_id": report.broker_id,
        "leader_epoch": report.leader_epoch,
        "report_number": report.report_number,
        "reported_leader_epochs": [epoch.leader_epoch for epoch in epochs],
        "reported_epoch_start_offsets": [epoch.start_offset for epoch in epochs],
        "local_log_start_offset": report.local_log_start_offset,
        "log_end_offset": report.log_end_offset,
        "high_watermark": report.high_watermark,
        "last_stable_offset": report.last_stable_offset,
        "only_local_bytes": report.only_local_bytes,
        "copied_through_offset": report.copied_through_offset,
    }


def _store_if_later() -> ReturningInsert[*tuple[Any, ...]]:
    """Build the statement that stores a report unless a later one is stored.

    It returns the lineage before, or no row.
    """
    row = insert(Base.metadata.tables[PartitionStateRow.__tablename__])
    new = row.excluded
    is_later = tuple_(*only(_ORDER)) < tuple_(*[new[name] for name in _ORDER])
    is_same = tuple_(*only(REPORT)) == tuple_(*[new[name] for name in REPORT])
    return row.on_conflict_do_update(
        index_elements=["topic_id", "partition"],
        set_={**{name: new[name] for name in REPORT}, "reported_at": NOW},
        where=or_(is_later, is_same, COLUMNS.reported_at == OVERRULED_AT),
    ).returning(*only(LINEAGE), COLUMNS.reported_at)


def _read_statement() -> Select[*tuple[Any, ...]]:
    columns = PartitionRow.topic_id, PartitionRow.partition, PartitionRow.log_start_offset
    return (
        select(
            TopicRow.name,
            PartitionRow.revision,
            PartitionRow.log_start_offset,
            PartitionRow.highest_broker_leader_epoch,
            NOW.label("read_at"),
            gaps.column(*columns),
            *only((*LINEAGE, "reported_at", *REPORT)),
            *polled_log_rows.columns(),
            literal_column(LIVE_EXPORTS).label("exports"),
        )
        .select_from(PartitionRow)
        .join(TopicRow, TopicRow.topic_id == PartitionRow.topic_id)
        .outerjoin(
            PartitionStateRow,
            and_(
                PartitionStateRow.topic_id == PartitionRow.topic_id,
                PartitionStateRow.partition == PartitionRow.partition,
            ),
        )
        .outerjoin(PolledLogRow, polled_log_rows.of_partition())
        .where(
            PartitionRow.topic_id == bindparam("topic_id"),
            PartitionRow.partition == bindparam("partition"),
            KNOWN,
        )
    )


STORE_IF_LATER = _store_if_later()
READ = _read_statement()

MAX_TOLD_EPOCHS = 100
"""Leader epochs listed in one event."""


def take_report(session: Session, report: PartitionReport) -> AtRevision[PartitionState]:
    """Store one report; see RemoteLogMetadataManager.report_partition_state.

    A report that changes only figures costs the partition's lock and one statement.
    """
    tp = report.topic_id_partition
    batch = Batch(session, LockedPartitions.lock_or_create(session, [tp]))
    partition, records = batch.partitions.of(tp).row, batch.records
    if partition.delete_state == FINISHED.value:
        raise removed_partition(tp)
    fence(partition, tp, report.leader_epoch)
    stored = session.execute(STORE_IF_LATER, row_of(report)).one_or_none()
    if stored is None:
        raise _out_of_order(session, partition, report)
    note_leader(records, partition, report.leader_epoch, report.broker_id)
    known = _lineage(stored.leader_epochs, stored.epoch_start_offsets)
    lineage = known.merged_with_report(report.lineage).from_offset(partition.log_start_offset)
    if lineage != known:
        _store_lineage(session, partition, lineage)
        gaps.forget_overwritten(session, partition, lineage)
        lost, new = _missing_in(lineage, known), _missing_in(known, lineage)
        records.change(
            partition, Event("LINEAGE", lost, new, report.broker_id, report.leader_epoch)
        )
    batch.write()
    reported_at_ms = ms_of(stored.reported_at)
    state = PartitionState(
        partition.log_start_offset,
        lineage,
        report,
        reported_at_ms,
        read_at_ms=reported_at_ms,
        highest_broker_leader_epoch=partition.highest_broker_leader_epoch,
        export_positions=partition.exports,
    )
    return AtRevision(state, partition.revision)


def read(connection: Connection, tp: TopicIdPartition) -> AtRevision[PartitionState]:
    """Read the state in one statement; see RemoteLogMetadataManager.partition_state."""
    values = {"topic_id": tp.topic_id, "partition": tp.partition}
    row = connection.execute(READ, values).one_or_none()
    if row is None:
        raise unknown_partition(tp)
    check_topic_name(tp, row.name)
    return AtRevision(_state(row, tp), row.revision)


def cut_lineage(session: Session, partition: Partition) -> None:
    """Cut the stored lineage to the partition's log start."""
    row = session.execute(select(*only(LINEAGE)).where(_is(partition))).one_or_none()
    if row is not None:
        known = _lineage(row.leader_epochs, row.epoch_start_offsets)
        _store_lineage(session, partition, known.from_offset(partition.log_start_offset))


def bounds_of(session: Session, partition: Partition) -> tuple[int, Lineage]:
    """Read the reported high watermark and the stored lineage; 0 and empty without a report."""
    columns = only((*LINEAGE, "high_watermark"))
    row = session.execute(select(*columns).where(_is(partition))).one_or_none()
    if row is None:
        return 0, Lineage()
    return row.high_watermark, _lineage(row.leader_epochs, row.epoch_start_offsets)


def overrule_report(session: Session, partition: Partition, leader_epoch: int | None) -> None:
    """Overrule a stored report of an epoch above `leader_epoch`, or of any epoch if that is None.

    The report stays overruled even if the partition's epoch rises later. The lineage stays.
    """
    above = true() if leader_epoch is None else COLUMNS.leader_epoch > leader_epoch
    session.execute(
        update(PartitionStateRow)
        .where(_is(partition), above)
        .values(
            reported_at=OVERRULED_AT,
            leader_epoch=0,
            report_number=0,
            broker_id=NO_BROKER,
            reported_leader_epochs=[],
            reported_epoch_start_offsets=[],
            local_log_start_offset=0,
            log_end_offset=0,
            high_watermark=0,
            last_stable_offset=0,
            only_local_bytes=0,
            copied_through_offset=NOTHING_COPIED,
        )
        .execution_options(synchronize_session=False)
    )


def _out_of_order(
    session: Session, partition: Partition, report: PartitionReport
) -> ConcurrentUpdateError:
    stored = session.scalar(select(COLUMNS.report_number).where(_is(partition)))
    return ConcurrentUpdateError(
        f"report_number: {report.report_number} of leader epoch {report.leader_epoch} of partition "
        f"{report.topic_id_partition} is not above the stored report {stored}, and not the "
        "same report; send a larger number"
    )


def _store_lineage(session: Session, partition: Partition, lineage: Lineage) -> None:
    session.execute(
        update(PartitionStateRow)
        .where(_is(partition))
        .values(
            leader_epochs=[epoch.leader_epoch for epoch in lineage.entries],
            epoch_start_offsets=[epoch.start_offset for epoch in lineage.entries],
        )
        .execution_options(synchronize_session=False)
    )


def _state(row: AnyRow, tp: TopicIdPartition) -> PartitionState:
    state = PartitionState(
        row.log_start_offset,
        read_at_ms=ms_of(row.read_at),
        gaps=gaps.from_column(row.gaps),
        highest_broker_leader_epoch=row.highest_broker_leader_epoch,
        polled_log=polled_log_rows.polled_log(row, tp),
        polled_at_ms=None if row.polled_at is None else ms_of(row.polled_at),
        export_positions=exports_of(row.exports),
    )
    if row.report_number is None:
        return state
    state = replace(state, lineage=_lineage(row.leader_epochs, row.epoch_start_offsets))
    if row.reported_at == OVERRULED_AT:
        return state
    report = PartitionReport(
        topic_id_partition=tp,
        broker_id=row.broker_id,
        leader_epoch=row.leader_epoch,
        report_number=row.report_number,
        lineage=_lineage(row.reported_leader_epochs, row.reported_epoch_start_offsets),
        local_log_start_offset=row.local_log_start_offset,
        log_end_offset=row.log_end_offset,
        high_watermark=row.high_watermark,
        last_stable_offset=row.last_stable_offset,
        only_local_bytes=row.only_local_bytes,
        copied_through_offset=row.copied_through_offset,
    )
    return replace(state, report=report, reported_at_ms=ms_of(row.reported_at))


def _lineage(epochs: Sequence[int], starts: Sequence[int]) -> Lineage:
    return Lineage(segment_leader_epochs(list(zip(epochs, starts, strict=True))))


def _missing_in(lineage: Lineage, other: Lineage) -> str:
    """Format the entries that only `other` has as "epoch:start ...", for the audit trail."""
    missing = [entry for entry in other.entries if entry not in lineage.entries]
    texts = [f"{entry.leader_epoch}:{entry.start_offset}" for entry in missing[:MAX_TOLD_EPOCHS]]
    others = len(missing) - len(texts)
    return " ".join([*texts, f"and {others} more"] if others else texts)


def _is(partition: Partition) -> ColumnElement[bool]:
    return and_(
        PartitionStateRow.topic_id == partition.topic_id,
        PartitionStateRow.partition == partition.partition,
    )


@dataclass(frozen=True, slots=True)
class LogStartRaise:
    """The arguments of raise_log_start_offset, but for the context."""

    topic_id_partition: TopicIdPartition
    log_start_offset: int
    # Not in the repr, which is digested: that of releases without it must stay the same.
    restores: bool = field(default=False, repr=False)


def raise_log_start(change: Change, rise: LogStartRaise) -> MutationOutcome:
    """Raise the log start; see RemoteLogMetadataManager.raise_log_start_offset."""
    session, partition, context = change.session, change.partition, change.context
    tp, old, new = rise.topic_id_partition, partition.log_start_offset, rise.log_start_offset
    if partition.delete_state == FINISHED.value:
        raise unknown_partition(tp)
    if new <= old:
        return change.unchanged()
    fence(partition, tp, context.broker_leader_epoch)
    change.locked.require_expected(context)
    end = _end_offset(session, partition)
    if rise.restores:
        change.locked.require_frozen()
        new = min(new, end)
        if new <= old:
            return change.unchanged()
    else:
        change.locked.require_may_delete(context)
        change.locked.require_exported(new - 1)
    if new > end:
        raise InvalidRangeError(
            f"log_start_offset: {new} is above {end}, the end of partition {tp} (the reported high "
            "watermark or the last finished offset)"
        )
    partition.log_start_offset = new
    cut_lineage(session, partition)
    gaps.forget_below(session, partition, new)
    epoch = context.broker_leader_epoch
    return change.record(Event("LOG_START", str(old), str(new), broker_leader_epoch=epoch))


def _end_offset(session: Session, partition: Partition) -> int:
    """Return the end of the partition (exclusive); 0 if nothing was reported or finished.

    Offsets that a former leader copied beyond the end of its epoch do not count: the log does not
    have them.
    """
    rows = session.execute(
        select(HighestOffsetRow.leader_epoch, HighestOffsetRow.highest_offset).where(
            HighestOffsetRow.topic_id == partition.topic_id,
            HighestOffsetRow.partition == partition.partition,
        )
    )
    ends: dict[int, int] = {row.leader_epoch: row.highest_offset + 1 for row in rows}
    high_watermark, lineage = bounds_of(session, partition)
    if lineage.entries:
        ends = {
            entry.leader_epoch: min(end, lineage.end_offset_for(entry.leader_epoch, end))
            for entry in lineage.entries
            if (end := ends.get(entry.leader_epoch)) is not None
        }
    return max([high_watermark, *ends.values()])


@dataclass(frozen=True, slots=True)
class LeaderEpochReset:
    """The arguments of reset_leader_epoch, but for the context."""

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None


def reset_leader_epoch(change: Change, reset: LeaderEpochReset) -> MutationOutcome:
    """Set the highest broker leader epoch; see RemoteLogMetadataManager.reset_leader_epoch."""
    partition, new = change.partition, reset.leader_epoch
    old = partition.highest_broker_leader_epoch
    if partition.delete_state == FINISHED.value:
        raise unknown_partition(reset.topic_id_partition)
    if new == old:
        return change.unchanged()
    change.locked.require_expected(change.context)
    partition.highest_broker_leader_epoch = new
    overrule_report(change.session, partition, new)
    event = Event("LEADER_EPOCH_RESET", _text(old), _text(new), broker_leader_epoch=new)
    return change.record(event)


def _text(leader_epoch: int | None) -> str | None:
    return None if leader_epoch is None else str(leader_epoch)


def set_export_position(
    session: Session, tp: TopicIdPartition, name: str, next_offset: int, lease_ms: int
) -> ExportPosition | None:
    """Store a position; see RemoteLogMetadataManager.set_export_position.

    Under the partition's lock: no deletion that was checked before it is still to be written.
    """
    partition = LockedPartitions.lock(session, [tp]).of(tp).row
    if partition.delete_state == FINISHED.value:
        raise unknown_partition(tp)
    live = {export.name: export for export in partition.exports}
    known = live.pop(name, None)
    set_to = None
    if lease_ms > 0:
        if len(live) >= MAX_EXPORTS:
            raise InvalidRequestError(
                f"name: partition {tp} has the positions of {MAX_EXPORTS} exports already: "
                f"{', '.join(live)}; end the lease of one"
            )
        until_ms = ms_of(session.scalars(select(NOW)).one()) + lease_ms
        furthest = next_offset if known is None else max(next_offset, known.next_offset)
        set_to = live[name] = ExportPosition(name, furthest, until_ms)
    values = {
        export.name: {"next_offset": export.next_offset, "lease_until_ms": export.lease_until_ms}
        for export in live.values()
    }
    session.execute(
        update(PartitionRow)
        .where(
            PartitionRow.topic_id == partition.topic_id,
            PartitionRow.partition == partition.partition,
        )
        .values(export_positions=values or None)
        .execution_options(synchronize_session=False)
    )
    return set_to
