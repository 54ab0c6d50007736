"""Store the polled logs of partitions that brokers tier by themselves.

They are kept apart from the leaders' reports: no rule of retention reads them.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, select
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import Session

from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import PolledLog
from services.api.segments import segment_leader_epochs
from services.rlmm.changes.partitions import KNOWN
from services.rlmm.database.rows import AnyRow
from services.rlmm.database.tables import NOW, Base, PartitionRow, PolledLogRow, TopicRow

_TABLE = Base.metadata.tables[PolledLogRow.__tablename__]
_COLUMNS = _TABLE.c

_VALUES = (
    "broker_id",
    "leader_epoch",
    "leader_epochs",
    "epoch_start_offsets",
    "log_start_offset",
    "high_watermark",
)


def _store_statement() -> Insert:
    """Build the statement that stores a log unless its partition is unknown, or its epoch old."""
    values = [bindparam(f"new_{name}", type_=_COLUMNS[name].type) for name in _VALUES]
    known = (
        select(PartitionRow.topic_id, PartitionRow.partition, *values)
        .join(TopicRow, TopicRow.topic_id == PartitionRow.topic_id)
        .where(
            PartitionRow.topic_id == bindparam("of_topic_id"),
            PartitionRow.partition == bindparam("of_partition"),
            TopicRow.name == bindparam("of_topic"),
            KNOWN,
        )
    )
    row = insert(_TABLE).from_select(
        ["topic_id", "partition", *_VALUES], known, include_defaults=False
    )
    new = row.excluded
    return row.on_conflict_do_update(
        index_elements=["topic_id", "partition"],
        set_={**{name: new[name] for name in _VALUES}, "polled_at": NOW},
        where=_COLUMNS.leader_epoch <= new.leader_epoch,
    )


STORE = _store_statement()


def store(session: Session, logs: Sequence[PolledLog]) -> None:
    """Store the logs, in one order, so that two RLMs never wait for each other."""
    for log in sorted(logs, key=lambda log: log.topic_id_partition):
        session.execute(STORE, _row_of(log))


def _row_of(log: PolledLog) -> dict[str, object]:
    tp, epochs = log.topic_id_partition, log.lineage.entries
    return {
        "of_topic_id": tp.topic_id,
        "of_partition": tp.partition,
        "of_topic": tp.topic,
        "new_broker_id": log.broker_id,
        "new_leader_epoch": log.leader_epoch,
        "new_leader_epochs": [epoch.leader_epoch for epoch in epochs],
        "new_epoch_start_offsets": [epoch.start_offset for epoch in epochs],
        "new_log_start_offset": log.log_start_offset,
        "new_high_watermark": log.high_watermark,
    }


def columns() -> list[ColumnElement[Any]]:
    """List the columns that `polled_log` reads, each with the prefix "polled_"."""
    found: list[ColumnElement[Any]] = [_COLUMNS[name].label(f"polled_{name}") for name in _VALUES]
    return [*found, _COLUMNS.polled_at]


def of_partition() -> ColumnElement[bool]:
    """Return the condition of the join with PartitionRow."""
    return and_(
        PolledLogRow.topic_id == PartitionRow.topic_id,
        PolledLogRow.partition == PartitionRow.partition,
    )


def polled_log(row: AnyRow, tp: TopicIdPartition) -> PolledLog | None:
    """Read the log from a row with `columns`; None if none is stored."""
    if row.polled_at is None:
        return None
    starts = zip(row.polled_leader_epochs, row.polled_epoch_start_offsets, strict=True)
    return PolledLog(
        topic_id_partition=tp,
        broker_id=row.polled_broker_id,
        leader_epoch=row.polled_leader_epoch,
        lineage=Lineage(segment_leader_epochs(list(starts))),
        log_start_offset=row.polled_log_start_offset,
        high_watermark=row.polled_high_watermark,
    )
