"""Keep what reconciliation and scrubs verified of each topic, and when.

The previous release runs on this schema: it does not use the table.
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS verifications (
            topic_id uuid NOT NULL,
            kind text NOT NULL,
            parts integer NOT NULL,
            part integer NOT NULL,
            ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            run_id text NOT NULL,
            segments bigint NOT NULL,
            verified_segments bigint NOT NULL,
            verified_bytes bigint NOT NULL,
            failed_segments bigint NOT NULL,
            CONSTRAINT pk_verifications PRIMARY KEY (topic_id, kind, parts, part),
            CONSTRAINT fk_verifications_topics
                FOREIGN KEY (topic_id) REFERENCES topics (topic_id),
            CONSTRAINT ck_verifications_kind CHECK (kind IN ('RECONCILE', 'SCRUB')),
            CONSTRAINT ck_verifications_part
                CHECK (part BETWEEN 1 AND parts AND parts <= 10000)
        )
        """
    )
