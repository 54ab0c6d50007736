"""Create histories of any length in the database: rows as RLMM leaves them (a test compares).

Each partition has three leader epochs. Two segments lie across their borders, one in the middle of
each is deleted again unless the layout is whole, and every tenth has a transaction index.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import NAMESPACE_URL, UUID, uuid5

import psycopg

from services.api.ids import TopicIdPartition, uuid_to_text
from services.rlmm.deletion_bound import TODAY

OFFSETS_PER_SEGMENT = 100
EPOCHS = 3
MIN_SEGMENTS = 10
PARTITIONS_PER_TOPIC = 100
ROWS_AT_ONCE = 1_000_000
FIRST_EVENT_MS = 1_700_000_000_000
BROKER_ID = 1
SIZE_BYTES = 1 << 30
CUSTOM_METADATA = bytes(range(51))


@dataclass(frozen=True)
class PartitionHistory:
    """`segments` segments side by side from offset 0 on; at least MIN_SEGMENTS."""

    topic_id_partition: TopicIdPartition
    segments: int
    is_whole: bool = False

    @property
    def border_segments(self) -> tuple[int, int]:
        """Return the numbers of the segments that begin in one epoch and end in the next."""
        return self.segments // 3, 2 * self.segments // 3

    @property
    def gone_segments(self) -> tuple[int, ...]:
        """Return the number of the deleted segment of each epoch."""
        if self.is_whole:
            return ()
        first, second = self.border_segments
        return first // 2, (first + second) // 2, (second + self.segments) // 2

    @property
    def end_offset(self) -> int:
        """Return the end offset, inclusive."""
        return self.segments * OFFSETS_PER_SEGMENT - 1

    def epoch_offsets(self, leader_epoch: int) -> tuple[int, int]:
        """Return the first and the last offset of an epoch, inclusive."""
        borders = [n * OFFSETS_PER_SEGMENT + OFFSETS_PER_SEGMENT // 2 for n in self.border_segments]
        ends = [*(border - 1 for border in borders), self.end_offset]
        return [0, *borders][leader_epoch], ends[leader_epoch]


@dataclass(frozen=True)
class Layout:
    """Partitions of `segments` segments each; the first one has `large_segments`, unless 0.

    If `is_whole`, no segment is deleted again. Only one segment of `events_every` has its events.
    """

    partitions: int
    segments: int
    large_segments: int = 0
    is_whole: bool = False
    events_every: int = 1

    def partition_histories(self) -> list[PartitionHistory]:
        """Return the histories, the large one first."""
        return [self._history(number) for number in range(self.partitions)]

    def total_segments(self) -> int:
        return sum(history.segments for history in self.partition_histories())

    def _history(self, number: int) -> PartitionHistory:
        topic, partition = divmod(number, PARTITIONS_PER_TOPIC)
        name = f"bench-{topic}"
        tp = TopicIdPartition(_topic_id(name), name, partition)
        is_large = number == 0 and self.large_segments
        segments = self.large_segments if is_large else self.segments
        return PartitionHistory(tp, segments, self.is_whole)


_MADE = f"""
    CREATE TEMP TABLE made AS
    SELECT h.topic_id, h.partition, n, md5(h.key || ':' || n)::uuid AS segment_id,
        h.key || ':' || (n + 1) * {OFFSETS_PER_SEGMENT} - 1 || ':'
            || CASE WHEN n < border_1 THEN 0 WHEN n < border_2 THEN 1 ELSE 2 END AS event_key,
        n * {OFFSETS_PER_SEGMENT} AS start_offset,
        (n + 1) * {OFFSETS_PER_SEGMENT} - 1 AS end_offset,
        {FIRST_EVENT_MS} + n * 1000 AS at_ms, n %% 10 <> 0 AS txn_idx_empty,
        CASE WHEN n < border_1 THEN '{{0}}'::int[] WHEN n = border_1 THEN '{{0,1}}'
            WHEN n < border_2 THEN '{{1}}' WHEN n = border_2 THEN '{{1,2}}' ELSE '{{2}}'
            END AS leader_epochs,
        CASE WHEN n IN (border_1, border_2) THEN ARRAY[n * {OFFSETS_PER_SEGMENT},
                n * {OFFSETS_PER_SEGMENT} + {OFFSETS_PER_SEGMENT} / 2]
            ELSE ARRAY[n * {OFFSETS_PER_SEGMENT}] END AS epoch_start_offsets,
        CASE WHEN n < border_1 THEN 0 WHEN n < border_2 THEN 1 ELSE 2 END AS broker_leader_epoch,
        2 * n + 2 AS finished_revision,
        2 * (segments + array_position(gone, n)) AS gone_revision
    FROM histories AS h
    CROSS JOIN LATERAL generate_series(%(first)s, least(segments, %(end)s) - 1) AS n
    ORDER BY n, h.topic_id, h.partition"""

_TOPICS = "INSERT INTO topics (topic_id, name) SELECT DISTINCT topic_id, topic FROM histories"

_PARTITIONS = f"""
    INSERT INTO partitions (topic_id, partition, revision, highest_broker_leader_epoch,
        finished_segments, finished_bytes, live_segments, live_bytes, marked_bytes, marked_on)
    SELECT topic_id, partition, revision, {EPOCHS - 1}, count, count * {SIZE_BYTES}, count,
        count * {SIZE_BYTES}, marked * {SIZE_BYTES}, CASE WHEN marked > 0 THEN {TODAY} END
    FROM histories CROSS JOIN LATERAL (SELECT cardinality(gone)::bigint AS marked) AS deleted
    CROSS JOIN LATERAL (SELECT 2 * (segments + marked) AS revision, segments - marked AS count
    ) AS of"""

_SEGMENTS = f"""
    INSERT INTO segments (topic_id, partition, segment_id, start_offset, end_offset,
        max_timestamp_ms, broker_leader_epoch, leader_epochs, epoch_start_offsets,
        segment_size_in_bytes, txn_idx_empty, state, custom_metadata, broker_id,
        event_timestamp_ms, state_revision, finished_revision)
    SELECT topic_id, partition, segment_id, start_offset, end_offset, at_ms, broker_leader_epoch,
        leader_epochs, epoch_start_offsets, {SIZE_BYTES}, txn_idx_empty,
        CASE WHEN gone_revision IS NULL
            THEN 'COPY_SEGMENT_FINISHED' ELSE 'DELETE_SEGMENT_FINISHED' END,
        decode('{CUSTOM_METADATA.hex()}', 'hex'), {BROKER_ID}, at_ms,
        coalesce(gone_revision, finished_revision), finished_revision
    FROM made"""

_SEGMENT_EPOCHS = """
    INSERT INTO segment_epochs (topic_id, partition, segment_id, leader_epoch, segment_start_offset,
        start_offset, end_offset, referenced, overlapped)
    SELECT topic_id, partition, segment_id, leader_epoch, made.start_offset, epoch_start_offset,
        coalesce(epoch_start_offsets[place + 1] - 1, end_offset), true, false
    FROM made CROSS JOIN LATERAL unnest(leader_epochs, epoch_start_offsets) WITH ORDINALITY
        AS epoch (leader_epoch, epoch_start_offset, place)
    WHERE gone_revision IS NULL"""

_HIGHEST_OFFSETS = f"""
    INSERT INTO highest_offsets (topic_id, partition, leader_epoch, highest_offset, longest_reach)
    SELECT topic_id, partition, leader_epoch, highest_offset, {OFFSETS_PER_SEGMENT - 1}
    FROM histories CROSS JOIN LATERAL unnest(highest_offsets) WITH ORDINALITY
        AS epoch (highest_offset, number)
    CROSS JOIN LATERAL (SELECT number - 1 AS leader_epoch) AS of"""

_EVENTS = f"""
    INSERT INTO events (topic_id, partition, revision, kind, from_state, to_state, segment_id, key,
        actor, call_id, reason, broker_id, broker_leader_epoch)
    SELECT topic_id, partition, revision, 'SEGMENT', from_state, to_state, segment_id, event_key,
        'anonymous', md5(event_key || revision), '', {BROKER_ID}, broker_leader_epoch
    FROM made CROSS JOIN LATERAL (VALUES
        (finished_revision - 1, NULL, 'COPY_SEGMENT_STARTED'),
        (finished_revision, 'COPY_SEGMENT_STARTED', 'COPY_SEGMENT_FINISHED'),
        (gone_revision - 1, 'COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED'),
        (gone_revision, 'DELETE_SEGMENT_STARTED', 'DELETE_SEGMENT_FINISHED')
    ) AS event (revision, from_state, to_state)
    WHERE revision IS NOT NULL AND n %% %(events_every)s = 0"""

# What is built at the end, not row by row: foreign keys first, as they need the others.
_CONSTRAINTS = """
    SELECT format('ALTER TABLE %I DROP CONSTRAINT %I', r.relname, c.conname),
        format('ALTER TABLE %I ADD CONSTRAINT %I %s', r.relname, c.conname,
            pg_get_constraintdef(c.oid))
    FROM pg_constraint AS c JOIN pg_class AS r ON r.oid = c.conrelid
    WHERE r.relname IN ('segments', 'segment_epochs') AND c.contype IN ('f', 'p')
    ORDER BY c.contype, r.relname"""
_INDEXES = """
    SELECT format('DROP INDEX %I', indexname), indexdef FROM pg_indexes
    WHERE tablename IN ('segments', 'segment_epochs') AND indexname LIKE 'ix_%'"""


def store(database_url: str, layout: Layout) -> None:
    """Fill an empty database that has RLMM's schema."""
    url = database_url.replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        # Without a check of each row's foreign keys.
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "CREATE TEMP TABLE histories (topic_id uuid, topic text, key text, partition int,"
            " segments bigint, border_1 bigint, border_2 bigint, gone bigint[],"
            " highest_offsets bigint[])"
        )
        with connection.cursor().copy("COPY histories FROM STDIN") as copy:
            for history in layout.partition_histories():
                copy.write_row(_row(history))
        for statement in (_TOPICS, _PARTITIONS, _HIGHEST_OFFSETS):
            connection.execute(statement.encode())
        connection.commit()
        later = [row for query in (_CONSTRAINTS, _INDEXES) for row in connection.execute(query)]
        for drop, _ in later:
            connection.execute(drop.encode())
        for first, end in _steps(layout):
            given = {"first": first, "end": end, "events_every": layout.events_every}
            connection.execute(_MADE.encode(), given)
            connection.execute("ANALYZE made")
            connection.execute(_SEGMENTS.encode())
            connection.execute(_SEGMENT_EPOCHS.encode())
            connection.execute(_EVENTS.encode(), given)
            connection.execute("DROP TABLE made")
            connection.commit()
        connection.execute("SET maintenance_work_mem = '1GB'")
        for _, make in reversed(later):
            connection.execute(make.encode())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _steps(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield from which number of segment to which to store at once: some million rows."""
    step = max(1, ROWS_AT_ONCE // layout.partitions)
    for first in range(0, layout.segments, step):
        yield first, min(first + step, layout.segments)
    if layout.large_segments > layout.segments:
        yield layout.segments, layout.large_segments


def _row(history: PartitionHistory) -> tuple[object, ...]:
    tp = history.topic_id_partition
    return (
        tp.topic_id,
        tp.topic,
        f"{uuid_to_text(tp.topic_id)}:{tp.partition}",
        tp.partition,
        history.segments,
        *history.border_segments,
        list(history.gone_segments),
        [history.epoch_offsets(epoch)[1] for epoch in range(EPOCHS)],
    )


def _topic_id(name: str) -> UUID:
    return uuid5(NAMESPACE_URL, name)
