"""Test what the tools say of rows that are read from another storage's location."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from services.api.segment_batches import SegmentImport
from services.api.segments import RemoteLogSegmentMetadata
from services.console.segment_life import objects_of
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.factory import build_manager
from services.workflows.deletion import Deleter
from services.workflows.partition_scrub import PartitionScrubbed, scrub_partition
from services.workflows.rebuild import Rebuild, RebuildPlan
from services.workflows.rebuild_report import DifferenceKind
from services.workflows.reconcile import Reconciled, Reconciliation, ReconciliationPlan
from services.workflows.removal import remove_partition
from services.workflows.scrub import Pace
from tests.contract.remote_storage_manager_contract import Files, copied, some_bytes
from tests.harness.databases import OwnRlmm
from tests.harness.foreign_tiers import ForeignTier, imported, local_tier
from tests.harness.tier import FileTier, now_ms

FILES = Files(some_bytes(5_000))


@dataclass(kw_only=True)
class ImportedTier(FileTier):
    """A tier that has read in one row of another storage."""

    theirs: ForeignTier
    row: RemoteLogSegmentMetadata

    def reconciled(self, *, delete: bool = False) -> Reconciled:
        plan = ReconciliationPlan(uuid4().hex, now_ms() + 1_000, 0, delete)
        return Reconciliation(self.rlmm, self.rsm, self.rsm.objects, plan).run()

    def scrubbed(self) -> PartitionScrubbed:
        pace = Pace(lambda _: None, lambda _: None)
        return scrub_partition(
            self.tp, [0], self.rlmm, self.rsm, self.rsm.objects, pace, lambda _: None
        )


@pytest.fixture
def imported_tier(rlmm: OwnRlmm, tmp_path: Path) -> Iterator[ImportedTier]:
    theirs, row = local_tier(tmp_path), imported(FILES)
    theirs.store(row, FILES)
    rlmm.import_remote_log_segments([SegmentImport((row,))])
    with closing(build_manager(theirs.settings)) as rsm:
        store = FilesystemStorage(tmp_path / "own")
        yield ImportedTier(
            rsm=rsm, rlmm=rlmm, store=store, tp=row.topic_id_partition, theirs=theirs, row=row
        )


def lose(tier: ImportedTier, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "theirs")


def test_readable_row_has_no_finding(imported_tier: ImportedTier) -> None:
    done = imported_tier.reconciled(delete=True)
    assert (done.anomalies, done.unread) == ({}, [])
    verified = imported_tier.scrubbed()
    assert (verified.missing, verified.elsewhere) == ([], [imported_tier.row.start_offset])
    assert not verified.is_complete


def test_vanished_location_is_named_and_nothing_counts_as_lost(
    imported_tier: ImportedTier, tmp_path: Path
) -> None:
    lose(imported_tier, tmp_path)
    done = imported_tier.reconciled(delete=True)
    assert done.anomalies == {}
    assert "no such directory" in done.unread[0]
    verified = imported_tier.scrubbed()
    assert verified.missing == []
    assert not verified.is_complete
    assert "no such directory" in verified.scrubbed.reasons[0]
    tier = imported_tier
    rebuilt = Rebuild(tier.rlmm, tier.rsm, tier.rsm.objects, RebuildPlan("r", False)).run()
    assert dict(rebuilt.counts) == {DifferenceKind.REFUSED: 1}


def test_lost_object_is_reported(imported_tier: ImportedTier) -> None:
    tier = imported_tier
    tier.theirs.backend.delete([f"{tier.theirs.stem(tier.row)}.log"])
    assert sum(tier.reconciled().anomalies.values()) == 1
    assert tier.scrubbed().missing == [tier.row.start_offset]


def test_own_copy_of_a_row_that_is_not_switched_yet_is_no_orphan(
    imported_tier: ImportedTier,
) -> None:
    tier = imported_tier
    copied(tier.rsm, FILES, replace(tier.row, custom_metadata=None))
    before = tier.object_keys()
    for _ in range(2):
        assert tier.reconciled(delete=True).anomalies == {}
    assert tier.object_keys() == before
    verified = tier.scrubbed()
    assert not verified.has_damage
    assert "imported" in verified.scrubbed.reasons[0]
    rebuilt = Rebuild(tier.rlmm, tier.rsm, tier.rsm.objects, RebuildPlan("r", False)).run()
    assert (rebuilt.same, dict(rebuilt.counts)) == (1, {})


def test_removal_of_a_read_only_partition_touches_rows_alone(imported_tier: ImportedTier) -> None:
    tier = imported_tier
    keys = tier.theirs.left()
    tier.mark_deleted(tier.tp)
    removal = remove_partition(tier.rlmm, tier.rsm, tier.tp, Deleter(1), now_ms())
    assert removal.left == ""
    assert tier.theirs.left() == keys


def test_console_says_whose_objects_they_are() -> None:
    assert objects_of(imported(FILES)) == {"problem": "imported: another storage wrote its objects"}
