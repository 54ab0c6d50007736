-- The schema of release 0.1.0, with which the test of upgrades begins. Not changed any more once
-- that is released.
CREATE TABLE topics (
    topic_id uuid NOT NULL,
    name text NOT NULL,
    config jsonb NOT NULL DEFAULT '{}',
    config_revision bigint NOT NULL DEFAULT 0,
    cluster_id text,
    purged_changes bigint,
    confirmed_revision bigint,
    confirmed_by text,
    confirmed_at timestamptz,
    deletions_refused_at timestamptz,
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
    at_once boolean NOT NULL DEFAULT false,
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
    saved_bytes bigint NOT NULL DEFAULT 0,
    marked_bytes bigint NOT NULL DEFAULT 0,
    marked_on date,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_partitions PRIMARY KEY (topic_id, partition),
    CONSTRAINT fk_partitions_topics FOREIGN KEY (topic_id) REFERENCES topics (topic_id),
    CONSTRAINT ck_partitions_partition CHECK (partition >= 0),
    CONSTRAINT ck_partitions_revision CHECK (revision >= 0),
    CONSTRAINT ck_partitions_log_start_offset CHECK (log_start_offset >= 0),
    CONSTRAINT ck_partitions_delete_state CHECK (delete_state IN (
        'DELETE_PARTITION_MARKED', 'DELETE_PARTITION_STARTED', 'DELETE_PARTITION_FINISHED'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
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
    kept_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_segments PRIMARY KEY (topic_id, partition, segment_id),
    CONSTRAINT fk_segments_partitions 
FOREIGN KEY (topic_id, partition) REFERENCES partitions (topic_id, partition),
    CONSTRAINT ck_segments_state CHECK (state IN (
        'COPY_SEGMENT_STARTED', 'COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED',
        'DELETE_SEGMENT_FINISHED')),
    CONSTRAINT ck_segments_offsets
        CHECK (0 <= start_offset AND start_offset <= end_offset),
    CONSTRAINT ck_segments_leader_epochs CHECK (
        cardinality(leader_epochs) > 0
        AND cardinality(leader_epochs) = cardinality(epoch_start_offsets))
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 1000);
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
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 1000);
CREATE TABLE highest_offsets (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    leader_epoch integer NOT NULL,
    highest_offset bigint NOT NULL,
    longest_reach bigint NOT NULL,
    CONSTRAINT pk_highest_offsets PRIMARY KEY (topic_id, partition, leader_epoch),
    CONSTRAINT fk_highest_offsets_partitions 
FOREIGN KEY (topic_id, partition) REFERENCES partitions (topic_id, partition)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
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
    lag_bytes bigint NOT NULL,
    local_trim_offset bigint NOT NULL,
    CONSTRAINT pk_partition_states PRIMARY KEY (topic_id, partition),
    CONSTRAINT fk_partition_states_partitions 
FOREIGN KEY (topic_id, partition) REFERENCES partitions (topic_id, partition),
    CONSTRAINT ck_partition_states_leader_epochs
        CHECK (cardinality(leader_epochs) = cardinality(epoch_start_offsets)),
    CONSTRAINT ck_partition_states_reported_leader_epochs CHECK (
        cardinality(reported_leader_epochs) = cardinality(reported_epoch_start_offsets))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
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
    CONSTRAINT fk_polled_logs_partitions 
FOREIGN KEY (topic_id, partition) REFERENCES partitions (topic_id, partition),
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
    CONSTRAINT fk_gaps_partitions 
FOREIGN KEY (topic_id, partition) REFERENCES partitions (topic_id, partition),
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
    CONSTRAINT fk_events_partitions 
FOREIGN KEY (topic_id, partition) REFERENCES partitions (topic_id, partition),
    CONSTRAINT ck_events_kind CHECK (kind IN (
        'LEADERSHIP', 'SEGMENT', 'PARTITION_DELETE', 'LINEAGE', 'LOG_START', 'GAP',
        'LEADER_EPOCH_RESET', 'OBJECT_DELETION')),
    CONSTRAINT ck_events_revision CHECK (revision > 0)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_limit = 1000, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE TABLE rlm_endpoints (
    cluster_id text NOT NULL,
    directory_id text NOT NULL,
    broker_id integer NOT NULL,
    address text NOT NULL,
    listener text,
    instance_id uuid NOT NULL,
    lease_until timestamptz NOT NULL,
    CONSTRAINT pk_rlm_endpoints PRIMARY KEY (cluster_id, directory_id),
    CONSTRAINT ck_rlm_endpoints_broker_id CHECK (broker_id >= 0)
);
CREATE TABLE request_outcomes (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    request_id text NOT NULL,
    body_digest bytea NOT NULL,
    revision bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_request_outcomes PRIMARY KEY (topic_id, partition, request_id),
    CONSTRAINT fk_request_outcomes_partitions 
FOREIGN KEY (topic_id, partition) REFERENCES partitions (topic_id, partition)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_limit = 1000);
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
CREATE TABLE tool_runs (
    scope uuid NOT NULL,
    kind text NOT NULL,
    parts integer NOT NULL,
    part integer NOT NULL,
    topic_id uuid,
    topics text[] NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    run_id text NOT NULL,
    outcome text NOT NULL,
    duration_ms bigint NOT NULL,
    segments bigint NOT NULL,
    done_segments bigint NOT NULL,
    done_bytes bigint NOT NULL,
    failed_segments bigint NOT NULL,
    CONSTRAINT pk_tool_runs PRIMARY KEY (scope, kind, parts, part),
    CONSTRAINT fk_tool_runs_topics FOREIGN KEY (topic_id) REFERENCES topics (topic_id),
    CONSTRAINT ck_tool_runs_kind CHECK (
        kind IN ('RETENTION', 'REMOVAL', 'RECONCILE', 'SCRUB', 'MAINTENANCE', 'COPY', 'REWRAP')),
    CONSTRAINT ck_tool_runs_part CHECK (part BETWEEN 1 AND parts AND parts <= 10000)
);
CREATE TABLE holds (
    hold_id uuid NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    topic_id uuid,
    partition integer,
    first_offset bigint NOT NULL,
    last_offset bigint,
    reason text NOT NULL,
    actor text NOT NULL,
    set_at timestamptz NOT NULL,
    until timestamptz,
    CONSTRAINT pk_holds PRIMARY KEY (hold_id),
    CONSTRAINT fk_holds_topics FOREIGN KEY (topic_id) REFERENCES topics (topic_id),
    CONSTRAINT ck_holds_kind CHECK (kind IN ('OPERATOR', 'LEGAL', 'EXPORT', 'REBUILD')),
    CONSTRAINT ck_holds_partition CHECK (partition IS NULL OR topic_id IS NOT NULL),
    CONSTRAINT ck_holds_offsets CHECK (
        0 <= first_offset AND (last_offset IS NULL OR first_offset <= last_offset))
);
CREATE TABLE source_positions (
    cluster_id text NOT NULL,
    partition integer NOT NULL,
    topic_id uuid NOT NULL,
    next_offset bigint NOT NULL,
    imported_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_source_positions PRIMARY KEY (cluster_id, partition),
    CONSTRAINT ck_source_positions_next_offset CHECK (partition >= 0 AND next_offset >= 0)
);
CREATE TABLE deployment (
    is_only_row boolean NOT NULL DEFAULT true,
    deployment_id uuid NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_deployment PRIMARY KEY (is_only_row),
    CONSTRAINT ck_deployment_only_row CHECK (is_only_row)
);
INSERT INTO deployment (deployment_id) VALUES (gen_random_uuid());
CREATE INDEX ix_topics_name ON topics (name);
CREATE INDEX ix_holds_scope ON holds (topic_id, partition);
CREATE INDEX ix_holds_until ON holds (until);
CREATE INDEX ix_partitions_being_deleted ON partitions (topic_id, partition)
    WHERE delete_state IN ('DELETE_PARTITION_MARKED', 'DELETE_PARTITION_STARTED');
CREATE INDEX ix_partitions_known ON partitions (topic_id, partition)
    WHERE delete_state IS DISTINCT FROM 'DELETE_PARTITION_FINISHED';
CREATE INDEX ix_segments_live ON segments (topic_id, partition, start_offset, segment_id)
    WHERE state <> 'DELETE_SEGMENT_FINISHED';
CREATE INDEX ix_segments_reach
    ON segments (topic_id, partition, length((end_offset - start_offset)::text), start_offset)
    WHERE state <> 'DELETE_SEGMENT_FINISHED';
CREATE INDEX ix_segments_tombstones ON segments (changed_at)
    WHERE state = 'DELETE_SEGMENT_FINISHED';
CREATE INDEX ix_segments_kept ON segments (kept_until, segment_id)
    WHERE state = 'DELETE_SEGMENT_FINISHED' AND kept_until IS NOT NULL;
CREATE INDEX ix_segments_txn_index
    ON segments (topic_id, partition, length((end_offset - start_offset)::text), start_offset, segment_id)
    WHERE state = 'COPY_SEGMENT_FINISHED' AND NOT txn_idx_empty;
CREATE INDEX ix_segment_epochs_listed
    ON segment_epochs (topic_id, partition, leader_epoch, segment_start_offset, segment_id);
CREATE UNIQUE INDEX ix_segment_epochs_referenced
    ON segment_epochs (topic_id, partition, leader_epoch, start_offset) WHERE referenced;
CREATE INDEX ix_segment_epochs_overlapped_reach
    ON segment_epochs (topic_id, partition, leader_epoch, length((end_offset - start_offset)::text), start_offset)
    WHERE overlapped;
CREATE INDEX ix_events_partition_delete ON events (topic_id, partition, to_state)
    WHERE kind = 'PARTITION_DELETE';
CREATE INDEX ix_events_transaction ON events (transaction_id);
CREATE INDEX ix_request_outcomes_at ON request_outcomes (at);
CREATE INDEX ix_anomalies_listed ON anomalies (first_seen, anomaly_id);
CREATE INDEX ix_anomalies_listed_by_topic ON anomalies (topic_id, first_seen, anomaly_id);
CREATE INDEX ix_anomalies_last_seen ON anomalies (last_seen);
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
    FROM anomalies AS a LEFT JOIN topics AS t USING (topic_id);
CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY);
INSERT INTO alembic_version VALUES ('0001');
