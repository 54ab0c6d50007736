"""Upgrade the schema, and check that the database has the schema that this release expects."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import CheckConstraint, Connection, ForeignKeyConstraint, PrimaryKeyConstraint, text

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.rlmm.database.db import errors_named
from services.rlmm.database.engine import (
    DatabaseLimits,
    RefusedSessionError,
    create_database_engine,
    endpoint,
)
from services.rlmm.database.refused_connections import refusal_of
from services.rlmm.database.rows import ms_of
from services.rlmm.database.schema_revision import MIGRATIONS, is_usable, known_revision
from services.rlmm.database.tables import METADATA

ROLE = "sediment_reader"

VIEWS = (
    "report_partitions",
    "report_segments",
    "report_events",
    "report_topics",
    "report_gaps",
    "report_anomalies",
)

_MAY_CREATE = text("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
_EXISTS = text("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role)")

# Roles belong to the whole server: an upgrade of another database may create it at the same time.
_CREATE = f"""
    DO $$ BEGIN
        CREATE ROLE {ROLE} NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $$"""

_LIMITS = DatabaseLimits(
    pool_size=1,
    lock_timeout_ms=60_000,
    statement_timeout_ms=300_000,
    idle_in_transaction_timeout_ms=60_000,
)
_ADVISORY_LOCK = 0x5ED1_3E27
"""A number that nothing else in the database uses."""
_LOCK_INTERVAL_S = 0.5
_LOCK_ATTEMPTS = 7_200
"""The attempts of an hour: an upgrade of big tables may take as long."""
OLDEST_SERVER = 14
"""The oldest supported major version of PostgreSQL."""
_REQUIRED_SETTINGS = {
    "fsync": (["on"], "an acknowledged change can be lost with the server's power"),
    "full_page_writes": (["on"], "a crash while a page is written can spoil the page"),
    "autovacuum": (["on"], "look-ups slow down as rows die, and never get faster again"),
}
"""Settings of the server that no session can have for itself, and the effect of wrong ones."""
_RULES = ("add_index", "add_fk", "add_constraint")
"""Alembic's names of differences in constraints and indexes."""
_INDEXES = text(
    "SELECT c.relname AS name, i.indisvalid AND i.indisready AS is_valid FROM pg_index AS i "
    "JOIN pg_class AS c ON c.oid = i.indexrelid "
    "WHERE c.relnamespace = current_schema()::regnamespace"
)
_CONSTRAINTS = text(
    "SELECT conname AS name, convalidated AS is_valid FROM pg_constraint "
    "WHERE connamespace = current_schema()::regnamespace"
)


class ReaderRole(StrEnum):
    """The state of the role for reports."""

    GRANTED = "granted"
    """The role exists and may read the views."""
    MISSING = "missing"
    """The role does not exist, and this user may not create roles."""


def grant_to_reader(connection: Connection) -> ReaderRole:
    """Grant the role access to the views, and create it first if this user may. Idempotent."""
    if not connection.scalar(_EXISTS, {"role": ROLE}):
        if not connection.scalar(_MAY_CREATE):
            return ReaderRole.MISSING
        connection.execute(text(_CREATE))
    connection.execute(text(f"GRANT SELECT ON {', '.join(VIEWS)} TO {ROLE}"))
    return ReaderRole.GRANTED


def revision_in(connection: Connection) -> str | None:
    """Read the schema revision of the database; None if it has no schema."""
    return MigrationContext.configure(connection).get_current_revision()


