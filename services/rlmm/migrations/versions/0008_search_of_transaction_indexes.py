"""An index for the search of the next transaction index, instead of flags that every finish keeps.

The release before runs on this schema: it goes on writing segment_epochs.passable, which nobody
else reads. Without ix_segment_epochs_stops its own searches read more rows until it is replaced.
Every statement may run twice: a migration that was cut off starts again from its beginning.
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
    # SHARE UPDATE EXCLUSIVE: reads and writes go on.
    op.execute("COMMENT ON COLUMN segment_epochs.passable IS 'not used since schema 0008'")
    with op.get_context().autocommit_block():
        # Building an index waits for older transactions to end; nobody waits for it meanwhile.
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
