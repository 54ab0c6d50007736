"""Test against the files of a real broker: tests/data/kafka-log."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.remote_storage_manager import SegmentFile
from services.records.batches import FileWindow, walk_batches
from services.records.segment_indexes import IndexBuilder
from services.rlm.copy.inspection import inspect
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LocalSegment, read_lineage
from services.rlm.kafka_log.transactions import transactions_at

LOG_DIR = Path(__file__).parents[2] / "data" / "kafka-log"
INDEX_INTERVAL_BYTES = 1024  # of every topic in it
FOUND = find_partitions([LOG_DIR])
LOCAL = {
    f"{name.topic}-{name.partition}": LocalPartition(found)
    for name, found in FOUND.partitions.items()
}


def log_of(folder: str) -> LocalLog:
    log = LOCAL[folder].read()
    assert log is not None
    return log


def rolled() -> Iterator[tuple[LocalLog, LocalSegment]]:
    for folder in LOCAL:
        log = log_of(folder)
        for segment in log.rolled:
            yield log, segment


ROLLED = [pytest.param(log, s, id=f"{s.directory.name}:{s.base_offset}") for log, s in rolled()]


def test_every_users_partition_is_found_without_a_problem() -> None:
    assert set(LOCAL) == {
        "audit-0",
        "clicks-0",
        "clicks-1",
        "mixed-codecs-0",
        "orders.eu-west-0",
        "orders.eu-west-1",
        "orders.eu-west-2",
        "payments-0",
        "payments-1",
        "profiles-0",
        "telemetry-0",
    }
    assert FOUND.problems == []
    assert FOUND.broker_id == 1


@pytest.mark.parametrize(
    ("folder", "rolled_segments", "end_offset", "epochs"),
    [
        ("orders.eu-west-0", 7, 360, [(0, 0), (2, 120), (4, 240)]),
        ("orders.eu-west-2", 0, 0, [(4, 0)]),
        ("payments-1", 11, 507, [(0, 0), (2, 169), (4, 338)]),
        ("clicks-0", 5, 400, [(0, 0), (4, 200)]),
        ("telemetry-0", 6, 192, [(0, 0), (2, 64), (4, 128)]),
        ("audit-0", 0, 12, [(0, 0), (2, 4), (4, 8)]),
    ],
)
def test_segments_ends_and_epochs_are_kafkas(
    folder: str, rolled_segments: int, end_offset: int, epochs: list[tuple[int, int]]
) -> None:
    log = log_of(folder)
    assert len(log.rolled) == rolled_segments
    assert (log.log_start_offset, log.log_end_offset) == (0, end_offset)
    assert [(e.leader_epoch, e.start_offset) for e in log.lineage.entries] == epochs


def test_nothing_is_open_after_a_clean_shutdown() -> None:
    for folder in LOCAL:
        log = log_of(folder)
        assert log.last_stable_offset == log.log_end_offset


def test_deleted_records_raise_the_log_start() -> None:
    assert log_of("clicks-1").log_start_offset == 5


@pytest.mark.parametrize(("log", "segment"), ROLLED)
def test_every_rolled_segment_is_sound_as_the_broker_left_it(
    log: LocalLog, segment: LocalSegment
) -> None:
    found = inspect(log.segments, segment, read_lineage(segment.directory), log.log_start_offset)
    assert found.rebuilt == ()
    for file, suffix in ((SegmentFile.OFFSET, ".index"), (SegmentFile.TIMESTAMP, ".timeindex")):
        assert found.side_files[file] == segment.file(suffix).read_bytes()
    assert found.txn_idx_empty == (not segment.file(".txnindex").exists())


def rebuilt(log: LocalLog, segment: LocalSegment) -> tuple[bytes, bytes, bytes]:
    transactions = transactions_at(log.segments, segment.base_offset)
    builder = IndexBuilder(segment.base_offset, transactions, INDEX_INTERVAL_BYTES)
    with FileWindow(segment.log_path) as window:
        for batch in walk_batches(window, 0, segment.size_bytes, segment.base_offset, verify=True):
            builder.observe(batch)
    return builder.offset_index(), builder.time_index(), builder.transaction_index()


def spans_a_restart(log: LocalLog, segment: LocalSegment) -> bool:
    starts = (entry.start_offset for entry in log.lineage.entries)
    return any(segment.base_offset < start <= segment.end_offset for start in starts)


UNBROKEN = [p for p in ROLLED if not spans_a_restart(*p.values)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("log", "segment"), UNBROKEN)
def test_rebuilt_indexes_are_the_brokers_byte_for_byte(
    log: LocalLog, segment: LocalSegment
) -> None:
    """But for a segment in which the broker was restarted: it then counts the interval anew, and
    its shutdown left an entry of its own in the time index."""
    offsets, times, _ = rebuilt(log, segment)
    assert offsets == segment.file(".index").read_bytes()
    assert times == segment.file(".timeindex").read_bytes()


@pytest.mark.parametrize(("log", "segment"), ROLLED)
def test_rebuilt_transaction_indexes_are_always_the_brokers(
    log: LocalLog, segment: LocalSegment
) -> None:
    path = segment.file(".txnindex")
    assert rebuilt(log, segment)[2] == (path.read_bytes() if path.exists() else b"")


def test_most_segments_are_compared_byte_for_byte() -> None:
    assert len(ROLLED) == 72
    assert len(UNBROKEN) > 50
