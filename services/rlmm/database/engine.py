"""Create the engine on PostgreSQL: its URL, password, pool of connections and their sessions."""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from sqlalchemy import URL, Engine, PoolProxiedConnection, create_engine, event, make_url
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.common.bounded_file import SecretFileError, read_secret
from services.common.secret_variables import forget_libpq_variables

T = TypeVar("T")

_log = logging.getLogger(__name__)

DEFAULT_PORT = 5432

SESSION_MAX_AGE_S = 600.0
"""An address may lead to another server by then, while the one before stays up."""


@dataclass(frozen=True, slots=True)
class DatabaseLimits:
    """Numbers of connections and timeouts; RlmmSettings describes the others.

    Attributes:
        connect_timeout_ms: libpq counts whole seconds, and waits for two at least.
        idle_in_transaction_timeout_ms: after which the database ends a transaction. RLMM computes
            for milliseconds between two statements: one that is idle for longer hangs, and its
            locks stop others.
    """

    pool_size: int = 16
    pool_timeout_ms: int = 5_000
    connect_timeout_ms: int = 5_000
    statement_timeout_ms: int = 20_000
    lock_timeout_ms: int = 10_000
    idle_in_transaction_timeout_ms: int = 10_000
    session_max_age_s: float = SESSION_MAX_AGE_S


DEFAULT_LIMITS = DatabaseLimits()


def create_database_engine(
    database_url: str,
    limits: DatabaseLimits = DEFAULT_LIMITS,
    application_name: str = "rlmm",
    *,
    password_file: Path | None = None,
) -> Engine:
    """Create an engine on PostgreSQL through psycopg 3. Opens no connection yet.

    Removes PG* from the environment of this process: the URL alone decides.

    Args:
        password_file: has the password, if the URL has none; read for each new connection.

    Raises:
        InvalidRequestError: the text is not the URL of a PostgreSQL database, or the password file
            cannot be used.
    """
    url = _url(database_url).set(drivername="postgresql+psycopg")
    if len(_hosts(url)) > 1:
        # libpq would take the first one that answers, also if it is a standby.
        url = url.update_query_dict({"target_session_attrs": "read-write", **url.query})
    forget_libpq_variables()
    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        pool_size=limits.pool_size,
        max_overflow=0,
        # The plans and rows of the last used connection are in the processor's cache.
        pool_use_lifo=True,
        pool_timeout=limits.pool_timeout_ms / 1000,
        pool_recycle=limits.session_max_age_s,
        connect_args=_connect_args(application_name, limits.connect_timeout_ms),
    )
    passwords = None if password_file is None else _passwords(engine, password_file)
    sessions = _Sessions(engine, limits)

    @event.listens_for(engine, "do_connect")
    def connect(
        dialect: Dialect, entry: ConnectionPoolEntry, arguments: list[Any], named: dict[str, Any]
    ) -> Any:
        def connected(**password: str) -> Any:
            return dialect.connect(*arguments, **{**named, **password})

        def begun() -> Any:
            return passwords.connect(lambda p: connected(password=p)) if passwords else connected()

        return sessions.begin(begun, entry)

    @event.listens_for(engine, "checkin")
    def checkin(connection: "psycopg.Connection[Any] | None", entry: ConnectionPoolEntry) -> None:
        # A pool that was discarded gets its borrowed connections back, and closes none of them.
        if connection is not None and entry.info[_POOL] is not engine.pool:
            connection.close()

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


def _passwords(engine: Engine, file: Path) -> "Passwords":
    if engine.url.password is not None:
        raise InvalidRequestError(
            "database_url: has a password, and RLMM_DATABASE_PASSWORD_FILE names another; remove "
            "one of them"
        )
    try:
        return Passwords(file)
    except SecretFileError as e:
        raise InvalidRequestError(f"RLMM_DATABASE_PASSWORD_FILE: {e}") from None


class Passwords:
    """Let each new connection use the password that is in the file then.

    If the server refuses it, the password of the last connection is tried too: it stays good from
    the replacement of the file until the change of the role. If that is refused as well, the role
    has changed meanwhile, and the file's is tried once more. Open connections need no password.
    """

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
    hosts = _hosts(url) or [f"{url.host or 'localhost'}:{url.port or DEFAULT_PORT}"]
    return f"{','.join(hosts)}/{url.database or ''}"


def _hosts(url: URL) -> list[str]:
    """Return the hosts that the query of a URL names."""
    named = url.query.get("host", ())
    return [named] if isinstance(named, str) else list(named)


def _settings(limits: DatabaseLimits) -> dict[str, str]:
    """Return the settings of each session, whatever server, database, role and pooler give it."""
    settings: dict[str, object] = {
        "statement_timeout": limits.statement_timeout_ms,
        "lock_timeout": limits.lock_timeout_ms,
        "idle_in_transaction_session_timeout": limits.idle_in_transaction_timeout_ms,
        "idle_session_timeout": 0,
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "default_transaction_deferrable": "off",
        # psycopg parses texts in these forms.
        "client_encoding": "UTF8",
        "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "standard_conforming_strings": "on",
        # To plan a look-up for its values takes longer than to run it.
        "plan_cache_mode": "force_generic_plan",
        # A plan is reused, so one made while a table was small or had no statistics must use the
        # index too. A table without a suitable index is scanned nevertheless.
        "enable_seqscan": "off",
        "jit": "off",
        # The server also detects that a client's host vanished, and releases the client's locks.
        "tcp_keepalives_idle": 10,
        "tcp_keepalives_interval": 5,
        "tcp_keepalives_count": 3,
    }
    return {name: str(value) for name, value in settings.items()}


