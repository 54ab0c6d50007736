"""Test the metrics of RLMM's database: work by result, connections, the last success."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from services.api.errors import (
    InvalidRequestError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.rlmm.database.db import Transactions
from services.rlmm.database.engine import DatabaseLimits, create_database_engine
from services.rlmm.database.metrics import LAST_SUCCESS, publish_connections
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.harness.published import published

CONNECTIONS = 2
COUNT = "sediment_rlmm_database_seconds_count"
SUCCESS = "sediment_rlmm_database_last_success_timestamp_seconds"
SHORT = DatabaseLimits(
    pool_size=CONNECTIONS, pool_timeout_ms=1, lock_timeout_ms=1, statement_timeout_ms=60_000
)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(database_url, SHORT)
    yield engine
    engine.dispose()


def works(operation: str, result: str) -> float:
    return published(COUNT, {"operation": operation, "result": result})


def ran(statement: str) -> Any:
    return lambda connection: connection.execute(text(statement))


def test_each_operation_is_counted_and_is_a_success(engine: Engine) -> None:
    transactions = Transactions(engine)
    operations = ("change", "read", "look_up", "scan")
    before = [works(operation, "ok") for operation in operations]
    LAST_SUCCESS.set(1_000)
    transactions.change(ran("SELECT 1"))
    transactions.read(ran("SELECT 1"))
    transactions.read_row("SELECT 1", {})
    transactions.read_in_transaction(ran("SELECT 1"))
    assert [works(each, "ok") for each in operations] == [count + 1 for count in before]
    assert published(SUCCESS) > 1_000


def test_a_check_of_readiness_is_work_too(engine: Engine) -> None:
    before = works("look_up", "ok")
    SqlRemoteLogMetadataManager(engine).check()
    assert works("look_up", "ok") == before + 3


@pytest.mark.parametrize(
    ("statement", "result"),
    [
        ("SELECT 1 / 0", "failed"),
        ("SELECT * FROM no_such_table", "not_ready"),
        ("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)", "timeout"),
        ("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)", "unreachable"),
    ],
)
def test_an_error_is_counted_by_its_class_and_is_no_success(
    engine: Engine, statement: str, result: str
) -> None:
    before = works("read", result)
    LAST_SUCCESS.set(1_000)
    with pytest.raises(RemoteStorageError):
        Transactions(engine).read(ran(statement))
    assert works("read", result) == before + 1
    assert published(SUCCESS) == 1_000


def test_a_lock_that_is_not_free_in_time_is_a_timeout(engine: Engine, database_url: str) -> None:
    before = works("change", "timeout")
    with psycopg.connect(database_url.replace("+psycopg", "")) as holder:
        holder.execute("LOCK TABLE topics")
        with pytest.raises(RetriableRemoteStorageError, match="55P03"):
            Transactions(engine).change(ran("LOCK TABLE topics"))
    assert works("change", "timeout") == before + 1


def test_a_request_that_rlmm_refuses_is_no_error_of_the_database(engine: Engine) -> None:
    def refuse(_connection: Connection) -> None:
        raise InvalidRequestError("refused")

    before = works("change", "ok")
    with pytest.raises(InvalidRequestError):
        Transactions(engine).change(refuse)
    assert works("change", "ok") == before + 1


def test_connections_in_use_are_published_and_a_call_without_one_is_counted(engine: Engine) -> None:
    def state() -> list[float]:
        names = ("in_use", "limit")
        return [published(f"sediment_rlmm_database_connections_{name}") for name in names]

    publish_connections(engine)
    before = works("look_up", "no_connection")
    assert state() == [0, CONNECTIONS]
    busy: list[Connection] = [engine.connect() for _ in range(CONNECTIONS)]
    assert state() == [CONNECTIONS, CONNECTIONS]
    with pytest.raises(RetriableRemoteStorageError):
        Transactions(engine).read_row("SELECT 1", {})
    for connection in busy:
        connection.close()
    engine.dispose()
    assert state() == [0, CONNECTIONS]

    assert works("look_up", "no_connection") == before + 1


def test_a_database_that_does_not_answer_is_unreachable() -> None:
    away = create_database_engine("postgresql://rlmm@127.0.0.1:1/tier", SHORT)
    before = works("look_up", "unreachable")
    with pytest.raises(RetriableRemoteStorageError):
        Transactions(away).read_row("SELECT 1", {})
    assert works("look_up", "unreachable") == before + 1
