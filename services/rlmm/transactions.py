"""The one place where a transaction begins and ends, and where database errors get their names."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection, Engine, PoolProxiedConnection
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from services.api.errors import (
    InvalidRequestError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.failpoints import failpoint

ATTEMPTS = 3
PAUSE_S = 0.05
"""Between two of them: whoever the first was rolled back for is to go on before it comes again."""

_ROLLED_BACK = frozenset({"40001", "40P01"})
"""serialization_failure, deadlock_detected: nothing happened, so that trying again is safe."""

_STALE = frozenset({"0A000", "26000", "42P05"})
"""What the session has prepared does not fit the schema any more, is gone, or is there already:
nothing happened, and after a rollback, or in a new session, it is prepared anew."""

_DISK_FULL = "53100"
_NOT_READY = frozenset({"25006", "25P03", "25P04", "42P01", "42703"})
"""A standby, an idle or a long transaction ended, no such table or column (the schema is not ours
yet): beside what psycopg itself calls operational."""

_CURSOR = "cursor"
"""In the pool's notes on a connection."""

T = TypeVar("T")


class Transactions:
    """Runs work against the database; whatever goes wrong there is raised as our own error."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions = sessionmaker(engine)
        # BEGIN and ROLLBACK round a single SELECT would be two more round trips.
        self._autocommitting = engine.execution_options(isolation_level="AUTOCOMMIT")

    def change(self, work: Callable[[Session], T]) -> T:
        """Do `work` in one transaction; when this returns, it is committed.

        `work` may run several times, and must do nothing but database work.

        Raises:
            RetriableRemoteStorageError: unreachable or busy; the change may have been committed.
        """
        with errors_named():
            return again_where_rolled_back(lambda: self._change_once(work))

    def _change_once(self, work: Callable[[Session], T]) -> T:
        with self._sessions.begin() as session:
            result = work(session)
            session.flush()
            failpoint("rlmm.before_commit")
        failpoint("rlmm.after_commit")
        return result

    def read(self, query: Callable[[Connection], T]) -> T:
        """Run `query`, one statement, outside of any transaction.

        Raises:
            RetriableRemoteStorageError: unreachable or busy.
        """
        with errors_named():
            return self._again_where_stale(lambda: self._read_once(query))

    def _read_once(self, query: Callable[[Connection], T]) -> T:
        # Sends no BEGIN: it is so that the end of a session is noticed whoever ran the statement.
        with self._autocommitting.begin() as connection:
            return query(connection)

    def read_row(self, statement: str, parameters: Mapping[str, object]) -> Any:
        """The first row that a statement answers with, a named tuple; None where there is none.

        By psycopg alone and prepared, outside of any transaction: what SQLAlchemy does for a
        statement and its result would take longer than all the rest of a look-up. A change that is
        refused rolls back, and with that psycopg drops all that its session has prepared: the first
        look-up there after it plans anew, 2 ms instead of half of one. That is less than the
        refusal took.

        Raises:
            RetriableRemoteStorageError: unreachable or busy.
        """
        with errors_named():
            return self._again_where_stale(lambda: self._read_row_once(statement, parameters))

    def _read_row_once(self, statement: str, parameters: Mapping[str, object]) -> Any:
        with self._cursor() as cursor:
            return cursor.execute(statement, parameters, prepare=True).fetchone()

    def _again_where_stale(self, reading: Callable[[], T]) -> T:
        """Outside of transactions nothing is rolled back, and a session would fail for ever."""
        try:
            return reading()
        except (DBAPIError, psycopg.Error) as e:
            if sqlstate(e) not in _STALE:
                raise
        # What made one session's plans stale has made the others' too.
        self._engine.dispose()
        return reading()

    @contextmanager
    def _cursor(self) -> Iterator[psycopg.Cursor[Any]]:
        """Of a connection of the pool that commits each statement; the connection keeps it."""
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
            # Whatever ended it has ended the others too: none of them is to fail a call.
            self._engine.dispose()
            return
        try:
            connection.autocommit = False
        except psycopg.Error as e:
            pooled.invalidate(e)  # it is in the middle of something
        else:
            pooled.close()

    def read_in_transaction(self, query: Callable[[Connection], T]) -> T:
        """Run `query` in a transaction, as a cursor of the database needs one. Changes nothing.

        Raises:
            RetriableRemoteStorageError: unreachable or busy.
        """
        # Committed: on a rollback psycopg drops all that the session has prepared.
        with errors_named(), self._engine.begin() as connection:
            return query(connection)


def again_where_rolled_back(transaction: Callable[[], T]) -> T:
    """Do a whole transaction, up to ATTEMPTS times where the database rolls it back for others or
    for what the session had prepared."""
    for _ in range(ATTEMPTS - 1):
        try:
            return transaction()
        except (DBAPIError, psycopg.Error) as e:
            if sqlstate(e) not in _ROLLED_BACK | _STALE:
                raise
        time.sleep(PAUSE_S)
    return transaction()


@contextmanager
def errors_named() -> Iterator[None]:
    """Turn SQLAlchemy's and psycopg's errors, by class and SQLSTATE, into ours."""
    try:
        yield
    except (SQLAlchemyError, psycopg.Error) as e:
        raise _our_error(e) from e


def _our_error(e: SQLAlchemyError | psycopg.Error) -> RemoteStorageError:
    state = sqlstate(e)
    retriable = (
        PoolTimeoutError,
        OperationalError,
        InterfaceError,
        psycopg.OperationalError,
        psycopg.InterfaceError,
    )
    if state == _DISK_FULL:
        return RetriableRemoteStorageError(f"the metadata database's disk is full ({state})")
    if isinstance(e, retriable) or state in _NOT_READY:
        return RetriableRemoteStorageError(
            f"the metadata database cannot be reached, is busy or is not ready ({state})"
        )
    if isinstance(e, DataError | psycopg.DataError):
        return InvalidRequestError(f"request: a value cannot be stored ({state})")
    return RemoteStorageError(f"the metadata database refused a statement ({state})")


def sqlstate(e: SQLAlchemyError | psycopg.Error) -> str:
    """The five characters by which PostgreSQL names an error; for a violated rule of the schema,
    also the rule. "no SQLSTATE" where the error arose on our side."""
    cause = e.orig if isinstance(e, DBAPIError) else e
    if not isinstance(cause, psycopg.Error) or cause.sqlstate is None:
        return "no SQLSTATE"
    constraint = cause.diag.constraint_name
    return f"{cause.sqlstate} {constraint}" if constraint else cause.sqlstate
