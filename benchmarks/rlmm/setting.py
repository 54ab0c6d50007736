"""Provide the setting of RLMM's benchmarks: a history, RLMM, the opponent, clients."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from uuid import uuid4

from benchmarks.counts import Counted, Counters, counting_server
from benchmarks.measure import QUICK
from benchmarks.rlmm.clients import Clients, Workload, running_clients
from benchmarks.rlmm.database import databases, running_rlmm
from benchmarks.rlmm.empty_rpc import EmptyServer, running_empty_server
from benchmarks.rlmm.histories import Layout

PARTITIONS = 1_000
CLIENTS = 32
CLIENT_PROCESSES = 4
SERVERS = int(os.environ.get("BENCH_SERVERS", "1"))
"""The number of RLMM's servers for many clients, and of the opponent's."""
ROUND_S = 1.0 if QUICK else 4.0
"""How long each side is measured in a round."""

SMALL = Layout(PARTITIONS, 10)
MIDDLE = Layout(PARTITIONS, 100)
# KIP-405's 30 days at one segment a second.
LARGE = Layout(PARTITIONS, 240, 20_000) if QUICK else Layout(PARTITIONS, 2_402, 200_000)


@dataclass(frozen=True)
class Served:
    """RLMM over a database: its addresses, and its processes by name."""

    address: str
    metrics: str
    pids: dict[str, int]

    def counted(self, operation: str, operations: float | str) -> Counted:
        """Count RLMM's calls and statements, for each operation.

        Args:
            operations: so many in one round; or the counter that counts them.
        """
        server_url = counting_server(databases().server)
        return Counted(operation, operations, Counters({"RLMM": self.metrics}, server_url))


class Setting:
    """Starts the parts that a benchmark needs, and stops them at the end."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup

    def history(self, layout: Layout) -> str:
        return databases().history(layout)

    def scratch(self, layout: Layout) -> str:
        """Return the URL of a copy of that history which may be changed."""
        return self._cleanup.enter_context(databases().scratch(layout))

    def rlmm(self, database_url: str, settings: Mapping[str, str] | None = None) -> Served:
        process = self._cleanup.enter_context(running_rlmm(database_url, settings))
        pids = {"rlmm": process.process.pid, "postgres": databases().server.pid}
        return Served(process.address, process.announcement.metrics, pids)

    def rlmms(self, database_url: str) -> list[Served]:
        return [self.rlmm(database_url) for _ in range(SERVERS)]

    def empty_servers(self) -> list[EmptyServer]:
        return [self.empty_server() for _ in range(SERVERS)]

    def empty_server(self) -> EmptyServer:
        directory = databases().directory / "services" / uuid4().hex
        return self._cleanup.enter_context(running_empty_server(directory))

    def clients(self, workload: Workload, count: int = CLIENTS) -> Clients:
        """Start clients and let them call for a while, so that they are warm."""
        processes = min(count, CLIENT_PROCESSES)
        clients = self._cleanup.enter_context(running_clients(workload, count, processes))
        clients.run(1.0)
        return clients


def pids_of(served: Sequence[Served]) -> dict[str, int]:
    """Return the pids of all processes by name."""
    return {
        f"{name} {number}" if name == "rlmm" else name: pid
        for number, each in enumerate(served, 1)
        for name, pid in each.pids.items()
    }


@contextmanager
def setting() -> Iterator[Setting]:
    with ExitStack() as cleanup:
        yield Setting(cleanup)


def conditions(layout: Layout, **more: object) -> dict[str, object]:
    return {
        "segments": layout.total_segments(),
        "partitions": layout.partitions,
        **more,
        **databases().conditions(),
        "quick": QUICK,
    }
