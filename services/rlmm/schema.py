"""The schema's revision, and the way to the newest one. Services never create or alter tables."""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from services.api.errors import RemoteStorageError
from services.rlmm.database import DatabaseLimits, create_database_engine
from services.rlmm.transactions import errors_named

MIGRATIONS = Path(__file__).parent / "migrations"

_LIMITS = DatabaseLimits(
    pool_size=1,
    # Another upgrade may be under way; this is how long we wait for it.
    lock_timeout_ms=300_000,
    statement_timeout_ms=300_000,
    idle_in_transaction_timeout_ms=60_000,
)
_ADVISORY_LOCK = 0x5ED1_3E27
"""Any number that nobody else in the database uses."""


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


def current_revision(database_url: str) -> str | None:
    """The schema revision of the database; None where it has no schema.

    Raises:
        RetriableRemoteStorageError: the database cannot be reached.
    """
    engine = create_database_engine(database_url, _LIMITS, "rlmm-schema")
    try:
        with errors_named(), engine.connect() as connection:
            return revision_in(connection)
    finally:
        engine.dispose()


def upgrade(database_url: str) -> None:
    """Bring the schema to known_revision(), or leave a later one as it is. Idempotent, and one at
    a time: of two upgrades that start together the second waits, then finds nothing to do.

    Raises:
        RetriableRemoteStorageError: the database cannot be reached, or a lock was not free.
        RemoteStorageError: the schema has a revision that this release does not know.
    """
    engine = create_database_engine(database_url, _LIMITS, "rlmm-schema")
    try:
        with errors_named(), engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_LOCK})
            connection.commit()
            if not is_usable(revision_in(connection)):
                connection.commit()
                _upgrade(connection)
    finally:
        # Closing the connection lets go of the lock, whatever happened.
        engine.dispose()


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as e:
        raise RemoteStorageError(f"the schema cannot be upgraded: {e}") from e
