"""Create the schema: tables, indexes, views for reports, and the deployment's id."""

from alembic import op

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

OF_PARTITION = """
    FOREIGN KEY (topic_id, partition) REFERENCES partitions (topic_id, partition)"""

RANGE_CLASS = "length((end_offset - start_offset)::text)"

TABLES = f"""
    CREATE TABLE topics (
        topic_id uuid NOT NULL,
        name text NOT NULL,
        config jsonb NOT NULL DEFAULT '{{}}',
        config_revision bigint NOT NULL DEFAULT 0,
        cluster_id text,
        CONSTRAINT pk_topics PRIMARY KEY (topic_id)
    );
    CREATE TABLE topic_config_events (
        topic_id uuid NOT NULL,
        revision bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        config jsonb NOT NULL,
        actor text NOT NULL,
        call_id text NOT NULL,
        reason text NOT NULL,
        CONSTRAINT pk_topic_config_events PRIMARY KEY (topic_id, revision),
        CONSTRAINT fk_topic_config_events_topics
            FOREIGN KEY (topic_id) REFERENCES topics (topic_id)
    );
    CREATE TABLE partitions (
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        revision bigint NOT NULL,
        highest_broker_leader_epoch integer,
        delete_state text,
        marked_at timestamptz,
        log_start_offset bigint NOT NULL DEFAULT 0,
        finished_segments bigint NOT NULL DEFAULT 0,
        finished_bytes bigint NOT NULL DEFAULT 0,
        live_segments bigint NOT NULL DEFAULT 0,
        live_bytes bigint NOT NULL DEFAULT 0,
        export_positions jsonb,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_partitions PRIMARY KEY (topic_id, partition),
        CONSTRAINT fk_partitions_topics FOREIGN KEY (topic_id) REFERENCES topics (topic_id),
        CONSTRAINT ck_partitions_partition CHECK (partition >= 0),
        CONSTRAINT ck_partitions_revision CHECK (revision >= 0),
        CONSTRAINT ck_partitions_log_start_offset CHECK (log_start_offset >= 0),
        CONSTRAINT ck_partitions_delete_state CHECK (delete_state IN (
            'DELETE_PARTITION_MARKED', 'DELETE_PARTITION_STARTED', 'DELETE_PARTITION_FINISHED'))
    ) WITH (fillfactor = 50, {OFTEN_UPDATED});
    CREATE TABLE segments (
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        segment_id uuid NOT NULL,
        start_offset bigint NOT NULL,
        end_offset bigint NOT NULL,
        max_timestamp_ms bigint NOT NULL,
        broker_leader_epoch integer,
        leader_epochs integer[] NOT NULL,
        epoch_start_offsets bigint[] NOT NULL,
        segment_size_in_bytes integer NOT NULL,
        txn_idx_empty boolean NOT NULL,
        state text NOT NULL,
        custom_metadata bytea,
        broker_id integer NOT NULL,
        event_timestamp_ms bigint NOT NULL,
        copy_lease_until timestamptz,
        state_revision bigint NOT NULL,
        finished_revision bigint,
        plan_id text,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_segments PRIMARY KEY (topic_id, partition, segment_id),
        CONSTRAINT fk_segments_partitions {OF_PARTITION},
        CONSTRAINT ck_segments_state CHECK (state IN (
            'COPY_SEGMENT_STARTED', 'COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED',
            'DELETE_SEGMENT_FINISHED')),
        CONSTRAINT ck_segments_offsets
            CHECK (0 <= start_offset AND start_offset <= end_offset),
        CONSTRAINT ck_segments_leader_epochs CHECK (
            cardinality(leader_epochs) > 0
            AND cardinality(leader_epochs) = cardinality(epoch_start_offsets))
    ) WITH ({OF_SEGMENTS});
    CREATE TABLE segment_epochs (
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        segment_id uuid NOT NULL,
        leader_epoch integer NOT NULL,
        segment_start_offset bigint NOT NULL,
        start_offset bigint NOT NULL,
        end_offset bigint NOT NULL,
        referenced boolean NOT NULL,
        overlapped boolean NOT NULL,
        CONSTRAINT pk_segment_epochs
            PRIMARY KEY (topic_id, partition, segment_id, leader_epoch),
        CONSTRAINT fk_segment_epochs_segments FOREIGN KEY (topic_id, partition, segment_id)
            REFERENCES segments (topic_id, partition, segment_id),
        CONSTRAINT ck_segment_epochs_offsets
            CHECK (0 <= start_offset AND start_offset - 1 <= end_offset)
    ) WITH ({OF_SEGMENTS});
    CREATE TABLE highest_offsets (
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        leader_epoch integer NOT NULL,
        highest_offset bigint NOT NULL,
        longest_reach bigint NOT NULL,
        CONSTRAINT pk_highest_offsets PRIMARY KEY (topic_id, partition, leader_epoch),
        CONSTRAINT fk_highest_offsets_partitions {OF_PARTITION}
    ) WITH (fillfactor = 70, {OFTEN_UPDATED});
    CREATE TABLE partition_states (
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        leader_epochs integer[] NOT NULL,
        epoch_start_offsets bigint[] NOT NULL,
        reported_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        broker_id integer NOT NULL,
        leader_epoch integer NOT NULL,
        report_number bigint NOT NULL,
        reported_leader_epochs integer[] NOT NULL,
        reported_epoch_start_offsets bigint[] NOT NULL,
        local_log_start_offset bigint NOT NULL,
        log_end_offset bigint NOT NULL,
        high_watermark bigint NOT NULL,
        last_stable_offset bigint NOT NULL,
        only_local_bytes bigint NOT NULL,
        copied_through_offset bigint NOT NULL,
        CONSTRAINT pk_partition_states PRIMARY KEY (topic_id, partition),
        CONSTRAINT fk_partition_states_partitions {OF_PARTITION},
        CONSTRAINT ck_partition_states_leader_epochs
            CHECK (cardinality(leader_epochs) = cardinality(epoch_start_offsets)),
        CONSTRAINT ck_partition_states_reported_leader_epochs CHECK (
            cardinality(reported_leader_epochs) = cardinality(reported_epoch_start_offsets))
    ) WITH (fillfactor = 50, {OFTEN_UPDATED});
    CREATE TABLE polled_logs (
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
        CONSTRAINT fk_polled_logs_partitions {OF_PARTITION},
        CONSTRAINT ck_polled_logs_leader_epochs
            CHECK (cardinality(leader_epochs) = cardinality(epoch_start_offsets))
    ) WITH (fillfactor = 50);
    CREATE TABLE gaps (
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        start_offset bigint NOT NULL,
        end_offset bigint NOT NULL,
        kind text NOT NULL,
        leader_epoch integer,
        revision bigint NOT NULL,
        CONSTRAINT pk_gaps PRIMARY KEY (topic_id, partition, start_offset),
        CONSTRAINT fk_gaps_partitions {OF_PARTITION},
        CONSTRAINT ck_gaps_offsets CHECK (0 <= start_offset AND start_offset <= end_offset)
    );
    CREATE TABLE events (
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        revision bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        kind text NOT NULL,
        from_state text,
        to_state text,
        segment_id uuid,
        key text,
        actor text NOT NULL,
        call_id text NOT NULL,
        request_id text,
        reason text NOT NULL,
        rule_detail text,
        plan_id text,
        broker_id integer NOT NULL,
        broker_leader_epoch integer,
        repeat_count bigint NOT NULL DEFAULT 0,
        transaction_id bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
        CONSTRAINT pk_events PRIMARY KEY (topic_id, partition, revision),
        CONSTRAINT fk_events_partitions {OF_PARTITION},
        CONSTRAINT ck_events_kind CHECK (kind IN (
            'LEADERSHIP', 'SEGMENT', 'PARTITION_DELETE', 'LINEAGE', 'LOG_START', 'GAP',
            'LEADER_EPOCH_RESET', 'OBJECT_DELETION')),
        CONSTRAINT ck_events_revision CHECK (revision > 0)
    ) WITH ({DELETED_IN_BLOCKS}, autovacuum_vacuum_insert_scale_factor = 0.05);
    CREATE TABLE request_outcomes (
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        request_id text NOT NULL,
        body_digest bytea NOT NULL,
        revision bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_request_outcomes PRIMARY KEY (topic_id, partition, request_id),
        CONSTRAINT fk_request_outcomes_partitions {OF_PARTITION}
    ) WITH ({DELETED_IN_BLOCKS});
    CREATE TABLE anomalies (
        anomaly_id uuid NOT NULL,
        kind text NOT NULL,
        topic_id uuid NOT NULL,
        partition integer NOT NULL,
        segment_id uuid NOT NULL,
        object_key text NOT NULL,
        detail text NOT NULL,
        first_seen timestamptz NOT NULL DEFAULT clock_timestamp(),
        last_seen timestamptz NOT NULL DEFAULT clock_timestamp(),
        times_seen bigint NOT NULL DEFAULT 1,
        run_ids text[] NOT NULL,
        CONSTRAINT pk_anomalies PRIMARY KEY (anomaly_id),
        CONSTRAINT ck_anomalies_kind CHECK (kind IN (
            'ORPHAN_OBJECTS', 'UNREFERENCED_COMPLETE', 'MISSING_OBJECTS', 'CORRUPT_OBJECT',
            'ABANDONED_UPLOAD')),
        CONSTRAINT ck_anomalies_partition CHECK (partition >= 0)
    );
    CREATE TABLE verifications (
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
        CONSTRAINT fk_verifications_topics FOREIGN KEY (topic_id) REFERENCES topics (topic_id),
        CONSTRAINT ck_verifications_kind CHECK (kind IN ('RECONCILE', 'SCRUB')),
        CONSTRAINT ck_verifications_part CHECK (part BETWEEN 1 AND parts AND parts <= 10000)
    );
    CREATE TABLE sweep_runs (
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
    );
    CREATE TABLE deployment (
        is_only_row boolean NOT NULL DEFAULT true,
        deployment_id uuid NOT NULL,
        made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        frozen_at timestamptz,
        frozen_by text,
        frozen_reason text,
        CONSTRAINT pk_deployment PRIMARY KEY (is_only_row),
        CONSTRAINT ck_deployment_only_row CHECK (is_only_row)
    );
    INSERT INTO deployment (deployment_id) VALUES (gen_random_uuid())"""

