"""Add leases of copies in progress.

The previous release runs on this schema: it writes no lease and ignores leases when a client
abandons a copy. Until its last RLMM is replaced, a leased copy is protected only from clients that
leave young copies alone.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # ACCESS EXCLUSIVE for a moment: look-ups wait. Without a default no row is rewritten.
    op.execute("ALTER TABLE segments ADD COLUMN IF NOT EXISTS copy_lease_until timestamptz")
    # SHARE UPDATE EXCLUSIVE: reads and writes continue.
    op.execute(
        "COMMENT ON COLUMN segments.copy_lease_until IS 'until then only its broker may abandon "
        "the copy'"
    )
