"""Test parts of remote segments in files: their bound, their checksum, and a disk that fails."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from services.api.ids import RemoteLogSegmentId
from services.rlm.fetch.chunk_files import RETRY_AFTER_S, ChunkFileLimits, ChunkFiles
from tests.harness.published import growth, published
from tests.harness.tier import a_topic, segment

(TP,) = a_topic()
SEGMENT, OTHER = (segment(TP, number).remote_log_segment_id for number in range(2))
CONTENT = 4000
"""Each file counts as one block of 4,096 bytes."""

ROOM = 10


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def files(tmp_path: Path, clock: Clock) -> Iterator[ChunkFiles]:
    made = ChunkFiles(ChunkFileLimits(tmp_path / "cache", ROOM * 4096), clock)
    yield made
    made.close()


def content(number: int) -> bytes:
    return bytes([number]) * CONTENT


def keep(files: ChunkFiles, number: int, segment_id: RemoteLogSegmentId = SEGMENT) -> None:
    halves = [content(number)[:1500], content(number)[1500:]]
    files.keep(segment_id, number * CONTENT, halves)


def kept(files: ChunkFiles, number: int, segment_id: RemoteLogSegmentId = SEGMENT) -> bool:
    start = number * CONTENT
    found = b"".join(files.read(segment_id, start, start + CONTENT))
    assert found in (b"", content(number))
    return bool(found)


def files_in(tmp_path: Path) -> list[Path]:
    return sorted(path for path in tmp_path.glob("cache/*/*") if path.name != "lock")


def failures(operation: str) -> float:
    name = "sediment_rlm_chunk_file_failures_total"
    return REGISTRY.get_sample_value(name, {"operation": operation}) or 0.0


def test_a_read_continues_over_files_to_the_first_gap(files: ChunkFiles) -> None:
    for number in (0, 1, 3):
        keep(files, number)
    found = b"".join(files.read(SEGMENT, 100, 4 * CONTENT))
    assert found == (content(0) + content(1))[100:]
    assert b"".join(files.read(SEGMENT, 100, 200)) == content(0)[100:200]
    assert list(files.read(OTHER, 0, 10)) == []


def test_bytes_in_files_and_bytes_read_from_them_are_published(files: ChunkFiles) -> None:
    grown = growth("sediment_rlm_chunk_file_read_bytes_total")
    keep(files, 1)
    keep(files, 2)
    assert published("sediment_rlm_chunk_file_bytes") == 2 * 4096
    assert kept(files, 2)
    assert grown() == [CONTENT]
    files.remove([SEGMENT])
    assert published("sediment_rlm_chunk_file_bytes") == 0


def test_the_least_recently_used_files_make_room(files: ChunkFiles, tmp_path: Path) -> None:
    for number in range(ROOM + 3):
        keep(files, number)
    assert len(files_in(tmp_path)) == ROOM
    assert [kept(files, number) for number in (0, 1, 2)] == [False] * 3
    assert all(kept(files, number) for number in range(3, ROOM + 3))


def test_a_scan_evicts_no_file_that_was_read_again(files: ChunkFiles) -> None:
    for number in range(8):
        keep(files, number)
        assert kept(files, number)
    for number in range(8, 100):
        keep(files, number)
    assert all(kept(files, number) for number in range(8))
    assert not kept(files, 50)


def test_files_that_are_read_again_leave_room_for_new_ones(files: ChunkFiles) -> None:
    for number in range(ROOM):
        keep(files, number)
        assert kept(files, number)
    for number in (70, 71):
        keep(files, number)
    assert [kept(files, number) for number in (70, 71, 0, 1)] == [True, True, False, False]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"x"])
def test_a_damaged_file_is_not_served_and_is_removed(
    files: ChunkFiles, tmp_path: Path, damage: object
) -> None:
    keep(files, 1)
    (path,) = files_in(tmp_path)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    before = failures("check")
    assert not kept(files, 1)
    assert failures("check") == before + 1
    assert files_in(tmp_path) == []
    keep(files, 1)
    assert kept(files, 1)


def test_a_file_under_another_name_is_not_served(files: ChunkFiles, tmp_path: Path) -> None:
    keep(files, 1)
    (first,) = files_in(tmp_path)
    keep(files, 2)
    (second,) = set(files_in(tmp_path)) - {first}
    second.write_bytes(first.read_bytes())
    assert not kept(files, 2)


def test_files_of_a_removed_segment_go(files: ChunkFiles, tmp_path: Path) -> None:
    keep(files, 1)
    keep(files, 1, OTHER)
    files.remove([SEGMENT])
    assert not kept(files, 1)
    assert kept(files, 1, OTHER)
    assert len(files_in(tmp_path)) == 1


def test_a_removed_directory_is_made_again(files: ChunkFiles, tmp_path: Path) -> None:
    keep(files, 1)
    shutil.rmtree(tmp_path / "cache")
    assert not kept(files, 1)
    keep(files, 1)
    assert kept(files, 1)


def test_a_disk_that_fails_is_left_alone_for_a_while(
    files: ChunkFiles, tmp_path: Path, clock: Clock
) -> None:
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("no directory")
    before = failures("write")
    for number in range(3):
        keep(files, number)
        assert not kept(files, number)
    assert failures("write") == before + 1
    (tmp_path / "cache").unlink()
    clock.now_s += RETRY_AFTER_S
    keep(files, 1)
    assert kept(files, 1)


def test_what_an_ended_process_left_is_removed_and_what_another_has_is_not(
    files: ChunkFiles, tmp_path: Path
) -> None:
    keep(files, 1)
    abandoned, begun = (tmp_path / "cache" / f"chunks-{name}" for name in ("ended", "begun"))
    for folder in (abandoned, begun):
        folder.mkdir()
    (abandoned / "lock").touch()
    (abandoned / "data").touch()
    other = ChunkFiles(ChunkFileLimits(tmp_path / "cache", ROOM * 4096))
    assert not abandoned.exists()
    assert not begun.exists()
    assert kept(files, 1)
    other.close()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [
        files_in(tmp_path)[0].parent.name
    ]


def test_what_is_larger_than_the_room_is_not_kept(files: ChunkFiles, tmp_path: Path) -> None:
    keep(files, 1)
    files.keep(OTHER, 0, [bytes(ROOM * 4096)])
    assert len(files_in(tmp_path)) == 1
