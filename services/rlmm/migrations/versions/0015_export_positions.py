"""Add the positions that exports keep from retention.

The previous release runs on this schema, and deletes what exports have yet to read: replace all its
processes before the first export.
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

COMMENT = "next_offset and lease_until_ms of each export, by its name"


def upgrade() -> None:
    # ACCESS EXCLUSIVE for a moment. Without a default no row is rewritten.
    op.execute("ALTER TABLE partitions ADD COLUMN IF NOT EXISTS export_positions jsonb")
    op.execute(f"COMMENT ON COLUMN partitions.export_positions IS '{COMMENT}'")
