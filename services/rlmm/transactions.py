"""The one place where a transaction begins and ends, and where database errors get their names."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from sqlalchemy import Connection, Engine
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

_ROLLED_BACK = frozenset({"40001", "40P01"})
"""serialization_failure, deadlock_detected: nothing happened, so that trying again is safe."""

_NOT_READY = frozenset({"25006", "25P03", "42P01", "42703"})
"""A standby, an idle transaction ended, no such table or column (the schema is not ours yet):
beside what psycopg itself calls operational."""

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
            for _ in range(ATTEMPTS - 1):
                try:
                    return self._change_once(work)
                except DBAPIError as e:
                    if sqlstate(e) not in _ROLLED_BACK:
                        raise
            return self._change_once(work)

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
        with errors_named(), self._autocommitting.connect() as connection:
            return query(connection)

    def read_in_transaction(self, query: Callable[[Connection], T]) -> T:
        """Run `query` in a transaction, as a cursor of the database needs one. Changes nothing.

        Raises:
            RetriableRemoteStorageError: unreachable or busy.
        """
        with errors_named(), self._engine.connect() as connection:
            return query(connection)


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
