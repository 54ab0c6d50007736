"""Define how long a test waits for PostgreSQL."""

from services.rlmm.database.engine import DatabaseLimits

PATIENCE_MS = 60_000
"""A test may hold a lock, and others may wait for it, for as long as a busy machine needs."""

PATIENT = DatabaseLimits(
    pool_timeout_ms=PATIENCE_MS,
    connect_timeout_ms=PATIENCE_MS,
    statement_timeout_ms=PATIENCE_MS,
    lock_timeout_ms=PATIENCE_MS,
    idle_in_transaction_timeout_ms=PATIENCE_MS,
)
