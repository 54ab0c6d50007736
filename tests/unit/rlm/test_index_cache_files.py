"""Test index files on a real file system: bounded, never wrong, and failures reach no reader."""

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import IndexType
from services.rlm.fetch.index_cache import name_of
from services.rlm.fetch.index_files import BLOCK_BYTES, RETRY_AFTER_S, IndexFileLimits, IndexFiles
from tests.harness.clocks import Clock
from tests.harness.published import growth, published
from tests.harness.small_limits import SmallDisk, small_disk

ROOM = 4
PARTITION = TopicIdPartition(UUID(int=1), "t", 0)
NAMES = [
    name_of(RemoteLogSegmentId(PARTITION, UUID(int=number)), IndexType.OFFSET)
    for number in range(1, 11)
]
KIB = 1024
DAY_S = 86_400.0


def index(number: int, size_bytes: int = 1000) -> bytes:
    return bytes([number]) * size_bytes


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "made" / "indexes"


Opens = Callable[..., IndexFiles]


@pytest.fixture
def opens(directory: Path, clock: Clock) -> Opens:
    """Open the directory as a starting process does, with room for ROOM files."""

    def opened(
        total_bytes: int = ROOM * BLOCK_BYTES, ttl_s: float | None = None, path: Path = directory
    ) -> IndexFiles:
        files = IndexFiles(IndexFileLimits(path, total_bytes, ttl_s), clock)
        files.maintain()
        return files

    return opened


def here(files: IndexFiles) -> list[int]:
    return [number for number, name in enumerate(NAMES) if files.read(name) is not None]


def kept(directory: Path) -> list[int]:
    """Return the files of the directory without using them."""
    return sorted(NAMES.index(path.name) for path in directory.iterdir())


def fill(files: IndexFiles, *numbers: int) -> None:
    for number in numbers:
        files.write(NAMES[number], index(number))


def age(path: Path, age_s: float) -> None:
    status = path.stat()
    os.utime(path, (status.st_atime, status.st_mtime - age_s))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "index cache" in record.message]


def test_files_outlive_the_process(opens: Opens) -> None:
    before = opens()
    fill(before, 0, 1)
    before.write(NAMES[2], b"")
    after = opens()
    assert [after.read(name) for name in NAMES[:4]] == [index(0), index(1), b"", None]


def test_nothing_is_written_before_the_first_pass_has_counted_the_files(
    directory: Path, clock: Clock
) -> None:
    files = IndexFiles(IndexFileLimits(directory), clock)
    fill(files, 0)
    assert here(files) == []
    assert not directory.exists()


def test_the_least_recently_used_file_is_removed_first(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0, 1, 2, 3)
    files.read(NAMES[0])
    files.mark_used(NAMES[1])
    grown = growth('sediment_rlm_index_cache_evictions_total{reason="size"}')
    fill(files, 4)
    assert kept(directory) == [0, 1, 3, 4]
    assert grown() == [1]
    assert published("sediment_rlm_index_cache_file_bytes") == ROOM * BLOCK_BYTES


def test_the_order_of_use_outlives_the_process(opens: Opens, directory: Path) -> None:
    fill(opens(), 0, 1, 2, 3)
    for age_s, number in enumerate((2, 0, 3, 1)):
        age(directory / NAMES[number], age_s)
    after = opens()
    fill(after, 4, 5)
    assert here(after) == [0, 2, 4, 5]


def test_a_smaller_limit_holds_from_the_start(opens: Opens) -> None:
    fill(opens(), 0, 1, 2, 3)
    assert len(here(opens(total_bytes=2 * BLOCK_BYTES))) == 2


