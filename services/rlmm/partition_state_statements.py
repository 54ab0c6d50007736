"""The statements by which the rows of partition states are stored and read.

Built once: every report and every look at a partition runs one of them, and to build it anew would
take longer than it does.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, or_, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.dml import ReturningInsert

from services.api.partition_state import PartitionReport
from services.rlmm import gaps
from services.rlmm.partitions import KNOWN
from services.rlmm.rows import EPOCH
from services.rlmm.tables import NOW, Base, PartitionRow, PartitionStateRow, TopicRow

COLUMNS = PartitionStateRow.__table__.columns
LINEAGE = ("leader_epochs", "epoch_start_offsets")
OVERRULED_AT = EPOCH
"""When a report that was overruled came. A release that does not know of this takes what is in its
place for a report that is far too old to act on."""
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
    """Answers the lineage as it was before, and no row where another report came first."""
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
        .where(
            PartitionRow.topic_id == bindparam("topic_id"),
            PartitionRow.partition == bindparam("partition"),
            KNOWN,
        )
    )


STORE_IF_LATER = _store_if_later()
READ = _read_statement()
