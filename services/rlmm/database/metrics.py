"""Count and time RLMM's work in its database, and publish the use of its connections."""

import time
from typing import Literal, TypeAlias

from prometheus_client import Gauge, Histogram
from sqlalchemy import Engine, QueuePool

Operation: TypeAlias = Literal["change", "read", "look_up", "scan"]

Result: TypeAlias = Literal[
    "ok",
    "unreachable",
    "no_connection",
    "denied",
    "disk_full",
    "timeout",
    "conflict",
    "not_ready",
    "contradiction",
    "failed",
]

DATABASE_SECONDS = Histogram(
    "sediment_rlmm_database_seconds",
    "Duration of work in the database, with the wait for a connection, by operation and result. "
    "Operation: change (a transaction with its retries), read (one statement), look_up (one "
    "prepared statement for one row), scan (a transaction that only reads). Result: ok (also if "
    "RLMM refused the request), unreachable, no_connection (none was free in time), denied, "
    "disk_full, timeout (of a statement or lock), conflict (rolled back in each try), not_ready (a "
    "standby, or no schema), contradiction (of rows), failed.",
    ("operation", "result"),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)

LAST_SUCCESS = Gauge(
    "sediment_rlmm_database_last_success_timestamp_seconds",
    "When the database last did what RLMM asked, Unix time; the start of the process, if it never "
    "did. RLMM asks at least once a second.",
)
LAST_SUCCESS.set_to_current_time()

CONNECTIONS_IN_USE = Gauge(
    "sediment_rlmm_database_connections_in_use", "Connections of the pool that calls use."
)

CONNECTIONS_LIMIT = Gauge(
    "sediment_rlmm_database_connections_limit",
    "Connections that calls may use: RLMM_DATABASE_POOL_SIZE, with TLS times the shares.",
)

_observers: dict[tuple[Operation, Result], Histogram] = {}
"""The series that exist: labels() costs more than all else here."""


def observe(operation: Operation, result: Result, began_s: float) -> None:
    """Count work that began at `began_s` on the clock of time.perf_counter."""
    observer = _observers.get((operation, result))
    if observer is None:
        observer = _observers[operation, result] = DATABASE_SECONDS.labels(operation, result)
    observer.observe(time.perf_counter() - began_s)
    if result == "ok":
        LAST_SUCCESS.set(time.time())


def publish_connections(engine: Engine) -> None:
    """Publish the use of the engine's pool, as it is at each scrape."""

    def pool() -> QueuePool:
        # Engine.dispose replaces the pool.
        present = engine.pool
        assert isinstance(present, QueuePool)
        return present

    CONNECTIONS_IN_USE.set_function(lambda: pool().checkedout())
    CONNECTIONS_LIMIT.set_function(lambda: pool().size())
