"""Test scrub, repair and reconciliation of a location and its mirror, over a log of Kafka's."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from services.api.operations import AnomalyKind
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, is_transformed
from services.rsm.factory import build_locations
from services.rsm.mirror_copy import MirrorCopy
from services.rsm.settings import RsmSettings
from services.workflows.reconcile import Reconciled, Reconciliation, ReconciliationPlan
from services.workflows.scrub import Pace, Scrub, Scrubbed, ScrubPlan
from tests.behaviour.test_rebuilt_indexes import NAME, damaged, lost, shipped
from tests.contract.remote_storage_manager_contract import fetched, index
from tests.harness.served import ServedRsm, serving
from tests.harness.ship_stack import Stack
from tests.harness.tier import now_ms

__all__ = ["shipped"]
pytestmark = pytest.mark.deep

FIRST, MIRROR = 1, 2
Harm = Callable[[Path], None]


class Mirrored:
    """A tier in two directories of the same objects, without the broker's log."""

    def __init__(self, stack: Stack, rsm: ServedRsm, settings: RsmSettings, mirror: Path) -> None:
        self.stack = stack
        self.rsm = rsm
        self._settings = settings
        self.directories = {FIRST: stack.objects, MIRROR: mirror}
        self.copy()
        # By another RSM, so that this one has no indexes in its cache.
        self.content = self.read(stack.rsm)

    def copy(self) -> None:
        assert MirrorCopy(build_locations(self._settings).current, lambda _: None, 2).run().copied

    def segment(self) -> RemoteLogSegmentMetadata:
        return self.stack.segments(NAME)[1]

    def object(self, location_id: int, kind: str) -> Path:
        id_ = self.segment().remote_log_segment_id.id.hex
        (path,) = self.directories[location_id].rglob(f"*{id_}*.{kind}")
        return path

    def read(self, rsm: RemoteStorageManager | None = None) -> Mapping[int, tuple[bytes, bytes]]:
        """Read every log and its offset index."""
        rsm = rsm or self.rsm.client
        return {
            row.start_offset: (fetched(rsm, row), index(rsm, row, IndexType.OFFSET))
            for row in self.stack.segments(NAME)
        }

    def scrubbed(self, location_id: int = FIRST, *, repairs: bool = True) -> Scrubbed:
        plan = ScrubPlan(uuid4().hex, locations=(location_id,), repairs=repairs)
        pace = Pace(lambda _: None, lambda _: None)
        return Scrub(self.stack.rlmm, self.rsm.client, self.rsm.objects, plan, pace).run()

    def reconciled(self, location_id: int = MIRROR) -> Reconciled:
        plan = ReconciliationPlan(
            uuid4().hex, now_ms() + 1_000, 0, delete=True, locations=(location_id,)
        )
        return Reconciliation(self.stack.rlmm, self.rsm.client, self.rsm.objects, plan).run()


@pytest.fixture
def properties() -> str:
    """What the first location does with new copies."""
    return ""


@pytest.fixture
def mirrored(shipped: Stack, tmp_path: Path, properties: str) -> Iterator[Mirrored]:
    entry = '[[location]]\nid = {}\nbackend = "filesystem"\nprefix = ""\ndirectory = "{}"\n'
    mirror, file = tmp_path / "mirror", tmp_path / "locations.toml"
    mirror.mkdir()
    first = f"{entry.format(FIRST, shipped.objects)}mirror = {MIRROR}\n{properties}\n"
    file.write_text(first + entry.format(MIRROR, mirror))
    settings = RsmSettings(
        backend="filesystem", directory=shipped.objects, location_id=FIRST, locations_file=file
    )
    shutil.rmtree(tmp_path / "logs")
    with serving(settings) as rsm:
        yield Mirrored(shipped, rsm, settings, mirror)