INDEXES = f"""
    CREATE INDEX ix_topics_name ON topics (name);
    CREATE INDEX ix_partitions_being_deleted ON partitions (topic_id, partition)
        WHERE delete_state IN ('DELETE_PARTITION_MARKED', 'DELETE_PARTITION_STARTED');
    CREATE INDEX ix_segments_live ON segments (topic_id, partition, start_offset, segment_id)
        WHERE state <> 'DELETE_SEGMENT_FINISHED';
    CREATE INDEX ix_segments_reach
        ON segments (topic_id, partition, {RANGE_CLASS}, start_offset)
        WHERE state <> 'DELETE_SEGMENT_FINISHED';
    CREATE INDEX ix_segments_tombstones ON segments (changed_at)
        WHERE state = 'DELETE_SEGMENT_FINISHED';
    CREATE INDEX ix_segments_txn_index
        ON segments (topic_id, partition, {RANGE_CLASS}, start_offset, segment_id)
        WHERE state = 'COPY_SEGMENT_FINISHED' AND NOT txn_idx_empty;
    CREATE INDEX ix_segment_epochs_listed
        ON segment_epochs (topic_id, partition, leader_epoch, segment_start_offset, segment_id);
    CREATE UNIQUE INDEX ix_segment_epochs_referenced
        ON segment_epochs (topic_id, partition, leader_epoch, start_offset) WHERE referenced;
    CREATE INDEX ix_segment_epochs_overlapped_reach
        ON segment_epochs (topic_id, partition, leader_epoch, {RANGE_CLASS}, start_offset)
        WHERE overlapped;
    CREATE INDEX ix_events_partition_delete ON events (topic_id, partition, to_state)
        WHERE kind = 'PARTITION_DELETE';
    CREATE INDEX ix_events_transaction ON events (transaction_id);
    CREATE INDEX ix_request_outcomes_at ON request_outcomes (at);
    CREATE INDEX ix_anomalies_listed ON anomalies (first_seen, anomaly_id);
    CREATE INDEX ix_anomalies_listed_by_topic ON anomalies (topic_id, first_seen, anomaly_id);
    CREATE INDEX ix_anomalies_last_seen ON anomalies (last_seen)"""

