"""Connect to PostgreSQL, run transactions, translate database errors, send rows in bulk."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    PoolProxiedConnection,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from services.api.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.common.bounded_file import SecretFileError, read_secret
from services.common.failpoints import failpoint
from services.rlmm.rows import SEGMENT_COLUMNS
from services.rlmm.shares import ConnectionShares

T = TypeVar("T")

DEFAULT_PORT = 5432
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DatabaseLimits:
    """Numbers of connections and timeouts; RlmmSettings describes each."""

    pool_size: int = 16
    pool_timeout_ms: int = 5_000
    connect_timeout_ms: int = 5_000
    statement_timeout_ms: int = 20_000
    lock_timeout_ms: int = 10_000
    idle_in_transaction_timeout_ms: int = 10_000


DEFAULT_LIMITS = DatabaseLimits()


def create_database_engine(
    database_url: str,
    limits: DatabaseLimits = DEFAULT_LIMITS,
    application_name: str = "rlmm",
    *,
    password_file: Path | None = None,
    asks_for_settings: bool = True,
) -> Engine:
    """Create an engine on PostgreSQL through psycopg 3. Opens no connection yet.

    Args:
        password_file: has the password, if the URL has none; read for each new connection.
        asks_for_settings: if False, sessions keep the settings that the server gives to their role.

    Raises:
        InvalidRequestError: the text is not the URL of a PostgreSQL database, or the password file
            cannot be used.
    """
    engine = create_engine(
        _url(database_url).set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        pool_size=limits.pool_size,
        max_overflow=0,
        # The plans and rows of the last used connection are in the processor's cache.
        pool_use_lifo=True,
        pool_timeout=limits.pool_timeout_ms / 1000,
        connect_args={
            **_connect_args(application_name, limits.connect_timeout_ms),
            **({"options": _options(limits)} if asks_for_settings else {}),
        },
    )
    if password_file is not None:
        _read_password_from(engine, password_file)
    return engine


def _url(database_url: str) -> URL:
    """Parse a URL. No error has a part of it, or a cause: each could contain the password."""
    try:
        url = make_url(database_url)
    except (ArgumentError, ValueError):
        raise InvalidRequestError(
            "database_url: not a URL; write postgresql://USER:PASSWORD@HOST:PORT/NAME"
        ) from None
    if url.get_backend_name() not in ("postgresql", "postgres"):
        raise InvalidRequestError("database_url: must begin with postgresql://")
    if database_url.count("@") > 1:
        # SQLAlchemy would take the rest of the password for the name of the host.
        raise InvalidRequestError(
            "database_url: has more than one @; write %40 for an @ in the password or user name"
        )
    return url


def _read_password_from(engine: Engine, file: Path) -> None:
    """Let each new connection use the password that is in the file then.

    If the server refuses it, the password of the last connection is tried too: it stays good from
    the replacement of the file until the change of the role. If that is refused as well, the role
    has changed meanwhile, and the file's is tried once more. Open connections need no password.
    """
    if engine.url.password is not None:
        raise InvalidRequestError(
            "database_url: has a password, and RLMM_DATABASE_PASSWORD_FILE names another; remove "
            "one of them"
        )
    try:
        passwords = Passwords(file)
    except SecretFileError as e:
        raise InvalidRequestError(f"RLMM_DATABASE_PASSWORD_FILE: {e}") from None

    @event.listens_for(engine, "do_connect")
    def connect(
        dialect: Dialect, _record: object, arguments: list[Any], named: dict[str, Any]
    ) -> DBAPIConnection:
        return passwords.connect(lambda p: dialect.connect(*arguments, **{**named, "password": p}))


class Passwords:
    """Reads the password from its file, and remembers the last one that the server accepted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._accepted = read_secret(file)

    def connect(self, connect: Callable[[str], T]) -> T:
        accepted, password = self._accepted, self._read()
        # The role may change right after it refused the new password, and refuse the old one too.
        candidates = [password] if password == accepted else [password, accepted, password]
        while True:
            candidate = candidates.pop(0)
            try:
                connection = connect(candidate)
            except psycopg.OperationalError as e:
                was_asked = e.pgconn is not None and e.pgconn.used_password
                if not was_asked or not candidates:
                    raise
            else:
                if candidate == password:
                    self._accepted = password
                return connection

    def _read(self) -> str:
        try:
            return read_secret(self._file)
        except SecretFileError as e:
            # The password in use may be good for a while yet.
            _log.warning("RLMM_DATABASE_PASSWORD_FILE: %s; RLMM uses the password read before", e)
            return self._accepted


