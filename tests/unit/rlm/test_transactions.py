from pathlib import Path

import pytest

from services.records.index_files import AbortedTxn, open_transactions, parse_aborted_txns
from services.rlm.kafka_log import transactions
from services.rlm.kafka_log.partition_dir import list_segments
from services.rlm.kafka_log.transactions import LogTail
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    COMMIT,
    PartitionFiles,
    batch,
    in_transaction,
    marker,
    producer_snapshot,
    write_log_dir,
)


@pytest.fixture
def files(tmp_path: Path) -> PartitionFiles:
    return PartitionFiles(write_log_dir(tmp_path / "logs"))


def tail_of(files: PartitionFiles) -> LogTail:
    tail = LogTail()
    tail.follow(list_segments(files.path))
    return tail


def stable_end(
    files: PartitionFiles, tail: LogTail | None = None, high_watermark: int | None = None
) -> int:
    tail = tail or tail_of(files)
    end = tail.log_end_offset if high_watermark is None else high_watermark
    return tail.last_stable_offset(list_segments(files.path), end)


def test_without_transactions_all_is_stable(files: PartitionFiles) -> None:
    files.segment(0, [batch(0, 5)])
    tail = tail_of(files)
    assert (stable_end(files, tail), tail.log_end_offset) == (5, 5)


def test_an_open_transaction_holds_the_last_stable_offset(files: PartitionFiles) -> None:
    files.segment(0, [batch(0), in_transaction(1, 9, 3), batch(4)])
    tail = tail_of(files)
    assert (stable_end(files, tail), tail.log_end_offset) == (1, 5)


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_marker_ends_its_own_producers_transaction_only(files: PartitionFiles, kind: int) -> None:
    files.segment(0, [in_transaction(0, 8), in_transaction(1, 9), marker(2, 8, kind)])
    assert stable_end(files) == 1


def test_a_transaction_that_began_in_an_earlier_segment_is_in_the_snapshot(
    files: PartitionFiles,
) -> None:
    files.segment(0, [batch(0, 10)])
    files.snapshot(10, {9: 4})
    files.segment(10, [batch(10)])
    assert stable_end(files) == 4


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_an_end_at_or_above_the_high_watermark_does_not_count(
    files: PartitionFiles, kind: int
) -> None:
    log = [batch(0), in_transaction(1, 9, 3), batch(4), marker(5, 9, kind), in_transaction(6, 8)]
    files.segment(0, log)
    tail = tail_of(files)
    stable = [stable_end(files, tail, end) for end in range(8)]
    assert stable == [0, 1, 1, 1, 1, 1, 6, 6]


def test_a_high_watermark_in_an_earlier_segment_is_looked_up_there(files: PartitionFiles) -> None:
    files.segment(0, [batch(0), in_transaction(1, 9), batch(2)])
    files.snapshot(3, {9: 1})
    files.segment(3, [marker(3, 9, ABORT), batch(4)])
    files.snapshot(5)
    files.segment(5, [batch(5)])
    tail = tail_of(files)
    assert [stable_end(files, tail, end) for end in (1, 2, 3, 4, 5, 6)] == [1, 1, 1, 4, 5, 6]


def test_after_a_roll_the_rolled_segment_is_not_read_again(files: PartitionFiles) -> None:
    log = files.segment(0, [batch(0), in_transaction(1, 9), marker(2, 9, ABORT)])
    tail = tail_of(files)
    assert stable_end(files, tail, 1) == 1
    with log.open("ab") as file:
        file.write(in_transaction(3, 8) + batch(4))
    files.snapshot(5, {8: 3})
    files.segment(5, [batch(5), marker(6, 8, COMMIT)])
    tail.follow(list_segments(files.path))
    log.write_bytes(bytes(log.stat().st_size))
    assert [stable_end(files, tail, end) for end in (2, 3, 4, 5, 7)] == [1, 3, 3, 3, 7]


