"""Scan the segments of whole partitions in columns (scan_remote_log_segments)."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from tempfile import SpooledTemporaryFile
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
from psycopg.rows import dict_row
from sqlalchemy import Connection, text

from services.api.ids import ZERO_UUID
from services.api.segment_batches import SCAN_COLUMNS, SegmentBatch, SegmentScan
from services.rlmm.database.db import IS_KNOWN, PARTITIONS_IN_ORDER, Transactions
from services.rlmm.database.rows import COPY_LEASED

_TYPES = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "binary": pa.binary(),
    "list<int32>": pa.list_(pa.int32()),
    "list<int64>": pa.list_(pa.int64()),
}

SCHEMA = pa.schema([(name, _TYPES[type_name]) for name, type_name in SCAN_COLUMNS])

_OF_PARTITION = frozenset({"topic_id", "topic", "partition", "revision", "delete_state"})
"""Columns whose value all segments of a partition share."""

_ELEMENTS = {"leader_epochs": struct.Struct(">ii"), "epoch_start_offsets": struct.Struct(">iq")}
"""Columns of lists, and how PostgreSQL's array_send writes an element: its length and its value."""

KIB = 1024
CHUNK_BYTES = 256 * KIB
BATCH_BYTES = 1024 * KIB
GROUP_BYTES = 4 * BATCH_BYTES
MEMORY_BYTES = 16 * BATCH_BYTES
"""Memory of one scan for rows that are read and not yet sent, without a chunk and a batch."""
CHUNKS_PER_FETCH = 16
PARTITIONS_PER_STATEMENT = 1_000
MAX_ROW_BYTES = 256
"""The most bytes of a row in a batch, without the values of variable length."""
ARRAY_HEADER_BYTES = 20
"""Bytes before the elements in the output of array_send."""
_IN_ORDER = "ORDER BY start_offset, segment_id"
_EPOCH_COUNTS = "array_agg(cardinality(leader_epochs)"
_OF_SEGMENTS = {
    "segment_id": "array_agg(segment_id::text",
    "copy_leased": f"array_agg({COPY_LEASED}",
    "kept_until_ms": "array_agg(CAST(extract(epoch FROM kept_until) * 1000 AS bigint)",
    "leader_epochs": f"string_agg(substr(array_send(leader_epochs), {ARRAY_HEADER_BYTES} + 1), ''",
    "epoch_start_offsets": (
        f"string_agg(substr(array_send(epoch_start_offsets), {ARRAY_HEADER_BYTES} + 1), ''"
    ),
    **{
        name: f"array_agg({name}"
        for name in (
            "start_offset",
            "end_offset",
            "max_timestamp_ms",
            "broker_id",
            "broker_leader_epoch",
            "event_timestamp_ms",
            "segment_size_in_bytes",
            "custom_metadata",
            "state",
            "txn_idx_empty",
            "plan_id",
        )
    },
}
"""SQL for one value of a chunk's rows; each aggregate is left open for its order."""
_NOW_MS = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)")


