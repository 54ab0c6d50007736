"""Write a partition's long history straight into RLMM's tables, as state changes leave the rows."""

from dataclasses import dataclass

import psycopg

from services.api.ids import TopicIdPartition, random_uuid
from tests.harness.databases import COUNT_SEGMENTS

OFFSETS_PER_SEGMENT = 100

_SEGMENTS = """
    INSERT INTO segments (topic_id, partition, segment_id, start_offset, end_offset,
        max_timestamp_ms, leader_epochs, epoch_start_offsets, segment_size_in_bytes, txn_idx_empty,
        state, custom_metadata, broker_id, event_timestamp_ms, state_revision, finished_revision)
    SELECT %(topic_id)s, %(partition)s, CAST(lpad(to_hex(n + 1), 32, '0') AS uuid),
        n * %(offsets)s, (n + 1) * %(offsets)s - 1, 1000 + n, '{0}', ARRAY[n * %(offsets)s],
        1048576, true, 'COPY_SEGMENT_FINISHED', decode(repeat('ab', 40), 'hex'), 1, 1000 + n,
        2 * n + 2, 2 * n + 2
    FROM generate_series(0, CAST(%(count)s AS bigint) - 1) AS n"""

_EPOCHS = """
    INSERT INTO segment_epochs (topic_id, partition, segment_id, leader_epoch,
        segment_start_offset, start_offset, end_offset, referenced, overlapped)
    SELECT topic_id, partition, segment_id, 0, start_offset, start_offset, end_offset, true, false
    FROM segments WHERE topic_id = %(topic_id)s AND partition = %(partition)s"""


@dataclass(frozen=True)
class LongHistory:
    """Finished segments of leader epoch 0, adjacent from offset 0 on, none with a transaction
    index.
    """

    database_url: str
    tp: TopicIdPartition
    count: int

    @property
    def end_offset(self) -> int:
        """Return the last offset, inclusive."""
        return self.count * OFFSETS_PER_SEGMENT - 1

    def execute(self, *statements: str) -> None:
        """Run statements, each with its own commit, with %(topic_id)s and %(partition)s."""
        keys = {"topic_id": self.tp.topic_id, "partition": self.tp.partition}
        with psycopg.connect(_psycopg_url(self.database_url), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode(), keys)

    def analyze(self) -> None:
        self.execute("ANALYZE")


def store_long_history(database_url: str, count: int) -> LongHistory:
    tp = TopicIdPartition(random_uuid(), "long", 0)
    history = LongHistory(database_url, tp, count)
    values = {
        "topic_id": tp.topic_id,
        "partition": tp.partition,
        "count": count,
        "offsets": OFFSETS_PER_SEGMENT,
        "revision": 2 * count,
        "highest": history.end_offset,
        "reach": OFFSETS_PER_SEGMENT - 1,
    }
    with psycopg.connect(_psycopg_url(database_url)) as connection:
        # Without a check of each row's foreign keys.
        connection.execute("SET session_replication_role = replica")
        for statement in (
            "INSERT INTO topics (topic_id, name) VALUES (%(topic_id)s, 'long')",
            "INSERT INTO partitions (topic_id, partition, revision)"
            " VALUES (%(topic_id)s, %(partition)s, %(revision)s)",
            "INSERT INTO highest_offsets VALUES"
            " (%(topic_id)s, %(partition)s, 0, %(highest)s, %(reach)s)",
            _SEGMENTS,
            _EPOCHS,
            COUNT_SEGMENTS,
        ):
            connection.execute(statement.encode(), values)
    return history


def _psycopg_url(database_url: str) -> str:
    return database_url.replace("+psycopg", "")
