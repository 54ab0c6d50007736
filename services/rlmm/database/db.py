"""Run transactions on PostgreSQL, translate its errors, send rows in bulk."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

import orjson
import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection, Engine, PoolProxiedConnection
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from services.api.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.common.failpoints import failpoint
from services.rlmm.database.engine import LostSessionError, verify_session
from services.rlmm.database.metrics import Operation, Result, observe
from services.rlmm.database.prepared_read import PreparedRead
from services.rlmm.database.rows import SEGMENT_COLUMNS

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)

ATTEMPTS = 3

PAUSE_S = 0.05
"""Pause between two attempts, so that the transaction that won continues first."""

_UNIQUE_VIOLATION = "23505"

_ROLLED_BACK = frozenset({"40001", "40P01", _UNIQUE_VIOLATION})
"""serialization_failure, deadlock_detected, unique_violation: nothing was changed, so a retry is
safe. It reads the row that another transaction wrote first, if that is why a key was taken.
"""

_STALE = frozenset({"0A000", "26000", "42P05"})
"""A prepared statement no longer fits the schema, is gone, or exists already. Nothing was changed;
after a rollback, or in a new session, the statement is prepared again.
"""

_CONDEMNED = frozenset({"08P01", "25006"})
"""Nothing was changed, and the session is good for nothing more: it is not ours alone, or its
server takes no changes because another one has replaced it. psycopg itself closes the connections
of sessions that have ended (57P01, 57P02, 57P05, 25P03 and class 08).
"""

_DISK_FULL = "53100"

_NOT_READY = frozenset({"25006", "25P03", "25P04", "42P01", "42703"})
"""Codes that psycopg itself does not call operational: a standby, an ended idle or long
transaction, or a missing table or column because the schema is not ours yet.
"""

_RESULTS: Mapping[str, Result] = {
    _DISK_FULL: "disk_full",
    _UNIQUE_VIOLATION: "contradiction",
    "53300": "no_connection",
    "55P03": "timeout",
    "57014": "timeout",
    "25P03": "timeout",
    "25P04": "timeout",
    "42501": "denied",
    "3D000": "not_ready",
    **dict.fromkeys(_NOT_READY - {"25P03", "25P04"}, "not_ready"),
}
_RESULTS_OF_CLASSES: Mapping[str, Result] = {
    "08": "unreachable",
    "28": "denied",
    "40": "conflict",
    "57": "unreachable",
    "no": "unreachable",
}
"""By the first two characters; _NO_SQLSTATE is an error of the connection."""
_NO_SQLSTATE = "no SQLSTATE"
SEGMENT = ", ".join(f"s.{name}" for name in SEGMENT_COLUMNS)
"""SQL for the columns of segment_from_row, of `segments AS s`."""
PARTITIONS = "partitions AS p JOIN topics AS t ON t.topic_id = p.topic_id"
PARTITIONS_IN_ORDER = """partitions AS p CROSS JOIN LATERAL (
        SELECT * FROM topics WHERE topics.topic_id = p.topic_id LIMIT 1) AS t"""
"""SQL for reads of many partitions: a merge join would read each removed topic too."""
IS_KNOWN = "p.delete_state IS DISTINCT FROM 'DELETE_PARTITION_FINISHED'"
"""SQL condition for the partitions that reads return."""

_Session: TypeAlias = "psycopg.Connection[Any]"
_Work: TypeAlias = Callable[[PoolProxiedConnection, _Session], T]


class Transactions:
    """Run transactions and reads, retry them, and raise our own errors.

    No other layer retries database work.
    """

    def __init__(
        self,
        engine: Engine,
        require_usable: Callable[[], None] = lambda: None,
        after_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare transactions on an engine.

        Args:
            require_usable: called before each change; raises if the schema must not be written.
            after_commit: called after each commit of a change; returns at once.
        """
        self._engine = engine
        self._require_usable = require_usable
        self._after_commit = after_commit
        # BEGIN and ROLLBACK around a single SELECT would be two more round trips.
        self._autocommitting = engine.execution_options(isolation_level="AUTOCOMMIT")

    def change(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Run `work` with a connection and the arguments in a transaction; return after the commit.

        `work` may run several times, and must do nothing but database work.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or busy; the change may have
                been committed.
        """
        self._require_usable()
        with _measured("change"):
            return retry_if_rolled_back(
                lambda: self._change_once(lambda connection: work(connection, *args, **named))
            )

    def _change_once(self, work: Callable[[Connection], T]) -> T:
        with self._discarding(), self._engine.begin() as connection:
            result = work(connection)
            failpoint("rlmm.before_commit")
        failpoint("rlmm.after_commit")
        self._after_commit()
        return result

    def read(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Run `query`, one statement, with a connection and the arguments outside of a transaction.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or busy.
        """
        (result,) = self.read_each(lambda connection: iter([query(connection, *args, **named)]))
        return result

    def read_each(self, query: Callable[[Connection], Iterator[T]]) -> Iterator[T]:
        """Yield what `query`, one statement, yields, as `read` returns it: without waiting for all.

        A stale session fails until a rollback: a query that has yielded nothing runs once more.
        """
        has_begun = False

        def once() -> Iterator[T]:
            nonlocal has_begun
            # Sends no BEGIN. Detects the end of a session, whichever library ran the statement.
            with self._discarding(), self._autocommitting.begin() as connection:
                for each in query(connection):
                    has_begun = True
                    yield each

        with _measured("read"):
            try:
                yield from once()
            except (DBAPIError, psycopg.Error) as e:
                if has_begun or not _is_condemned(e):
                    raise
                yield from once()

    def read_row(self, statement: str, parameters: Mapping[str, object]) -> Any:
        """Return the first row of a statement's result, a named tuple; None if there is no row.

        The statement runs prepared, outside of any transaction: SQLAlchemy's work for a statement
        and its result would take longer than the rest of a look-up.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or busy.
        """
        with _measured("look_up"):
            return self._in_session(
                lambda pooled, connection: _prepared(pooled, connection, statement).row(parameters)
            )

    def check_session(self) -> None:
        """Verify that a session is still the one that RLMM began, and may write.

        Raises:
            RetriableRemoteStorageError: neither it nor a new one is.
        """
        with _measured("look_up"):
            self._in_session(lambda pooled, _: verify_session(pooled))

    def _in_session(self, work: _Work[T]) -> T:
        """Run `work` outside of a transaction, once more in a new session if one is condemned."""
        try:
            return self._once_in_session(work)
        except (DBAPIError, psycopg.Error) as e:
            if not _is_condemned(e):
                raise
        self._engine.dispose()
        return self._once_in_session(work)

    def _once_in_session(self, work: _Work[T]) -> T:
        pooled = self._engine.raw_connection()
        connection = pooled.driver_connection
        assert isinstance(connection, psycopg.Connection)
        try:
            connection.autocommit = True
            return work(pooled, connection)
        finally:
            self._release(pooled, connection)

    def _release(self, pooled: PoolProxiedConnection, connection: _Session) -> None:
        if connection.closed:
            pooled.invalidate()
            # The same cause has ended the other sessions: discard all of them.
            self._engine.dispose()
            return
        try:
            connection.autocommit = False
        except psycopg.Error as e:
            pooled.invalidate(e)  # The connection is within a statement.
        else:
            pooled.close()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        """Discard all sessions if one is condemned: the same cause has spoilt the others."""
        try:
            yield
        except (DBAPIError, psycopg.Error) as e:
            if _is_condemned(e):
                self._engine.dispose()
            raise

    def read_in_transaction(
        self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Run `query` as `read` does, in a transaction, which a database cursor needs.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or busy.
        """
        # Commits, because psycopg drops the session's prepared statements on a rollback.
        with (
            _measured("scan"),
            self._discarding(),
            self._engine.begin() as connection,
        ):
            return query(connection, *args, **named)


def _prepared(pooled: PoolProxiedConnection, connection: _Session, statement: str) -> PreparedRead:
    prepared: PreparedRead | None = pooled.info.get(statement)
    if prepared is None:
        prepared = pooled.info[statement] = PreparedRead(connection, statement)
    return prepared


def _is_condemned(e: DBAPIError | psycopg.Error) -> bool:
    return isinstance(e, LostSessionError) or sqlstate(e).split()[0] in _STALE | _CONDEMNED


def retry_if_rolled_back(transaction: Callable[[], T]) -> T:
    """Run a whole transaction, up to ATTEMPTS times.

    Retries if the database rolled the transaction back for others, for a key that is taken or
    because its session is stale or condemned.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return transaction()
        except (DBAPIError, psycopg.Error) as e:
            if sqlstate(e).split()[0] not in _ROLLED_BACK and not _is_condemned(e):
                raise
        time.sleep(PAUSE_S)
    return transaction()


@contextmanager
def errors_named() -> Iterator[None]:
    """Convert SQLAlchemy's and psycopg's errors, by class and SQLSTATE, into ours."""
    try:
        yield
    except (SQLAlchemyError, psycopg.Error) as e:
        raise _our_error(e) from e


@contextmanager
def _measured(operation: Operation) -> Iterator[None]:
    """Convert errors as errors_named does, and count and time the block by its result."""
    began_s = time.perf_counter()
    result: Result = "failed"
    try:
        yield
        result = "ok"
    except (SQLAlchemyError, psycopg.Error) as e:
        result = _result_of(e)
        raise _our_error(e) from e
    except RemoteStorageError:
        # The database ran the statements, and RLMM refuses the request.
        result = "ok"
        raise
    finally:
        observe(operation, result, began_s)


def _result_of(e: SQLAlchemyError | psycopg.Error) -> Result:
    """Return the class of an error, for metrics."""
    if isinstance(e, PoolTimeoutError):
        return "no_connection"
    code = sqlstate(e).split()[0]
    return _RESULTS.get(code) or _RESULTS_OF_CLASSES.get(code[:2]) or "failed"


def _our_error(e: SQLAlchemyError | psycopg.Error) -> RemoteStorageError:
    state = sqlstate(e)
    code = state.split()[0]
    retriable = (
        PoolTimeoutError,
        OperationalError,
        InterfaceError,
        psycopg.OperationalError,
        psycopg.InterfaceError,
    )
    if code == _DISK_FULL:
        return RetriableRemoteStorageError(
            f"the metadata database's disk is full ({state}); free space, then retry"
        )
    if code == _UNIQUE_VIOLATION:
        # No legal change meets this, unless rows are missing or wrong.
        _log.error("rows of the metadata database contradict a change (%s)", state, exc_info=e)
        return CorruptMetadataError(
            f"rows of the metadata database contradict this change ({state}); nothing was changed "
            "and a retry cannot help: see RLMM's log and docs/run/database.md#rows-that-contradict"
        )
    if isinstance(e, LostSessionError) or code == "25006":
        reason = str(e) if isinstance(e, LostSessionError) else "it takes no changes"
        return RetriableRemoteStorageError(
            f"the metadata database has another session or server than before: {reason}; RLMM "
            "connects again: retry"
        )
    if isinstance(e, PoolTimeoutError):
        return RetriableRemoteStorageError("every connection to the metadata database is in use")
    if isinstance(e, retriable) or code in _NOT_READY:
        why = "it does not answer" if state == _NO_SQLSTATE else state
        return RetriableRemoteStorageError(
            f"the metadata database cannot be reached, is busy or is not ready ({why}); retry"
        )
    if isinstance(e, DataError | psycopg.DataError):
        return InvalidRequestError(f"request: a value cannot be stored ({state})")
    return RemoteStorageError(
        f"the metadata database refused a statement ({state}); see RLMM's log"
    )


def sqlstate(e: SQLAlchemyError | psycopg.Error) -> str:
    """Return PostgreSQL's five-character code for an error, and the violated schema rule if any.

    Returns "no SQLSTATE" if the error arose on our side.
    """
    cause = e.orig if isinstance(e, DBAPIError) else e
    if not isinstance(cause, psycopg.Error) or cause.sqlstate is None:
        return _NO_SQLSTATE
    constraint = cause.diag.constraint_name
    return f"{cause.sqlstate} {constraint}" if constraint else cause.sqlstate


_PIPELINE = "pipeline"
"""The key under which SQLAlchemy's connection keeps its pipeline."""

JsonRow: TypeAlias = dict[str, object]

PartitionKey: TypeAlias = tuple[UUID, int]
"""Topic id and partition; locks are acquired in this order."""


@contextmanager
def pipelined(connection: Connection) -> Iterator[None]:
    """Send statements of `run` without waiting for the results of earlier ones.

    wait_for_answers, or the end of the block, raises the error of a failed statement. SQLAlchemy's
    own statements do not work inside.
    """
    with _driver(connection).pipeline() as pipeline:
        connection.info[_PIPELINE] = pipeline
        try:
            yield
        finally:
            del connection.info[_PIPELINE]


def wait_for_answers(connection: Connection) -> None:
    """Wait for the results of all statements sent in a pipeline, before their rows are read.

    Rows can be read without it, but the session then stays "active" for the database: if its
    process hangs, the database does not end the session, and its locks stay.
    """
    pipeline = connection.info.get(_PIPELINE)
    if pipeline is not None:
        pipeline.sync()


def execute(
    connection: Connection,
    statement: str,
    values: Mapping[str, object],
    *,
    prepare: bool | None = None,
) -> psycopg.Cursor[Any]:
    """Run a statement; its result has named tuples.

    Uses psycopg alone, like Transactions.read_row, but in the connection's transaction.

    Args:
        prepare: None prepares it once it ran a few times with values of the same types, of which
            numbers have three, by their size.
    """
    cursor = _driver(connection).cursor(binary=True, row_factory=namedtuple_row)
    return cursor.execute(statement, values, prepare=prepare)


def run(
    connection: Connection,
    statement: str,
    rows: Sequence[JsonRow],
    values: Mapping[str, object] | None = None,
) -> psycopg.Cursor[Any]:
    """Run a prepared statement as `execute` does, with `rows` as %(rows)s."""
    named = {"rows": _json_of(rows), **(values or {})}
    return execute(connection, statement, named, prepare=True)


def stream(
    connection: Connection, statement: str, rows: Sequence[JsonRow], at_a_time: int
) -> Iterator[Any]:
    """Yield the result rows of a statement of `run`, `at_a_time` of them as they arrive.

    The database continues meanwhile. Not prepared: psycopg cannot do both.
    """
    cursor = _driver(connection).cursor(binary=True, row_factory=namedtuple_row)
    return cursor.stream(statement, {"rows": _json_of(rows)}, size=at_a_time)


def _json_of(rows: Sequence[JsonRow]) -> str:
    # Not `json`, which takes eight times as long: 5 us of the 50 of a transition in a batch.
    return orjson.dumps(rows).decode()


def when_needed(read: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls `read` once, when its result is first needed.

    For results in a pipeline, or for reads that wait for the database. (A cached_property of Python
    3.11 has one lock for all objects of its class: they would wait for each other's rows.)
    """
    return cache(read)


def _driver(connection: Connection) -> "psycopg.Connection[Any]":
    # Not driver_connection, which a connection that left its pool does not have.
    driver = connection.connection.dbapi_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def key_of(tp: TopicIdPartition) -> PartitionKey:
    return tp.topic_id, tp.partition


def key_values(key: PartitionKey) -> dict[str, object]:
    """Return the values of %(topic_id)s and %(partition)s in a statement of `execute`."""
    return {"topic_id": key[0], "partition": key[1]}


def partition_row(key: PartitionKey) -> JsonRow:
    return {"topic_id": key[0], "partition": key[1]}


def segment_row(segment_id: RemoteLogSegmentId) -> JsonRow:
    row = partition_row(key_of(segment_id.topic_id_partition))
    row["segment_id"] = segment_id.id
    return row


def hex_of(value: bytes | None) -> str | None:
    """Return the value for decode(..., 'hex'): JSON has no bytes."""
    return None if value is None else value.hex()
