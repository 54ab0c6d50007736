"""Add recorded gaps, anomalies, and the kinds of events of repairs.

A comment at each statement names its lock. A rule is checked outside of the transaction. An
interrupted migration starts again from its beginning, so every statement may run twice. The
previous release runs on this schema: it uses none of this, and what it writes satisfies the rule.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
NOW = sa.text("clock_timestamp()")

EVENT_KINDS = """kind IN ('LEADERSHIP', 'SEGMENT', 'PARTITION_DELETE', 'LINEAGE', 'LOG_START',
    'GAP', 'LEADER_EPOCH_RESET')"""

ANOMALY_KINDS = """kind IN ('ORPHAN_OBJECTS', 'UNREFERENCED_COMPLETE', 'MISSING_OBJECTS',
    'CORRUPT_OBJECT', 'ABANDONED_UPLOAD')"""

VIEWS = {
    "report_gaps": """
        SELECT t.topic_id, t.name AS topic, g.partition, g.start_offset, g.end_offset, g.kind,
            g.revision
        FROM gaps AS g JOIN topics AS t USING (topic_id)""",
    "report_anomalies": """
        SELECT a.topic_id, t.name AS topic, a.partition, a.segment_id, a.kind, a.object_key,
            a.detail, a.first_seen, a.last_seen, a.times_seen
        FROM anomalies AS a LEFT JOIN topics AS t USING (topic_id)""",
}


def upgrade() -> None:
    # SHARE ROW EXCLUSIVE on partitions for a moment, because of the foreign key: writers wait.
    op.create_table(
        "gaps",
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("start_offset", sa.BigInteger(), nullable=False),
        sa.Column("end_offset", sa.BigInteger(), nullable=False, comment="inclusive"),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column(
            "leader_epoch",
            sa.Integer(),
            nullable=True,
            comment="under which it was found; null: none was known",
        ),
        sa.Column(
            "revision", sa.BigInteger(), nullable=False, comment="the partition's that recorded it"
        ),
        sa.CheckConstraint(
            "0 <= start_offset AND start_offset <= end_offset", name=op.f("ck_gaps_offsets")
        ),
        sa.ForeignKeyConstraint(
            ["topic_id", "partition"],
            ["partitions.topic_id", "partitions.partition"],
            name="fk_gaps_partitions",
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", "start_offset", name="pk_gaps"),
        if_not_exists=True,
    )
    # No process uses the table yet.
    op.create_table(
        "anomalies",
        sa.Column(
            "anomaly_id", sa.Uuid(), nullable=False, comment="digest of all that it is known by"
        ),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Uuid(), nullable=False),
        sa.Column(
            "object_key", sa.Text(), nullable=False, comment="empty: of the segment as a whole"
        ),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("times_seen", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column(
            "run_ids",
            postgresql.ARRAY(sa.Text()),
            nullable=False,
            comment="the runs that saw it last, the latest one last",
        ),
        sa.CheckConstraint(ANOMALY_KINDS, name=op.f("ck_anomalies_kind")),
        sa.CheckConstraint("partition >= 0", name=op.f("ck_anomalies_partition")),
        sa.PrimaryKeyConstraint("anomaly_id", name="pk_anomalies"),
        if_not_exists=True,
    )
    for index, columns in (
        ("ix_anomalies_listed", ["first_seen", "anomaly_id"]),
        ("ix_anomalies_listed_by_topic", ["topic_id", "first_seen", "anomaly_id"]),
        ("ix_anomalies_last_seen", ["last_seen"]),
    ):
        op.create_index(op.f(index), "anomalies", columns, if_not_exists=True)
    for view, query in VIEWS.items():
        # ACCESS SHARE on the tables, like a read.
        op.execute(f"CREATE OR REPLACE VIEW {view} AS {query}")
    # ACCESS EXCLUSIVE on events for a moment, after the statements that may wait for their own
    # locks: changes wait. Existing rows are not checked yet.
    op.execute("ALTER TABLE events DROP CONSTRAINT IF EXISTS ck_events_kind")
    op.execute(f"ALTER TABLE events ADD CONSTRAINT ck_events_kind CHECK ({EVENT_KINDS}) NOT VALID")
    # SHARE UPDATE EXCLUSIVE: reads and writes continue, for as long as the table takes to be read.
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = '2h'")
        op.execute("ALTER TABLE events VALIDATE CONSTRAINT ck_events_kind")
        op.execute("SET statement_timeout = '1min'")
