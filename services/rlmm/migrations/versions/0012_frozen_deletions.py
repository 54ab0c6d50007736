"""Add the freeze of all deletions during a rebuild.

The previous release runs on this schema, and deletes even though deletions are frozen: replace all
its processes before a rebuild.
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # ACCESS EXCLUSIVE for a moment. Without defaults the row is not rewritten.
    op.execute(
        "ALTER TABLE deployment "
        "ADD COLUMN IF NOT EXISTS frozen_at timestamptz, "
        "ADD COLUMN IF NOT EXISTS frozen_by text, "
        "ADD COLUMN IF NOT EXISTS frozen_reason text"
    )
