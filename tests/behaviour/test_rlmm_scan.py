"""Test scans of many segments: batch sizes, groups, the connection, concurrent changes."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.segment_batches import SegmentBatch, SegmentScan
from services.api.segments import RemoteLogSegmentMetadataUpdate
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.reads.scans import BATCH_BYTES, MEMORY_BYTES, PARTITIONS_PER_STATEMENT
from tests.contract.rlmm.scans import rows_of
from tests.contract.rlmm.segments import BROKER, DELETE_STARTED
from tests.contract.test_rlmm_over_grpc import client_over
from tests.harness.databases import COUNT_SEGMENTS, OwnRlmm
from tests.harness.eventually import PATIENT, eventually

TOPIC_ID = UUID("00000000-0000-4000-8000-000000000001")
MAX_STREAM_BYTES = 3 * 1024 * 1024
POOL_SIZE = 2


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(database_url, replace(PATIENT, pool_size=POOL_SIZE))
    yield engine
    engine.dispose()


def insert(
    engine: Engine,
    *,
    partitions: int = 1,
    segments: int,
    epochs: int = 1,
    custom_metadata_bytes: int = 0,
) -> None:
    """Write rows straight into the tables (calls would take minutes); ids in no order of
    offsets.
    """
    values = {
        "topic_id": TOPIC_ID,
        "partitions": partitions - 1,
        "segments": segments - 1,
        "epochs": epochs - 1,
        "custom_metadata": bytes(custom_metadata_bytes),
    }
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO topics (topic_id, name) VALUES (:topic_id, 'orders')",
            """INSERT INTO partitions (topic_id, partition, revision)
               SELECT CAST(:topic_id AS uuid), n, 7 FROM generate_series(0, :partitions) AS n""",
            """INSERT INTO segments (
                   topic_id, partition, segment_id, start_offset, end_offset, max_timestamp_ms,
                   leader_epochs, epoch_start_offsets, segment_size_in_bytes, txn_idx_empty, state,
                   custom_metadata, broker_id, event_timestamp_ms, state_revision)
               SELECT CAST(:topic_id AS uuid), p, gen_random_uuid(), 1000000 * n,
                   1000000 * n + 999999, n,
                   ARRAY(SELECT generate_series(0, :epochs)),
                   ARRAY(SELECT 1000000 * n + generate_series(0, :epochs)),
                   n, true, 'COPY_SEGMENT_FINISHED', :custom_metadata, 1, n, 7
               FROM generate_series(CAST(0 AS bigint), :segments) AS n,
                   generate_series(0, :partitions) AS p""",
        ):
            connection.execute(text(statement), values)
        connection.execute(text(COUNT_SEGMENTS))


def starts_of(batches: list[SegmentBatch]) -> list[tuple[int, int]]:
    rows = [row for batch in batches for row in rows_of(batch)]
    return [(row["partition"], row["start_offset"]) for row in rows]


@pytest.mark.deep
def test_a_large_partition_comes_whole_and_in_order_in_bounded_batches(rlmm: OwnRlmm) -> None:
    count = 90_000
    insert(rlmm.engine, segments=count)
    batches = list(rlmm.scan_remote_log_segments(SegmentScan()))
    sizes = [len(batch.arrow_ipc) for batch in batches]
    assert sum(sizes) > MEMORY_BYTES  # some of it waited in a file
    assert max(sizes) <= BATCH_BYTES
    assert sum(sizes) / len(sizes) > BATCH_BYTES / 2
    starts = [start for _, start in starts_of(batches)]
    assert len(starts) == count
    assert all(before < after for before, after in pairwise(starts))


@pytest.mark.parametrize(
    ("epochs", "custom_metadata_bytes"),
    [(10_000, 0), (1, 65_536), (10_000, 65_536), (100_000, 65_536)],
)
@pytest.mark.deep
def test_segments_with_much_to_say_fit_into_messages(
    database_url: str, engine: Engine, epochs: int, custom_metadata_bytes: int
) -> None:
    insert(engine, segments=24, epochs=epochs, custom_metadata_bytes=custom_metadata_bytes)
    with client_over(database_url) as rlmm:
        batches = list(rlmm.scan_remote_log_segments(SegmentScan()))
    assert max(len(batch.arrow_ipc) for batch in batches) <= MAX_STREAM_BYTES
    rows = [row for batch in batches for row in rows_of(batch)]
    assert [row["start_offset"] for row in rows] == [1_000_000 * n for n in range(24)]
    assert rows[3]["leader_epochs"] == list(range(epochs))
    assert rows[3]["epoch_start_offsets"] == [3_000_000 + n for n in range(epochs)]
    assert rows[3]["custom_metadata"] == bytes(custom_metadata_bytes)


def test_more_partitions_than_a_statement_reads_are_all_seen(rlmm: OwnRlmm) -> None:
    partitions = 2 * PARTITIONS_PER_STATEMENT + 1
    insert(rlmm.engine, partitions=partitions, segments=1)
    with rlmm.engine.begin() as connection:  # a whole statement's partitions without any segment
        connection.execute(text("DELETE FROM segments WHERE partition BETWEEN 1 AND 1500"))
        connection.execute(text(COUNT_SEGMENTS))
    seen = starts_of(list(rlmm.scan_remote_log_segments(SegmentScan())))
    assert seen == [(partition, 0) for partition in (0, *range(1501, partitions))]


@pytest.mark.deep
def test_nothing_of_the_database_is_held_while_the_caller_has_a_batch(rlmm: OwnRlmm) -> None:
    insert(rlmm.engine, partitions=4, segments=10_000)
    scans = [rlmm.scan_remote_log_segments(SegmentScan()) for _ in range(2 * POOL_SIZE)]
    for scan in scans:
        assert next(scan).rows > 0
    with rlmm.engine.connect() as connection:
        held = text(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'rlmm' "
            "AND pid <> pg_backend_pid() AND state <> 'idle'"
        )
        assert connection.scalar(held) == 0
    assert [sum(batch.rows for batch in scan) > 0 for scan in scans] == [True] * len(scans)


def test_a_caller_that_leaves_ends_the_scan(database_url: str, engine: Engine) -> None:
    insert(engine, partitions=4, segments=10_000)
    with client_over(database_url) as rlmm:
        scan = rlmm.scan_remote_log_segments(SegmentScan())
        assert next(scan).rows > 0
        getattr(scan, "close")()  # noqa: B009 - an Iterator has none, a generator has
        busy = text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND state <> 'idle'"
        )

        def is_quiet() -> bool:
            with engine.connect() as connection:
                return bool(connection.scalar(busy) == 0)

        eventually(is_quiet)


@pytest.mark.deep
def test_a_partition_that_changes_during_a_scan_is_seen_before_or_after(rlmm: OwnRlmm) -> None:
    count = 40_000  # more than one group
    insert(rlmm.engine, partitions=2, segments=count)
    scan = rlmm.scan_remote_log_segments(SegmentScan())
    batches = [next(scan)]
    marked = [mark_first_segment(rlmm, partition) for partition in (0, 1)]
    assert marked == [8, 8]
    batches += scan
    rows = [row for batch in batches for row in rows_of(batch)]
    for partition, revision, state in (
        (0, 7, "COPY_SEGMENT_FINISHED"),
        (1, 8, "DELETE_SEGMENT_STARTED"),
    ):
        own = [row for row in rows if row["partition"] == partition]
        assert len(own) == count
        assert {row["revision"] for row in own} == {revision}
        assert own[0]["state"] == state
    assert len({batch.began_at_ms for batch in batches}) == 1


def mark_first_segment(rlmm: OwnRlmm, partition: int) -> int:
    with rlmm.engine.connect() as connection:
        query = "SELECT segment_id FROM segments WHERE partition = :p ORDER BY start_offset LIMIT 1"
        segment_id = connection.scalar(text(query), {"p": partition})
    tp = TopicIdPartition(TOPIC_ID, "orders", partition)
    update = RemoteLogSegmentMetadataUpdate(
        RemoteLogSegmentId(tp, segment_id), 1, DELETE_STARTED, BROKER
    )
    return rlmm.update_remote_log_segment_metadata(update).revision


def test_a_scan_that_the_database_cannot_serve_is_retriable(
    engine: Engine, database_url: str
) -> None:
    insert(engine, segments=1)
    # Enough for a statement that nobody is in the way of.
    slow = create_database_engine(database_url, replace(PATIENT, statement_timeout_ms=3_000))
    rlmm = SqlRemoteLogMetadataManager(slow)
    with engine.begin() as holder:
        holder.execute(text("LOCK TABLE segments IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(RetriableRemoteStorageError, match="57014"):
            list(rlmm.scan_remote_log_segments(SegmentScan()))
    assert len(list(rlmm.scan_remote_log_segments(SegmentScan()))) == 1
    slow.dispose()


def test_scan_with_a_lost_connection_is_retriable_and_the_next_works(rlmm: OwnRlmm) -> None:
    insert(rlmm.engine, segments=1)
    ended = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    others = create_database_engine(rlmm.database_url, PATIENT)

    def end_who_waits() -> bool:
        with others.connect() as connection:
            return connection.scalars(ended).all() == [True]

    with ThreadPoolExecutor(1) as pool, others.begin() as holder:
        holder.execute(text("LOCK TABLE segments IN ACCESS EXCLUSIVE MODE"))
        scan = pool.submit(lambda: list(rlmm.scan_remote_log_segments(SegmentScan())))
        eventually(end_who_waits)
        with pytest.raises(RetriableRemoteStorageError):
            scan.result(timeout=60)
    assert len(list(rlmm.scan_remote_log_segments(SegmentScan()))) == 1
    others.dispose()


def test_a_topic_name_that_cannot_be_stored_is_refused(rlmm: OwnRlmm) -> None:
    with pytest.raises(InvalidRequestError, match=r"^topic: must not contain NUL"):
        list(rlmm.scan_remote_log_segments(SegmentScan(topic="orders\0")))
