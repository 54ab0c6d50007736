import os
from pathlib import Path
from struct import pack

import pytest
from crc32c import crc32c

from services.api.remote_log_manager import ProblemKind
from services.api.remote_storage_manager import SegmentFile
from services.records.index_files import AbortedTxn, producer_entries
from services.rlm.copy.inspection import InspectedSegment, inspect
from services.rlm.kafka_log.partition_dir import (
    LogFileError,
    SegmentVanishedError,
    list_segments,
    read_lineage,
)
from services.rlm.kafka_log.transactions import ProducerReplay
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    COMMIT,
    PartitionFiles,
    batch,
    in_transaction,
    marker,
    old_message,
    producer_snapshot,
    three_segments,
    write_log_dir,
)


@pytest.fixture
def files(tmp_path: Path) -> PartitionFiles:
    return three_segments(write_log_dir(tmp_path / "logs"))


def inspected(
    files: PartitionFiles,
    number: int = 0,
    log_start_offset: int = 0,
    *,
    may_have_holes: bool = False,
) -> InspectedSegment:
    segments = list_segments(files.path)
    return inspect(
        segments,
        segments[number],
        read_lineage(files.path),
        log_start_offset,
        may_have_holes=may_have_holes,
    )


def refusal(files: PartitionFiles, number: int = 0) -> LogFileError:
    with pytest.raises(LogFileError) as caught:
        inspected(files, number)
    return caught.value


def test_a_sound_segment_is_described(files: PartitionFiles) -> None:
    files.epochs((0, 0), (2, 12))
    found = inspected(files, 1)
    log = files.file(10, ".log").read_bytes()
    assert (found.size_bytes, found.crc32c) == (len(log), crc32c(log))
    assert found.max_timestamp_ms == 1000
    assert [(e.leader_epoch, e.start_offset) for e in found.leader_epochs] == [(0, 10), (2, 12)]
    assert found.txn_idx_empty
    assert found.rebuilt == ()


def test_a_segment_without_timestamps_is_as_old_as_its_file(files: PartitionFiles) -> None:
    log = files.segment(0, [batch(0, 10, timestamp_ms=-1)])
    os.utime(log, ns=(0, 1_700_000_000_123_999_999))
    assert inspected(files).max_timestamp_ms == 1_700_000_000_123


def test_all_files_but_an_absent_transaction_index_are_there(files: PartitionFiles) -> None:
    found = inspected(files)
    assert set(found.side_files) == set(SegmentFile) - {SegmentFile.LOG, SegmentFile.TRANSACTION}
    assert (
        found.side_files[SegmentFile.PRODUCER_SNAPSHOT] == files.file(10, ".snapshot").read_bytes()
    )


def test_the_leader_epoch_file_has_the_history_up_to_the_segments_end(
    files: PartitionFiles,
) -> None:
    files.epochs((0, 0), (2, 12), (3, 20), (4, 22))
    assert inspected(files, 1).side_files[SegmentFile.LEADER_EPOCH] == b"0\n2\n0 0\n2 12\n"


@pytest.mark.parametrize(
    ("batches", "kind", "offset"),
    [
        ([batch(0, 5), batch(5, 5)[:-1]], ProblemKind.TRUNCATED_BATCH, 5),
        ([batch(0, 5)], ProblemKind.TRUNCATED_BATCH, 5),
        ([], ProblemKind.TRUNCATED_BATCH, 0),
        ([batch(0, 5), batch(5, 5)[:-1] + b"?"], ProblemKind.CORRUPT_BATCH, 5),
        ([batch(0, 5), batch(5, 6)], ProblemKind.CORRUPT_BATCH, 10),
        ([old_message(0, 0), batch(1, 9)], ProblemKind.OLD_MESSAGE_FORMAT, 0),
        ([batch(0, 9), old_message(9, 1)], ProblemKind.OLD_MESSAGE_FORMAT, 9),
    ],
)
def test_a_damaged_log_is_named_by_path_and_offset(
    files: PartitionFiles, batches: list[bytes], kind: ProblemKind, offset: int
) -> None:
    log = files.segment(0, batches)
    error = refusal(files)
    assert (error.kind, error.path, error.offset) == (kind, log, offset)


