"""Test reads by psycopg itself, on connections of SQLAlchemy's pool."""

import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import Engine, text

from services.api.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.rlmm.database.db import Transactions, run
from services.rlmm.database.engine import DatabaseLimits, create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager

CONNECTIONS = 3
TP = TopicIdPartition(uuid.uuid4(), "topic", 0)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(
        database_url, DatabaseLimits(pool_size=CONNECTIONS, pool_timeout_ms=1)
    )
    yield engine
    engine.dispose()


def open_all_connections(engine: Engine) -> None:
    connections = [engine.connect() for _ in range(CONNECTIONS)]
    for connection in connections:
        connection.close()


def test_a_row_is_a_named_tuple_and_none_is_none(engine: Engine) -> None:
    transactions = Transactions(engine)
    row = transactions.read_row("SELECT 1 AS one, CAST(%(two)s AS int) AS two", {"two": 2})
    assert (row.one, row.two) == (1, 2)
    assert transactions.read_row("SELECT 1 WHERE false", {}) is None


def test_after_a_read_the_connection_is_again_one_for_transactions(engine: Engine) -> None:
    transactions = Transactions(engine)
    transactions.read_row("SELECT 1", {})

    insert = text("INSERT INTO topics (topic_id, name) VALUES (:id, 'topic')")

    def fail_after_a_change() -> None:
        with engine.begin() as connection:
            connection.execute(insert, {"id": uuid.uuid4()})
            raise RuntimeError("undo it")

    with pytest.raises(RuntimeError, match="undo it"):
        fail_after_a_change()
    assert transactions.read_row("SELECT count(*) AS topics FROM topics", {}).topics == 0


def test_a_refused_statement_is_named_and_costs_no_connection(engine: Engine) -> None:
    transactions = Transactions(engine)
    for _ in range(CONNECTIONS + 1):
        with pytest.raises(RemoteStorageError, match="22012"):
            transactions.read_row("SELECT 1 / %(zero)s", {"zero": 0})
    assert transactions.read_row("SELECT 1 AS one", {}).one == 1


def test_a_statement_that_took_too_long_does_not_run_again(database_url: str) -> None:
    engine = create_database_engine(database_url, DatabaseLimits(statement_timeout_ms=100))
    transactions = Transactions(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE SEQUENCE runs"))
    with pytest.raises(RetriableRemoteStorageError, match="57014"):
        transactions.read_row("SELECT nextval('runs'), pg_sleep(%(s)s)", {"s": 60})
    assert transactions.read_row("SELECT nextval('runs') AS n", {}).n == 2
    engine.dispose()


def test_when_the_database_ended_its_sessions_one_read_fails(
    engine: Engine, database_url: str
) -> None:
    open_all_connections(engine)
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    manager = SqlRemoteLogMetadataManager(engine)
    with pytest.raises(RetriableRemoteStorageError):
        manager.remote_log_segment_metadata(TP, 0, 0)
    # Another call holds the connection that was opened since.
    with engine.connect(), pytest.raises(RemoteResourceNotFoundError):
        manager.remote_log_segment_metadata(TP, 0, 0)


def test_a_read_does_not_wait_for_ever_for_a_connection(engine: Engine) -> None:
    busy = [engine.connect() for _ in range(CONNECTIONS)]
    with pytest.raises(RetriableRemoteStorageError):
        Transactions(engine).read_row("SELECT 1", {})
    for connection in busy:
        connection.close()


def test_connection_with_an_open_transaction_is_not_reused(engine: Engine) -> None:
    transactions, kept = Transactions(engine), []
    for _ in range(CONNECTIONS + 1):
        with pytest.raises(RemoteStorageError) as raised:
            transactions.read_row("BEGIN", {})
        kept.append(raised)  # with all that it holds on to
    assert transactions.read_row("SELECT 1 AS one", {}).one == 1


READS: dict[str, Callable[[Transactions], int]] = {
    "a row": lambda transactions: len(transactions.read_row("SELECT * FROM changing", {})),
    "by psycopg": lambda transactions: transactions.read(
        lambda connection: len(run(connection, "SELECT * FROM changing", []).fetchone() or ())
    ),
    "by SQLAlchemy": lambda transactions: transactions.read(
        lambda connection: len(connection.execute(text("SELECT * FROM changing")).one())
    ),
    "in a change": lambda transactions: transactions.change(
        lambda connection: len(run(connection, "SELECT * FROM changing", []).fetchone())  # type: ignore[arg-type]  # there is a row
    ),
}
TIMES = 8
"""After five runs psycopg prepares what was not asked to be."""


@pytest.fixture
def changing(database_url: str) -> Iterator[psycopg.Connection]:
    """Provide a connection that changes a table of one row and one column."""
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as other:
        other.execute("CREATE TABLE changing AS SELECT 1 AS one")
        yield other


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_statement_prepared_for_an_older_schema_is_prepared_again(
    engine: Engine, changing: psycopg.Connection, read: Callable[[Transactions], int]
) -> None:
    transactions = Transactions(engine)
    assert {read(transactions) for _ in range(TIMES)} == {1}
    changing.execute("ALTER TABLE changing ADD COLUMN two int")
    assert {read(transactions) for _ in range(TIMES)} == {2}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_statement_that_was_deallocated_is_prepared_again(
    engine: Engine, changing: psycopg.Connection, read: Callable[[Transactions], int]
) -> None:
    transactions = Transactions(engine)
    for _ in range(2):
        assert {read(transactions) for _ in range(TIMES)} == {1}
        with engine.begin() as connection:
            # So that psycopg does not see it, as where a pooler hands it another session.
            connection.execute(text("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"))


def test_read_in_a_transaction_keeps_prepared_statements(engine: Engine) -> None:
    transactions, statement = Transactions(engine), "SELECT count(*) AS n FROM topics"
    transactions.read_row(statement, {})
    transactions.read_in_transaction(lambda connection: connection.execute(text("SELECT 1")).all())
    names = "SELECT count(*) AS n FROM pg_prepared_statements WHERE statement = %(statement)s"
    assert transactions.read_row(names, {"statement": statement}).n == 1
