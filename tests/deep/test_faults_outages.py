"""What RLM needs goes away for some seconds and comes back, under an RLM that serves and copies."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest

from services.api.remote_log_manager import FetchError
from services.local.seaweedfs import SeaweedFS
from services.local.stack import ServiceProcess
from tests.harness.eventually import eventually
from tests.harness.faulty_world import FaultyWorld, assert_local_reads_go_on, faulty_world
from tests.harness.local_servers import DatabaseServer
from tests.harness.own_servers import own_postgres, own_s3, own_world
from tests.harness.published import health_of
from tests.harness.read_loop import Read
from tests.harness.variants import first_of
from tests.harness.world import World

__all__ = ["own_postgres", "own_s3", "own_world"]
pytestmark = pytest.mark.deep

OUTAGE_S = 6.0
MOST_RECOVERY = 1.5
"""Times the outage."""
MOST_REMOTE_WAIT_S = 5.0
"""A read waits for its turn for half a second, and for a service that is away about as long."""
MOST_LOG_LINES = 150
MOST_GROWTH_BYTES = 64 * 1024 * 1024
AWAY = FetchError.TIERED_STORAGE_NOT_AVAILABLE.name
Server = DatabaseServer | SeaweedFS | ServiceProcess


@dataclass(frozen=True)
class Outage:
    """What goes; and who says so, by the health of the services whose process stays."""

    servers: tuple[Server, ...]
    not_serving: tuple[ServiceProcess, ...]

    def begin(self) -> None:
        for server in self.servers:
            server.kill()

    def end(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.start(), self.servers))


Which = Callable[[World, DatabaseServer, SeaweedFS], Outage]
OUTAGES: dict[str, Which] = {
    "store": lambda world, postgres, s3: Outage((s3,), (world.rsm,)),
    "database": lambda world, postgres, s3: Outage((postgres,), (world.rlmm,)),
    "store and database": lambda world, postgres, s3: Outage(
        (s3, postgres), (world.rsm, world.rlmm)
    ),
    "rsm and rlmm": lambda world, postgres, s3: Outage((world.rsm, world.rlmm), ()),
}


@pytest.fixture
def faulty(own_world: World, tmp_path: Path) -> Iterator[FaultyWorld]:
    with faulty_world(own_world, tmp_path) as made:
        yield made


@pytest.mark.parametrize("which", first_of(OUTAGES))
def test_an_outage(
    faulty: FaultyWorld, own_postgres: DatabaseServer, own_s3: SeaweedFS, which: str
) -> None:
    outage = OUTAGES[which](faulty.world, own_postgres, own_s3)
    lines, rss = faulty.log_lines(), faulty.rss_bytes()

    def end() -> None:
        eventually(partial(is_told, faulty.rlm.announcement.health, "SERVING"))
        for service in outage.not_serving:
            address = service.announcement.health
            eventually(partial(is_told, address, "NOT_SERVING"))
        outage.end()

    faulty.outage(outage.begin, end, OUTAGE_S)
    lines_of_it, growth = faulty.log_lines() - lines, faulty.rss_bytes() - rss
    recovery_s = faulty.recovery_s()
    gone, ends = faulty.reported["gone"], faulty.reported["ends"]
    local, remote = faulty.local.between(gone, ends), faulty.remote.between(gone, ends)
    assert recovery_s <= MOST_RECOVERY * faulty.outage_s
    assert_local_reads_go_on(local, OUTAGE_S)
    assert_told_that_it_is_away(remote, local)
    assert lines_of_it < MOST_LOG_LINES
    assert growth < MOST_GROWTH_BYTES
    eventually(faulty.remote.is_well)
    faulty.assert_whole()


def is_told(health_address: str, expected: str) -> bool:
    try:
        return health_of(health_address) == expected
    except grpc.RpcError:  # nobody answered in time
        return False


def assert_told_that_it_is_away(reads: list[Read], local: list[Read]) -> None:
    assert len(reads) > OUTAGE_S / MOST_REMOTE_WAIT_S
    # The first may have been answered from what was on its way.
    assert {read.answer for read in reads[1:]} <= {AWAY}
    # A local read needs nobody else: what the slowest took is the machine's.
    most_s = MOST_REMOTE_WAIT_S + max(read.took_s for read in local)
    assert max(read.took_s for read in reads) < most_s