@pytest.mark.parametrize(
    ("kind", "harm"), [("log", damaged), ("log", lost), ("indexes", damaged), ("manifest", damaged)]
)
def test_a_damaged_object_is_replaced_by_its_mirrors(
    mirrored: Mirrored, kind: str, harm: Harm
) -> None:
    harm(mirrored.object(FIRST, kind))
    done = mirrored.scrubbed()
    assert (done.damaged, done.repaired) == (1, 1)
    assert done.repairs[0].endswith(": repaired: copied from location 2")
    event = list(all_events(mirrored.stack.rlmm, EventQuery(NAME)))[-1]
    assert (event.reason, event.segment_id) == (
        "copied from a mirror",
        mirrored.segment().remote_log_segment_id.id,
    )
    assert mirrored.read() == mirrored.content
    assert mirrored.scrubbed().damaged == 0
    mirrored.copy()
    assert mirrored.scrubbed(MIRROR).damaged == 0


@pytest.mark.parametrize("properties", ['compression = "zstd"'])
def test_a_copy_that_a_repair_has_compressed_is_repaired_in_turn(mirrored: Mirrored) -> None:
    for harm in (lost, damaged):
        harm(mirrored.object(FIRST, "log"))
        assert mirrored.scrubbed().repaired == 1
        assert is_transformed(mirrored.segment().custom_metadata)
        mirrored.copy()
        for location_id in (FIRST, MIRROR):
            mirrored.reconciled(location_id)
            assert mirrored.scrubbed(location_id).damaged == 0
    assert mirrored.read() == mirrored.content


def test_a_log_that_is_damaged_in_both_is_not_repaired(mirrored: Mirrored) -> None:
    for location_id in (FIRST, MIRROR):
        damaged(mirrored.object(location_id, "log"))
    before, objects = mirrored.segment(), mirrored.stack.keys()
    done = mirrored.scrubbed()
    assert (done.damaged, done.repaired) == (1, 0)
    assert "not repaired: its log is damaged itself; location 2: " in done.repairs[0]
    assert (mirrored.segment(), mirrored.stack.keys()) == (before, objects)


def test_indexes_are_rebuilt_if_the_mirrors_log_is_damaged(mirrored: Mirrored) -> None:
    damaged(mirrored.object(FIRST, "indexes"))
    damaged(mirrored.object(MIRROR, "log"))
    done = mirrored.scrubbed()
    assert (done.damaged, done.repaired) == (1, 1)
    assert ": repaired: OFFSET" in done.repairs[0]
    logs = [log for log, _ in mirrored.read().values()]
    assert logs == [log for log, _ in mirrored.content.values()]


def test_damage_in_a_mirror_is_found_there_and_ended_by_the_next_copy(mirrored: Mirrored) -> None:
    damaged(mirrored.object(MIRROR, "log"))
    assert mirrored.scrubbed(repairs=False).damaged == 0
    done = mirrored.scrubbed(MIRROR)
    assert (done.damaged, done.repaired) == (1, 1)
    assert ": repaired: copied from location 1" in done.repairs[0]
    mirrored.copy()
    again = mirrored.scrubbed(MIRROR)
    assert (again.damaged, again.verified) == (0, again.segments)
    assert mirrored.read() == mirrored.content


def test_what_a_mirror_lacks_or_has_too_much_is_found_there(mirrored: Mirrored) -> None:
    manifest = mirrored.object(MIRROR, "manifest")
    orphan = manifest.with_name(f"{manifest.name.partition('.')[0]}.{'0' * 16}.log")
    orphan.write_bytes(b"of a copy that was deleted meanwhile")
    assert mirrored.reconciled(FIRST).anomalies.total() == 0
    assert mirrored.reconciled().anomalies == {AnomalyKind.ORPHAN_OBJECTS: 1}
    mirrored.reconciled()
    assert not orphan.exists()
    lost(mirrored.object(MIRROR, "log"))
    assert mirrored.scrubbed(MIRROR, repairs=False).anomalies == {AnomalyKind.MISSING_OBJECTS: 1}
    manifest.unlink()
    assert mirrored.reconciled().anomalies == {AnomalyKind.MISSING_OBJECTS: 1}
    mirrored.copy()
    assert mirrored.reconciled().anomalies.total() == 0
    assert mirrored.scrubbed(MIRROR).damaged == 0
