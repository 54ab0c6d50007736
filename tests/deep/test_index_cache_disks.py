"""What becomes of reads when the index cache's disk is full, read-only, gone, or another's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local.stack import ServiceProcess
from tests.harness.eventually import eventually
from tests.harness.read_loop import CachedReads, cached_reads
from tests.harness.small_limits import SmallDisk, small_disk
from tests.harness.world import World

FILE_HITS = 'hits_total{layer="file"}'
WRITE_FAILURES = 'failures_total{operation="write"}'


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 1024 * 1024) as made:
        yield made


def keeps_again(reads: CachedReads) -> bool:
    """Reads, again and again, until an index comes from a file."""
    before = reads.counted().get(FILE_HITS, 0)
    reads.read_all()
    reads.read_all()
    return reads.counted().get(FILE_HITS, 0) > before


@pytest.mark.long
def test_a_disk_that_is_full_and_then_is_not(world: World, tmp_path: Path, disk: SmallDisk) -> None:
    with cached_reads(world, tmp_path / "rlm", disk.path / "indexes") as reads:
        disk_dir = disk.path / "indexes"
        reads.rlm.start()
        eventually(disk_dir.exists)
        disk.fill()
        for _ in range(3):
            reads.read_all()
        counted = reads.counted()
        assert counted.get(FILE_HITS, 0) == 0
        assert counted[WRITE_FAILURES] >= 1
        (line,) = reads.log_lines()
        assert "No space left on device" in line
        disk.free()
        eventually(lambda: keeps_again(reads), deadline_ms=30_000)


def test_a_disk_that_becomes_read_only(world: World, tmp_path: Path, disk: SmallDisk) -> None:
    with cached_reads(world, tmp_path / "rlm", disk.path / "indexes") as reads:
        reads.rlm.start()
        eventually(lambda: keeps_again(reads))
        disk.make_read_only()
        for path in (disk.path / "indexes").iterdir():
            assert path.exists()
        before = reads.counted()
        reads.read_all()
        after = reads.counted()
        assert after[FILE_HITS] > before[FILE_HITS]
        assert after["misses_total"] == before["misses_total"]


def test_a_directory_that_is_removed_under_a_running_rlm(world: World, tmp_path: Path) -> None:
    index_dir = tmp_path / "indexes"
    with cached_reads(world, tmp_path / "rlm", index_dir) as reads:
        reads.rlm.start()
        eventually(lambda: keeps_again(reads))
        for path in index_dir.iterdir():
            path.unlink()
        index_dir.rmdir()
        reads.read_all()
        eventually(lambda: keeps_again(reads))
        assert any(index_dir.iterdir())


@pytest.mark.long
def test_rlms_share_a_directory(world: World, tmp_path: Path) -> None:
    index_dir = tmp_path / "indexes"
    with cached_reads(world, tmp_path / "rlm", index_dir) as reads:
        reads.rlm.start()
        eventually(lambda: keeps_again(reads))
        second = ServiceProcess("rlm", reads.rlm._settings, tmp_path / "second")
        others = CachedReads(second, reads.logs)
        try:
            second.start()
            others.read_all()
            counted = others.counted()
            assert counted[FILE_HITS] > 0
            assert counted["misses_total"] == 0
            assert reads.log_lines() == others.log_lines() == []
        finally:
            second.kill()
