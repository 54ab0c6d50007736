"""Add the cluster of a topic.

The previous release runs on this schema: it neither writes nor reads clusters. A topic's cluster is
unknown until the new release announces the topic.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # ACCESS EXCLUSIVE for a moment: statements that name a topic wait. Without a default no row is
    # rewritten.
    op.execute("ALTER TABLE topics ADD COLUMN IF NOT EXISTS cluster_id text")
    # SHARE UPDATE EXCLUSIVE: reads and writes continue.
    op.execute(
        "COMMENT ON COLUMN topics.cluster_id IS 'Kafka''s cluster id, as first announced; null: "
        "none was, or an undelete removed it'"
    )
