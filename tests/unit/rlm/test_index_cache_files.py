"""The files of the index cache on a real file system: bounded, ours alone, and never in the way."""

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

from services.api.remote_storage_manager import IndexType
from services.rlm.fetch import index_files
from services.rlm.fetch.index_files import (
    BLOCK_BYTES,
    RETRY_AFTER_S,
    CacheDirectory,
    IndexFileLimits,
    IndexFiles,
    name_of,
)
from tests.harness.small_disk import SmallDisk, small_disk

ROOM = 4
NAMES = [name_of(UUID(int=number), IndexType.OFFSET) for number in range(10)]
KIB = 1024


def index(number: int, size_bytes: int = 1000) -> bytes:
    return bytes([number]) * size_bytes


class Clock:
    """Both clocks in one; it stands still unless told."""

    def __init__(self) -> None:
        self.now_s = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "made" / "indexes"


Opens = Callable[..., IndexFiles]


@pytest.fixture
def opens(directory: Path, clock: Clock) -> Iterator[Opens]:
    """What opens the directory as a process does that starts; with room for ROOM files."""
    made = []

    def opened(
        total_bytes: int = ROOM * BLOCK_BYTES, ttl_s: float | None = None, path: Path = directory
    ) -> IndexFiles:
        files = IndexFiles(IndexFileLimits(path, total_bytes, ttl_s), clock)
        files.maintain()
        made.append(files)
        return files

    yield opened
    for files in made:
        files.close()


def here(files: IndexFiles) -> list[int]:
    return [number for number, name in enumerate(NAMES) if files.read(name) is not None]


def fill(files: IndexFiles, *numbers: int) -> None:
    for number in numbers:
        files.write(NAMES[number], index(number))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "index cache" in record.message]


def test_what_was_kept_outlives_the_process(opens: Opens) -> None:
    before = opens()
    fill(before, 0, 1)
    before.write(NAMES[2], b"")
    before.close()
    after = opens()
    assert [after.read(name) for name in NAMES[:4]] == [index(0), index(1), b"", None]


def test_only_the_upkeep_opens_the_directory(directory: Path, clock: Clock) -> None:
    files = IndexFiles(IndexFileLimits(directory), clock)
    fill(files, 0)
    assert here(files) == []
    assert not directory.exists()


