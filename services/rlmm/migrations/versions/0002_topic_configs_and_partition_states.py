"""Add topic settings, the tier's log start and lineage, leaders' reports, plans of sweeps.

Locks: ACCESS EXCLUSIVE on topics, partitions, segments and events until the end of the upgrade.
No table is rewritten, because the new columns have constant defaults or none. Partitions and
events are read once for their checks.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    empty = sa.text("'{}'")
    op.add_column(
        "topics",
        sa.Column("config", postgresql.JSONB(), server_default=empty, nullable=False),
    )
    op.add_column(
        "topics",
        sa.Column("config_revision", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )

    # For lists of one topic's partitions.
    op.create_index(op.f("ix_topics_name"), "topics", ["name"])

    op.create_table(
        "topic_config_events",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("config", postgresql.JSONB(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column(
            "call_id", sa.Text(), nullable=False, comment="names the one call, as in the log"
        ),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["topic_id"], ["topics.topic_id"], name="fk_topic_config_events_topics"
        ),
        sa.PrimaryKeyConstraint("topic_id", "revision", name="pk_topic_config_events"),
    )

    op.add_column(
        "partitions",
        sa.Column(
            "marked_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when it was marked for deletion",
        ),
    )
    op.add_column(
        "partitions",
        sa.Column(
            "log_start_offset",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="of the tier: segments below it are deleted or being deleted",
        ),
    )
    op.create_check_constraint(
        op.f("ck_partitions_log_start_offset"),
        "partitions",
        "log_start_offset >= 0",
    )
    # For lists of partitions that wait to be removed, a small part of all.
    op.create_index(
        op.f("ix_partitions_being_deleted"),
        "partitions",
        ["topic_id", "partition"],
        postgresql_where=sa.text(
            "delete_state IN ('DELETE_PARTITION_MARKED', 'DELETE_PARTITION_STARTED')"
        ),
    )

    # Partitions marked before this release count as marked now.
    op.execute("UPDATE partitions SET marked_at = clock_timestamp() WHERE delete_state IS NOT NULL")

    op.add_column("segments", sa.Column("plan_id", sa.Text(), nullable=True))

    op.drop_constraint(op.f("ck_events_kind"), "events")
    op.create_check_constraint(
        op.f("ck_events_kind"),
        "events",
        "kind IN ('LEADERSHIP', 'SEGMENT', 'PARTITION_DELETE', 'LINEAGE', 'LOG_START')",
    )

    op.create_table(
        "partition_states",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("leader_epochs", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("epoch_start_offsets", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("broker_id", sa.Integer(), nullable=False),
        sa.Column("leader_epoch", sa.Integer(), nullable=False),
        sa.Column("report_number", sa.BigInteger(), nullable=False),
        sa.Column("reported_leader_epochs", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column(
            "reported_epoch_start_offsets", postgresql.ARRAY(sa.BigInteger()), nullable=False
        ),
        sa.Column("local_log_start_offset", sa.BigInteger(), nullable=False),
        sa.Column("log_end_offset", sa.BigInteger(), nullable=False),
        sa.Column("high_watermark", sa.BigInteger(), nullable=False),
        sa.Column("last_stable_offset", sa.BigInteger(), nullable=False),
        sa.Column("only_local_bytes", sa.BigInteger(), nullable=False),
        sa.Column("copied_through_offset", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "cardinality(leader_epochs) = cardinality(epoch_start_offsets)",
            name=op.f("ck_partition_states_leader_epochs"),
        ),
        sa.CheckConstraint(
            "cardinality(reported_leader_epochs) = cardinality(reported_epoch_start_offsets)",
            name=op.f("ck_partition_states_reported_leader_epochs"),
        ),
        sa.ForeignKeyConstraint(
            ["topic_id", "partition"],
            ["partitions.topic_id", "partitions.partition"],
            name="fk_partition_states_partitions",
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", name="pk_partition_states"),
    )
    # Reports are updated in place often: free room on each page makes the updates HOT.
    op.execute("ALTER TABLE partition_states SET (fillfactor = 50)")
