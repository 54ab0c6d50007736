"""Copies under way may be leased.

The release before runs on this schema: it writes no lease, and looks at none when it is asked to
give a copy up, whoever asks and however young the copy is. Until the last RLMM of it is gone, a
leased copy is safe only from callers who spare copies by their age.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # ACCESS EXCLUSIVE for a moment: look-ups wait with it. No default, so that no row is touched.
    op.execute("ALTER TABLE segments ADD COLUMN IF NOT EXISTS copy_lease_until timestamptz")
    # SHARE UPDATE EXCLUSIVE: reads and writes go on.
    op.execute(
        "COMMENT ON COLUMN segments.copy_lease_until IS 'until then nobody but its broker gives "
        "the copy up'"
    )
