"""Bound the rows that look-ups read, and add what maintenance and reports need.

A comment at each statement names its lock. The indexes are built outside of the transaction, so
that writers do not wait. An interrupted migration starts again from its beginning, so every
statement may run twice. The previous release runs on this schema and needs only the defaults.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
REACH_DIGITS = "length((end_offset - start_offset)::text)"

INDEXES = {
    # For lists from an offset on.
    "ix_segments_reach": f"""
        segments (topic_id, partition, {REACH_DIGITS}, start_offset)
        WHERE state <> 'DELETE_SEGMENT_FINISHED'""",
    # For the purge.
    "ix_segments_tombstones": """
        segments (changed_at) WHERE state = 'DELETE_SEGMENT_FINISHED'""",
    # For look-ups among overlapping segments.
    "ix_segment_epochs_overlapped_reach": f"""
        segment_epochs (topic_id, partition, leader_epoch, {REACH_DIGITS}, start_offset)
        WHERE overlapped""",
    # For the search for a transaction index.
    "ix_segment_epochs_stops": """
        segment_epochs (topic_id, partition, leader_epoch, start_offset)
        WHERE CASE WHEN overlapped THEN true ELSE referenced AND NOT passable END""",
}

# The fill factor leaves room on a page for HOT updates, which change no indexed column. The other
# settings vacuum a table after some thousand dead rows however large it is, and freeze the rows of
# a table that only grows.
STORAGE = {
    # Every change of a partition updates its row.
    "partitions": "fillfactor = 50, autovacuum_vacuum_scale_factor = 0, "
    "autovacuum_vacuum_threshold = 1000",
    "partition_states": "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000",
    # Every finished copy raises it.
    "highest_offsets": "fillfactor = 70, autovacuum_vacuum_scale_factor = 0, "
    "autovacuum_vacuum_threshold = 1000",
    # The state is indexed, so a change of state is never HOT: no free room, but early vacuums.
    "segments": "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, "
    "autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 1000",
    "segment_epochs": "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, "
    "autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 1000",
    # Rows are added, and deleted in blocks when they are old.
    "events": "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, "
    "autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 1000",
    "request_outcomes": "autovacuum_vacuum_scale_factor = 0.02, "
    "autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_limit = 1000",
}

VIEWS = {
    "report_partitions": """
        SELECT t.topic_id, t.name AS topic, p.partition, p.revision, p.delete_state, p.marked_at,
            p.highest_broker_leader_epoch, p.log_start_offset, p.created_at, p.changed_at,
            s.reported_at, s.broker_id, s.leader_epoch, s.local_log_start_offset, s.log_end_offset,
            s.high_watermark, s.last_stable_offset, s.only_local_bytes, s.copied_through_offset
        FROM partitions AS p JOIN topics AS t USING (topic_id)
        LEFT JOIN partition_states AS s USING (topic_id, partition)""",
    "report_segments": """
        SELECT t.topic_id, t.name AS topic, s.partition, s.segment_id, s.state, s.start_offset,
            s.end_offset, s.max_timestamp_ms, s.segment_size_in_bytes, s.leader_epochs,
            s.broker_id, s.broker_leader_epoch, s.txn_idx_empty, s.plan_id, s.state_revision,
            s.created_at, s.changed_at
        FROM segments AS s JOIN topics AS t USING (topic_id)""",
    "report_events": """
        SELECT t.topic_id, t.name AS topic, e.partition, e.revision, e.at, e.kind, e.from_state,
            e.to_state, e.segment_id, e.key, e.actor, e.call_id, e.request_id, e.reason,
            e.rule_detail, e.plan_id, e.broker_id, e.broker_leader_epoch, e.repeat_count
        FROM events AS e JOIN topics AS t USING (topic_id)""",
    "report_topics": """
        SELECT topic_id, name AS topic, config, config_revision FROM topics""",
}


def upgrade() -> None:
    for table, settings in STORAGE.items():
        # SHARE UPDATE EXCLUSIVE: reads and writes continue. Applies to pages written from now on.
        op.execute(f"ALTER TABLE {table} SET ({settings})")
    for view, query in VIEWS.items():
        # ACCESS SHARE on the tables, like a read. The views omit what is of no use to people:
        # custom_metadata and digests of requests.
        op.execute(f"CREATE OR REPLACE VIEW {view} AS {query}")
    # ACCESS EXCLUSIVE for a moment. It comes after statements that may wait for their own locks,
    # because look-ups would wait too. With a constant default no row is rewritten.
    op.execute(
        "ALTER TABLE segment_epochs"
        " ADD COLUMN IF NOT EXISTS passable boolean NOT NULL DEFAULT false"
    )
    op.execute(
        sa.text(
            "COMMENT ON COLUMN segment_epochs.passable IS 'the segment ends here, has no "
            "transaction index, and one ends right before it'"
        )
    )
    # SHARE UPDATE EXCLUSIVE: reads and writes continue, for as long as the table takes to be read.
    with op.get_context().autocommit_block():
        _set_timeouts(lock="5min", statement="2h")
        for index, definition in INDEXES.items():
            # An interrupted migration keeps the indexes that it had built, except the last one.
            if not _is_valid(index):
                op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
                op.execute(f"CREATE INDEX CONCURRENTLY {index} ON {definition}")
        # Replaced by ix_segment_epochs_overlapped_reach, which serves its queries too. With both,
        # the planner would not always choose the right one.
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_segment_epochs_overlapped")
        _set_timeouts(lock="4s", statement="1min")


def _is_valid(index: str) -> bool:
    statement = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"
    return bool(op.get_bind().scalar(sa.text(statement), {"name": index}))


def _set_timeouts(lock: str, statement: str) -> None:
    """Set the timeouts; building an index waits for older transactions, and blocks no others."""
    op.execute(f"SET lock_timeout = '{lock}'")
    op.execute(f"SET statement_timeout = '{statement}'")
