"""Read why PostgreSQL refused a connection: libpq gives the reason, but not its SQLSTATE."""

import os
import re
import selectors
import time
from dataclasses import dataclass

import psycopg
from psycopg import pq
from sqlalchemy.exc import DBAPIError

_TIMEOUT_S = 5.0
_MAX_TRACE_BYTES = 64 * 1024
_ERROR = re.compile(rb'ErrorResponse\t.*? C "([0-9A-Z]{5})"')
_UNKNOWN_DATABASE = "3D000"
_REFUSED_LOGIN = "28"


@dataclass
class RefusedConnectionError(Exception):
    """Raised, or a cause, if the server itself refused a connection.

    Attributes:
        sqlstate: PostgreSQL's code; empty if there was no answer.
        reason: PostgreSQL's message or libpq's, in one line. It may name host and user, never the
            password.
    """

    sqlstate: str
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.sqlstate or 'no SQLSTATE'})"

    @property
    def is_final(self) -> bool:
        """Return whether only an operator can help: the login or the database's name is wrong."""
        return self.sqlstate == _UNKNOWN_DATABASE or self.sqlstate.startswith(_REFUSED_LOGIN)


def refusal_of(error: Exception) -> RefusedConnectionError | None:
    """Return why no connection was made, if that is what the cause of our error says.

    Connects once more, because the code is only in the messages of the server.
    """
    cause = error.__cause__
    driver = cause.orig if isinstance(cause, DBAPIError) else cause
    if not isinstance(driver, psycopg.OperationalError) or driver.sqlstate is not None:
        return None
    reason = "; ".join(line.strip() for line in str(driver).splitlines() if line.strip())
    if driver.pgconn is None:
        return RefusedConnectionError("", reason)
    return RefusedConnectionError(_sqlstate_of(driver.pgconn), reason)


def _sqlstate_of(refused: pq.abc.PGconn) -> str:
    """Connect as a refused connection did, and return the code of the server's refusal.

    The trace may have what a password is checked by, and is kept in memory alone.
    """
    options = {each.keyword: each.val for each in refused.info if each.val}
    conninfo = b" ".join(b"%s='%s'" % (name, _quoted(value)) for name, value in options.items())
    connection = pq.PGconn.connect_start(conninfo)
    trace = os.memfd_create("refused-connection")
    try:
        connection.trace(trace)
        _connect(connection)
        connection.untrace()
        codes = _ERROR.findall(os.pread(trace, _MAX_TRACE_BYTES, 0))
    finally:
        connection.finish()
        os.close(trace)
    return codes[-1].decode() if codes else ""


def _quoted(value: bytes) -> bytes:
    return value.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def _connect(connection: pq.abc.PGconn) -> None:
    """Continue until the connection is made or refused, for _TIMEOUT_S at most."""
    ends_at = time.monotonic() + _TIMEOUT_S
    waits_for = {
        pq.PollingStatus.READING: selectors.EVENT_READ,
        pq.PollingStatus.WRITING: selectors.EVENT_WRITE,
    }
    wanted = selectors.EVENT_WRITE
    while (left_s := ends_at - time.monotonic()) > 0 and connection.status != pq.ConnStatus.BAD:
        with selectors.DefaultSelector() as selector:
            selector.register(connection.socket, wanted)
            selector.select(left_s)
        status = pq.PollingStatus(connection.connect_poll())
        if status not in waits_for:
            return
        wanted = waits_for[status]
