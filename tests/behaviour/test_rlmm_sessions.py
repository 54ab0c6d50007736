"""What RLMM needs of a session: set in it, asked back, refused by name, left when it is lost."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from services.api.calls import MutationContext
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery
from services.rlmm.database.db import Transactions
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.schema import check_schema, upgrade
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.segments import segment
from tests.harness.databases import OwnRlmm
from tests.harness.eventually import PATIENT
from tests.harness.local_servers import DatabaseServer

CONNECTIONS = 3
REASON = "façade ☕ 東京"
TP = TopicIdPartition(uuid4(), "orders", 0)

Damage = Callable[[psycopg.Connection], object]


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(database_url, replace(PATIENT, pool_size=CONNECTIONS))
    yield engine
    engine.dispose()


def in_each_session(engine: Engine, statement: str) -> set[int]:
    """Run a statement in every session of the pool; return their processes."""
    connections = [engine.connect() for _ in range(CONNECTIONS)]
    found = set()
    for connection in connections:
        found.add(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
        connection.execute(text(statement))
        connection.commit()
    for connection in connections:
        connection.close()
    return found


def default(database_url: str, setting: str) -> None:
    """Change what a session of this database begins with."""
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER ROLE CURRENT_USER IN DATABASE "{name}" SET {setting}'.encode())


@pytest.mark.parametrize(
    "setting",
    [
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'sql_standard'",
        "client_encoding = 'LATIN1'",
        "timezone = 'Pacific/Chatham'",
        "standard_conforming_strings = off",
        "synchronous_commit = off",
        "default_transaction_isolation = 'serializable'",
        "statement_timeout = '1h'",
    ],
)
def test_defaults_of_a_database_or_role_do_not_matter(rlmm: OwnRlmm, setting: str) -> None:
    default(rlmm.database_url, setting)
    of_this_server = {"setting fsync", "setting full_page_writes"}
    assert {each.what for each in check_schema(rlmm.database_url)} <= of_this_server
    rlmm.check()
    made = segment(TP, 0, 9)
    rlmm.add_remote_log_segment_metadata(made, MutationContext(reason=REASON))
    [event] = rlmm.list_events(EventQuery(TP)).events
    assert event.reason == REASON
    [stored] = rlmm.list_remote_log_segments(TP).segments
    assert stored == replace(made, event_timestamp_ms=stored.event_timestamp_ms)
    with rlmm.engine.connect() as connection:
        for name, value in (("statement_timeout", "1min"), ("synchronous_commit", "on")):
            assert connection.execute(text(f"SHOW {name}")).scalar_one() == value


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_utf_8_is_refused(
    postgres: DatabaseServer, encoding: str
) -> None:
    name = f"test_{uuid4().hex}"
    with psycopg.connect(
        postgres.url("postgres").replace("+psycopg", ""), autocommit=True
    ) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'".encode()
        )
    url = postgres.url(name)
    engine = create_database_engine(url)
    try:
        refused = f"server_encoding is {encoding}, should be UTF8"
        with pytest.raises(RetriableRemoteStorageError, match=refused):
            SqlRemoteLogMetadataManager(engine).check()
        with pytest.raises(RetriableRemoteStorageError, match=refused):
            upgrade(url)
        [problem] = check_schema(url)
        assert problem.what == "setting server_encoding"
    finally:
        engine.dispose()
        postgres.drop_database(name)


def test_a_read_only_database_is_refused(database_url: str, engine: Engine) -> None:
    default(database_url, "default_transaction_read_only = on")
    with pytest.raises(RetriableRemoteStorageError, match="transaction_read_only is on"):
        SqlRemoteLogMetadataManager(engine).check()
    [problem] = check_schema(database_url)
    assert problem.what == "setting transaction_read_only"


@pytest.mark.parametrize("by", ["a change", "a check"])
def test_sessions_that_turned_read_only_are_left(rlmm: OwnRlmm, by: str) -> None:
    """As those of a primary that another server has replaced, and that stays up."""
    rlmm.check()
    before = in_each_session(rlmm.engine, "SET default_transaction_read_only = on")
    if by == "a change":
        assert rlmm.add_remote_log_segment_metadata(segment(TP, 0, 9)).applied
    else:
        rlmm.check()
    after = in_each_session(rlmm.engine, "SELECT 1")
    assert before.isdisjoint(after)


@pytest.mark.parametrize("loss", ["RESET ALL", "SET timezone = 'Asia/Tokyo'"])
def test_sessions_that_lost_what_was_set_are_left(rlmm: OwnRlmm, loss: str) -> None:
    before = in_each_session(rlmm.engine, loss)
    rlmm.check()
    assert before.isdisjoint(in_each_session(rlmm.engine, "SELECT 1"))


def test_a_connection_that_was_borrowed_when_its_pool_was_discarded_is_closed(
    engine: Engine,
) -> None:
    borrowed = engine.raw_connection()
    connection = borrowed.driver_connection
    assert isinstance(connection, psycopg.Connection)
    engine.dispose()
    borrowed.close()
    assert connection.closed


def test_sessions_have_a_greatest_age(database_url: str) -> None:
    at_once = create_database_engine(database_url, replace(PATIENT, session_max_age_s=0.0))
    found = [*in_each_session(at_once, "SELECT 1"), *in_each_session(at_once, "SELECT 1")]
    at_once.dispose()
    assert len(found) == len(set(found)) == 2 * CONNECTIONS


@pytest.mark.parametrize("sqlstate", ["25006", "08P01", "0A000", "26000", "42P05"])
@pytest.mark.parametrize("work", ["change", "read", "batch", "look-up", "scan"])
def test_an_error_that_condemns_a_session_discards_all_of_them(
    engine: Engine, sqlstate: str, work: str
) -> None:
    transactions = Transactions(engine)
    before = in_each_session(engine, "SELECT 1")
    fail = f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{sqlstate}'; END $$"
    works: dict[str, Callable[[], object]] = {
        "change": lambda: transactions.change(lambda connection: connection.execute(text(fail))),
        "read": lambda: transactions.read(lambda connection: connection.execute(text(fail))),
        "batch": lambda: list(transactions.read_each(lambda c: iter(c.execute(text(fail))))),
        "look-up": lambda: transactions.read_row(fail, {}),
        "scan": lambda: transactions.read_in_transaction(lambda c: c.execute(text(fail))),
    }
    with pytest.raises(RemoteStorageError):
        works[work]()
    assert before.isdisjoint(in_each_session(engine, "SELECT 1"))


@pytest.mark.parametrize("rows", [0, 2])
def test_rows_that_were_read_are_not_read_again(engine: Engine, rows: int) -> None:
    """A session that fails before its first row is left for another one; later it is an error."""
    failures = ["DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '0A000'; END $$"]

    def query(connection: Connection) -> Iterator[int]:
        yield from range(rows)
        if failures:
            connection.execute(text(failures.pop()))
        yield from range(rows, 4)

    read: list[int] = []
    with pytest.raises(RemoteStorageError) if rows else nullcontext():
        read.extend(Transactions(engine).read_each(query))
    assert read == ([0, 1] if rows else [0, 1, 2, 3])
