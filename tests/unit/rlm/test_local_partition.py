"""Test a partition's folder that is read repeatedly."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest

from services.api.remote_log_manager import ProblemKind
from services.api.segments import SegmentLeaderEpoch
from services.rlm.copy.inspection import inspect
from services.rlm.kafka_log import local_log
from services.rlm.kafka_log.checkpoints import HighWatermarks
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition
from services.rlm.kafka_log.log_dir import PartitionDir
from services.rlm.kafka_log.partition_dir import (
    LEADER_EPOCH_CHECKPOINT,
    LogFileError,
    fingerprint_of,
    list_segments,
    read_lineage,
    rolled_log_bytes,
)
from tests.harness.eventually import eventually
from tests.unit.rlm.kafka_bytes import (
    PartitionFiles,
    batch,
    deleted,
    high_watermarks,
    in_transaction,
    three_segments,
)


@pytest.fixture
def files(tmp_path: Path) -> PartitionFiles:
    return three_segments(tmp_path)


@pytest.fixture
def partition(files: PartitionFiles) -> LocalPartition:
    watermarks = HighWatermarks(files.path.parent)
    return LocalPartition(PartitionDir(files.name, files.path, None, watermarks))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of all reads of a folder, by name of the function."""
    made: list[str] = []
    for name in ("list_segments", "read_lineage"):
        monkeypatch.setattr(local_log, name, counted(name, made))
    return made


def counted(name: str, reads: list[str]) -> Callable[[Path], object]:
    read: Callable[[Path], object] = getattr(local_log, name)

    def call(directory: Path) -> object:
        reads.append(name)
        return read(directory)

    return call


def look(partition: LocalPartition) -> LocalLog:
    log = partition.read()
    assert log is not None
    return log


def settled(partition: LocalPartition, reads: list[str]) -> LocalLog:
    """Return the log as it is known without another read."""

    def is_settled() -> bool:
        reads.clear()
        look(partition)
        return not reads

    eventually(is_settled)
    return look(partition)


def test_an_unchanged_log_is_one_object_and_is_read_once(
    partition: LocalPartition, reads: list[str]
) -> None:
    first = look(partition)
    assert sorted(reads) == ["list_segments", "read_lineage"]
    assert settled(partition, reads) is first
    assert [look(partition) is first for _ in range(3)] == [True] * 3
    assert reads == []


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (
            lambda files: files.file(20, ".log").write_bytes(batch(20, 5) + batch(25, 5)),
            lambda log: log.log_end_offset == 30,
        ),
        (
            lambda files: files.segment(25, [batch(25, 5)]),
            lambda log: [segment.base_offset for segment in log.segments] == [0, 10, 20, 25],
        ),
        (
            lambda files: files.epochs((0, 0), (1, 22)),
            lambda log: [entry.leader_epoch for entry in log.lineage.entries] == [0, 1],
        ),
    ],
)
def test_changed_file_is_seen_at_the_next_read(
    files: PartitionFiles,
    partition: LocalPartition,
    reads: list[str],
    change: Callable[[PartitionFiles], object],
    seen: Callable[[LocalLog], bool],
) -> None:
    before = settled(partition, reads)
    assert not seen(before)
    change(files)
    after = look(partition)
    assert seen(after)
    assert after is not before


def test_leader_epochs_that_changed_long_before_the_next_look_are_seen(
    files: PartitionFiles, partition: LocalPartition, reads: list[str]
) -> None:
    settled(partition, reads)
    files.epochs((0, 0), (1, 22))
    eventually(lambda: fingerprint_of(files.path / LEADER_EPOCH_CHECKPOINT))
    assert look(partition).lineage.entries[-1] == SegmentLeaderEpoch(1, 22)


def test_a_tail_that_was_cut_and_has_grown_past_its_end_is_read_again(
    files: PartitionFiles, partition: LocalPartition
) -> None:
    """A leader that was deposed, took over what the next one wrote, and leads again."""
    active = files.segment(20, [batch(20, 5), in_transaction(25, producer_id=1)])
    assert look(partition).last_stable_offset == 25
    active.write_bytes(batch(20, 4) + b"".join(batch(24 + n, payload=b"y" * 99) for n in range(9)))
    files.epochs((0, 0), (1, 24))
    log = look(partition)
    assert (log.log_end_offset, log.last_stable_offset) == (33, 33)
    assert log.segments[-1].size_bytes == active.stat().st_size


def test_new_epoch_at_the_log_end_does_not_read_the_log_again(
    files: PartitionFiles, partition: LocalPartition
) -> None:
    look(partition)
    with files.file(20, ".log").open("r+b") as active:
        active.write(b"\xff" * 8)  # would be met
    files.epochs((0, 0), (1, 25))
    assert look(partition).log_end_offset == 25


def test_the_log_of_a_topic_created_again_is_not_the_partitions(
    files: PartitionFiles, partition: LocalPartition, reads: list[str]
) -> None:
    settled(partition, reads)
    three_segments(files.path.parent, deleted(files))
    assert partition.read() is None
    assert not partition.is_there()


