"""Store leaders' reports and the lineage of the tier, and read them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from services.api.calls import AtRevision, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    InvalidRangeError,
    RemoteStorageError,
)
from services.api.holds import Mark
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import NEVER_TRIMMED, NOTHING_COPIED, PartitionReport, PartitionState
from services.api.remote_log_metadata_manager import ReportOutcome
from services.api.segments import segment_leader_epochs
from services.api.topic_config import LOCAL_RETENTION_OWNER, LocalRetentionOwner
from services.rlmm.changes import gaps, polled_log_rows
from services.rlmm.changes.audit import NO_BROKER, Event
from services.rlmm.changes.batch import Batch, Change
from services.rlmm.changes.locked_partitions import LockedPartitions
from services.rlmm.changes.partitions import record_leader
from services.rlmm.database.db import IS_KNOWN, PARTITIONS, execute, key_of, key_values
from services.rlmm.database.rows import AnyRow, holds_of, live_holds, ms_of
from services.rlmm.guards import (
    FINISHED,
    Partition,
    check_topic_name,
    fence,
    removed_partition,
    unknown_partition,
)

_LINEAGE = "leader_epochs, epoch_start_offsets"
_OVERRULED = "to_timestamp(0)"
"""SQL for the time of a report that was overruled."""
_FIGURES = (
    "leader_epoch",
    "report_number",
    "broker_id",
    "local_log_start_offset",
    "log_end_offset",
    "high_watermark",
    "last_stable_offset",
    "only_local_bytes",
    "copied_through_offset",
    "lag_bytes",
)
"""Columns of a report that are its fields."""
REPORT = (*_FIGURES, "reported_leader_epochs", "reported_epoch_start_offsets")
_THIS = "topic_id = %(topic_id)s AND partition = %(partition)s"

# Returns the lineage before and the holds, or no row if a later report is stored.
STORE_IF_LATER = f"""
    INSERT INTO partition_states AS s
        (topic_id, partition, {_LINEAGE}, local_trim_offset, {", ".join(REPORT)})
    VALUES (%(topic_id)s, %(partition)s, '{{}}', '{{}}', %(local_trim_offset)s,
        {", ".join(f"%({n})s" for n in REPORT)})
    ON CONFLICT (topic_id, partition) DO UPDATE SET
        {", ".join(f"{name} = excluded.{name}" for name in REPORT)},
        local_trim_offset = greatest(s.local_trim_offset, excluded.local_trim_offset),
        reported_at = clock_timestamp()
    WHERE (s.leader_epoch, s.report_number) < (excluded.leader_epoch, excluded.report_number)
        OR ({", ".join(f"s.{name}" for name in REPORT)})
            = ({", ".join(f"excluded.{name}" for name in REPORT)})
        OR s.reported_at = {_OVERRULED}
    RETURNING {_LINEAGE}, reported_at, local_trim_offset, {live_holds("s")} AS holds"""

# The topic's lock is not needed: whoever changes its settings locks its partitions, too.
_MAY_TRIM = f"""
    SELECT t.config ->> '{LOCAL_RETENTION_OWNER}' AS owner, s.local_trim_offset
    FROM topics AS t LEFT JOIN partition_states AS s
        ON s.topic_id = t.topic_id AND s.partition = %(partition)s
    WHERE t.topic_id = %(topic_id)s"""

READ = f"""
    SELECT t.name AS topic, p.revision, p.log_start_offset, p.highest_broker_leader_epoch,
        clock_timestamp() AS read_at, ({gaps.OF_PARTITION}) AS gaps, {live_holds("p")} AS holds,
        s.leader_epochs, s.epoch_start_offsets, s.reported_at, s.reported_at = {_OVERRULED}
            AS is_overruled, {", ".join(f"s.{name}" for name in REPORT)}, s.local_trim_offset,
        {polled_log_rows.COLUMNS}
    FROM {PARTITIONS}
    LEFT JOIN partition_states AS s ON s.topic_id = p.topic_id AND s.partition = p.partition
    LEFT JOIN polled_logs AS polled
        ON polled.topic_id = p.topic_id AND polled.partition = p.partition
    WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND {IS_KNOWN}"""

_BOUNDS = f"SELECT high_watermark, {_LINEAGE} FROM partition_states WHERE {_THIS}"
_STORE_LINEAGE = f"""
    UPDATE partition_states SET
        leader_epochs = %(leader_epochs)s, epoch_start_offsets = %(epoch_start_offsets)s
    WHERE {_THIS}"""

# The report stays overruled even if the partition's epoch rises later. The lineage stays.
_OVERRULE = f"""
    UPDATE partition_states SET
        reported_at = {_OVERRULED}, leader_epoch = 0, report_number = 0, broker_id = {NO_BROKER},
        reported_leader_epochs = '{{}}', reported_epoch_start_offsets = '{{}}',
        local_log_start_offset = 0, log_end_offset = 0, high_watermark = 0, last_stable_offset = 0,
        only_local_bytes = 0, lag_bytes = 0, copied_through_offset = {NOTHING_COPIED}
    WHERE {_THIS} AND (leader_epoch > %(above)s OR %(above)s::int IS NULL)"""

_BYTES_BELOW = f"""
    SELECT coalesce(sum(greatest(segment_size_in_bytes, 0)), 0)::bigint AS bytes_below
    FROM segments WHERE {_THIS} AND state = 'COPY_SEGMENT_FINISHED' AND start_offset < %(offset)s
        AND end_offset < %(offset)s"""
_HIGHEST_OFFSETS = f"SELECT leader_epoch, highest_offset FROM highest_offsets WHERE {_THIS}"

MAX_EVENT_EPOCHS = 100
"""Leader epochs listed in one event."""


def _row_of(report: PartitionReport) -> dict[str, object]:
    epochs = report.lineage.entries
    return {
        **key_values(key_of(report.topic_id_partition)),
        **{name: getattr(report, name) for name in _FIGURES},
        "local_trim_offset": report.local_trim_offset,
        "reported_leader_epochs": [epoch.leader_epoch for epoch in epochs],
        "reported_epoch_start_offsets": [epoch.start_offset for epoch in epochs],
    }


MAX_REPORTS_AT_ONCE = 25
"""Of one transaction, which locks their partitions."""


def store_reports(
    connection: Connection, reports: Sequence[PartitionReport]
) -> list[ReportOutcome]:
    """Store reports; see RemoteLogMetadataManager.report_partition_state.

    One that changes only figures costs one statement. A refused one has changed nothing.
    """
    tps = [report.topic_id_partition for report in reports]
    batch = Batch(connection, LockedPartitions.lock_or_create(connection, tps))
    outcomes: list[ReportOutcome] = []
    for report in reports:
        try:
            outcomes.append(_stored(batch, report))
        except RemoteStorageError as e:
            outcomes.append(e)
    batch.write()
    return outcomes


def _stored(batch: Batch, report: PartitionReport) -> AtRevision[PartitionState]:
    connection, records, tp = batch.connection, batch.records, report.topic_id_partition
    partition = batch.partitions.of(tp).row
    if partition.delete_state == FINISHED.value:
        raise removed_partition(tp)
    fence(partition, tp, report.leader_epoch)
    if report.local_trim_offset != NEVER_TRIMMED:
        _require_may_trim(connection, partition, report)
    stored = execute(connection, STORE_IF_LATER, _row_of(report)).fetchone()
    if stored is None:
        raise _out_of_order(connection, partition, report)
    record_leader(records, partition, report.leader_epoch, report.broker_id)
    known = _lineage(stored.leader_epochs, stored.epoch_start_offsets)
    lineage = known.merged_with_report(report.lineage).from_offset(partition.log_start_offset)
    if lineage != known:
        _store_lineage(connection, partition, lineage)
        gaps.cut_overwritten(connection, partition, lineage)
        lost, new = _missing_in(lineage, known), _missing_in(known, lineage)
        records.change(
            partition, Event("LINEAGE", lost, new, report.broker_id, report.leader_epoch)
        )
    reported_at_ms = ms_of(stored.reported_at)
    state = PartitionState(
        partition.log_start_offset,
        lineage,
        replace(report, local_trim_offset=stored.local_trim_offset),
        reported_at_ms,
        read_at_ms=reported_at_ms,
        highest_broker_leader_epoch=partition.highest_broker_leader_epoch,
        holds=holds_of(stored.holds),
    )
    return AtRevision(state, partition.revision)


def read(connection: Connection, tp: TopicIdPartition) -> AtRevision[PartitionState]:
    """Read the state in one statement; see RemoteLogMetadataManager.partition_state."""
    row = execute(connection, READ, key_values(key_of(tp))).fetchone()
    if row is None:
        raise unknown_partition(tp)
    check_topic_name(tp, row.topic)
    return AtRevision(_state(row, tp), row.revision)


def _bounds_of(connection: Connection, partition: Partition) -> tuple[int, Lineage]:
    """Read the reported high watermark and the stored lineage; 0 and empty without a report."""
    row = execute(connection, _BOUNDS, key_values(partition.key)).fetchone()
    if row is None:
        return 0, Lineage()
    return row.high_watermark, _lineage(row.leader_epochs, row.epoch_start_offsets)


def _out_of_order(
    connection: Connection, partition: Partition, report: PartitionReport
) -> ConcurrentUpdateError:
    statement = f"SELECT report_number FROM partition_states WHERE {_THIS}"
    stored = execute(connection, statement, key_values(partition.key)).fetchone()
    return ConcurrentUpdateError(
        f"report_number: {report.report_number} of leader epoch {report.leader_epoch} of partition "
        f"{report.topic_id_partition} is not above the stored report {stored and stored[0]}, and "
        "not the same report; send a larger number"
    )


def _require_may_trim(
    connection: Connection, partition: Partition, report: PartitionReport
) -> None:
    """Refuse a trim that rises, unless the tier is there to stay and the settings leave it to RLM.

    Raises:
        DeletionRefusedError: if the partition is to be removed, or its brokers delete.
    """
    row = execute(connection, _MAY_TRIM, key_values(partition.key)).fetchone()
    assert row is not None, "a partition's topic is there"
    stored = NEVER_TRIMMED if row.local_trim_offset is None else row.local_trim_offset
    if report.local_trim_offset <= stored:
        return
    if row.owner != LocalRetentionOwner.RLM.value or partition.delete_state is not None:
        raise DeletionRefusedError(
            f"local_trim_offset: {report.local_trim_offset} of {report.topic_id_partition} is "
            f"refused: {LOCAL_RETENTION_OWNER} is not rlm, or the partition is to be removed"
        )


def _store_lineage(connection: Connection, partition: Partition, lineage: Lineage) -> None:
    values = {
        **key_values(partition.key),
        "leader_epochs": [epoch.leader_epoch for epoch in lineage.entries],
        "epoch_start_offsets": [epoch.start_offset for epoch in lineage.entries],
    }
    execute(connection, _STORE_LINEAGE, values)


def _state(row: AnyRow, tp: TopicIdPartition) -> PartitionState:
    state = PartitionState(
        row.log_start_offset,
        read_at_ms=ms_of(row.read_at),
        gaps=gaps.from_column(row.gaps),
        highest_broker_leader_epoch=row.highest_broker_leader_epoch,
        polled_log=polled_log_rows.polled_log(row, tp),
        polled_at_ms=None if row.polled_at is None else ms_of(row.polled_at),
        holds=holds_of(row.holds),
    )
    if row.report_number is None:
        return state
    state = replace(state, lineage=_lineage(row.leader_epochs, row.epoch_start_offsets))
    if row.is_overruled:
        return state
    lineage = _lineage(row.reported_leader_epochs, row.reported_epoch_start_offsets)
    figures = {name: getattr(row, name) for name in _FIGURES}
    figures["local_trim_offset"] = row.local_trim_offset
    report = PartitionReport(topic_id_partition=tp, lineage=lineage, **figures)
    return replace(state, report=report, reported_at_ms=ms_of(row.reported_at))


def _lineage(epochs: Sequence[int], starts: Sequence[int]) -> Lineage:
    return Lineage(segment_leader_epochs(list(zip(epochs, starts, strict=True))))


def _missing_in(lineage: Lineage, other: Lineage) -> str:
    """Format the entries that only `other` has as "epoch:start ...", for the audit trail."""
    missing = [entry for entry in other.entries if entry not in lineage.entries]
    texts = [f"{entry.leader_epoch}:{entry.start_offset}" for entry in missing[:MAX_EVENT_EPOCHS]]
    others = len(missing) - len(texts)
    return " ".join([*texts, f"and {others} more"] if others else texts)


@dataclass(frozen=True, slots=True)
class LogStartRaise:
    """The arguments of raise_log_start_offset, but for the context."""

    topic_id_partition: TopicIdPartition
    log_start_offset: int
    restores: bool = False


def raise_log_start(change: Change, rise: LogStartRaise) -> MutationOutcome:
    """Raise the log start; see RemoteLogMetadataManager.raise_log_start_offset."""
    connection, partition, context = change.connection, change.partition, change.context
    tp, old, new = rise.topic_id_partition, partition.log_start_offset, rise.log_start_offset
    if partition.delete_state == FINISHED.value:
        raise unknown_partition(tp)
    if new <= old:
        return change.unchanged()
    fence(partition, tp, context.broker_leader_epoch)
    change.locked.require_expected(context)
    end = _end_offset(connection, partition)
    if rise.restores:
        change.locked.require_rebuild()
        new = min(new, end)
        if new <= old:
            return change.unchanged()
    else:
        change.locked.require_not_held(Mark.LOG_START, old, new - 1)
        change.locked.require_owner(context)
        # Segments below the log start are no longer read: they must not wait there for their marks.
        below = {**key_values(partition.key), "offset": new}
        for row in execute(connection, _BYTES_BELOW, below):
            change.locked.require_within_bound(row.bytes_below, marks=False)
    if new > end:
        raise InvalidRangeError(
            f"log_start_offset: {new} is above {end}, the end of partition {tp} (the reported high "
            "watermark or the last finished offset)"
        )
    partition.log_start_offset = new
    _, lineage = _bounds_of(connection, partition)
    _store_lineage(connection, partition, lineage.from_offset(new))
    gaps.delete_below(connection, partition, new)
    epoch = context.broker_leader_epoch
    return change.record(Event("LOG_START", str(old), str(new), broker_leader_epoch=epoch))


def _end_offset(connection: Connection, partition: Partition) -> int:
    """Return the end of the partition (exclusive); 0 if nothing was reported or finished.

    Offsets that a former leader copied beyond the end of its epoch do not count: the log does not
    have them.
    """
    rows = execute(connection, _HIGHEST_OFFSETS, key_values(partition.key))
    ends: dict[int, int] = {row.leader_epoch: row.highest_offset + 1 for row in rows}
    high_watermark, lineage = _bounds_of(connection, partition)
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
    values = {**key_values(partition.key), "above": new}
    execute(change.connection, _OVERRULE, values)
    event = Event("LEADER_EPOCH_RESET", _text(old), _text(new), broker_leader_epoch=new)
    return change.record(event)


def _text(leader_epoch: int | None) -> str | None:
    return None if leader_epoch is None else str(leader_epoch)
