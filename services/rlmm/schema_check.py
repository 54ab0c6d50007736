"""Is the database what this release expects? Everything that is not is named."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection, ForeignKeyConstraint, PrimaryKeyConstraint, text

from services.rlmm.reader_role import VIEWS
from services.rlmm.schema import connected, is_usable, known_revision, revision_in
from services.rlmm.tables import Base

OLDEST_SERVER = 14
"""Major version of PostgreSQL."""

_REQUIRED_SETTINGS = {
    "fsync": (["on"], "an acknowledged change can be lost with the server's power"),
    "full_page_writes": (["on"], "a crash while a page is written can spoil the page"),
    "synchronous_commit": (
        ["on", "remote_apply"],
        "an acknowledged change can be lost with the server, where a pooler drops what RLMM's "
        "sessions ask for",
    ),
    "autovacuum": (["on"], "look-ups slow down as rows die, and never get faster again"),
    "server_encoding": (["UTF8"], "names of topics cannot be stored"),
    "transaction_read_only": (["off"], "nothing can be changed; is this a standby?"),
}
"""What the server must give to a session that asks for nothing, and what happens otherwise."""
_RULES = ("add_index", "add_fk", "add_constraint")
"""Differences, as Alembic calls them, in what holds of the rows and how they are found."""
_INDEXES = text(
    "SELECT c.relname AS name, i.indisvalid AND i.indisready AS is_valid FROM pg_index AS i "
    "JOIN pg_class AS c ON c.oid = i.indexrelid "
    "WHERE c.relnamespace = current_schema()::regnamespace"
)
_CONSTRAINTS = text(
    "SELECT conname AS name, convalidated AS is_valid FROM pg_constraint "
    "WHERE connamespace = current_schema()::regnamespace"
)


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """Something that is not as this release expects it.

    Attributes:
        what: what it is about, for example "index ix_segments_live".
        problem: what is wrong with it, and what that means or what to do.
    """

    what: str
    problem: str


def check_schema(database_url: str) -> list[SchemaProblem]:
    """All problems. Changes nothing.

    A later release's schema may have more, and other indexes and rules than this one knows: of it
    only tables, columns and views are looked for.

    Raises:
        RetriableRemoteStorageError: the database cannot be reached.
    """
    with connected(database_url, asks_for_settings=False) as connection:
        problems = list(_server_problems(connection))
    with connected(database_url) as connection:
        revision = revision_in(connection)
        if not is_usable(revision):
            told = revision or "none"
            message = f"is {told}, this release needs {known_revision()}: `sediment db upgrade`"
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
    """Tables, columns, types, indexes and foreign keys, as Alembic compares them."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    for difference in compare_metadata(context, Base.metadata):
        # Several differences of one column come as a list.
        for each in difference if isinstance(difference, list) else [difference]:
            problem = _problem_of(each)
            if problem is not None and not (is_later and each[0] in _RULES):
                yield problem


def _problem_of(difference: tuple[Any, ...]) -> SchemaProblem | None:
    """None: the database has more than this release knows, which a later one may have added."""
    kind, *parts = difference
    if kind == "add_table":
        return SchemaProblem(f"table {parts[0].name}", "is missing")
    if kind == "add_column":
        return SchemaProblem(f"column {parts[1]}.{parts[2].name}", "is missing")
    if kind in _RULES:
        what = "index" if kind == "add_index" else "constraint"
        return SchemaProblem(f"{what} {parts[0].name}", "is missing, or is another than it should")
    if kind in ("modify_type", "modify_nullable"):
        _schema, table, column, _existing, present, wanted = parts
        name = "type" if kind == "modify_type" else "nullable"
        return SchemaProblem(f"column {table}.{column}", f"{name} is {present}, should be {wanted}")
    return None


def _rule_problems(connection: Connection) -> Iterator[SchemaProblem]:
    """What Alembic does not look at: validity, checks, primary keys."""
    indexes = {row.name: row.is_valid for row in connection.execute(_INDEXES)}
    constraints = {row.name: row.is_valid for row in connection.execute(_CONSTRAINTS)}
    for table in Base.metadata.sorted_tables:
        for index in sorted(str(index.name) for index in table.indexes):
            if not indexes.get(index, True):
                yield SchemaProblem(
                    f"index {index}",
                    f"is not valid, its building was cut off: REINDEX INDEX CONCURRENTLY {index}",
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
