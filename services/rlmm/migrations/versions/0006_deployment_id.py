"""The deployment's id, made here once and for all.

What each statement locks stands beside it. The release before runs on this schema: it knows nothing
of the table. Cut off, it starts again: an id that is there stays.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Nobody knows of the table yet.
    op.create_table(
        "deployment",
        sa.Column("is_only_row", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("deployment_id", sa.Uuid(), nullable=False),
        sa.Column(
            "made_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("is_only_row", name=op.f("ck_deployment_only_row")),
        sa.PrimaryKeyConstraint("is_only_row", name="pk_deployment"),
        if_not_exists=True,
    )
    op.execute(
        "INSERT INTO deployment (deployment_id) VALUES (gen_random_uuid()) ON CONFLICT DO NOTHING"
    )