_SESSION, _POOL = "session", "pool"
"""The keys under which a pooled connection keeps how to verify its session, and its pool."""

_PROCESS, _SERVER = "process", "server"
"""What serves a session; in its state beside its settings."""


class LostSessionError(psycopg.OperationalError):
    """A connection does not serve the session any more that RLMM gave its settings."""


def verify_session(pooled: PoolProxiedConnection) -> None:
    """Check that the session of a pooled connection is the one that began, and may write.

    Raises:
        LostSessionError: it is not.
    """
    pooled.info[_SESSION]()


@dataclass
class RefusedSessionError(Exception):
    """The cause of an error if a session is not what RLMM needs.

    Attributes:
        problems: by what is wrong, for example "setting server_encoding".
    """

    problems: dict[str, str]


class _Sessions:
    """Give each new session its settings, and check that the session has them."""

    def __init__(self, engine: Engine, limits: DatabaseLimits) -> None:
        self._engine = engine
        self._settings = _settings(limits)
        self._is_pooler_verified = False
        self._server = ""

    def begin(
        self, connect: Callable[[], "psycopg.Connection[Any]"], entry: ConnectionPoolEntry
    ) -> "psycopg.Connection[Any]":
        """Connect, and return a connection that serves one session and can change the database.

        Raises:
            RetriableRemoteStorageError: the session is refused.
        """
        entry.info[_POOL] = self._engine.pool
        connection = connect()
        try:
            connection.autocommit = True
            set_to = self._set(connection)
            state = self._state_of(connection)
            problems = {
                f"setting {name}": f"is {state[name]}, should be {value}: the session does not "
                "keep what RLMM sets; is a pooler between them?"
                for name, value in set_to.items()
                if state[name] != value
            } | _problems(state)
            if not problems and state[_PROCESS] != str(connection.info.backend_pid):
                problems = self._pooler_problems(connection, connect)
            if problems:
                text = "; ".join(f"{what} {problem}" for what, problem in problems.items())
                raise RetriableRemoteStorageError(
                    f"the metadata database is refused: {text}"
                ) from RefusedSessionError(problems)
            connection.autocommit = False
            entry.info[_SESSION] = partial(self._verify, connection, state)
        except BaseException:
            connection.close()
            raise
        if self._server not in ("", state[_SERVER]):
            # Open sessions of the server before must not be used again.
            self._engine.dispose()
        self._server = state[_SERVER]
        return connection

    def _set(self, connection: "psycopg.Connection[Any]") -> dict[str, str]:
        """Set the settings; return them as PostgreSQL writes them."""
        calls = ", ".join(["set_config(%s, %s, false)"] * len(self._settings))
        values = [text for each in self._settings.items() for text in each]
        row = connection.execute(f"SELECT {calls}".encode(), values).fetchone()
        assert row is not None
        return dict(zip(self._settings, row, strict=True))

    def _state_of(self, connection: "psycopg.Connection[Any]") -> dict[str, str]:
        """Read the settings of a session, and what serves it."""
        names = [*self._settings, "server_encoding", "transaction_read_only"]
        settings = ", ".join(["current_setting(%s)"] * len(names))
        query = f"SELECT {settings}, pg_backend_pid()::text, pg_postmaster_start_time()::text"
        row = connection.execute(query.encode(), names).fetchone()
        assert row is not None
        return dict(zip([*names, _PROCESS, _SERVER], row, strict=True))

    def _verify(self, connection: "psycopg.Connection[Any]", began: dict[str, str]) -> None:
        state = self._state_of(connection)
        if state[_PROCESS] != began[_PROCESS]:
            self._is_pooler_verified = False
        changed = [name for name in began if state[name] != began[name]]
        if changed:
            raise LostSessionError(
                f"{changed[0]} of a session was {began[changed[0]]}, and is {state[changed[0]]}"
            )

    def _pooler_problems(
        self,
        connection: "psycopg.Connection[Any]",
        connect: Callable[[], "psycopg.Connection[Any]"],
    ) -> dict[str, str]:
        """Test whether a pooler gives each of two connections a session of its own."""
        if self._is_pooler_verified:
            return {}
        with closing(connect()) as other:
            other.autocommit = True
            # In an order in which no rotation of sessions gives each one the same every time.
            order = [connection, other, other, connection, connection, other]
            pairs = {(id(each), each.execute(_READ_PROCESS).fetchone()) for each in order}
        self._is_pooler_verified = len(pairs) == len({process for _, process in pairs}) == 2
        return {} if self._is_pooler_verified else {"pooler": NO_SESSION}


_READ_PROCESS = b"SELECT pg_backend_pid()"

NO_SESSION = (
    "assigns the server's sessions by transaction or statement, and RLMM needs one for each "
    "connection: set pool_mode=session for this database, or connect to the server itself"
)


def _problems(state: dict[str, str]) -> dict[str, str]:
    problems = {}
    if state["server_encoding"] != "UTF8":
        problems["setting server_encoding"] = (
            f"is {state['server_encoding']}, should be UTF8: names and texts cannot be stored; "
            "create a database with ENCODING 'UTF8'"
        )
    if state["transaction_read_only"] != "off":
        problems["setting transaction_read_only"] = (
            "is on, should be off: nothing can be changed; is this a standby, or a primary that "
            "another one has replaced?"
        )
    return problems


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
