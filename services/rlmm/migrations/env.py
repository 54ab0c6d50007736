"""Run migrations on the connection that services.rlmm.database.schema.upgrade passes."""

from alembic import context
from sqlalchemy import Connection, text

from services.rlmm.database.tables import METADATA

LOCK_TIMEOUT_MS = 4_000
STATEMENT_TIMEOUT_MS = 60_000


def run(connection: Connection) -> None:
    """Run each migration in a transaction, except the steps that a migration runs outside of it.

    A migration that cannot get a lock soon fails, because queries would queue behind it.
    """
    for name, value in (
        ("lock_timeout", LOCK_TIMEOUT_MS),
        ("statement_timeout", STATEMENT_TIMEOUT_MS),
    ):
        connection.execute(text(f"SET {name} = {value}"))
    connection.commit()
    context.configure(
        connection=connection, target_metadata=METADATA, transaction_per_migration=True
    )
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
