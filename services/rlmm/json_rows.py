"""Many rows into one statement: as one JSON parameter, which the database takes apart.

psycopg needs several times as long for arrays, and some for each column.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection

from services.api.ids import RemoteLogSegmentId, TopicIdPartition

JsonRow: TypeAlias = dict[str, object]
PartitionKey: TypeAlias = tuple[UUID, int]
"""Topic id and partition, in whose order locks are taken."""


def run(
    connection: Connection,
    statement: str,
    rows: Sequence[JsonRow],
    values: Mapping[str, object] | None = None,
) -> psycopg.Cursor[Any]:
    """Run a statement that has `rows` as %(rows)s; what it answers with are named tuples.

    By psycopg alone, as Transactions.read_row, but in the connection's transaction.
    """
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    cursor = driver.cursor(binary=True, row_factory=namedtuple_row)
    return cursor.execute(statement, {"rows": json.dumps(rows), **(values or {})}, prepare=True)


def key_of(tp: TopicIdPartition) -> PartitionKey:
    return tp.topic_id, tp.partition


def partition_row(key: PartitionKey) -> JsonRow:
    return {"topic_id": key[0].hex, "partition": key[1]}


def segment_row(segment_id: RemoteLogSegmentId) -> JsonRow:
    row = partition_row(key_of(segment_id.topic_id_partition))
    row["segment_id"] = segment_id.id.hex
    return row


def hex_of(value: bytes | None) -> str | None:
    """For decode(..., 'hex'): JSON has no bytes."""
    return None if value is None else value.hex()