@contextmanager
def connected(database_url: str, password_file: Path | None = None) -> Iterator[Connection]:
    """Open the single connection of a command that maintains the schema or its rows.

    Args:
        password_file: see create_database_engine.

    Raises:
        InvalidRequestError: the text is not the URL of a PostgreSQL database.
        RetriableRemoteStorageError, RemoteStorageError: the database's errors, each naming the
            database, never the password.
    """
    engine = create_database_engine(
        database_url, _LIMITS, "rlmm-schema", password_file=password_file
    )
    try:
        with errors_named(), engine.connect() as connection:
            yield connection
    except RetriableRemoteStorageError as e:
        refusal = refusal_of(e)
        if refusal is None:
            raise RetriableRemoteStorageError(f"{endpoint(engine.url)}: {e}") from e.__cause__ or e
        remedy = "correct the user, password or database name" if refusal.is_final else "retry"
        text = f"{endpoint(engine.url)}: the metadata database cannot be used: {refusal}; {remedy}"
        raise RetriableRemoteStorageError(text) from refusal
    except RemoteStorageError as e:
        raise RemoteStorageError(f"{endpoint(engine.url)}: {e}") from e
    finally:
        # Closing the connection always releases its advisory locks.
        engine.dispose()


def current_revision(database_url: str, password_file: Path | None = None) -> str | None:
    """Read the schema revision of the database; None if it has no schema.

    Raises:
        RetriableRemoteStorageError: the database is unreachable.
    """
    with connected(database_url, password_file) as connection:
        return revision_in(connection)


def deletions_frozen_since_ms(database_url: str, password_file: Path | None = None) -> int | None:
    """Read when a rebuild froze all deletions; None if they are not frozen.

    Raises:
        RetriableRemoteStorageError: the database is unreachable.
    """
    with connected(database_url, password_file) as connection:
        if not is_usable(revision_in(connection)):
            return None
        rebuild = text("SELECT min(set_at) FROM holds WHERE kind = 'REBUILD' AND topic_id IS NULL")
        frozen_at = connection.scalar(rebuild)
    return None if frozen_at is None else ms_of(frozen_at)


def upgrade(database_url: str, password_file: Path | None = None) -> ReaderRole:
    """Upgrade the schema to known_revision(); leave a later schema unchanged. Idempotent.

    One upgrade runs at a time: a second one waits, then finds nothing to do.

    Raises:
        RetriableRemoteStorageError: the database is unreachable, or a lock was not free.
        RemoteStorageError: the schema has a revision that this release does not know.
    """
    with connected(database_url, password_file) as connection:
        _lock(connection)
        if not is_usable(revision_in(connection)):
            connection.commit()
            _upgrade(connection)
        role = grant_to_reader(connection)
        connection.commit()
    return role


def _lock(connection: Connection) -> None:
    """Wait until no other upgrade runs.

    Polls: a wait within a statement holds a snapshot, and CREATE INDEX CONCURRENTLY waits for every
    older snapshot.
    """
    for _ in range(_LOCK_ATTEMPTS):
        if try_lock(connection, _ADVISORY_LOCK):
            return
        time.sleep(_LOCK_INTERVAL_S)
    raise RetriableRemoteStorageError(
        "another upgrade has run for an hour; retry when it has ended"
    )


def try_lock(connection: Connection, key: int) -> bool:
    """Acquire an advisory lock until the connection is closed; return whether it was free."""
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


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """A difference between the database and the schema of this release.

    Attributes:
        what: the part at fault, for example "index ix_segments_live".
        problem: the difference, and its effect or the remedy.
    """

    what: str
    problem: str


def check_schema(database_url: str, password_file: Path | None = None) -> list[SchemaProblem]:
    """List all problems of sessions, server and schema. Changes nothing.

    A later release's schema may have more, and other indexes and rules: only its tables, columns
    and views are checked.

    Raises:
        RetriableRemoteStorageError: the database is unreachable.
    """
    try:
        return _schema_problems(database_url, password_file)
    except RetriableRemoteStorageError as e:
        if not isinstance(e.__cause__, RefusedSessionError):
            raise
        return [SchemaProblem(what, problem) for what, problem in e.__cause__.problems.items()]


def _schema_problems(database_url: str, password_file: Path | None) -> list[SchemaProblem]:
    with connected(database_url, password_file) as connection:
        problems = list(_server_problems(connection))
        revision = revision_in(connection)
        if not is_usable(revision):
            present = revision or "none"
            message = f"is {present}, this release needs {known_revision()}: `sediment db upgrade`"
            return [*problems, SchemaProblem("schema revision", message)]
        is_later = revision != known_revision()
        problems += _difference_problems(connection, is_later=is_later)
        problems += _view_problems(connection)
        return problems if is_later else [*problems, *_rule_problems(connection)]


