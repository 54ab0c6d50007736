"""Test a partition's folder that is read repeatedly."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Folder:
    """A partition's folder, and the reads of it, by name of the function."""

    files: PartitionFiles
    partition: LocalPartition
    reads: list[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    files, reads = three_segments(tmp_path), list[str]()
    for name in ("list_segments", "read_lineage"):
        monkeypatch.setattr(local_log, name, counted(name, reads))
    watermarks = HighWatermarks(files.path.parent)
    partition = LocalPartition(PartitionDir(files.name, files.path, None, watermarks))
    return Folder(files, partition, reads)


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


def test_an_unchanged_log_is_one_object_and_is_read_once(folder: Folder) -> None:
    first = look(folder.partition)
    assert sorted(folder.reads) == ["list_segments", "read_lineage"]
    assert settled(folder.partition, folder.reads) is first
    assert [look(folder.partition) is first for _ in range(3)] == [True] * 3
    assert folder.reads == []


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
    folder: Folder, change: Callable[[PartitionFiles], object], seen: Callable[[LocalLog], bool]
) -> None:
    before = settled(folder.partition, folder.reads)
    assert not seen(before)
    change(folder.files)
    after = look(folder.partition)
    assert seen(after)
    assert after is not before


def test_leader_epochs_that_changed_long_before_the_next_look_are_seen(folder: Folder) -> None:
    settled(folder.partition, folder.reads)
    folder.files.epochs((0, 0), (1, 22))
    eventually(lambda: fingerprint_of(folder.files.path / LEADER_EPOCH_CHECKPOINT))
    assert look(folder.partition).lineage.entries[-1] == SegmentLeaderEpoch(1, 22)


def test_a_tail_that_was_cut_and_has_grown_past_its_end_is_read_again(folder: Folder) -> None:
    """A leader that was deposed, took over what the next one wrote, and leads again."""
    active = folder.files.segment(20, [batch(20, 5), in_transaction(25, producer_id=1)])
    assert look(folder.partition).last_stable_offset == 25
    active.write_bytes(batch(20, 4) + b"".join(batch(24 + n, payload=b"y" * 99) for n in range(9)))
    folder.files.epochs((0, 0), (1, 24))
    log = look(folder.partition)
    assert (log.log_end_offset, log.last_stable_offset) == (33, 33)
    assert log.segments[-1].size_bytes == active.stat().st_size


def test_new_epoch_at_the_log_end_does_not_read_the_log_again(folder: Folder) -> None:
    look(folder.partition)
    with folder.files.file(20, ".log").open("r+b") as active:
        active.write(b"\xff" * 8)  # would be met
    folder.files.epochs((0, 0), (1, 25))
    assert look(folder.partition).log_end_offset == 25


def test_the_log_of_a_topic_created_again_is_not_the_partitions(folder: Folder) -> None:
    settled(folder.partition, folder.reads)
    three_segments(folder.files.path.parent, deleted(folder.files))
    assert folder.partition.read() is None
    assert not folder.partition.is_present()


def test_a_topic_created_again_while_its_log_is_read_is_not_the_partitions(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_anew_meanwhile(directory: Path) -> object:
        if folder.partition.is_present():
            three_segments(directory.parent, deleted(folder.files)).epochs((5, 0))
        return read_lineage(directory)

    monkeypatch.setattr(local_log, "read_lineage", made_anew_meanwhile)
    assert folder.partition.read() is None


def test_a_folder_without_its_topics_id_yet_is_unreadable(folder: Folder) -> None:
    """As a broker leaves it for a moment."""
    made = three_segments(folder.files.path.parent, deleted(folder.files))
    (made.path / "partition.metadata").unlink()
    with pytest.raises(LogFileError) as raised:
        folder.partition.read()
    assert raised.value.kind is ProblemKind.PARTITION_METADATA_MISSING
    assert folder.partition.is_present()


@pytest.mark.parametrize("zeros", [1, 60, 61, 5000, 100_000])
def test_a_preallocated_log_ends_at_its_last_whole_batch(folder: Folder, zeros: int) -> None:
    sizes = [segment.size_bytes for segment in look(folder.partition).segments]
    for base in (0, 10, 20):
        os.truncate(
            folder.files.file(base, ".log"), folder.files.file(base, ".log").stat().st_size + zeros
        )
    folder.files.file(10, ".index").write_bytes(pack(">ii", 9, sizes[1] // 2) + bytes(800))
    folder.files.file(0, ".index").write_bytes(b"\xff" * 8)
    folder.files.path.joinpath("changed").touch()
    log = look(folder.partition)
    assert [rolled_log_bytes(segment) for segment in log.rolled] == sizes[:-1]
    assert (log.segments[-1].size_bytes, log.log_end_offset) == (sizes[-1], 25)
    if zeros > 4096:  # more than the last block
        assert [segment.size_bytes for segment in log.segments] == sizes


def test_zeros_instead_of_the_last_records_are_part_of_a_rolled_log(folder: Folder) -> None:
    """The copy reports them: a crash may have lost what was there."""
    lost = folder.files.segment(10, [batch(10, 5), bytes(10_000)])
    os.truncate(lost, 100_000)
    segment = list_segments(folder.files.path)[1]
    assert segment.size_bytes == rolled_log_bytes(segment) == 100_000


def test_a_half_written_batch_of_a_preallocated_file_is_not_in_the_log(folder: Folder) -> None:
    whole = batch(25, payload=b"x" * 10_000)
    half = batch(20, 5) + whole[:5000]
    folder.files.file(20, ".log").write_bytes(half + bytes(50_000))
    log = look(folder.partition)
    assert (log.log_end_offset, log.segments[-1].size_bytes) == (25, len(batch(20, 5)))
    folder.files.file(20, ".log").write_bytes(batch(20, 5) + whole + bytes(50_000))
    assert look(folder.partition).log_end_offset == 26


def test_a_second_roll_within_a_second_is_seen_if_times_have_no_fractions(folder: Folder) -> None:
    """Ext4 with inodes of 128 bytes."""
    second_ns = (time.time_ns() // 10**9 - 1) * 10**9
    os.utime(folder.files.path, ns=(second_ns, second_ns))
    assert len(look(folder.partition).segments) == 3
    folder.files.segment(25, [batch(25, 5)])
    os.utime(folder.files.path, ns=(second_ns, second_ns))
    assert [segment.base_offset for segment in look(folder.partition).segments] == [0, 10, 20, 25]


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


def test_too_many_leader_epochs_are_over_a_limit(folder: Folder) -> None:
    folder.files.epochs(*((number, number) for number in range(50_001)))
    with pytest.raises(
        LogFileError, match="50001 leader epochs, over the limit of 50000"
    ) as refused:
        read_lineage(folder.files.path)
    assert refused.value.kind is ProblemKind.LIMIT_EXCEEDED


@pytest.mark.parametrize(
    "name", [LEADER_EPOCH_CHECKPOINT, "partition.metadata", f"{20:020}.log", f"{10:020}.index"]
)
def test_a_pipe_in_a_folder_holds_nothing_up(folder: Folder, name: str) -> None:
    path = folder.files.path / name
    path.unlink()
    os.mkfifo(path)
    try:
        log = look(folder.partition)
        problem = log.lineage_problem
        if log.lineage.entries:
            inspect(log.segments, log.segments[1], log.lineage, 0)
    except LogFileError as e:
        problem = e.problem(0)
    assert problem is not None
    assert (problem.kind, problem.path) == (ProblemKind.UNREADABLE, str(path))
    assert problem.message == "is not a regular file"
