"""Test that a segment's files leave their folder whole, or so that the next pass finishes it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.rlm.kafka_log.local_log import LocalPartition
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LogFileError, list_segments
from services.rlm.retention import local_files
from services.rlm.retention.local_files import delete_segment_files, finish_deletions
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, three_segments, write_log_dir

AT = ("local.log_renamed", "local.indexes_removed", "local.log_removed")


class Killed(BaseException):
    """End at a failpoint."""


@pytest.fixture
def files(tmp_path: Path) -> PartitionFiles:
    made = three_segments(write_log_dir(tmp_path / "logs"))
    made.file(0, ".txnindex").write_bytes(b"")
    made.snapshot(0)
    return made


def names(files: PartitionFiles, base: int) -> set[str]:
    return {path.name.partition(".")[2] for path in files.path.glob(f"{base:020}.*")}


@contextmanager
def folder_fd(files: PartitionFiles) -> Iterator[int]:
    fd = os.open(files.path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def delete_first(files: PartitionFiles) -> None:
    with folder_fd(files) as fd:
        delete_segment_files(list_segments(files.path)[0], fd)


def finish(files: PartitionFiles) -> int:
    with folder_fd(files) as fd:
        return finish_deletions(files.path, fd)


def bases(files: PartitionFiles) -> list[int]:
    return [segment.base_offset for segment in list_segments(files.path)]


def test_a_segment_goes_with_all_that_is_its_own(files: PartitionFiles) -> None:
    delete_first(files)
    assert names(files, 0) == set()
    assert names(files, 10) == {"log", "index", "timeindex", "snapshot"}
    assert bases(files) == [10, 20]


@pytest.mark.parametrize("at", AT)
def test_killed_anywhere_the_folder_is_a_log_and_the_next_pass_ends_it(
    files: PartitionFiles, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def failpoint(name: str) -> None:
        if name == at:
            raise Killed

    partition = find_partitions([files.path.parent]).partitions[NAME]
    before = LocalPartition(partition).read()
    monkeypatch.setattr(local_files, "failpoint", failpoint)
    with pytest.raises(Killed):
        delete_first(files)
    log = LocalPartition(partition).read()
    assert before is not None
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (10, 25)
    assert log.last_stable_offset == before.last_stable_offset
    monkeypatch.undo()
    assert finish(files) == (0 if at == AT[-1] else 1)
    assert names(files, 0) == set()
    assert names(files, 10) == {"log", "index", "timeindex", "snapshot"}


def test_files_that_a_broker_left_are_not_touched(files: PartitionFiles) -> None:
    left = [files.file(offset, ".log.deleted") for offset in (10, 15, 20, 30)]
    for path in left:
        path.write_bytes(b"x")
    files.snapshot(15)
    assert finish(files) == 0
    assert all(path.exists() for path in (*left, files.file(15, ".snapshot")))


def test_without_any_segment_nothing_is_ended(tmp_path: Path) -> None:
    files = PartitionFiles(write_log_dir(tmp_path / "logs"))
    left = files.file(0, ".log.deleted")
    left.write_bytes(b"x")
    assert finish(files) == 0
    assert left.exists()


def test_a_segment_that_is_gone_is_reported(files: PartitionFiles) -> None:
    segment = list_segments(files.path)[0]
    segment.log_path.unlink()
    with pytest.raises(FileNotFoundError), folder_fd(files) as fd:
        delete_segment_files(segment, fd)
    assert names(files, 0) == {"index", "timeindex", "txnindex", "snapshot"}


def test_a_folder_that_cannot_be_changed_is_named(
    files: PartitionFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.rename", refuse)
    with pytest.raises(LogFileError, match="Permission denied"):
        delete_first(files)
    assert bases(files) == [0, 10, 20]


def test_files_of_a_new_folder_at_the_same_path_stay(files: PartitionFiles, tmp_path: Path) -> None:
    with folder_fd(files) as fd:
        segment = list_segments(files.path)[0]
        files.path.rename(tmp_path / "away")
        other = three_segments(files.path.parent)
        delete_segment_files(segment, fd)
    assert bases(other) == [0, 10, 20]
    assert [s.base_offset for s in list_segments(tmp_path / "away")] == [10, 20]


@pytest.mark.parametrize(
    "name", ["00000000000000000000.log.swap", "00000000000000000010.index.swap"]
)
def test_if_a_broker_was_replacing_segments_nothing_is_deleted(
    files: PartitionFiles, name: str
) -> None:
    (files.path / name).write_bytes(b"x")
    left = files.file(0, ".log").rename(files.file(0, ".log.deleted"))
    with pytest.raises(LogFileError, match="was interrupted while it replaced segments"):
        finish(files)
    assert left.exists()
    assert names(files, 0) >= {"index", "timeindex", "snapshot"}