def endpoint(url: URL) -> str:
    """Return HOST:PORT/NAME for messages, never the user or the password.

    If the URL names several hosts (?host=A:5432&host=B:5432), return all of them with commas.
    """
    named = url.query.get("host", ())
    hosts = [named] if isinstance(named, str) else list(named)
    if not hosts:
        hosts = [f"{url.host or 'localhost'}:{url.port or DEFAULT_PORT}"]
    return f"{','.join(hosts)}/{url.database or ''}"


def _options(limits: DatabaseLimits) -> str:
    """Return the settings that a session requests from the server when it begins."""
    session = {
        "statement_timeout": limits.statement_timeout_ms,
        "lock_timeout": limits.lock_timeout_ms,
        "idle_in_transaction_session_timeout": limits.idle_in_transaction_timeout_ms,
        "synchronous_commit": "on",
        # To plan a look-up for its values takes longer than to run it.
        "plan_cache_mode": "force_generic_plan",
        # A plan is kept, so a plan made while a table was small or had no statistics must use the
        # index too. A table without a suitable index is scanned nevertheless.
        "enable_seqscan": "off",
        "jit": "off",
        # The server also detects that a client's host vanished, and releases the client's locks.
        "tcp_keepalives_idle": 10,
        "tcp_keepalives_interval": 5,
        "tcp_keepalives_count": 3,
    }
    return " ".join(f"-c {name}={value}" for name, value in session.items())


