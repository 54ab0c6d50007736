"""Kill -9 at each step of keeping an index: what was kept is found again, nothing torn is."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from services.api.errors import RemoteStorageError
from tests.deep.test_rlm_kills import places
from tests.harness.eventually import eventually
from tests.harness.processes import kill_and_restart, start_with_failpoint, wait_until_dead
from tests.harness.read_loop import CachedReads, cached_reads
from tests.harness.variants import first_of
from tests.harness.world import World

NTH = 3


def wait_until_scanned(reads: CachedReads, files: int) -> None:
    eventually(lambda: reads.counted()["files"] == files)


@pytest.mark.parametrize("name", first_of(places("index_cache.")))
def test_rlm_killed_while_it_keeps_an_index(world: World, tmp_path: Path, name: str) -> None:
    index_dir = tmp_path / "indexes"
    with cached_reads(world, tmp_path / "rlm", index_dir) as reads:
        start_with_failpoint(reads.rlm, name, NTH)
        with suppress(RemoteStorageError, AssertionError):
            reads.read_all()
        wait_until_dead(reads.rlm)
        kept = NTH if name == "index_cache.file_renamed" else NTH - 1
        unfinished = list(index_dir.glob("*.tmp"))
        assert len(unfinished) == (0 if name == "index_cache.file_renamed" else 1)
        for path in unfinished:
            os.utime(path, (0, 0))  # a minute must have passed
        kill_and_restart(reads.rlm)
        wait_until_scanned(reads, kept)
        eventually(lambda: list(index_dir.glob("*.tmp")) == [])
        reads.read_all()
        counted = reads.counted()
        # Without memory a read takes an index from its file more than once: misses count the files.
        assert counted['hits_total{layer="file"}'] >= kept
        assert counted["damaged_files_total"] == 0
        assert counted["files"] == kept + counted["misses_total"]
