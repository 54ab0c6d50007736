"""Create the tables that the code declares, views for reports, and the deployment's id.

After it, a later migration finds nothing to do: it only adds to databases that are older than it.
"""

from alembic import op

from services.rlmm.database.tables import METADATA

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# A fill factor leaves room on a page for HOT updates, which change no indexed column. The other
# settings vacuum a table after some thousand dead rows however large it is, and freeze the rows of
# a table that only grows.
OFTEN_UPDATED = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000"
# The state is indexed, so a change of state is never HOT: no free room, but early vacuums.
OF_SEGMENTS = (
    "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, "
    "autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 1000"
)
# Rows are added, and deleted in blocks when they are old.
DELETED_IN_BLOCKS = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, "
    "autovacuum_vacuum_cost_limit = 1000"
)
STORAGE = {
    "partitions": f"fillfactor = 50, {OFTEN_UPDATED}",
    "segments": OF_SEGMENTS,
    "segment_epochs": OF_SEGMENTS,
    "highest_offsets": f"fillfactor = 70, {OFTEN_UPDATED}",
    "partition_states": f"fillfactor = 50, {OFTEN_UPDATED}",
    "polled_logs": "fillfactor = 50",
    "events": f"{DELETED_IN_BLOCKS}, autovacuum_vacuum_insert_scale_factor = 0.05",
    "request_outcomes": DELETED_IN_BLOCKS,
}

# The views omit what is of no use to people: custom_metadata and digests of requests.
VIEWS = """
    CREATE VIEW report_topics AS
        SELECT topic_id, name AS topic, config, config_revision FROM topics;
    CREATE VIEW report_partitions AS
        SELECT t.topic_id, t.name AS topic, p.partition, p.revision, p.delete_state, p.marked_at,
            p.highest_broker_leader_epoch, p.log_start_offset, p.created_at, p.changed_at,
            s.reported_at, s.broker_id, s.leader_epoch, s.local_log_start_offset,
            s.log_end_offset, s.high_watermark, s.last_stable_offset, s.only_local_bytes,
            s.copied_through_offset, s.lag_bytes, s.local_trim_offset
        FROM partitions AS p JOIN topics AS t USING (topic_id)
        LEFT JOIN partition_states AS s USING (topic_id, partition);
    CREATE VIEW report_segments AS
        SELECT t.topic_id, t.name AS topic, s.partition, s.segment_id, s.state, s.start_offset,
            s.end_offset, s.max_timestamp_ms, s.segment_size_in_bytes, s.leader_epochs,
            s.broker_id, s.broker_leader_epoch, s.txn_idx_empty, s.plan_id, s.state_revision,
            s.kept_until, s.created_at, s.changed_at
        FROM segments AS s JOIN topics AS t USING (topic_id);
    CREATE VIEW report_events AS
        SELECT t.topic_id, t.name AS topic, e.partition, e.revision, e.at, e.kind, e.from_state,
            e.to_state, e.segment_id, e.key, e.actor, e.call_id, e.request_id, e.reason,
            e.rule_detail, e.plan_id, e.broker_id, e.broker_leader_epoch, e.repeat_count
        FROM events AS e JOIN topics AS t USING (topic_id);
    CREATE VIEW report_gaps AS
        SELECT t.topic_id, t.name AS topic, g.partition, g.start_offset, g.end_offset, g.kind,
            g.revision
        FROM gaps AS g JOIN topics AS t USING (topic_id);
    CREATE VIEW report_anomalies AS
        SELECT a.topic_id, t.name AS topic, a.partition, a.segment_id, a.kind, a.object_key,
            a.detail, a.first_seen, a.last_seen, a.times_seen
        FROM anomalies AS a LEFT JOIN topics AS t USING (topic_id)"""


def upgrade() -> None:
    connection = op.get_bind()
    METADATA.create_all(connection)
    for table, settings in STORAGE.items():
        connection.exec_driver_sql(f"ALTER TABLE {table} SET ({settings})")
    for view in VIEWS.split(";"):
        connection.exec_driver_sql(view)
    connection.exec_driver_sql("INSERT INTO deployment (deployment_id) VALUES (gen_random_uuid())")