# The views omit what is of no use to people: custom_metadata and digests of requests.
VIEWS = """
    CREATE VIEW report_topics AS
        SELECT topic_id, name AS topic, config, config_revision FROM topics;
    CREATE VIEW report_partitions AS
        SELECT t.topic_id, t.name AS topic, p.partition, p.revision, p.delete_state, p.marked_at,
            p.highest_broker_leader_epoch, p.log_start_offset, p.created_at, p.changed_at,
            s.reported_at, s.broker_id, s.leader_epoch, s.local_log_start_offset,
            s.log_end_offset, s.high_watermark, s.last_stable_offset, s.only_local_bytes,
            s.copied_through_offset
        FROM partitions AS p JOIN topics AS t USING (topic_id)
        LEFT JOIN partition_states AS s USING (topic_id, partition);
    CREATE VIEW report_segments AS
        SELECT t.topic_id, t.name AS topic, s.partition, s.segment_id, s.state, s.start_offset,
            s.end_offset, s.max_timestamp_ms, s.segment_size_in_bytes, s.leader_epochs,
            s.broker_id, s.broker_leader_epoch, s.txn_idx_empty, s.plan_id, s.state_revision,
            s.created_at, s.changed_at
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

COMMENTS = {
    "topics.cluster_id": "Kafka's cluster id, as first announced; null: none was, or an undelete "
    "removed it",
    "topic_config_events.call_id": "names the one call, as in the log",
    "partitions.marked_at": "when it was marked for deletion",
    "partitions.log_start_offset": "of the tier: segments below it are deleted or being deleted",
    "partitions.export_positions": "next_offset and lease_until_ms of each export, by its name",
    "segments.copy_lease_until": "until then only its broker may abandon the copy",
    "segment_epochs.segment_start_offset": "of the whole segment: lists are in its order",
    "segment_epochs.start_offset": "first offset within the epoch",
    "segment_epochs.end_offset": "last offset within the epoch, inclusive",
    "segment_epochs.referenced": "in Kafka's map from start offset to segment",
    "segment_epochs.overlapped": "when it or a neighbour finished, both had offsets in common",
    "highest_offsets.highest_offset": "last offset ever finished, inclusive",
    "highest_offsets.longest_reach": "largest end minus start of one segment: no search goes "
    "further back than that",
    "gaps.end_offset": "inclusive",
    "gaps.leader_epoch": "under which it was found; null: none was known",
    "gaps.revision": "the partition's that recorded it",
    "events.key": "topicId:partition:endOffset:brokerLeaderEpoch of the segment, -1: no epoch "
    "known",
    "events.call_id": "names the one call, as in the log",
    "events.request_id": "chosen by the caller",
    "events.transaction_id": "of the transaction that wrote the event",
    "anomalies.anomaly_id": "digest of all that it is known by",
    "anomalies.object_key": "empty: of the segment as a whole",
    "anomalies.run_ids": "the runs that saw it last, the latest one last",
}


def upgrade() -> None:
    for statements in (TABLES, INDEXES, VIEWS):
        for statement in statements.split(";"):
            # The driver is given the text as it is: ":" names no parameter of it.
            op.get_bind().exec_driver_sql(statement)
    for column, comment in COMMENTS.items():
        quoted = comment.replace("'", "''")
        op.get_bind().exec_driver_sql(f"COMMENT ON COLUMN {column} IS '{quoted}'")