@pytest.mark.parametrize("batches", [[], [batch(0, 5)], [batch(2), batch(7)]])
def test_a_compacted_segment_is_copied_up_to_where_the_next_begins(
    files: PartitionFiles, batches: list[bytes]
) -> None:
    files.segment(0, batches)
    found = inspected(files, may_have_holes=True)
    assert found.segment.end_offset == 9
    assert found.size_bytes == sum(map(len, batches))
    assert found.rebuilt == ()
    assert refusal(files).kind is ProblemKind.TRUNCATED_BATCH  # if it is perhaps compacted still


@pytest.mark.parametrize("cut", ["within a batch", "behind its index", "a missing segment"])
def test_a_log_that_was_cut_has_no_hole(files: PartitionFiles, cut: str) -> None:
    files.segment(0, [batch(0, 5)])
    if cut == "within a batch":
        files.file(0, ".log").write_bytes(batch(0, 5) + batch(5, 5)[:-1])
    elif cut == "behind its index":
        files.file(0, ".timeindex").write_bytes(pack(">qi", 1000, 9))
    else:
        files.file(7, ".index").touch()
    with pytest.raises(LogFileError, match=r"ends before offset 5|batch cut off") as caught:
        inspected(files, may_have_holes=True)
    assert caught.value.kind is ProblemKind.TRUNCATED_BATCH


@pytest.mark.parametrize("damage", [None, b"", b"damaged"])
def test_a_lost_producer_snapshot_is_replayed(files: PartitionFiles, damage: bytes | None) -> None:
    files.snapshot(10, {7: 3})
    files.segment(10, [batch(10, 5, producer_id=8), batch(15, 5, producer_id=8)])
    snapshot = files.file(20, ".snapshot")
    snapshot.unlink()
    if damage is not None:
        snapshot.write_bytes(damage)
    found = inspected(files, 1)
    entries = producer_entries(found.side_files[SegmentFile.PRODUCER_SNAPSHOT])
    assert {each.producer_id: each.last_offset for each in entries} == {7: 0, 8: 19}
    problems = [(problem.kind, problem.path) for problem in found.rebuilt]
    assert problems == ([(ProblemKind.INDEX_REBUILT, str(snapshot))] if damage is not None else [])


def test_a_snapshot_is_never_replayed_over_damage(files: PartitionFiles) -> None:
    files.segment(0, [batch(0, 5), batch(5, 5, producer_id=7)])
    files.file(0, ".log").write_bytes(batch(0, 5) + batch(5, 5, producer_id=7)[:-1])
    for offset in (10, 20):
        files.file(offset, ".snapshot").unlink()
    error = refusal(files, 1)
    assert (error.kind, error.path, error.offset) == (
        ProblemKind.PRODUCER_SNAPSHOT_MISSING,
        files.file(20, ".snapshot"),
        10,
    )


@pytest.mark.parametrize("earlier", ["no snapshots", "an empty snapshot"])
def test_without_producers_a_missing_snapshot_is_empty(files: PartitionFiles, earlier: str) -> None:
    """A broker before Kafka 2.8 kept the newest snapshots only."""
    kept = files.file(10, ".snapshot").read_bytes()
    files.file(20, ".snapshot").unlink()
    if earlier == "no snapshots":
        files.file(10, ".snapshot").unlink()
    found = inspected(files, 1)
    assert found.side_files[SegmentFile.PRODUCER_SNAPSHOT] == kept == producer_snapshot()


def test_each_segment_is_replayed_once(files: PartitionFiles) -> None:
    for offset in (10, 20):
        files.file(offset, ".snapshot").unlink()
    replay, lineage = ProducerReplay(), read_lineage(files.path)
    segments = list_segments(files.path)
    assert replay.snapshot_at(segments, lineage, 10) == producer_snapshot()
    files.segment(0, [batch(0, 10, producer_id=7)])
    assert replay.snapshot_at(segments, lineage, 20) == producer_snapshot()
    # Another leader may have replaced what was replayed.
    files.epochs((0, 0), (2, 12))
    replaced = replay.snapshot_at(list_segments(files.path), read_lineage(files.path), 20)
    assert [each.producer_id for each in producer_entries(replaced or b"")] == [7]