def test_a_long_history_is_cut_and_nothing_is_stable_too_early(
    files: PartitionFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MAX_HISTORY", 4)
    log = [
        each
        for at in range(0, 20, 2)
        for each in (in_transaction(at, 9), marker(at + 1, 9, COMMIT))
    ]
    files.segment(0, log)
    tail = tail_of(files)
    stable = [stable_end(files, tail, end) for end in range(21)]
    assert all(found <= end for end, found in enumerate(stable))
    assert (stable[9], stable[20]) == (0, 20)


def test_a_high_watermark_that_falls_is_never_taken_for_stable(files: PartitionFiles) -> None:
    files.segment(0, [batch(0), in_transaction(1, 9), marker(2, 9, ABORT), batch(3)])
    tail = tail_of(files)
    assert stable_end(files, tail, 4) == 4
    assert stable_end(files, tail, 2) <= 1


@pytest.mark.parametrize("snapshot", [None, b"damaged"])
def test_without_a_valid_snapshot_the_log_is_walked_from_its_start(
    files: PartitionFiles, snapshot: bytes | None
) -> None:
    files.segment(0, [batch(0), in_transaction(1, 9, 9)])
    if snapshot:
        files.file(10, ".snapshot").write_bytes(snapshot)
    files.segment(10, [batch(10)])
    assert stable_end(files) == 1


def test_walk_begins_at_an_older_snapshot(files: PartitionFiles) -> None:
    files.segment(0, [batch(0, 10)])
    files.snapshot(10, {9: 3})
    files.segment(10, [marker(10, 9, COMMIT), in_transaction(11, 8)])
    files.segment(12, [batch(12)])
    assert stable_end(files) == 11


def test_a_torn_tail_just_ends_the_log(files: PartitionFiles) -> None:
    files.segment(0, [batch(0, 5), batch(5)[:-1]])
    assert tail_of(files).log_end_offset == 5


def test_a_preallocated_tail_just_ends_the_log(files: PartitionFiles) -> None:
    files.segment(0, [batch(0, 5), bytes(4096)])
    assert tail_of(files).log_end_offset == 5


def test_a_tail_is_followed_as_the_broker_appends(files: PartitionFiles) -> None:
    log = files.segment(0, [batch(0), in_transaction(1, 9)])
    tail = tail_of(files)
    with log.open("ab") as file:
        file.write(marker(2, 9, COMMIT) + batch(3)[:20])
    tail.follow(list_segments(files.path))
    assert (stable_end(files, tail), tail.log_end_offset) == (3, 3)
    with log.open("ab") as file:
        file.write(batch(3)[20:])
    tail.follow(list_segments(files.path))
    assert tail.log_end_offset == 4


def test_a_tail_survives_a_roll_and_a_truncation(files: PartitionFiles) -> None:
    files.segment(0, [batch(0, 5)])
    tail = tail_of(files)
    files.snapshot(5)
    active = files.segment(5, [batch(5, 5), batch(10)])
    tail.follow(list_segments(files.path))
    assert tail.log_end_offset == 11
    active.write_bytes(batch(5, 5))
    tail.follow(list_segments(files.path))
    assert tail.log_end_offset == 10


def test_only_open_transactions_of_a_snapshot_count() -> None:
    assert open_transactions(producer_snapshot({1: -1, 2: 40})) == {2: 40}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:5],
        lambda data: b"\0\2" + data[2:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data + b"\0",
    ],
)
def test_a_damaged_snapshot_is_refused(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(ValueError, match=r"version|CRC|bytes|announced"):
        open_transactions(damage(producer_snapshot({1: 3})))


def test_aborted_transactions_survive_their_file() -> None:
    entries = [AbortedTxn(9, 1, 5, 6), AbortedTxn(8, 2, 7, 8)]
    assert parse_aborted_txns(b"".join(e.to_bytes() for e in entries)) == entries


@pytest.mark.parametrize("data", [b"\0" * 33, b"\0\1" + b"\0" * 32])
def test_a_damaged_transaction_index_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="entr"):
        parse_aborted_txns(data)
