"""Create the engine on PostgreSQL: its URL, password, timeouts and pool of connections."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.exc import ArgumentError

from services.api.errors import InvalidRequestError
from services.common.bounded_file import SecretFileError, read_secret

T = TypeVar("T")

_log = logging.getLogger(__name__)

DEFAULT_PORT = 5432


@dataclass(frozen=True, slots=True)
class DatabaseLimits:
    """Numbers of connections and timeouts; RlmmSettings describes each."""

    pool_size: int = 16
    pool_timeout_ms: int = 5_000
    connect_timeout_ms: int = 5_000
    statement_timeout_ms: int = 20_000
    lock_timeout_ms: int = 10_000
    idle_in_transaction_timeout_ms: int = 10_000


DEFAULT_LIMITS = DatabaseLimits()


def create_database_engine(
    database_url: str,
    limits: DatabaseLimits = DEFAULT_LIMITS,
    application_name: str = "rlmm",
    *,
    password_file: Path | None = None,
    asks_for_settings: bool = True,
) -> Engine:
    """Create an engine on PostgreSQL through psycopg 3. Opens no connection yet.

    Args:
        password_file: has the password, if the URL has none; read for each new connection.
        asks_for_settings: if False, sessions keep the settings that the server gives to their role.

    Raises:
        InvalidRequestError: the text is not the URL of a PostgreSQL database, or the password file
            cannot be used.
    """
    engine = create_engine(
        _url(database_url).set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        pool_size=limits.pool_size,
        max_overflow=0,
        # The plans and rows of the last used connection are in the processor's cache.
        pool_use_lifo=True,
        pool_timeout=limits.pool_timeout_ms / 1000,
        connect_args={
            **_connect_args(application_name, limits.connect_timeout_ms),
            **({"options": _options(limits)} if asks_for_settings else {}),
        },
    )
    if password_file is not None:
        _read_password_from(engine, password_file)
    return engine


def _url(database_url: str) -> URL:
    """Parse a URL. No error has a part of it, or a cause: each could contain the password."""
    try:
        url = make_url(database_url)
    except (ArgumentError, ValueError):
        raise InvalidRequestError(
            "database_url: not a URL; write postgresql://USER:PASSWORD@HOST:PORT/NAME"
        ) from None
    if url.get_backend_name() not in ("postgresql", "postgres"):
        raise InvalidRequestError("database_url: must begin with postgresql://")
    if database_url.count("@") > 1:
        # SQLAlchemy would take the rest of the password for the name of the host.
        raise InvalidRequestError(
            "database_url: has more than one @; write %40 for an @ in the password or user name"
        )
    return url


def _read_password_from(engine: Engine, file: Path) -> None:
    """Let each new connection use the password that is in the file then.

    If the server refuses it, the password of the last connection is tried too: it stays good from
    the replacement of the file until the change of the role. If that is refused as well, the role
    has changed meanwhile, and the file's is tried once more. Open connections need no password.
    """
    if engine.url.password is not None:
        raise InvalidRequestError(
            "database_url: has a password, and RLMM_DATABASE_PASSWORD_FILE names another; remove "
            "one of them"
        )
    try:
        passwords = Passwords(file)
    except SecretFileError as e:
        raise InvalidRequestError(f"RLMM_DATABASE_PASSWORD_FILE: {e}") from None

    @event.listens_for(engine, "do_connect")
    def connect(
        dialect: Dialect, _record: object, arguments: list[Any], named: dict[str, Any]
    ) -> DBAPIConnection:
        return passwords.connect(lambda p: dialect.connect(*arguments, **{**named, "password": p}))


class Passwords:
    """Reads the password from its file, and remembers the last one that the server accepted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._accepted = read_secret(file)

    def connect(self, connect: Callable[[str], T]) -> T:
        accepted, password = self._accepted, self._read()
        # The role may change right after it refused the new password, and refuse the old one too.
        candidates = [password] if password == accepted else [password, accepted, password]
        while True:
            candidate = candidates.pop(0)
            try:
                connection = connect(candidate)
            except psycopg.OperationalError as e:
                was_asked = e.pgconn is not None and e.pgconn.used_password
                if not was_asked or not candidates:
                    raise
            else:
                if candidate == password:
                    self._accepted = password
                return connection

    def _read(self) -> str:
        try:
            return read_secret(self._file)
        except SecretFileError as e:
            # The password in use may be good for a while yet.
            _log.warning("RLMM_DATABASE_PASSWORD_FILE: %s; RLMM uses the password read before", e)
            return self._accepted


def endpoint(url: URL) -> str:
    """Return HOST:PORT/NAME for messages, never the user or the password.

    If the URL names several hosts (?host=A:5432&host=B:5432), return all of them with commas.
    """
    named = url.query.get("host", ())
    hosts = [named] if isinstance(named, str) else list(named)
    if not hosts:
        hosts = [f"{url.host or 'localhost'}:{url.port or DEFAULT_PORT}"]
    return f"{','.join(hosts)}/{url.database or ''}"


def _options(limits: DatabaseLimits) -> str:
    """Return the settings that a session requests from the server when it begins."""
    session = {
        "statement_timeout": limits.statement_timeout_ms,
        "lock_timeout": limits.lock_timeout_ms,
        "idle_in_transaction_session_timeout": limits.idle_in_transaction_timeout_ms,
        "synchronous_commit": "on",
        # To plan a look-up for its values takes longer than to run it.
        "plan_cache_mode": "force_generic_plan",
        # A plan is kept, so a plan made while a table was small or had no statistics must use the
        # index too. A table without a suitable index is scanned nevertheless.
        "enable_seqscan": "off",
        "jit": "off",
        # The server also detects that a client's host vanished, and releases the client's locks.
        "tcp_keepalives_idle": 10,
        "tcp_keepalives_interval": 5,
        "tcp_keepalives_count": 3,
    }
    return " ".join(f"-c {name}={value}" for name, value in session.items())


def _connect_args(application_name: str, connect_timeout_ms: int) -> dict[str, str | int]:
    return {
        "application_name": application_name,
        "connect_timeout": -(-connect_timeout_ms // 1000),
        # Detects within half a minute that the database host vanished.
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