def test_leader_epochs_that_begin_behind_the_segment_are_missing(files: PartitionFiles) -> None:
    files.epochs((3, 4))
    assert refusal(files).kind is ProblemKind.LEADER_EPOCHS_MISSING


def test_below_the_log_start_no_epoch_is_needed(files: PartitionFiles) -> None:
    files.epochs((3, 4))
    (only,) = inspected(files, log_start_offset=4).leader_epochs
    assert (only.leader_epoch, only.start_offset) == (3, 4)


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".index", None),
        (".index", b"\0" * 7),
        (".index", pack(">ii", 9, 67)),  # not the start of a batch
        (".index", pack(">ii", 8, 68)),  # not that batch's last offset
        (".index", pack(">ii", 9, 68) + bytes(8)),  # preallocation that was never trimmed
        (".index", pack(">ii", 9, 100)),  # within the last batch
        (".index", pack(">ii", 9, 900)),  # beyond the file
        (".timeindex", None),
        (".timeindex", b"\0" * 11),
        (".timeindex", pack(">qi", 999, 4)),  # not the greatest timestamp
        (".timeindex", pack(">qi", 1000, 10)),  # beyond the segment
        (".timeindex", pack(">qiqi", 1000, 4, 900, 9)),
        (".txnindex", AbortedTxn(1, 2, 3, 4).to_bytes()),  # nothing was aborted
        (".txnindex", b"\0" * 33),
    ],
)
def test_a_wrong_index_is_rebuilt_and_named(
    files: PartitionFiles, suffix: str, data: bytes | None
) -> None:
    path = files.file(0, suffix)
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)
    found = inspected(files)
    (problem,) = found.rebuilt
    assert (problem.kind, problem.path) == (ProblemKind.INDEX_REBUILT, str(path))
    assert found.side_files[SegmentFile.OFFSET] == b""
    assert found.side_files[SegmentFile.TIMESTAMP] == pack(">qi", 1000, 4)
    assert found.txn_idx_empty


def test_a_right_offset_index_is_left_as_it_is(files: PartitionFiles) -> None:
    entry = pack(">ii", 9, 68)
    files.file(0, ".index").write_bytes(entry)
    found = inspected(files)
    assert (found.side_files[SegmentFile.OFFSET], found.rebuilt) == (entry, ())


def test_an_empty_transaction_index_is_sent_as_it_is(files: PartitionFiles) -> None:
    files.file(0, ".txnindex").write_bytes(b"")
    found = inspected(files)
    assert found.side_files[SegmentFile.TRANSACTION] == b""
    assert found.txn_idx_empty


def test_a_missing_transaction_index_is_rebuilt_from_control_batches(files: PartitionFiles) -> None:
    files.snapshot(10, {7: 3, 6: 4})
    files.segment(
        10,
        [
            in_transaction(10, 8, 3),
            marker(13, 7, ABORT),  # began at 3, in the segment before
            marker(14, 8, COMMIT),
            in_transaction(15, 8),
            marker(16, 8, ABORT),
            marker(17, 6, COMMIT),
            marker(18, 5, ABORT),  # of no data: leaves no trace
            batch(19),
        ],
    )
    found = inspected(files, 1)
    expected = [AbortedTxn(7, 3, 13, 4), AbortedTxn(8, 15, 16, 4)]
    assert found.side_files[SegmentFile.TRANSACTION] == b"".join(e.to_bytes() for e in expected)
    assert [p.path for p in found.rebuilt] == [str(files.file(10, ".txnindex"))]
    assert not found.txn_idx_empty


def test_a_segment_that_vanishes_is_no_damage(files: PartitionFiles) -> None:
    segments = list_segments(files.path)
    files.file(0, ".log").unlink()
    with pytest.raises(SegmentVanishedError):
        inspect(segments, segments[0], read_lineage(files.path), 0)


def test_nothing_in_the_folder_is_changed(files: PartitionFiles) -> None:
    files.file(0, ".index").unlink()

    def state() -> list[tuple[str, int, int]]:
        stats = ((p.name, p.stat()) for p in sorted(files.path.iterdir()))
        return [(name, s.st_size, s.st_mtime_ns) for name, s in stats]

    before = state()
    inspected(files)
    assert state() == before
