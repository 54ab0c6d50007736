"""Read which revision of the schema this release expects, without Alembic, which loads slowly."""

from functools import cache
from pathlib import Path

MIGRATIONS = Path(__file__).parents[1] / "migrations"


@cache
def known_revision() -> str:
    """Return the schema revision that this release expects: that of its last migration.

    The name of a migration's file begins with its revision.
    """
    names = [path.name for path in (MIGRATIONS / "versions").glob("[0-9]*.py")]
    if not names:
        raise RuntimeError("this installation has no migrations")
    return max(names).partition("_")[0]


def is_usable(revision: str | None) -> bool:
    """Return whether this release works on a schema of that revision: its own or a later one.

    Revisions are numbers that grow by one, and each only adds to the one before it, so that the
    services of two releases may run side by side while one replaces the other.
    """
    if revision is None or not revision.isdecimal():
        return False
    return int(revision) >= int(known_revision())


def needed(revision: str | None) -> str:
    """Describe a schema of a revision that is not usable, and what to do."""
    return (
        f"the database has schema revision {revision}, this release needs {known_revision()}; run "
        "`sediment db upgrade`"
    )