def test_the_number_of_files_is_bounded(
    opens: Opens, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.rlm.fetch.index_files.MAX_FILES", 2)
    fill(opens(), 0, 1, 2)
    assert kept(directory) == [1, 2]


def test_a_file_counts_in_whole_blocks(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0, 1, 2)
    files.write(NAMES[3], index(3, BLOCK_BYTES))  # with its header: two blocks
    assert kept(directory) == [1, 2, 3]


def test_an_index_larger_than_the_whole_cache_is_not_kept(opens: Opens) -> None:
    files = opens()
    fill(files, 0)
    files.write(NAMES[1], index(1, ROOM * BLOCK_BYTES))
    assert here(files) == [0]


def test_a_large_cache_makes_room_for_several_writes_at_once(opens: Opens, directory: Path) -> None:
    files = opens(total_bytes=32 * BLOCK_BYTES)
    names = [
        name_of(RemoteLogSegmentId(PARTITION, UUID(int=number)), IndexType.OFFSET)
        for number in range(100, 133)
    ]
    for name in names:
        files.write(name, b"")
    assert {path.name for path in directory.iterdir()} == set(names[3:])


@pytest.mark.parametrize("is_restarted", [True, False])
def test_an_unused_file_is_removed_after_its_ttl(
    opens: Opens, directory: Path, is_restarted: bool
) -> None:
    files = opens(ttl_s=DAY_S)
    fill(files, 0, 1, 2)
    for number in (0, 1):
        age(directory / NAMES[number], DAY_S + 1)
    if is_restarted:
        opens(ttl_s=DAY_S)
        assert kept(directory) == [2]
    else:
        files.mark_used(NAMES[1])
        files.maintain()
        assert kept(directory) == [1, 2]


def test_files_of_deleted_segments_are_removed_at_once(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0, 1)
    files.remove([NAMES[0], NAMES[5]])
    assert kept(directory) == [1]


def test_no_damaged_byte_is_served(
    opens: Opens, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = opens()
    files.write(NAMES[0], index(0, 64))
    content = (directory / NAMES[0]).read_bytes()
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1
        (directory / NAMES[0]).write_bytes(damaged)
        assert files.read(NAMES[0]) is None
        assert kept(directory) == []
    assert "damaged file" in lines(caplog)[0]
    fill(files, 0)
    assert here(files) == [0]


def test_nothing_cut_off_or_added_is_served(opens: Opens, directory: Path) -> None:
    files = opens()
    files.write(NAMES[0], index(0, 64))
    content = (directory / NAMES[0]).read_bytes()
    for damaged in (*(content[:size] for size in range(len(content))), content + b"\0"):
        (directory / NAMES[0]).write_bytes(damaged)
        assert files.read(NAMES[0]) is None


def test_a_file_under_another_name_is_not_served(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0)
    (directory / NAMES[0]).rename(directory / NAMES[1])
    assert here(files) == []


def test_a_huge_file_is_not_read(opens: Opens, directory: Path) -> None:
    files = opens(total_bytes=2**41)
    fill(files, 0, 1)
    with (directory / NAMES[0]).open("r+b") as file:
        file.truncate(2**40)
    assert here(files) == [1]


def test_a_file_that_another_removed_is_written_again(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0)
    (directory / NAMES[0]).unlink()
    assert here(files) == []
    fill(files, 0)
    assert here(files) == [0]


def test_files_of_killed_writers_are_removed_and_no_others(opens: Opens, directory: Path) -> None:
    directory.mkdir(parents=True)
    old, new = directory / f"{NAMES[0]}.0123abcd.tmp", directory / f"{NAMES[1]}.0123abcd.tmp"
    for path in (old, new, directory / "meta.properties", directory / f"{NAMES[0]}.1"):
        path.write_bytes(b"half")
        age(path, 3600)
    age(new, -3600)
    opens(ttl_s=1.0)
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        [f"{NAMES[0]}.1", new.name, "meta.properties"]
    )


def test_a_directory_under_a_files_name_is_a_miss(opens: Opens, directory: Path) -> None:
    (directory / NAMES[0] / "not ours").mkdir(parents=True)
    files = opens()
    fill(files, 1, 2, 3, 4)
    assert files.read(NAMES[1]) == index(1)
    assert files.read(NAMES[0]) is None


def test_a_failed_read_is_retried_after_a_while(
    opens: Opens, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = opens()
    fill(files, 0, 1, 2)
    with failing_reads(monkeypatch) as tried:
        assert here(files) == []
        assert tried == [NAMES[0]]
        clock.now_s += RETRY_AFTER_S
        assert here(files) == []
        assert tried == [NAMES[0], NAMES[0]]
    (line,) = lines(caplog)
    assert "Input/output error" in line
    clock.now_s += RETRY_AFTER_S
    assert here(files) == [0, 1, 2]
    assert lines(caplog)[1].endswith("works again")


@contextmanager
def failing_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    tried = []
    real = os.open

    def fail(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if Path(path).name not in NAMES:
            return real(path, flags, *args, **more)
        tried.append(Path(path).name)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        yield tried


@pytest.mark.parametrize("hanging", ["replace", "scandir", "utime"])
def test_a_hanging_disk_delays_no_other_read(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, hanging: str
) -> None:
    files = opens()
    fill(files, 0, 1, 2, 3)
    files.mark_used(NAMES[3])
    monkeypatch.setattr("services.rlm.fetch.index_files._LOCK_WAIT_S", 0.01)
    is_hanging, may_go_on = threading.Event(), threading.Event()
    done = getattr(os, hanging)

    def hang(*args: Any, **more: Any) -> Any:
        is_hanging.set()
        assert may_go_on.wait(30.0)
        return done(*args, **more)

    monkeypatch.setattr(os, hanging, hang)
    with ThreadPoolExecutor(3) as pool:
        hung = pool.submit(fill, files, 4)
        try:
            assert is_hanging.wait(30.0)
            assert pool.submit(files.read, NAMES[1]).result(timeout=30.0) == index(1)
            pool.submit(files.mark_used, NAMES[2]).result(timeout=30.0)
            pool.submit(fill, files, 5).result(timeout=30.0)
        finally:
            may_go_on.set()
        hung.result(timeout=30.0)
    assert files.read(NAMES[4]) == index(4)
    assert files.read(NAMES[5]) is None


def test_processes_share_a_directory(opens: Opens, directory: Path) -> None:
    first, second = opens(), opens()
    fill(first, 0, 1, 2)
    fill(second, 3, 4, 5)
    assert here(first) == here(second) == [0, 1, 2, 3, 4, 5]
    first.maintain()
    assert len(kept(directory)) == ROOM


def test_a_removed_directory_is_made_again(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0)
    shutil.rmtree(directory)
    assert here(files) == []
    fill(files, 1)
    assert here(files) == [1]


def test_a_directory_that_cannot_be_made_is_logged_once_and_retried(
    opens: Opens, directory: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    directory.parent.write_text("a file")
    files = opens()
    for _ in range(5):
        fill(files, 0)
        clock.now_s += RETRY_AFTER_S
        files.maintain()
    assert here(files) == []
    assert len(lines(caplog)) == 1
    directory.parent.unlink()
    clock.now_s += RETRY_AFTER_S
    files.maintain()
    fill(files, 0)
    assert here(files) == [0]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 64 * KIB) as made:
        yield made


def test_a_full_disk_fails_no_read_and_needs_no_restart(
    opens: Opens, disk: SmallDisk, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = opens(KIB * KIB, path=disk.path / "indexes")
    failed = growth('sediment_rlm_index_cache_failures_total{operation="write"}')
    disk.fill()
    for _ in range(30):
        fill(files, 0, 1, 2)
        assert here(files) == []
        clock.now_s += RETRY_AFTER_S
    (line,) = lines(caplog)
    assert "No space left on device" in line
    assert failed()[0] >= 1
    fill(files, 0)
    disk.free()
    fill(files, 0)
    assert here(files) == []
    clock.now_s += RETRY_AFTER_S
    fill(files, 0)
    assert here(files) == [0]
    assert lines(caplog)[-1].endswith("works again")
    assert kept(disk.path / "indexes") == [0]


def test_disk_smaller_than_the_limit_holds_the_last_used_files(
    opens: Opens, disk: SmallDisk
) -> None:
    files = opens(KIB * KIB, path=disk.path / "indexes")
    for number in range(10):
        files.write(NAMES[number], index(number, 15 * KIB))
    assert here(files) == [6, 7, 8, 9]


def test_a_read_only_disk_is_read(opens: Opens, disk: SmallDisk, clock: Clock) -> None:
    files = opens(2 * BLOCK_BYTES, path=disk.path / "indexes")
    fill(files, 0, 1)
    disk.make_read_only()
    fill(files, 2)
    clock.now_s += 100
    assert here(files) == [0, 1]
    disk.make_writable()
    fill(files, 2)
    assert here(files) == [1, 2]