def test_a_topic_created_again_while_its_log_is_read_is_not_the_partitions(
    files: PartitionFiles, partition: LocalPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_anew_meanwhile(directory: Path) -> object:
        if partition.is_there():
            three_segments(directory.parent, deleted(files)).epochs((5, 0))
        return read_lineage(directory)

    monkeypatch.setattr(local_log, "read_lineage", made_anew_meanwhile)
    assert partition.read() is None


def test_a_folder_without_its_topics_id_yet_is_unreadable(
    files: PartitionFiles, partition: LocalPartition
) -> None:
    """As a broker leaves it for a moment."""
    made = three_segments(files.path.parent, deleted(files))
    (made.path / "partition.metadata").unlink()
    with pytest.raises(LogFileError) as raised:
        partition.read()
    assert raised.value.kind is ProblemKind.PARTITION_METADATA_MISSING
    assert partition.is_there()


@pytest.mark.parametrize("zeros", [1, 60, 61, 5000, 100_000])
def test_a_preallocated_log_ends_at_its_last_whole_batch(
    files: PartitionFiles, partition: LocalPartition, zeros: int
) -> None:
    sizes = [segment.size_bytes for segment in look(partition).segments]
    for base in (0, 10, 20):
        os.truncate(files.file(base, ".log"), files.file(base, ".log").stat().st_size + zeros)
    files.file(10, ".index").write_bytes(pack(">ii", 9, sizes[1] // 2) + bytes(800))
    files.file(0, ".index").write_bytes(b"\xff" * 8)
    files.path.joinpath("changed").touch()
    log = look(partition)
    assert [rolled_log_bytes(segment) for segment in log.rolled] == sizes[:-1]
    assert (log.segments[-1].size_bytes, log.log_end_offset) == (sizes[-1], 25)
    if zeros > 4096:  # more than the last block
        assert [segment.size_bytes for segment in log.segments] == sizes


def test_zeros_instead_of_the_last_records_are_part_of_a_rolled_log(files: PartitionFiles) -> None:
    """The copy reports them: a crash may have lost what was there."""
    lost = files.segment(10, [batch(10, 5), bytes(10_000)])
    os.truncate(lost, 100_000)
    segment = list_segments(files.path)[1]
    assert segment.size_bytes == rolled_log_bytes(segment) == 100_000


def test_a_half_written_batch_of_a_preallocated_file_is_not_in_the_log(
    files: PartitionFiles, partition: LocalPartition
) -> None:
    whole = batch(25, payload=b"x" * 10_000)
    half = batch(20, 5) + whole[:5000]
    files.file(20, ".log").write_bytes(half + bytes(50_000))
    log = look(partition)
    assert (log.log_end_offset, log.segments[-1].size_bytes) == (25, len(batch(20, 5)))
    files.file(20, ".log").write_bytes(batch(20, 5) + whole + bytes(50_000))
    assert look(partition).log_end_offset == 26


def test_a_second_roll_within_a_second_is_seen_if_times_have_no_fractions(
    files: PartitionFiles, partition: LocalPartition
) -> None:
    """Ext4 with inodes of 128 bytes."""
    second_ns = (time.time_ns() // 10**9 - 1) * 10**9
    os.utime(files.path, ns=(second_ns, second_ns))
    assert len(look(partition).segments) == 3
    files.segment(25, [batch(25, 5)])
    os.utime(files.path, ns=(second_ns, second_ns))
    assert [segment.base_offset for segment in look(partition).segments] == [0, 10, 20, 25]


@pytest.mark.parametrize("content", ["", "0\n0\n"])
def test_an_empty_log_needs_no_leader_epochs_and_no_high_watermark(
    tmp_path: Path, content: str
) -> None:
    files = PartitionFiles(tmp_path)
    files.segment(0, [])
    checkpoint = files.path / LEADER_EPOCH_CHECKPOINT
    checkpoint.write_text(content)
    high_watermarks(tmp_path, {})
    found = PartitionDir(files.name, files.path, None, HighWatermarks(tmp_path))
    log = look(LocalPartition(found))
    assert (log.lineage.entries, log.lineage_problem, log.high_watermark_problem) == (
        (),
        None,
        None,
    )
    files.segment(0, [batch(0)])
    problem = look(LocalPartition(found)).lineage_problem
    assert problem is not None
    assert problem.kind is ProblemKind.LEADER_EPOCHS_MISSING


def test_too_many_leader_epochs_are_over_a_limit(files: PartitionFiles) -> None:
    files.epochs(*((number, number) for number in range(50_001)))
    with pytest.raises(
        LogFileError, match="50001 leader epochs, over the limit of 50000"
    ) as refused:
        read_lineage(files.path)
    assert refused.value.kind is ProblemKind.LIMIT_EXCEEDED


@pytest.mark.parametrize(
    "name", [LEADER_EPOCH_CHECKPOINT, "partition.metadata", f"{20:020}.log", f"{10:020}.index"]
)
def test_a_pipe_in_a_folder_holds_nothing_up(
    files: PartitionFiles, partition: LocalPartition, name: str
) -> None:
    path = files.path / name
    path.unlink()
    os.mkfifo(path)
    try:
        log = look(partition)
        problem = log.lineage_problem
        if log.lineage.entries:
            inspect(log.segments, log.segments[1], log.lineage, 0)
    except LogFileError as e:
        problem = e.problem(0)
    assert problem is not None
    assert (problem.kind, problem.path) == (ProblemKind.UNREADABLE, str(path))
    assert problem.message == "is not a regular file"
