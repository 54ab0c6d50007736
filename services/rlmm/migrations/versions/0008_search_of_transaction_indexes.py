"""Index the search for the next transaction index, instead of a flag that every finish updates.

The previous release runs on this schema: it still writes segment_epochs.passable, which nothing
else reads, and its searches read more rows without ix_segment_epochs_stops. An interrupted
migration starts again from its beginning, so every statement may run twice.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

INDEX = "ix_segments_txn_index"
DEFINITION = """
    segments (topic_id, partition, length((end_offset - start_offset)::text), start_offset,
        segment_id)
    WHERE state = 'COPY_SEGMENT_FINISHED' AND NOT txn_idx_empty"""


def upgrade() -> None:
    # SHARE UPDATE EXCLUSIVE: reads and writes continue.
    op.execute("COMMENT ON COLUMN segment_epochs.passable IS 'not used since schema 0008'")
    with op.get_context().autocommit_block():
        # Building an index waits for older transactions to end; no other statement waits for it.
        op.execute("SET lock_timeout = '5min'")
        op.execute("SET statement_timeout = '2h'")
        if not _is_valid(INDEX):
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")
            op.execute(f"CREATE INDEX CONCURRENTLY {INDEX} ON {DEFINITION}")
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_segment_epochs_stops")
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = '1min'")


def _is_valid(index: str) -> bool:
    statement = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"
    return bool(op.get_bind().scalar(sa.text(statement), {"name": index}))
