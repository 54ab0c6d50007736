"""The role for reports: it reads the views that the schema has for it, and no table."""

from enum import StrEnum

from sqlalchemy import Connection, text

ROLE = "sediment_reader"
VIEWS = (
    "report_partitions",
    "report_segments",
    "report_events",
    "report_topics",
    "report_gaps",
    "report_anomalies",
)

_MAY_CREATE = text("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
_EXISTS = text("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role)")
# Roles belong to the whole server: an upgrade of another database may make it at the same time.
_CREATE = f"""
    DO $$ BEGIN
        CREATE ROLE {ROLE} NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $$"""


class ReaderRole(StrEnum):
    """What became of the role."""

    GRANTED = "granted"
    """It is there and may read the views."""
    MISSING = "missing"
    """It is not there, and this user may not create roles."""


def grant_to_reader(connection: Connection) -> ReaderRole:
    """Let the role read the views; create it first where this user may. Idempotent."""
    if not connection.scalar(_EXISTS, {"role": ROLE}):
        if not connection.scalar(_MAY_CREATE):
            return ReaderRole.MISSING
        connection.execute(text(_CREATE))
    connection.execute(text(f"GRANT SELECT ON {', '.join(VIEWS)} TO {ROLE}"))
    return ReaderRole.GRANTED
