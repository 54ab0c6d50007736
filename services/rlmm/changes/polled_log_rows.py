"""Store the polled logs of partitions that brokers tier by themselves.

They are apart from the leaders' reports: no rule of retention reads them.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import PolledLog
from services.api.segments import segment_leader_epochs
from services.rlmm.database.db import IS_KNOWN, PARTITIONS, execute, key_of, key_values
from services.rlmm.database.rows import AnyRow

_VALUES = {
    "broker_id": "int",
    "leader_epoch": "int",
    "leader_epochs": "int[]",
    "epoch_start_offsets": "bigint[]",
    "log_start_offset": "bigint",
    "high_watermark": "bigint",
}
COLUMNS = ", ".join(f"polled.{name} AS polled_{name}" for name in _VALUES) + ", polled.polled_at"
"""SQL for the columns that `polled_log` reads, of `polled_logs AS polled`."""

# Stores a log unless its partition is unknown, or its epoch old.
STORE = f"""
    INSERT INTO polled_logs AS known (topic_id, partition, {", ".join(_VALUES)})
    SELECT p.topic_id, p.partition, {", ".join(f"%({n})s::{t}" for n, t in _VALUES.items())}
    FROM {PARTITIONS}
    WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND t.name = %(topic)s
        AND {IS_KNOWN}
    ON CONFLICT (topic_id, partition) DO UPDATE SET
        {", ".join(f"{name} = excluded.{name}" for name in _VALUES)},
        polled_at = clock_timestamp()
    WHERE known.leader_epoch <= excluded.leader_epoch"""


def store(connection: Connection, logs: Sequence[PolledLog]) -> None:
    """Store the logs, in one order, so that two RLMs never wait for each other."""
    for log in sorted(logs, key=lambda log: log.topic_id_partition):
        execute(connection, STORE, _row_of(log))


def _row_of(log: PolledLog) -> dict[str, object]:
    tp, epochs = log.topic_id_partition, log.lineage.entries
    return {
        **key_values(key_of(tp)),
        "topic": tp.topic,
        "broker_id": log.broker_id,
        "leader_epoch": log.leader_epoch,
        "leader_epochs": [epoch.leader_epoch for epoch in epochs],
        "epoch_start_offsets": [epoch.start_offset for epoch in epochs],
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
    }


def polled_log(row: AnyRow, tp: TopicIdPartition) -> PolledLog | None:
    """Read the log from a row with COLUMNS; None if none is stored."""
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
