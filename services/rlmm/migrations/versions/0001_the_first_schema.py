"""Create topics, partitions, segments, look-up index, highest offsets, audit trail, request ids."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
NOW = sa.text("clock_timestamp()")


def upgrade() -> None:

    op.create_table(
        "topics",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", name="pk_topics"),
    )

    op.create_table(
        "partitions",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("highest_broker_leader_epoch", sa.Integer(), nullable=True),
        sa.Column("delete_state", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.CheckConstraint(
            "delete_state IN ('DELETE_PARTITION_MARKED', 'DELETE_PARTITION_STARTED', "
            "'DELETE_PARTITION_FINISHED')",
            name=op.f("ck_partitions_delete_state"),
        ),
        sa.CheckConstraint("partition >= 0", name=op.f("ck_partitions_partition")),
        sa.CheckConstraint("revision >= 0", name=op.f("ck_partitions_revision")),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.topic_id"], name="fk_partitions_topics"),
        sa.PrimaryKeyConstraint("topic_id", "partition", name="pk_partitions"),
    )

    op.create_table(
        "events",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=True),
        sa.Column("to_state", sa.Text(), nullable=True),
        sa.Column("segment_id", sa.Uuid(), nullable=True),
        sa.Column(
            "key",
            sa.Text(),
            nullable=True,
            comment="topicId:partition:endOffset:brokerLeaderEpoch of the segment, "
            "-1: no epoch known",
        ),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column(
            "call_id", sa.Text(), nullable=False, comment="names the one call, as in the log"
        ),
        sa.Column("request_id", sa.Text(), nullable=True, comment="chosen by the caller"),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("rule_detail", sa.Text(), nullable=True),
        sa.Column("plan_id", sa.Text(), nullable=True),
        sa.Column("broker_id", sa.Integer(), nullable=False),
        sa.Column("broker_leader_epoch", sa.Integer(), nullable=True),
        sa.Column("repeat_count", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "kind IN ('LEADERSHIP', 'SEGMENT', 'PARTITION_DELETE')", name=op.f("ck_events_kind")
        ),
        sa.CheckConstraint("revision > 0", name=op.f("ck_events_revision")),
        sa.ForeignKeyConstraint(
            ["topic_id", "partition"],
            ["partitions.topic_id", "partitions.partition"],
            name="fk_events_partitions",
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", "revision", name="pk_events"),
    )
    op.create_index(
        op.f("ix_events_partition_delete"),
        "events",
        ["topic_id", "partition", "to_state"],
        unique=False,
        postgresql_where=sa.text("kind = 'PARTITION_DELETE'"),
    )

    op.create_table(
        "highest_offsets",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("leader_epoch", sa.Integer(), nullable=False),
        sa.Column(
            "highest_offset",
            sa.BigInteger(),
            nullable=False,
            comment="last offset ever finished, inclusive",
        ),
        sa.Column(
            "longest_reach",
            sa.BigInteger(),
            nullable=False,
            comment="largest end minus start of one segment: no search goes further back than that",
        ),
        sa.ForeignKeyConstraint(
            ["topic_id", "partition"],
            ["partitions.topic_id", "partitions.partition"],
            name="fk_highest_offsets_partitions",
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", "leader_epoch", name="pk_highest_offsets"),
    )

    op.create_table(
        "request_outcomes",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.ForeignKeyConstraint(
            ["topic_id", "partition"],
            ["partitions.topic_id", "partitions.partition"],
            name="fk_request_outcomes_partitions",
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", "request_id", name="pk_request_outcomes"),
    )
    op.create_index(op.f("ix_request_outcomes_at"), "request_outcomes", ["at"], unique=False)

    op.create_table(
        "segments",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Uuid(), nullable=False),
        sa.Column("start_offset", sa.BigInteger(), nullable=False),
        sa.Column("end_offset", sa.BigInteger(), nullable=False),
        sa.Column("max_timestamp_ms", sa.BigInteger(), nullable=False),
        sa.Column("broker_leader_epoch", sa.Integer(), nullable=True),
        sa.Column("leader_epochs", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("epoch_start_offsets", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("segment_size_in_bytes", sa.Integer(), nullable=False),
        sa.Column("txn_idx_empty", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("custom_metadata", sa.LargeBinary(), nullable=True),
        sa.Column("broker_id", sa.Integer(), nullable=False),
        sa.Column("event_timestamp_ms", sa.BigInteger(), nullable=False),
        sa.Column("state_revision", sa.BigInteger(), nullable=False),
        sa.Column("finished_revision", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.CheckConstraint(
            "state IN ('COPY_SEGMENT_STARTED', 'COPY_SEGMENT_FINISHED', "
            "'DELETE_SEGMENT_STARTED', 'DELETE_SEGMENT_FINISHED')",
            name=op.f("ck_segments_state"),
        ),
        sa.CheckConstraint(
            "0 <= start_offset AND start_offset <= end_offset", name=op.f("ck_segments_offsets")
        ),
        sa.CheckConstraint(
            "cardinality(leader_epochs) > 0 "
            "AND cardinality(leader_epochs) = cardinality(epoch_start_offsets)",
            name=op.f("ck_segments_leader_epochs"),
        ),
        sa.ForeignKeyConstraint(
            ["topic_id", "partition"],
            ["partitions.topic_id", "partitions.partition"],
            name="fk_segments_partitions",
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", "segment_id", name="pk_segments"),
    )
    op.create_index(
        op.f("ix_segments_live"),
        "segments",
        ["topic_id", "partition", "start_offset", "segment_id"],
        unique=False,
        postgresql_where=sa.text("state <> 'DELETE_SEGMENT_FINISHED'"),
    )

    op.create_table(
        "segment_epochs",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Uuid(), nullable=False),
        sa.Column("leader_epoch", sa.Integer(), nullable=False),
        sa.Column(
            "segment_start_offset",
            sa.BigInteger(),
            nullable=False,
            comment="of the whole segment: lists are in its order",
        ),
        sa.Column(
            "start_offset", sa.BigInteger(), nullable=False, comment="first offset within the epoch"
        ),
        sa.Column(
            "end_offset",
            sa.BigInteger(),
            nullable=False,
            comment="last offset within the epoch, inclusive",
        ),
        sa.Column(
            "referenced",
            sa.Boolean(),
            nullable=False,
            comment="in Kafka's map from start offset to segment",
        ),
        sa.Column(
            "overlapped",
            sa.Boolean(),
            nullable=False,
            comment="when it or a neighbour finished, both had offsets in common",
        ),
        sa.CheckConstraint(
            "0 <= start_offset AND start_offset - 1 <= end_offset",
            name=op.f("ck_segment_epochs_offsets"),
        ),
        sa.ForeignKeyConstraint(
            ["topic_id", "partition", "segment_id"],
            ["segments.topic_id", "segments.partition", "segments.segment_id"],
            name="fk_segment_epochs_segments",
        ),
        sa.PrimaryKeyConstraint(
            "topic_id", "partition", "segment_id", "leader_epoch", name="pk_segment_epochs"
        ),
    )
    op.create_index(
        op.f("ix_segment_epochs_listed"),
        "segment_epochs",
        ["topic_id", "partition", "leader_epoch", "segment_start_offset", "segment_id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_segment_epochs_overlapped"),
        "segment_epochs",
        ["topic_id", "partition", "leader_epoch", "start_offset"],
        unique=False,
        postgresql_where=sa.text("overlapped"),
    )
    op.create_index(
        op.f("ix_segment_epochs_referenced"),
        "segment_epochs",
        ["topic_id", "partition", "leader_epoch", "start_offset"],
        unique=True,
        postgresql_where=sa.text("referenced"),
    )
