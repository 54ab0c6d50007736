"""Keep the last sweep of each kind and topics.

The previous release runs on this schema: it does not use the table.
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS sweep_runs (
            kind text NOT NULL,
            scope uuid NOT NULL,
            topics text[] NOT NULL,
            run_id text NOT NULL,
            outcome text NOT NULL,
            ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            duration_ms bigint NOT NULL,
            planned_segments bigint NOT NULL,
            deleted_segments bigint NOT NULL,
            deleted_bytes bigint NOT NULL,
            failed_segments bigint NOT NULL,
            CONSTRAINT pk_sweep_runs PRIMARY KEY (kind, scope),
            CONSTRAINT ck_sweep_runs_kind CHECK (kind IN ('RETENTION', 'REMOVAL'))
        )
        """
    )
