"""Many rows into one statement: as one JSON parameter, which the database takes apart.

psycopg needs several times as long for arrays, and some for each column.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection

from services.api.ids import RemoteLogSegmentId, TopicIdPartition

T = TypeVar("T")

_PIPELINE = "pipeline"
"""In SQLAlchemy's notes on a connection."""

JsonRow: TypeAlias = dict[str, object]
PartitionKey: TypeAlias = tuple[UUID, int]
"""Topic id and partition, in whose order locks are taken."""


@contextmanager
def pipelined(connection: Connection) -> Iterator[None]:
    """Statements of `run` are sent without waiting for the answers to those before them.

    What a statement failed with is raised by wait_for_answers, or at the end. SQLAlchemy's own
    statements do not work inside.
    """
    with _driver(connection).pipeline() as pipeline:
        connection.info[_PIPELINE] = pipeline
        try:
            yield
        finally:
            del connection.info[_PIPELINE]


def wait_for_answers(connection: Connection) -> None:
    """To all that was sent; call this before their rows are read.

    Who reads without it gets the rows too, but leaves the session "active" for the database: it
    would not be ended, and its locks kept, where its process falls silent.
    """
    connection.info[_PIPELINE].sync()


def run(
    connection: Connection,
    statement: str,
    rows: Sequence[JsonRow],
    values: Mapping[str, object] | None = None,
) -> psycopg.Cursor[Any]:
    """Run a statement that has `rows` as %(rows)s; what it answers with are named tuples.

    By psycopg alone, as Transactions.read_row, but in the connection's transaction.
    """
    cursor = _driver(connection).cursor(binary=True, row_factory=namedtuple_row)
    return cursor.execute(statement, {"rows": json.dumps(rows), **(values or {})}, prepare=True)


def stream(
    connection: Connection, statement: str, rows: Sequence[JsonRow], at_a_time: int
) -> Iterator[Any]:
    """The answers of a statement as `run` has them, each as soon as so many are there.

    The database goes on meanwhile. Not prepared: psycopg cannot do both.
    """
    cursor = _driver(connection).cursor(binary=True, row_factory=namedtuple_row)
    return cursor.stream(statement, {"rows": json.dumps(rows)}, size=at_a_time)


def when_needed(read: Callable[[], T]) -> Callable[[], T]:
    """`read`, done once, when its answer is first asked for.

    For what a pipeline has asked for, or what waits for the database. (A cached_property of Python
    3.11 has one lock for all objects of its class: they would wait for each other's rows.)
    """
    return cache(read)


def _driver(connection: Connection) -> "psycopg.Connection[Any]":
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


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
