"""Kill -9 RSM or RLMM at every named place: `sediment ship` continues, nothing whole is lost."""

import json
import random
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.common.failpoints import FAILPOINTS
from services.local.stack import ServiceProcess
from services.rsm.factory import build_backend
from services.rsm.layout import segment_keys
from tests.contract.remote_storage_manager_contract import Files, a_segment, some_bytes
from tests.contract.rsm_over_s3 import settings_for
from tests.deep.test_rlm_kills import KILLED
from tests.harness.processes import kill_and_restart, start_with_failpoint, wait_until_dead
from tests.harness.stores import keys_in
from tests.harness.synthetic_log import make_log_dir
from tests.harness.variants import first_of
from tests.harness.world import SMALLEST_PART_BYTES, World, name_topics_anew

COPYING = [
    name for name in FAILPOINTS if name.startswith("rsm.") and not name.startswith("rsm.delete")
]
IN_PARTS = ("rsm.upload_begun", "rsm.part_written")
"""The places that only a log of several parts reaches."""


def ship_while_it_dies(world: World, service: ServiceProcess, place: str, nth: int = 1) -> None:
    """Ship once, with a service that kills itself on the way and is started again."""
    service.kill()
    start_with_failpoint(service, place, nth)
    with world.start_shipping() as process:
        wait_until_dead(service)
        kill_and_restart(service)
        assert process.wait(120) == 0
    world.assert_all_shipped()


@pytest.mark.parametrize("place", first_of(reversed(COPYING), 2))
def test_rsm_killed_while_shipping(world: World, tmp_path: Path, place: str) -> None:
    if place in IN_PARTS:
        world.log_dir = tmp_path / "large"
        make_log_dir(world.log_dir, partitions=2, segments=1, segment_bytes=3 * SMALLEST_PART_BYTES)
    ship_while_it_dies(world, world.rsm, place, nth=2)


@pytest.mark.parametrize("place", first_of(n for n in FAILPOINTS if n.startswith("rlmm.")))
@pytest.mark.parametrize("nth", [1, pytest.param(8, marks=pytest.mark.long)])
def test_rlmm_killed_around_a_commit(world: World, place: str, nth: int) -> None:
    ship_while_it_dies(world, world.rlmm, place, nth)


def test_rsm_killed_while_deleting(world: World) -> None:
    with world.start_shipping(failpoint="copy.bytes_sent:3") as process:
        assert process.wait(60) == KILLED
    ship_while_it_dies(world, world.rsm, "rsm.delete_some")


@pytest.mark.parametrize("place", first_of(reversed(COPYING)))
def test_reconciliation_removes_what_a_killed_copy_left(world: World, place: str) -> None:
    """The copy is never resumed; what is whole stays, and what metadata names."""
    world.ship()
    shipped = set(world.object_keys())
    unnamed, log = a_segment(), some_bytes(2 * SMALLEST_PART_BYTES)
    world.rsm.kill()
    start_with_failpoint(world.rsm, place)
    with world.storage() as rsm, pytest.raises(RetriableRemoteStorageError):
        rsm.copy_log_segment_data(unnamed, Files(log).data())
    wait_until_dead(world.rsm)
    kill_and_restart(world.rsm)
    assert left_of(world, segment_keys("", unnamed).prefix)
    first, second = reconcile(world), reconcile(world)
    assert first["failures"] == second["failures"] == []
    if place == "rsm.manifest_written":
        # Whole: its row may have been lost with a database that was restored.
        assert len(left_of(world, segment_keys("", unnamed).prefix)) == 3
        with world.storage() as rsm:
            rsm.delete_log_segment_data(unnamed)
    assert left_of(world, segment_keys("", unnamed).prefix) == []
    assert set(world.object_keys()) == shipped
    world.assert_all_shipped()


def reconcile(world: World) -> dict[str, Any]:
    done = world.sediment(
        "reconcile", "--rsm", world.rsm.address, "--delete", "--grace", "0", "-o", "json"
    )
    assert done.stdout, done.stderr
    reported: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if reported["anomalies"]["UNREFERENCED_COMPLETE"] else 0)
    return reported


def left_of(world: World, prefix: str) -> list[str]:
    """Return objects and uploads that the store itself lists."""
    store = build_backend(settings_for(world.s3, {"bucket": world.bucket}))
    return [*keys_in(store, prefix), *(upload.key for upload in store.list_uploads(prefix))]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_any_process_killed_at_random_moments(world: World) -> None:
    chance = random.Random(405)
    for _ in range(20):
        name_topics_anew(world.log_dir)
        victim = chance.choice(["ship", "rsm", "rlmm"])
        with world.start_shipping() as process:
            Event().wait(chance.uniform(0.3, 2.5))
            if victim == "ship":
                process.kill()
            else:
                kill_and_restart(getattr(world, victim))
            process.wait(120)
        world.ship()
        world.assert_all_shipped()
