"""Connections to PostgreSQL: a bounded pool, and a time limit on everything."""

from dataclasses import dataclass

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError

from services.api.errors import InvalidRequestError

DEFAULT_PORT = 5432


@dataclass(frozen=True, slots=True)
class DatabaseLimits:
    """How many connections, and how long each thing may take; RlmmSettings says it in words."""

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
    asks_for_settings: bool = True,
) -> Engine:
    """An engine on PostgreSQL through psycopg 3. Opens no connection yet.

    Args:
        asks_for_settings: False: its sessions have what the server gives to their role.

    Raises:
        InvalidRequestError: not the URL of a PostgreSQL database.
    """
    try:
        url = make_url(database_url)
    except (ArgumentError, ValueError):
        # Without the cause, whose text may hold a piece of the password.
        raise InvalidRequestError("database_url: not a URL") from None
    if url.get_backend_name() not in ("postgresql", "postgres"):
        raise InvalidRequestError("database_url: must begin with postgresql://")
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        pool_size=limits.pool_size,
        max_overflow=0,
        # The connection that was used last has its plans and rows in the processor's cache.
        pool_use_lifo=True,
        pool_timeout=limits.pool_timeout_ms / 1000,
        connect_args={
            **_connect_args(application_name, limits.connect_timeout_ms),
            **({"options": _options(limits)} if asks_for_settings else {}),
        },
    )


def endpoint(url: URL) -> str:
    """HOST:PORT/NAME, for people; never the user or the password."""
    return f"{url.host or 'localhost'}:{url.port or DEFAULT_PORT}/{url.database or ''}"


def _options(limits: DatabaseLimits) -> str:
    """What a session asks the server for when it begins."""
    session = {
        "statement_timeout": limits.statement_timeout_ms,
        "lock_timeout": limits.lock_timeout_ms,
        "idle_in_transaction_session_timeout": limits.idle_in_transaction_timeout_ms,
        "synchronous_commit": "on",
        # Planning a look-up anew for its values takes longer than running it.
        "plan_cache_mode": "force_generic_plan",
        # A plan is kept: one made while a table was small, or had no statistics, must go by the
        # index too. What has no index is scanned nevertheless.
        "enable_seqscan": "off",
        "jit": "off",
        # The server too notices a process whose host vanished, and lets go of its locks.
        "tcp_keepalives_idle": 10,
        "tcp_keepalives_interval": 5,
        "tcp_keepalives_count": 3,
    }
    return " ".join(f"-c {name}={value}" for name, value in session.items())


def _connect_args(application_name: str, connect_timeout_ms: int) -> dict[str, str | int]:
    return {
        "application_name": application_name,
        "connect_timeout": -(-connect_timeout_ms // 1000),
        # A database host that vanished without a word is noticed within half a minute.
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
