"""Give each event the id of its transaction, so that watches read what was committed.

The previous release runs on this schema: it names the columns that it writes, and the default
writes this one. Earlier events have no id: no watch needs them. An interrupted migration starts
again from its beginning, so every statement may run twice.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

INDEX = "ix_events_transaction"
COMMENT = "of the transaction that wrote the event; null: before schema 0010"


def upgrade() -> None:
    # ACCESS EXCLUSIVE on events for a moment: changes wait. With the default in the same statement
    # the whole table would be written again.
    op.execute("ALTER TABLE events ADD COLUMN IF NOT EXISTS transaction_id bigint")
    op.execute(
        "ALTER TABLE events ALTER COLUMN transaction_id "
        "SET DEFAULT pg_current_xact_id()::text::bigint"
    )
    op.execute(f"COMMENT ON COLUMN events.transaction_id IS '{COMMENT}'")
    with op.get_context().autocommit_block():
        # Building an index waits for older transactions to end; no other statement waits for it.
        op.execute("SET lock_timeout = '5min'")
        op.execute("SET statement_timeout = '2h'")
        if not _is_valid(INDEX):
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")
            op.execute(
                f"CREATE INDEX CONCURRENTLY {INDEX} ON events (transaction_id) "
                "WHERE transaction_id IS NOT NULL"
            )
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = '1min'")


def _is_valid(index: str) -> bool:
    statement = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"
    return bool(op.get_bind().scalar(sa.text(statement), {"name": index}))
