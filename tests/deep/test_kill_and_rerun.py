"""Kill -9 anywhere, run again: the same finished set, the same bytes, nothing left over."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from services.common.failpoints import FAILPOINTS
from services.local.stack import ServiceProcess, rlm_settings
from tests.harness.eventually import eventually
from tests.harness.processes import (
    kill_and_restart,
    run_until_killed,
    start_with_failpoint,
    wait_until_dead,
)
from tests.harness.synthetic_log import make_log_dir
from tests.harness.variants import first_of
from tests.harness.world import (
    COPY_LEASE_MS,
    FINISHED,
    SMALLEST_PART_BYTES,
    World,
    name_topics_anew,
)

RSM = [name for name in FAILPOINTS if name.startswith("rsm.")]
RLMM = [name for name in FAILPOINTS if name.startswith("rlmm.")]
SHIP = [name for name in FAILPOINTS if name.startswith("copy.")]
CLEAN_UP = [name for name in FAILPOINTS if name.startswith("cleanup.")]
DELETION = [name for name in FAILPOINTS if name.startswith("deletion.")]
REMOVAL = [name for name in FAILPOINTS if name.startswith("removal.")]
GAPS = [name for name in FAILPOINTS if name.startswith("gap.")]
INDEX_CACHE = [name for name in FAILPOINTS if name.startswith("index_cache.")]
LOCAL = [name for name in FAILPOINTS if name.startswith("local.")]
SWEEPS = [name for name in FAILPOINTS if name.startswith("sweep.")]
EXPORTS = [name for name in FAILPOINTS if name.startswith("export.")]
KILLED = -9


def test_every_failpoint_belongs_to_a_process_that_is_killed() -> None:
    """Here; those of DELETION in test_kill_while_expiring.py, of REMOVAL in
    test_kill_while_removing.py, of GAPS in test_faults_kills.py, of INDEX_CACHE in
    test_index_cache_kills.py, of LOCAL in test_kill_while_deleting_locally.py, of RSM also in
    test_kill_and_reconcile.py, of SWEEPS and EXPORTS in tests/spark. Each of these takes all of its
    kind, and fails if one is not passed."""
    ours = [*RSM, *RLMM, *SHIP, *CLEAN_UP]
    everywhere = [*ours, *DELETION, *REMOVAL, *GAPS, *INDEX_CACHE, *LOCAL, *SWEEPS, *EXPORTS]
    assert sorted(everywhere) == sorted(FAILPOINTS)


@pytest.mark.parametrize("name", first_of(SHIP))
@pytest.mark.parametrize("nth", [1, pytest.param(7, marks=pytest.mark.long)])
def test_ship_killed_while_copying(world: World, name: str, nth: int) -> None:
    with world.start_shipping(failpoint=f"{name}:{nth}") as process:
        assert process.wait(60) == KILLED
    world.ship()
    world.assert_all_shipped()


@pytest.mark.parametrize("name", first_of(CLEAN_UP))
def test_ship_killed_while_cleaning_up(world: World, name: str) -> None:
    with world.start_shipping(failpoint="copy.bytes_sent:3") as process:
        assert process.wait(60) == KILLED
    with world.start_shipping(failpoint=name) as process:
        assert process.wait(60) == KILLED
    world.ship()
    world.assert_all_shipped()


@contextmanager
def rlm_service(world: World, directory: Path) -> Iterator[ServiceProcess]:
    """RLM beside the world's log, not started yet."""
    addresses = world.rsm.address, world.rlmm.address
    settings = rlm_settings(*addresses, [world.log_dir], task_interval_ms=200)
    settings["RLM_COPY_LEASE_MS"] = str(COPY_LEASE_MS)
    rlm = ServiceProcess("rlm", settings, directory / "rlm")
    yield rlm
    rlm.kill()


def shipped(world: World) -> bool:
    """Nothing more is to be done, which `assert_all_shipped` can judge."""
    expected = sum(map(len, world.local_segments().values()))
    rows = world.rows()
    return len(rows) == expected and {row.state for row in rows} == {FINISHED}


@pytest.mark.parametrize("name", first_of(SHIP, 2))
def test_rlm_killed_while_copying(world: World, tmp_path: Path, name: str) -> None:
    with rlm_service(world, tmp_path) as rlm:
        run_until_killed(rlm, name, nth=3)
        kill_and_restart(rlm)
        eventually(lambda: shipped(world), deadline_ms=60_000)
    world.assert_all_shipped()


@pytest.mark.parametrize("name", first_of(CLEAN_UP))
def test_rlm_killed_while_cleaning_up(world: World, tmp_path: Path, name: str) -> None:
    with rlm_service(world, tmp_path) as rlm:
        for failpoint in ("copy.bytes_sent", name):
            run_until_killed(rlm, failpoint)
        kill_and_restart(rlm)
        eventually(lambda: shipped(world), deadline_ms=60_000)
    world.assert_all_shipped()


def ship_while_it_dies(world: World, service: ServiceProcess, name: str, nth: int = 1) -> None:
    """Ship once, with a service that kills itself on the way and is started again."""
    service.kill()
    start_with_failpoint(service, name, nth)
    with world.start_shipping() as process:
        wait_until_dead(service)
        kill_and_restart(service)
        assert process.wait(120) == 0
    world.assert_all_shipped()


@pytest.mark.parametrize(
    "name", first_of(["rsm.manifest_written", "rsm.log_written", "rsm.indexes_written"])
)
def test_rsm_killed_while_copying(world: World, name: str) -> None:
    ship_while_it_dies(world, world.rsm, name, nth=3)


@pytest.mark.parametrize("name", first_of(["rsm.part_written", "rsm.upload_begun"]))
def test_rsm_killed_between_the_parts_of_a_log(world: World, tmp_path: Path, name: str) -> None:
    world.log_dir = tmp_path / "large"
    make_log_dir(world.log_dir, partitions=2, segments=1, segment_bytes=3 * SMALLEST_PART_BYTES)
    ship_while_it_dies(world, world.rsm, name, nth=2)


def test_rsm_killed_while_deleting(world: World) -> None:
    with world.start_shipping(failpoint="copy.bytes_sent:3") as process:
        assert process.wait(60) == KILLED
    ship_while_it_dies(world, world.rsm, "rsm.delete_some")


@pytest.mark.parametrize("name", first_of(RLMM))
@pytest.mark.parametrize("nth", [1, pytest.param(8, marks=pytest.mark.long)])
def test_rlmm_killed_around_a_commit(world: World, name: str, nth: int) -> None:
    ship_while_it_dies(world, world.rlmm, name, nth)


@pytest.mark.deep
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
