"""Read one row by a prepared statement in one call of libpq.

A cursor sends, waits and receives in steps, and each step lets another thread of Python run: with
many clients the threads would wait for each other longer than for the database.
"""

import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import count
from typing import Any, NamedTuple

import psycopg
from psycopg import errors
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGresult
from psycopg.rows import namedtuple_row

from services.common.tracing import is_recorded

_NAMED = re.compile(r"%\((\w+)\)s")
_NUMBERS = count(1)

_TIMEOUTS = ("55P03", "57014")
"""Who waited once in vain must not wait again."""


class _Compiled(NamedTuple):
    """A statement as the server wants it, and the names of its parameters in their order."""

    text: bytes
    names: tuple[str, ...]


@cache
def _compiled(statement: str) -> _Compiled:
    names = tuple(dict.fromkeys(_NAMED.findall(statement)))
    text = _NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", statement)
    return _Compiled(text.encode(), names)


class PreparedRead:
    """A statement of a session that reads one row; not thread-safe, as its connection."""

    def __init__(self, connection: "psycopg.Connection[Any]", statement: str) -> None:
        self._connection = connection
        self._statement = statement
        self._name = b""
        self._loaders = Transformer(connection)
        self._make: Callable[[Iterable[Any]], Any] | None = None

    def row(self, parameters: Mapping[str, object]) -> Any:
        """Return the first row of the result, a named tuple; None if there is no row.

        Raises:
            psycopg.Error: the statement failed.
        """
        if is_recorded():
            return self._row_of_cursor(parameters)
        text, names = _compiled(self._statement)
        session = self._connection.pgconn
        if not self._name:
            self._name = f"read_{next(_NUMBERS)}".encode()
            session.prepare(self._name, text)
        # As texts, whose types the server infers; no parameter of a look-up is NULL.
        values = [str(parameters[name]).encode() for name in names]
        found = session.exec_prepared(self._name, values, result_format=Format.BINARY)
        if found.status == ExecStatus.TUPLES_OK:
            return self._first_row(found)
        self._name, self._make = b"", None
        state = (found.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        if state in _TIMEOUTS:
            raise errors.lookup(state)(found.get_error_message())
        # psycopg drops a session's prepared statements on a rollback, and a change of the schema
        # makes them stale: a cursor prepares the statement again. It raises any other error.
        return self._row_of_cursor(parameters)

    def _first_row(self, found: PGresult) -> Any:
        if self._make is None:
            columns = [(found.fname(n) or b"").decode() for n in range(found.nfields)]
            row: Any = namedtuple("Row", columns, rename=True)  # type: ignore[misc]  # known only now
            self._make = row._make
        if not found.ntuples:
            return None
        self._loaders.set_pgresult(found)
        return self._loaders.load_row(0, self._make)

    def _row_of_cursor(self, parameters: Mapping[str, object]) -> Any:
        cursor = self._connection.cursor(binary=True, row_factory=namedtuple_row)
        return cursor.execute(self._statement, parameters, prepare=True).fetchone()
