"""Test `sediment copy` over real services."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.imported_segments import is_imported
from services.api.remote_log_metadata_manager import all_segments
from services.api.segment_batches import SegmentImport
from services.rsm.settings import RsmSettings
from tests.behaviour.test_copy_segments import whole
from tests.contract.remote_storage_manager_contract import copied, fetched
from tests.harness.foreign_tiers import ForeignTier, imported, local_tier
from tests.harness.processes import RlmmProcess, serving_rlmm
from tests.harness.served import ServedRsm, serving


@pytest.fixture
def theirs(tmp_path: Path) -> ForeignTier:
    return local_tier(tmp_path, "read_only = false")


@pytest.fixture
def rsm(theirs: ForeignTier) -> Iterator[ServedRsm]:
    with serving(theirs.settings) as made:
        yield made


@pytest.fixture
def rlmm(database_url: str, rsm: ServedRsm) -> Iterator[RlmmProcess]:
    with serving_rlmm(database_url) as made:
        yield made.beside(SEDIMENT_RSM=rsm.address)


def test_segments_are_adopted_and_taken_along(
    theirs: ForeignTier, rsm: ServedRsm, rlmm: RlmmProcess, tmp_path: Path
) -> None:
    row, lost = imported(whole(1)), imported(whole(2))
    theirs.store(row, whole(1))
    rlmm.client.import_remote_log_segments([SegmentImport((row,)), SegmentImport((lost,))])
    done = rlmm.sediment("copy", "--adopt", "-o", "json")
    assert done.returncode == 3, done.stderr
    assert f"{lost.remote_log_segment_id}, imported: there is no" in done.stdout
    theirs.store(lost, whole(2))
    [report] = rlmm.answers("copy", "--adopt", "--delete-source", 7, "--wait", "0ms")
    assert (report["copied"], report["present"], report["failed"]) == (1, 1, 0)
    assert (report["sources_deleted"], report["sources_left"]) == (2, [])
    assert theirs.left() == []
    for each, files in ((row, whole(1)), (lost, whole(2))):
        [now] = all_segments(rlmm.client, each.topic_id_partition)
        assert not is_imported(now.custom_metadata)
        assert fetched(rsm.client, now) == files.log
    directory = tmp_path / "leaving"
    directory.mkdir()
    [report] = rlmm.answers("copy", "--to", directory, "--rate", 0)
    assert (report["copied"], report["failed"]) == (2, 0)
    assert len(list(directory.rglob("*.log"))) == 2
    done = rlmm.sediment("copy", "--to", directory)
    assert done.returncode == 0
    assert "copied before" in done.stdout


def test_options_that_do_not_go_together_are_refused(rlmm: RlmmProcess, tmp_path: Path) -> None:
    assert "give one of --adopt, --mirror and --to" in rlmm.refusal("copy")
    assert "give one of --adopt, --mirror and --to" in rlmm.refusal(
        "copy", "--adopt", "--to", tmp_path
    )
    assert "copies all topics" in rlmm.refusal("copy", "--mirror", "--topic", "orders")
    assert "there is no directory" in rlmm.refusal("copy", "--to", tmp_path / "none")
    assert "goes with --adopt" in rlmm.refusal("copy", "--to", tmp_path, "--delete-source", 7)


def test_killed_adoption_is_continued(
    theirs: ForeignTier, rsm: ServedRsm, rlmm: RlmmProcess, tmp_path: Path
) -> None:
    row = imported(whole(1))
    theirs.store(row, whole(1))
    rlmm.client.import_remote_log_segments([SegmentImport((row,))])
    addresses = {"SEDIMENT_RSM": rsm.address, "SEDIMENT_RLMM": rlmm.address}
    killed = subprocess.run(
        [sys.executable, "-m", "services.cli", "copy", "--adopt"],
        env={**os.environ, **addresses, "SEDIMENT_FAILPOINT": "replacement.copied"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    [still] = all_segments(rlmm.client, row.topic_id_partition)
    assert fetched(rsm.client, still) == whole(1).log
    [own] = [*(tmp_path / "own").rglob("*.manifest")]
    [report] = rlmm.answers("copy", "--adopt")
    assert (report["copied"], report["failed"]) == (1, 0)
    [now] = all_segments(rlmm.client, row.topic_id_partition)
    assert fetched(rsm.client, now) == whole(1).log
    assert [*(tmp_path / "own").rglob("*.manifest")] == [own]
    assert len([*(tmp_path / "own").rglob("*.log")]) == 1


def test_a_mirror_gets_what_it_lacks(database_url: str, tmp_path: Path) -> None:
    for name in ("store", "mirror"):
        (tmp_path / name).mkdir()
    entry = '[[location]]\nid = {}\nbackend = "filesystem"\nprefix = "tier/"\ndirectory = "{}"\n'
    file = tmp_path / "locations.toml"
    file.write_text(
        f"{entry.format(1, tmp_path / 'store')}mirror = 2\n{entry.format(2, tmp_path / 'mirror')}"
    )
    values = {"backend": "filesystem", "directory": tmp_path / "store", "prefix": "tier/"}
    more = {"location_id": 1, "locations_file": file}
    settings = RsmSettings.model_validate({**values, **more})
    with serving(settings) as rsm, serving_rlmm(database_url) as started:
        copied(rsm.client, whole(1))
        environment = {
            f"RSM_{name.upper()}": str(value) for name, value in {**values, **more}.items()
        }
        rlmm = started.beside(SEDIMENT_RSM=rsm.address, **environment)
        assert rlmm.sediment("copy", "--mirror", "--topic", "orders").returncode == 2
        [first] = rlmm.answers("copy", "--mirror", "--rate", "100MiB")
        [second] = rlmm.answers("copy", "--mirror")
    assert (first["target"], first["copied"], first["failed"]) == ("mirror", 1, 0)
    assert (second["copied"], second["present"]) == (0, 1)
    left, right = (sorted(p.name for p in (tmp_path / n).rglob("*.*")) for n in ("store", "mirror"))
    assert set(left) <= set(right)