class SegmentColumns:
    """Columns that grow by a chunk of one partition's segments at a time.

    Attributes:
        rows: the number of segments.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.rows = 0
        self._schema = pa.schema([SCHEMA.field(name) for name in names])
        self._columns: dict[str, list[Any]] = {name: [] for name in names}
        self._epoch_counts: list[int] = []

    def add(self, chunk: dict[str, Any]) -> None:
        """Add some segments of a partition.

        Args:
            chunk: a row of the statement: their number as `rows`, and for each column the value
                that all of them share, or a list of values. A list of epochs has the elements of
                all rows, each as array_send writes it; `epoch_counts` says how many are of each.
        """
        rows = chunk["rows"]
        self.rows += rows
        self._epoch_counts += chunk.get("epoch_counts", ())
        for name, column in self._columns.items():
            value = chunk[name]
            if name in _OF_PARTITION:
                column += [value] * rows
            elif name in _ELEMENTS:
                column += [element for _, element in _ELEMENTS[name].iter_unpack(value)]
            else:
                column += value

    def to_ipc(self) -> bytes:
        """Return one Arrow IPC stream: the schema and one record batch."""
        ends = pa.array(chain([0], accumulate(self._epoch_counts)), pa.int32())
        arrays = []
        for field in self._schema:
            values = self._columns[field.name]
            if pa.types.is_list(field.type):
                elements = pa.array(values, field.type.value_type)
                arrays.append(pa.ListArray.from_arrays(ends, elements))
            else:
                arrays.append(pa.array(values, field.type))
        batch = pa.record_batch(arrays, schema=self._schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            writer.write_batch(batch)
        stream: bytes = sink.getvalue().to_pybytes()
        return stream


def _statement(columns: Sequence[str]) -> str:
    """Return the statement that reads these columns, a row for each chunk of a partition."""
    # The lateral join keeps the planner from sorting: partitions come in the order of their key,
    # and each one's chunks in theirs.
    aggregates = {name: _OF_SEGMENTS[name] for name in columns if name not in _OF_PARTITION}
    if not aggregates.keys().isdisjoint(_ELEMENTS):
        aggregates["epoch_counts"] = _EPOCH_COUNTS
    listed = "".join(f", {each} {_IN_ORDER}) AS {name}" for name, each in aggregates.items())
    return f"""
    SELECT p.topic_id AS topic_uuid, p.topic_id::text, p.topic, p.partition, p.revision,
        p.delete_state, chunk.*
    FROM (
        SELECT p.topic_id, t.name AS topic, p.partition, p.revision, p.delete_state
        FROM {PARTITIONS_IN_ORDER}
        WHERE (p.topic_id, p.partition) > (%(topic_id)s, %(partition)s)
            AND {IS_KNOWN}
            AND (p.delete_state = ANY(CAST(%(delete_states)s AS text[])) OR %(in_any_or_none)s)
            AND (t.name = %(topic)s OR %(topic)s = '')
            AND (p.partition = %(only)s OR %(only)s = -1)
            AND (hashtextextended(p.topic_id::text || ':' || p.partition, 0)
                & 9223372036854775807) %% %(shards)s = %(shard)s
        ORDER BY p.topic_id, p.partition LIMIT {PARTITIONS_PER_STATEMENT}
    ) AS p
    LEFT JOIN LATERAL (
        SELECT
            CAST(sum(bytes) AS bigint) AS chunk_bytes, count(*) AS rows
            {listed}
        FROM (
            SELECT s.*, sum(bytes) OVER (
                {_IN_ORDER} ROWS UNBOUNDED PRECEDING) / {CHUNK_BYTES} AS chunk
            FROM (
                SELECT *, {MAX_ROW_BYTES} + octet_length(p.topic) + 12 * cardinality(leader_epochs)
                    + coalesce(octet_length(custom_metadata), 0)
                    + coalesce(octet_length(plan_id), 0) AS bytes
                FROM segments
                WHERE topic_id = p.topic_id AND partition = p.partition
                    AND state <> 'DELETE_SEGMENT_FINISHED'
                    AND (state = ANY(CAST(%(states)s AS text[])) OR %(all_states)s)
            ) AS s
        ) AS s
        GROUP BY chunk ORDER BY chunk
    ) AS chunk ON true
    ORDER BY p.topic_id, p.partition"""


@dataclass(frozen=True, slots=True)
class _Position:
    """The last partition that was read."""

    topic_id: UUID
    partition: int


_START = _Position(ZERO_UUID, -1)


def scan_segments(transactions: Transactions, scan: SegmentScan) -> Iterator[SegmentBatch]:
    """Scan segments; see RemoteLogMetadataManager.scan_remote_log_segments."""
    began_at_ms: int | None = None
    position: _Position | None = _START
    while position is not None:
        with _Group(scan.column_names()) as group:
            read_at_ms, position = transactions.read_in_transaction(_read, scan, position, group)
            began_at_ms = read_at_ms if began_at_ms is None else began_at_ms
            for stream, rows in group.batches():
                yield SegmentBatch(stream, rows, began_at_ms)


class _Group:
    """The batches of whole partitions, in the order of reading."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._names = columns
        self._columns = SegmentColumns(columns)
        self._columns_bytes = 0
        self._streams = SpooledTemporaryFile[bytes](max_size=MEMORY_BYTES)
        self._lengths_and_rows: list[tuple[int, int]] = []
        self.size_bytes = 0

    def __enter__(self) -> "_Group":
        return self

    def __exit__(self, *_: object) -> None:
        self._streams.close()

    def add(self, row: dict[str, Any]) -> None:
        """Add a chunk, a row of the statement."""
        chunk_bytes = row["chunk_bytes"]
        if self._columns_bytes + chunk_bytes > BATCH_BYTES:
            self.end_batch()
        self._columns_bytes += chunk_bytes
        self.size_bytes += chunk_bytes
        self._columns.add(row)

    def end_batch(self) -> None:
        if self._columns.rows == 0:
            return
        stream = self._columns.to_ipc()
        self._streams.write(stream)
        self._lengths_and_rows.append((len(stream), self._columns.rows))
        self._columns, self._columns_bytes = SegmentColumns(self._names), 0

    def batches(self) -> Iterator[tuple[bytes, int]]:
        """Yield each complete batch: its Arrow IPC stream and its number of rows."""
        self._streams.seek(0)
        for length, rows in self._lengths_and_rows:
            yield self._streams.read(length), rows


def _read(
    connection: Connection, scan: SegmentScan, after: _Position, group: _Group
) -> tuple[int, _Position | None]:
    """Read a group; return the time, and the group's last partition or None after the last
    group.
    """
    # SQLAlchemy runs this statement, and so detects a dead pooled connection.
    read_at_ms: int = connection.execute(_NOW_MS).scalar_one()
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    with driver.cursor("scan", row_factory=dict_row) as cursor:
        cursor.execute(_statement(scan.column_names()), _parameters(scan, after), binary=True)
        last = _read_chunks(cursor, group)
    group.end_batch()
    return read_at_ms, last


def _read_chunks(cursor: "psycopg.ServerCursor[dict[str, Any]]", group: _Group) -> _Position | None:
    position, partitions = _START, 0
    while rows := cursor.fetchmany(CHUNKS_PER_FETCH):
        for row in rows:
            here = _Position(row["topic_uuid"], row["partition"])
            if here != position:
                if group.size_bytes >= GROUP_BYTES:
                    return position
                position, partitions = here, partitions + 1
            if row["chunk_bytes"] is not None:
                group.add(row)
    return position if partitions == PARTITIONS_PER_STATEMENT else None


def _parameters(scan: SegmentScan, after: _Position) -> dict[str, object]:
    return {
        "topic_id": after.topic_id,
        "partition": after.partition,
        "shard": scan.shard,
        "shards": scan.shards,
        "topic": scan.topic,
        "only": -1 if scan.partition is None else scan.partition,
        "delete_states": [state.value for state in scan.delete_states],
        "in_any_or_none": not scan.delete_states,
        "states": [state.value for state in scan.states],
        "all_states": not scan.states,
    }