def _server_problems(connection: Connection) -> Iterator[SchemaProblem]:
    version = connection.scalar(text("SELECT current_setting('server_version_num')::int / 10000"))
    if version is None or version < OLDEST_SERVER:
        yield SchemaProblem("server version", f"is {version}; {OLDEST_SERVER} is the oldest tried")
    for name, (wanted, otherwise) in _REQUIRED_SETTINGS.items():
        value = connection.scalar(text("SELECT current_setting(:name)"), {"name": name})
        if value not in wanted:
            message = f"is {value}, should be {' or '.join(wanted)}: {otherwise}"
            yield SchemaProblem(f"setting {name}", message)


def _difference_problems(connection: Connection, *, is_later: bool) -> Iterator[SchemaProblem]:
    """Compare tables, columns, types, indexes and foreign keys with Alembic."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    for difference in compare_metadata(context, METADATA):
        # Several differences of one column come as a list.
        for each in difference if isinstance(difference, list) else [difference]:
            problem = _problem_of(each)
            if problem is not None and not (is_later and each[0] in _RULES):
                yield problem


def _problem_of(difference: tuple[Any, ...]) -> SchemaProblem | None:
    """Describe a difference; None if the database only has more, as that of a later release."""
    kind, *parts = difference
    if kind == "add_table":
        return SchemaProblem(f"table {parts[0].name}", "is missing")
    if kind == "add_column":
        return SchemaProblem(f"column {parts[1]}.{parts[2].name}", "is missing")
    if kind in _RULES:
        what = "index" if kind == "add_index" else "constraint"
        return SchemaProblem(f"{what} {parts[0].name}", "is missing or has another definition")
    if kind in ("modify_type", "modify_nullable"):
        _schema, table, column, _existing, present, wanted = parts
        name = "type" if kind == "modify_type" else "nullable"
        return SchemaProblem(f"column {table}.{column}", f"{name} is {present}, should be {wanted}")
    return None


def _rule_problems(connection: Connection) -> Iterator[SchemaProblem]:
    """Check validity, CHECK constraints and primary keys, which Alembic does not check."""
    indexes = {row.name: row.is_valid for row in connection.execute(_INDEXES)}
    constraints = {row.name: row.is_valid for row in connection.execute(_CONSTRAINTS)}
    for table in METADATA.sorted_tables:
        for index in sorted(str(index.name) for index in table.indexes):
            if not indexes.get(index, True):
                yield SchemaProblem(
                    f"index {index}",
                    f"is not valid, its build was interrupted: REINDEX INDEX CONCURRENTLY {index}",
                )
        for constraint in sorted(
            str(each.name)
            for each in table.constraints
            if isinstance(each, CheckConstraint | ForeignKeyConstraint | PrimaryKeyConstraint)
        ):
            if constraint not in constraints:
                yield SchemaProblem(f"constraint {constraint}", "is missing")
            elif not constraints[constraint]:
                yield SchemaProblem(f"constraint {constraint}", "was never validated")


def _view_problems(connection: Connection) -> Iterator[SchemaProblem]:
    for view in VIEWS:
        if connection.scalar(text("SELECT to_regclass(:name)"), {"name": view}) is None:
            yield SchemaProblem(f"view {view}", "is missing")


def deployment_id(database_url: str, password_file: Path | None = None) -> UUID:
    """Read the deployment's id, which the schema's upgrade created; it never changes.

    Raises:
        RetriableRemoteStorageError: the database is unreachable.
        RemoteStorageError: the schema has no id yet.
    """
    with connected(database_url, password_file) as connection:
        if not is_usable(revision_in(connection)):
            needed = f"the schema is older than {known_revision()}"
            raise RemoteStorageError(f"{needed}; run `sediment db upgrade`, which makes the id")
        id: UUID | None = connection.scalar(text("SELECT deployment_id FROM deployment"))
    if id is None:
        raise RemoteStorageError("the table deployment has lost its row; restore it from a backup")
    return id
