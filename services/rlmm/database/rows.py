"""Convert between rows and Kafka's nouns."""

from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Row

from services.api.holds import Hold, HoldKind
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, uuid_to_text
from services.api.partitions import SegmentTotals
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    SegmentLeaderEpoch,
)

AnyRow: TypeAlias = Row[*tuple[Any, ...]]

_STATES = {state.value: state for state in RemoteLogSegmentState}
"""States by value: faster than the enum's own look-up, because a list makes thousands."""

NO_LEADER_EPOCH = -1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ms_of(at: datetime) -> int:
    """Return milliseconds since 1970, rounded down."""
    return (at - EPOCH) // timedelta(milliseconds=1)


def kept_until_ms_of(row: AnyRow) -> int | None:
    """Return the column kept_until of a segment's row in milliseconds."""
    return None if row.kept_until is None else ms_of(row.kept_until)


def segment_from_row(
    row: AnyRow,
    tp: TopicIdPartition,
    *,
    copy_leased: bool = False,
    kept_until_ms: int | None = None,
) -> RemoteLogSegmentMetadata:
    """Convert a row with the columns of SEGMENT_COLUMNS to a segment.

    Args:
        copy_leased: the row's COPY_LEASED, if the segment may be in COPY_SEGMENT_STARTED.
        kept_until_ms: kept_until_ms_of the row, if the segment may be deleted.
    """
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(tp, row.segment_id),
        start_offset=row.start_offset,
        end_offset=row.end_offset,
        max_timestamp_ms=row.max_timestamp_ms,
        broker_id=row.broker_id,
        event_timestamp_ms=row.event_timestamp_ms,
        segment_leader_epochs=tuple(
            map(SegmentLeaderEpoch, row.leader_epochs, row.epoch_start_offsets)
        ),
        segment_size_in_bytes=row.segment_size_in_bytes,
        custom_metadata=row.custom_metadata,
        state=_STATES[row.state],
        txn_idx_empty=row.txn_idx_empty,
        broker_leader_epoch=row.broker_leader_epoch,
        copy_leased=copy_leased,
        kept_until_ms=kept_until_ms,
    )


SEGMENT_COLUMNS = (
    "segment_id",
    "start_offset",
    "end_offset",
    "max_timestamp_ms",
    "broker_id",
    "event_timestamp_ms",
    "leader_epochs",
    "epoch_start_offsets",
    "segment_size_in_bytes",
    "custom_metadata",
    "state",
    "txn_idx_empty",
    "broker_leader_epoch",
)

COPY_LEASED = """(state = 'COPY_SEGMENT_STARTED'
        AND coalesce(copy_lease_until > clock_timestamp(), false))"""
"""SQL condition for a segment whose copy is leased when it is read."""


def row_values(metadata: RemoteLogSegmentMetadata) -> dict[str, object]:
    """Return the columns of `segments` that the metadata has."""
    tp, epochs = metadata.topic_id_partition, metadata.segment_leader_epochs
    return {
        "topic_id": tp.topic_id,
        "partition": tp.partition,
        "segment_id": metadata.remote_log_segment_id.id,
        "start_offset": metadata.start_offset,
        "end_offset": metadata.end_offset,
        "max_timestamp_ms": metadata.max_timestamp_ms,
        "broker_id": metadata.broker_id,
        "event_timestamp_ms": metadata.event_timestamp_ms,
        "leader_epochs": [epoch.leader_epoch for epoch in epochs],
        "epoch_start_offsets": [epoch.start_offset for epoch in epochs],
        "segment_size_in_bytes": metadata.segment_size_in_bytes,
        "custom_metadata": metadata.custom_metadata,
        "state": metadata.state.value,
        "txn_idx_empty": metadata.txn_idx_empty,
        "broker_leader_epoch": metadata.broker_leader_epoch,
    }


def event_key(metadata: RemoteLogSegmentMetadata) -> str:
    """Return topicId:partition:endOffset:brokerLeaderEpoch, the key of the compaction KIP."""
    tp = metadata.topic_id_partition
    return event_key_of(tp, metadata.end_offset, metadata.broker_leader_epoch)


def event_key_of(tp: TopicIdPartition, end_offset: int, broker_leader_epoch: int | None) -> str:
    """Build event_key from its parts."""
    epoch = NO_LEADER_EPOCH if broker_leader_epoch is None else broker_leader_epoch
    return f"{uuid_to_text(tp.topic_id)}:{tp.partition}:{end_offset}:{epoch}"


TOTALS = ("finished_segments", "finished_bytes", "live_segments", "live_bytes", "saved_bytes")
"""Columns of `partitions`: the fields of SegmentTotals. Changes of segments move them."""
_totals = attrgetter(*TOTALS)


def totals_of(row: AnyRow) -> SegmentTotals:
    """Return the totals in the columns TOTALS of a row."""
    return SegmentTotals(*_totals(row))


def _ms(time: str) -> str:
    return f"CAST(floor(extract(epoch FROM {time}) * 1000) AS bigint)"


HOLD = f"""json_build_array(
        h.name, h.kind, h.topic_id, ht.name, h.partition, h.first_offset, h.last_offset, h.reason,
        {_ms("h.until")}, h.actor, {_ms("h.set_at")})"""
"""SQL for an item of holds_of, from `holds AS h` and its topic `ht`."""
IS_LIVE_HOLD = "(h.until IS NULL OR h.until > clock_timestamp())"


def live_holds(row: str) -> str:
    """Return SQL for the holds that last of a partition; null if there are none.

    Args:
        row: the name of a row with topic_id and partition.
    """
    return f"""(
        SELECT json_agg({HOLD} ORDER BY h.name, h.hold_id)
        FROM holds AS h LEFT JOIN topics AS ht ON ht.topic_id = h.topic_id
        WHERE (h.topic_id IS NULL OR h.topic_id = {row}.topic_id
                AND (h.partition IS NULL OR h.partition = {row}.partition))
            AND {IS_LIVE_HOLD})"""


def holds_of(column: list[list[Any]] | None) -> tuple[Hold, ...]:
    """Convert live_holds."""
    return tuple(
        Hold(name, HoldKind(kind), topic_id and UUID(topic_id), topic or "", *others)
        for name, kind, topic_id, topic, *others in column or ()
    )
