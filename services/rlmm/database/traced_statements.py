"""Record each statement that RLMM sends to PostgreSQL in the trace of the call that sends it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import psycopg
from sqlalchemy import Engine, event

from services.common.tracing import is_recorded, request

MAX_TEXT_LENGTH = 1_000
"""Of a statement in a span. It has placeholders, and none of the values."""


def trace_statements(engine: Engine) -> None:
    """Record the statements of all connections that the engine opens from now on.

    Statements of a transaction that commits the changes of several calls together are in the trace
    of the call whose thread runs it. In a pipeline, a span ends when its statement is queued.
    """

    @event.listens_for(engine, "connect")
    def trace(connection: Any, _record: object) -> None:
        connection.cursor_factory = _Cursor
        connection.server_cursor_factory = _ServerCursor


@contextmanager
def _statement(query: object) -> Iterator[None]:
    if not is_recorded():
        yield
        return
    text = query.decode(errors="replace") if isinstance(query, bytes) else str(query)
    operation = text.split(maxsplit=1)[0].upper() if text.strip() else "empty statement"
    attributes = {"db.system": "postgresql", "db.query.text": text[:MAX_TEXT_LENGTH]}
    with request(operation, attributes):
        yield


class _Cursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, *arguments: Any, **options: Any) -> Self:
        with _statement(query):
            return super().execute(query, *arguments, **options)

    def executemany(self, query: Any, *arguments: Any, **options: Any) -> None:
        with _statement(query):
            super().executemany(query, *arguments, **options)


class _ServerCursor(psycopg.ServerCursor[Any]):
    def execute(self, query: Any, *arguments: Any, **options: Any) -> Self:
        with _statement(query):
            return super().execute(query, *arguments, **options)
