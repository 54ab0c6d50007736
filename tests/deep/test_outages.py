"""Store or database killed while `sediment ship` runs: it goes on by itself, or a rerun finishes.

The servers are this module's own, for they die here.
"""

import subprocess
from pathlib import Path

import pytest

from services.local.seaweedfs import SeaweedFS
from tests.harness.eventually import eventually
from tests.harness.local_servers import DatabaseServer
from tests.harness.own_servers import own_postgres, own_s3, own_world
from tests.harness.synthetic_log import make_log_dir
from tests.harness.variants import first_of
from tests.harness.world import FINISHED, World

__all__ = ["own_postgres", "own_s3", "own_world"]
pytestmark = pytest.mark.deep

UNREACHED = 3
# Long enough to be in the middle of: some seconds.
PARTITIONS, SEGMENTS, SEGMENT_BYTES = 4, 20, 4 * 1024 * 1024
Server = DatabaseServer | SeaweedFS


@pytest.fixture
def world(own_world: World, tmp_path: Path) -> World:
    """As in conftest.py, with a log that takes a while."""
    own_world.log_dir = tmp_path / "log"
    make_log_dir(own_world.log_dir, PARTITIONS, SEGMENTS, SEGMENT_BYTES)
    return own_world


@pytest.fixture(params=first_of(["database", "store"]))
def server(
    request: pytest.FixtureRequest, own_s3: SeaweedFS, own_postgres: DatabaseServer
) -> Server:
    return own_s3 if request.param == "store" else own_postgres


def start(world: World, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        world.ship_command(*options), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finished(world: World) -> int:
    return sum(row.state is FINISHED for row in world.rows())


def wait_until_in_the_middle(world: World, ship: "subprocess.Popen[str]") -> None:
    def is_in_the_middle() -> bool:
        if ship.poll() is not None:
            pytest.fail(f"it ended before it was killed: {ship.communicate()}")
        return finished(world) > 2

    eventually(is_in_the_middle, deadline_ms=60_000)


def test_ship_resumes_after_an_outage(world: World, server: Server) -> None:
    with start(world) as ship:
        wait_until_in_the_middle(world, ship)
        server.kill()
        server.start()
        _, errors = ship.communicate(timeout=120)
    assert ship.returncode == 0, errors
    world.assert_all_shipped()


@pytest.mark.long
def test_rerun_finishes_an_abandoned_ship(world: World, server: Server) -> None:
    with start(world, "--retry-for", "5") as ship:
        wait_until_in_the_middle(world, ship)
        server.kill()
        _, errors = ship.communicate(timeout=120)
    server.start()
    assert ship.returncode == UNREACHED, errors
    assert "run the command again" in errors
    assert "Traceback" not in errors
    world.ship()
    world.assert_all_shipped()


def test_ship_waits_for_a_server_that_is_down_at_its_start(world: World, server: Server) -> None:
    server.kill()
    with start(world) as ship:
        server.start()
        _, errors = ship.communicate(timeout=120)
    assert ship.returncode == 0, errors
    world.assert_all_shipped()
