"""Create the deployment's id, once for the life of the database.

A comment at each statement names its lock. The previous release runs on this schema and ignores the
table. An interrupted migration starts again and keeps an id that exists.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No process uses the table yet.
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