def test_what_is_read_while_it_is_looked_through_was_used(
    opens: Opens, directory: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opens()
    fill(before, 0, 1, 2, 3)
    before.close()
    for number, age_s in enumerate((30, 20, 10, 0)):
        _age(directory / NAMES[number], age_s)
    after = IndexFiles(IndexFileLimits(directory, ROOM * BLOCK_BYTES), clock)
    found = CacheDirectory.found

    def found_while_somebody_reads(self: CacheDirectory) -> Iterator[tuple[str, int, float]]:
        yield from found(self)
        assert after.read(NAMES[0]) == index(0)
        fill(after, 5)  # not kept: what lies there is not known yet

    monkeypatch.setattr(CacheDirectory, "found", found_while_somebody_reads)
    after.maintain()
    fill(after, 4)
    assert here(after) == [0, 2, 3, 4]
    after.close()


def test_the_least_recently_used_goes_first(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0, 1, 2, 3)
    files.read(NAMES[0])
    files.use(NAMES[1])
    fill(files, 4)
    assert here(files) == [0, 1, 3, 4]
    assert sorted(path.name for path in directory.iterdir()) == [NAMES[n] for n in (0, 1, 3, 4)]


def test_the_order_of_use_outlives_the_process(opens: Opens, directory: Path, clock: Clock) -> None:
    before = opens()
    fill(before, 0, 1, 2, 3)
    before.close()
    for age_s, number in enumerate((2, 0, 3, 1)):
        _age(directory / NAMES[number], age_s)
    after = opens()
    fill(after, 4, 5)
    assert here(after) == [0, 2, 4, 5]


def _age(path: Path, age_s: float) -> None:
    told = path.stat()
    os.utime(path, (told.st_atime, told.st_mtime - age_s))


def test_a_smaller_limit_holds_from_the_start(opens: Opens) -> None:
    before = opens()
    fill(before, 0, 1, 2, 3)
    before.close()
    assert len(here(opens(total_bytes=2 * BLOCK_BYTES))) == 2


def test_no_more_files_than_can_be_kept_in_mind(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.rlm.fetch.index_files.MAX_FILES", 2)
    files = opens()
    fill(files, 0, 1, 2)
    assert here(files) == [1, 2]


def test_a_file_counts_in_whole_blocks(opens: Opens) -> None:
    files = opens()
    fill(files, 0, 1, 2)
    files.write(NAMES[3], index(3, BLOCK_BYTES))  # the header stands before it: two blocks
    assert here(files) == [1, 2, 3]
    assert index_files.charged_bytes(0) == BLOCK_BYTES


def test_what_is_larger_than_the_whole_cache_is_not_kept(opens: Opens) -> None:
    files = opens()
    fill(files, 0)
    files.write(NAMES[1], index(1, ROOM * BLOCK_BYTES))
    assert here(files) == [0]


def test_what_nobody_uses_goes_after_its_time(opens: Opens, clock: Clock) -> None:
    files = opens(ttl_s=900.0)
    fill(files, 0, 1)
    clock.now_s += 600
    files.use(NAMES[1])
    clock.now_s += 301
    files.maintain()
    assert here(files) == [1]


def test_time_goes_on_while_no_process_runs(opens: Opens, directory: Path, clock: Clock) -> None:
    before = opens()
    fill(before, 0, 1)
    before.close()
    _age(directory / NAMES[0], 10**9)
    after = IndexFiles(IndexFileLimits(directory, ttl_s=900.0), clock)
    after.maintain()
    assert here(after) == [1]
    after.close()


def test_what_is_deleted_goes_at_once(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0, 1)
    files.remove([NAMES[0], NAMES[5]])
    assert [path.name for path in directory.iterdir()] == [NAMES[1]]


@pytest.mark.parametrize("at", [0, 10, 30, -1])
def test_a_damaged_file_is_not_here_and_makes_way(
    opens: Opens, directory: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = opens()
    fill(files, 0, 1)
    path = directory / NAMES[0]
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert here(files) == [1]
    assert not path.exists()
    assert "fetched again" in lines(caplog)[0]
    fill(files, 0)
    assert here(files) == [0, 1]


def test_a_huge_file_is_not_read(opens: Opens, directory: Path) -> None:
    files = opens(total_bytes=2**41)
    fill(files, 0, 1)
    with (directory / NAMES[0]).open("r+b") as file:
        file.truncate(2**40)
    assert here(files) == [1]


def test_a_file_that_somebody_removed_is_not_here(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0)
    (directory / NAMES[0]).unlink()
    assert here(files) == []
    fill(files, 0)
    assert here(files) == [0]


def test_what_a_killed_writer_left_is_removed_and_nothing_of_others(
    opens: Opens, directory: Path
) -> None:
    directory.mkdir(parents=True)
    (directory / f"{NAMES[0]}.0123abcd.tmp").write_bytes(b"half")
    (directory / "meta.properties").write_text("mine")
    opens()
    assert [path.name for path in directory.iterdir()] == ["meta.properties"]


def test_an_entry_that_cannot_be_removed_blocks_nobody(
    opens: Opens, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = opens()
    fill(files, 0, 1, 2, 3)
    _make_a_directory(directory / NAMES[0])
    fill(files, 4, 5, 6, 7)
    assert here(files) == [5, 6, 7]
    assert "Is a directory" in lines(caplog)[0]


def test_an_unused_entry_that_cannot_be_removed_holds_back_no_other(
    opens: Opens, directory: Path, clock: Clock
) -> None:
    files = opens(ttl_s=900.0)
    fill(files, 0, 1)
    _make_a_directory(directory / NAMES[0])
    clock.now_s += 900
    files.maintain()
    assert [path.name for path in directory.iterdir()] == [NAMES[0]]


def test_a_directory_under_an_entrys_name_is_none(opens: Opens, directory: Path) -> None:
    (directory / NAMES[0]).mkdir(parents=True)
    files = opens()
    fill(files, 1, 2, 3, 4)
    assert here(files) == [1, 2, 3, 4]


def _make_a_directory(path: Path) -> None:
    path.unlink()
    (path / "of somebody").mkdir(parents=True)


def test_a_read_that_fails_is_not_tried_again_at_once(
    opens: Opens, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = opens()
    fill(files, 0, 1, 2)
    with _failing_reads(monkeypatch) as tried:
        assert here(files) == []
        assert tried == [NAMES[0]]
        clock.now_s += RETRY_AFTER_S
        assert here(files) == []
        assert tried == [NAMES[0], NAMES[1]]
    assert ["Input/output error" in line for line in lines(caplog)] == [True, True]
    clock.now_s += RETRY_AFTER_S
    assert here(files) == [2]


@contextmanager
def _failing_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    tried = []

    def fail(self: CacheDirectory, name: str) -> bytes:
        tried.append(name)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(CacheDirectory, "read", fail)
        yield tried


@pytest.mark.parametrize("hanging", ["remove", "write", "is_in_place", "note_use"])
def test_a_disk_that_hangs_holds_back_neither_reads_nor_the_end(
    opens: Opens, clock: Clock, monkeypatch: pytest.MonkeyPatch, hanging: str
) -> None:
    files = opens(ttl_s=None)
    fill(files, 0, 1, 2, 3)
    clock.now_s += 100
    files.use(NAMES[3])
    is_hanging, may_go_on = threading.Event(), threading.Event()
    done = getattr(CacheDirectory, hanging)

    def hang(*args: Any) -> Any:
        is_hanging.set()
        assert may_go_on.wait(30.0)
        return done(*args)

    monkeypatch.setattr(CacheDirectory, hanging, hang)
    with ThreadPoolExecutor(3) as pool:
        hung = [pool.submit(fill, files, 4), pool.submit(files.maintain)]
        try:
            assert is_hanging.wait(30.0)
            assert pool.submit(files.read, NAMES[1]).result(timeout=30.0) == index(1)
            pool.submit(files.use, NAMES[2]).result(timeout=30.0)
            pool.submit(files.close).result(timeout=30.0)
            assert here(files) == []
        finally:
            may_go_on.set()
        for each in hung:
            each.result(timeout=30.0)
    assert here(files) == []


@pytest.mark.parametrize(("ttl_s", "noted_after_s"), [(None, 60), (900.0, 60), (10.0, 5)])
def test_use_is_noted_now_and_then_and_not_by_readers(
    directory: Path, clock: Clock, ttl_s: float | None, noted_after_s: float
) -> None:
    files = IndexFiles(IndexFileLimits(directory, ttl_s=ttl_s), clock, unix_time=clock)
    files.maintain()
    fill(files, 0)
    written_s = (directory / NAMES[0]).stat().st_mtime
    clock.now_s += 3
    used_s = clock.now_s
    assert files.read(NAMES[0]) == index(0)
    clock.now_s += noted_after_s - 4
    files.maintain()
    assert (directory / NAMES[0]).stat().st_mtime == written_s
    clock.now_s += 1
    files.maintain()
    assert (directory / NAMES[0]).stat().st_mtime == used_s
    files.close()


def test_a_directory_is_of_one_process(
    opens: Opens, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = opens(), opens()
    fill(first, 0)
    fill(second, 1)
    assert (here(first), here(second)) == ([0], [])
    assert "RLM_REMOTE_LOG_INDEX_FILE_CACHE_DIR of its own" in lines(caplog)[0]
    first.close()
    clock.now_s += RETRY_AFTER_S
    second.maintain()
    fill(second, 1)
    assert here(second) == [0, 1]


def test_a_removed_directory_is_made_again(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0)
    shutil.rmtree(directory)
    assert here(files) == []
    fill(files, 1)
    files.maintain()
    fill(files, 2)
    assert here(files) == [2]


def test_a_directory_that_was_put_in_its_place_is_taken(opens: Opens, directory: Path) -> None:
    files = opens()
    fill(files, 0)
    directory.rename(directory.with_name("before"))
    files.maintain()
    fill(files, 1)
    assert here(files) == [1]
    assert (directory / NAMES[1]).exists()
    directory.rename(directory.with_name("between"))
    directory.with_name("before").rename(directory)
    files.maintain()
    assert here(files) == [0]


def test_where_no_directory_can_be_there_are_no_files(
    opens: Opens, directory: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    directory.parent.write_text("a file")
    files = opens()
    for _ in range(5):
        fill(files, 0)
        clock.now_s += RETRY_AFTER_S
        files.maintain()
    assert here(files) == []
    assert len(lines(caplog)) == 6
    directory.parent.unlink()
    clock.now_s += RETRY_AFTER_S
    files.maintain()
    fill(files, 0)
    assert here(files) == [0]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 64 * KIB) as made:
        yield made


def test_a_full_disk_is_in_nobodys_way_and_needs_no_restart(
    opens: Opens, disk: SmallDisk, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = opens(KIB * KIB, path=disk.path / "indexes")
    disk.fill()
    fill(files, 0, 1, 2)
    assert here(files) == []
    (line,) = lines(caplog)
    assert "No space left on device" in line
    disk.free()
    fill(files, 0)
    assert here(files) == []
    clock.now_s += RETRY_AFTER_S
    fill(files, 0)
    assert here(files) == [0]
    assert lines(caplog)[-1].endswith("works again")
    assert [path.name for path in (disk.path / "indexes").iterdir()] == [NAMES[0]]


def test_a_disk_that_stays_full_gets_a_line_per_attempt(
    opens: Opens, disk: SmallDisk, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    files = opens(KIB * KIB, path=disk.path / "indexes")
    disk.fill()
    for _ in range(30):
        fill(files, 0)
        clock.now_s += RETRY_AFTER_S
    assert len(lines(caplog)) == 30


def test_a_disk_that_comes_and_goes_gets_a_line_per_change(
    opens: Opens, disk: SmallDisk, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = opens(KIB * KIB, path=disk.path / "indexes")
    for _ in range(12):
        disk.fill()
        fill(files, 0)
        clock.now_s += RETRY_AFTER_S
        disk.free()
        fill(files, 0)
        files.remove([NAMES[0]])
    assert len(lines(caplog)) == 24


def test_a_disk_smaller_than_the_limit_holds_what_was_used_last(
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
