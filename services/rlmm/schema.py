"""The schema's revision, and the way to the newest one. Services never create or alter tables."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.rlmm.database import DatabaseLimits, create_database_engine, endpoint
from services.rlmm.reader_role import ReaderRole, grant_to_reader
from services.rlmm.transactions import errors_named

MIGRATIONS = Path(__file__).parent / "migrations"

_LIMITS = DatabaseLimits(
    pool_size=1,
    lock_timeout_ms=60_000,
    statement_timeout_ms=300_000,
    idle_in_transaction_timeout_ms=60_000,
)
_ADVISORY_LOCK = 0x5ED1_3E27
"""Any number that nobody else in the database uses."""
_LOCK_INTERVAL_S = 0.5
_LOCK_ATTEMPTS = 7_200
"""An hour: an upgrade of big tables may take as long."""


@cache
def known_revision() -> str:
    """The schema revision that this release is made for."""
    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    if head is None:
        raise RuntimeError("this installation has no migrations")
    return head


def is_usable(revision: str | None) -> bool:
    """Whether this release works on a schema of that revision: its own, or a later one.

    Revisions are numbers that grow by one, and each only adds to the one before it, so that the
    services of two releases may run side by side while one replaces the other.
    """
    if revision is None or not revision.isdecimal():
        return False
    return int(revision) >= int(known_revision())


def revision_in(connection: Connection) -> str | None:
    """The schema revision of the database; None where it has no schema."""
    return MigrationContext.configure(connection).get_current_revision()


@contextmanager
def connected(
    database_url: str, *, autocommit: bool = False, asks_for_settings: bool = True
) -> Iterator[Connection]:
    """The one connection of a command that looks after the schema or its rows.

    Args:
        asks_for_settings: see create_database_engine.

    Raises:
        InvalidRequestError: not the URL of a PostgreSQL database.
        RetriableRemoteStorageError, RemoteStorageError: the database's errors, each naming the
            database, never the password.
    """
    engine = create_database_engine(
        database_url, _LIMITS, "rlmm-schema", asks_for_settings=asks_for_settings
    )
    level = "AUTOCOMMIT" if autocommit else "READ COMMITTED"
    try:
        with errors_named(), engine.connect() as connection:
            yield connection.execution_options(isolation_level=level)
    except RetriableRemoteStorageError as e:
        raise RetriableRemoteStorageError(f"{endpoint(engine.url)}: {e}") from e
    except RemoteStorageError as e:
        raise RemoteStorageError(f"{endpoint(engine.url)}: {e}") from e
    finally:
        # Closing the connection lets go of its advisory locks, whatever happened.
        engine.dispose()


def current_revision(database_url: str) -> str | None:
    """The schema revision of the database; None where it has no schema.

    Raises:
        RetriableRemoteStorageError: the database cannot be reached.
    """
    with connected(database_url) as connection:
        return revision_in(connection)


def upgrade(database_url: str) -> ReaderRole:
    """Bring the schema to known_revision(), or leave a later one as it is. Idempotent, and one at
    a time: of two upgrades that start together the second waits, then finds nothing to do.

    Raises:
        RetriableRemoteStorageError: the database cannot be reached, or a lock was not free.
        RemoteStorageError: the schema has a revision that this release does not know.
    """
    with connected(database_url) as connection:
        _lock(connection)
        if not is_usable(revision_in(connection)):
            connection.commit()
            _upgrade(connection)
        role = grant_to_reader(connection)
        connection.commit()
    return role


def _lock(connection: Connection) -> None:
    """Wait until no other upgrade is under way.

    By asking again: who waits within a statement holds a snapshot, and an index that is built
    without holding up writers waits for every older snapshot.
    """
    for _ in range(_LOCK_ATTEMPTS):
        if try_lock(connection, _ADVISORY_LOCK):
            return
        time.sleep(_LOCK_INTERVAL_S)
    raise RetriableRemoteStorageError("another upgrade is under way; try again when it has ended")


def try_lock(connection: Connection, key: int) -> bool:
    """Whether this connection has the lock now, which it keeps until it is closed."""
    got = connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": key})
    connection.commit()
    return bool(got)


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as e:
        raise RemoteStorageError(f"the schema cannot be upgraded: {e}") from e
