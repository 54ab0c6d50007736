"""Whether anything in a database changed: a digest of every row of every table."""

from collections.abc import Mapping

from sqlalchemy import Connection, text

Digest = dict[str, tuple[int, int]]
"""By table: how many rows, and a sum over what they hold."""

_TABLES = """
    SELECT table_name FROM information_schema.tables
    WHERE table_schema = 'public' AND table_type = 'BASE TABLE' ORDER BY table_name"""


class DatabaseDigest:
    """Takes digests over a connection that commits by itself."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        tables = connection.scalars(text(_TABLES)).all()
        # Rows in any order have one sum: nothing is sorted.
        self._statement = text(
            " UNION ALL ".join(
                f"SELECT '{table}', count(*), "
                f'coalesce(sum(hashtextextended(CAST(t AS text), 0)), 0) FROM "{table}" AS t'
                for table in tables
            )
        )

    def take(self) -> Digest:
        rows = self._connection.execute(self._statement).all()
        return {table: (int(count), int(total)) for table, count, total in rows}


def changed_parts(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return the names of what was changed, added or removed."""
    names = sorted(before.keys() | after.keys())
    return [name for name in names if before.get(name) != after.get(name)]
