"""Count again the totals of partitions that have segments of unknown size, which counted as -1.

The previous release runs on this schema: it counts them too, by its own rule.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_FORGET = """
    UPDATE partitions SET totals_revision = -1 WHERE (topic_id, partition) IN (
        SELECT topic_id, partition FROM segments
        WHERE segment_size_in_bytes < 0 AND state <> 'DELETE_SEGMENT_FINISHED')"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = '2h'")
        op.execute(_FORGET)
        op.execute("SET statement_timeout = '1min'")
