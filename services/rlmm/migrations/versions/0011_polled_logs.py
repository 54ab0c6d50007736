"""Keep the polled logs of partitions that brokers tier by themselves.

The previous release runs on this schema: it does not use the table.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS polled_logs (
            topic_id uuid NOT NULL,
            partition integer NOT NULL,
            polled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            broker_id integer NOT NULL,
            leader_epoch integer NOT NULL,
            leader_epochs integer[] NOT NULL,
            epoch_start_offsets bigint[] NOT NULL,
            log_start_offset bigint NOT NULL,
            high_watermark bigint NOT NULL,
            CONSTRAINT pk_polled_logs PRIMARY KEY (topic_id, partition),
            CONSTRAINT fk_polled_logs_partitions
                FOREIGN KEY (topic_id, partition) REFERENCES partitions (topic_id, partition),
            CONSTRAINT ck_polled_logs_leader_epochs
                CHECK (cardinality(leader_epochs) = cardinality(epoch_start_offsets))
        ) WITH (fillfactor = 50)
        """
    )