def _connect_args(application_name: str, connect_timeout_ms: int) -> dict[str, str | int]:
    return {
        "application_name": application_name,
        "connect_timeout": -(-connect_timeout_ms // 1000),
        # Detects within half a minute that the database host vanished.
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }


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

_DISK_FULL = "53100"

_NOT_READY = frozenset({"25006", "25P03", "25P04", "42P01", "42703"})
"""Codes that psycopg itself does not call operational: a standby, an ended idle or long
transaction, or a missing table or column because the schema is not ours yet.
"""

_CURSOR = "cursor"
"""The key under which a pooled connection keeps its cursor."""


class Transactions:
    """Run transactions and reads, retry them, and raise our own errors.

    No other layer retries database work.
    """

    def __init__(
        self,
        engine: Engine,
        require_usable: Callable[[], None] = lambda: None,
        shares: ConnectionShares | None = None,
        after_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare transactions on an engine.

        Args:
            require_usable: called before each change; raises if the schema must not be written.
            shares: bounds the connections of one identity; None if nothing does.
            after_commit: called after each commit of a change; returns at once.
        """
        self._turn: Callable[[], AbstractContextManager[None]] = (
            nullcontext if shares is None else shares.turn
        )
        self._engine = engine
        self._require_usable = require_usable
        self._after_commit = after_commit
        self._sessions = sessionmaker(engine)
        # BEGIN and ROLLBACK around a single SELECT would be two more round trips.
        self._autocommitting = engine.execution_options(isolation_level="AUTOCOMMIT")

    def change(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction and return after the commit.

        `work` may run several times, and must do nothing but database work.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or busy; the change may have
                been committed.
        """
        with errors_named():
            self._require_usable()
            return retry_if_rolled_back(lambda: self._change_once(work))

    def _change_once(self, work: Callable[[Session], T]) -> T:
        with self._turn(), self._sessions.begin() as session:
            result = work(session)
            session.flush()
            failpoint("rlmm.before_commit")
        failpoint("rlmm.after_commit")
        self._after_commit()
        return result

    def read(self, query: Callable[[Connection], T]) -> T:
        """Run `query`, one statement, outside of any transaction.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or busy.
        """
        with errors_named():
            return self._again_where_stale(lambda: self._read_once(query))

    def _read_once(self, query: Callable[[Connection], T]) -> T:
        # Sends no BEGIN. Detects the end of a session, whichever library ran the statement.
        with self._turn(), self._autocommitting.begin() as connection:
            return query(connection)

    def read_row(self, statement: str, parameters: Mapping[str, object]) -> Any:
        """Return the first row of a statement's result, a named tuple; None if there is no row.

        The statement runs prepared, through psycopg alone and outside of any transaction:
        SQLAlchemy's work for a statement and its result would take longer than the rest of a
        look-up. A refused change rolls back, and psycopg then drops the prepared statements of its
        session: the next look-up there takes 2 ms instead of 0.5 ms, less than the refusal took.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or busy.
        """
        with errors_named():
            return self._again_where_stale(lambda: self._read_row_once(statement, parameters))

    def _read_row_once(self, statement: str, parameters: Mapping[str, object]) -> Any:
        with self._turn(), self._cursor() as cursor:
            return cursor.execute(statement, parameters, prepare=True).fetchone()

    def _again_where_stale(self, reading: Callable[[], T]) -> T:
        """Retry a read once in new sessions, because a stale session fails until a rollback."""
        try:
            return reading()
        except (DBAPIError, psycopg.Error) as e:
            if sqlstate(e) not in _STALE:
                raise
        # The plans of the other sessions are stale too.
        self._engine.dispose()
        return reading()

    @contextmanager
    def _cursor(self) -> Iterator[psycopg.Cursor[Any]]:
        """Yield the cursor that a pooled connection keeps; each statement commits."""
        pooled = self._engine.raw_connection()
        connection = pooled.driver_connection
        assert isinstance(connection, psycopg.Connection)
        cursor = pooled.info.get(_CURSOR)
        if cursor is None:
            cursor = connection.cursor(binary=True, row_factory=namedtuple_row)
            pooled.info[_CURSOR] = cursor
        try:
            connection.autocommit = True
            yield cursor
        finally:
            self._give_back(pooled, connection)

    def _give_back(
        self, pooled: PoolProxiedConnection, connection: "psycopg.Connection[Any]"
    ) -> None:
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

    def read_in_transaction(self, query: Callable[[Connection], T]) -> T:
        """Run `query` in a transaction, which a database cursor needs. Changes nothing.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or busy.
        """
        # Commits, because psycopg drops the session's prepared statements on a rollback.
        with errors_named(), self._turn(), self._engine.begin() as connection:
            return query(connection)


def retry_if_rolled_back(transaction: Callable[[], T]) -> T:
    """Run a whole transaction, up to ATTEMPTS times.

    Retries if the database rolled the transaction back for others, for a key that is taken or for
    a stale prepared statement.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return transaction()
        except (DBAPIError, psycopg.Error) as e:
            if sqlstate(e).split()[0] not in _ROLLED_BACK | _STALE:
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
            "and a retry cannot help: see RLMM's log and docs/database.md#rows-that-contradict"
        )
    if isinstance(e, retriable) or code in _NOT_READY:
        return RetriableRemoteStorageError(
            f"the metadata database cannot be reached, is busy or is not ready ({state}); retry"
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
        return "no SQLSTATE"
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


def run(
    connection: Connection,
    statement: str,
    rows: Sequence[JsonRow],
    values: Mapping[str, object] | None = None,
) -> psycopg.Cursor[Any]:
    """Run a statement with `rows` as %(rows)s; its result has named tuples.

    Uses psycopg alone, like Transactions.read_row, but in the connection's transaction.
    """
    cursor = _driver(connection).cursor(binary=True, row_factory=namedtuple_row)
    return cursor.execute(statement, {"rows": json.dumps(rows), **(values or {})}, prepare=True)


def stream(
    connection: Connection, statement: str, rows: Sequence[JsonRow], at_a_time: int
) -> Iterator[Any]:
    """Yield the result rows of a statement of `run`, `at_a_time` of them as they arrive.

    The database continues meanwhile. Not prepared: psycopg cannot do both.
    """
    cursor = _driver(connection).cursor(binary=True, row_factory=namedtuple_row)
    return cursor.stream(statement, {"rows": json.dumps(rows)}, size=at_a_time)


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


def partition_row(key: PartitionKey) -> JsonRow:
    return {"topic_id": key[0].hex, "partition": key[1]}


def segment_row(segment_id: RemoteLogSegmentId) -> JsonRow:
    row = partition_row(key_of(segment_id.topic_id_partition))
    row["segment_id"] = segment_id.id.hex
    return row


def hex_of(value: bytes | None) -> str | None:
    """Return the value for decode(..., 'hex'): JSON has no bytes."""
    return None if value is None else value.hex()


SEGMENT = ", ".join(f"s.{name}" for name in SEGMENT_COLUMNS)
"""SQL for the columns of segment_from_row, of `segments AS s`."""

PARTITIONS = "partitions AS p JOIN topics AS t ON t.topic_id = p.topic_id"

IS_KNOWN = "p.delete_state IS DISTINCT FROM 'DELETE_PARTITION_FINISHED'"
"""SQL condition for the partitions that reads return."""
