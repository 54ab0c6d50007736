"""A topic's cluster is remembered.

The release before runs on this schema: it writes no cluster, and asks for none. Until a topic is
announced by the new release, none is known of it.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # ACCESS EXCLUSIVE for a moment: what names a topic waits with it. No default, so that no row is
    # touched.
    op.execute("ALTER TABLE topics ADD COLUMN IF NOT EXISTS cluster_id text")
    # SHARE UPDATE EXCLUSIVE: reads and writes go on.
    op.execute(
        "COMMENT ON COLUMN topics.cluster_id IS 'Kafka''s, as told first; null: not told, or "
        "forgotten with a mark taken back'"
    )
