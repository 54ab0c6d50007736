"""Measure RSM and RLMM in two processes behind one port, against one process, with 32 clients."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.deployment import SAMPLED, deployed
from benchmarks.measure import MIB, QUICK, ROUNDS, Result, ratio
from benchmarks.rlmm.clients import Workload, running_clients
from benchmarks.rlmm.lookups import Lookups, RpcLookups
from benchmarks.rlmm.segment_lives import SegmentLives
from benchmarks.rlmm.setting import (
    CLIENT_PROCESSES,
    CLIENTS,
    MIDDLE,
    ROUND_S,
    Served,
    conditions,
    setting,
)
from benchmarks.segments import RandomSegment
from benchmarks.store import STORE
from services.api.segments import RemoteLogSegmentMetadata
from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient

FETCHED_BYTES = 8 * MIB
SEGMENT_BYTES = 64 * MIB
ROOM = {"RSM_STREAM_THREADS": str(CLIENTS)}
"""By default RSM refuses the 25th of concurrent streams."""


@dataclass(frozen=True)
class Fetches:
    """Fetch the same range again and again; an operation is a MiB."""

    address: str
    segment: RemoteLogSegmentMetadata

    def caller(self, number: int) -> Callable[[], int]:
        client = RemoteStorageManagerClient(open_channel(self.address, PLAINTEXT), self.address)
        start = number % (SEGMENT_BYTES // FETCHED_BYTES) * FETCHED_BYTES
        end = start + FETCHED_BYTES - 1

        def fetch() -> int:
            return sum(map(len, client.fetch_log_segment(self.segment, start, end))) // MIB

        return fetch


def run_transitions() -> Result:
    return _rlmm("rlmm_processes", lambda served: SegmentLives(served.address, MIDDLE, CLIENTS))


def run_lookups() -> Result:
    return _rlmm(
        "rlmm_processes_lookup", lambda served: RpcLookups(served.address, Lookups(MIDDLE))
    )


def run_fetches() -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="sediment-bench-") as name,
        deployed(settings=SAMPLED) as services,
        services.rsm_process({**_processes("RSM", 1), **ROOM}) as one,
        services.rsm_process({**_processes("RSM", 2), **ROOM}) as two,
    ):
        segment = RandomSegment(Path(name) / "segment.log", SEGMENT_BYTES).copied(services.rsm)
        return _ratio(
            "rsm_processes",
            "MiB/s",
            (Fetches(two.address, segment), {"rsm": two.process.pid}),
            (Fetches(one.address, segment), {"rsm": one.process.pid}),
            {"range_bytes": FETCHED_BYTES, **SAMPLED, **ROOM, "store": STORE, "quick": QUICK},
        )


def _rlmm(name: str, workload: Callable[[Served], Workload]) -> Result:
    with setting() as made:
        one, two = (
            made.rlmm(made.scratch(MIDDLE), _processes("RLMM", number)) for number in (1, 2)
        )
        return _ratio(
            name,
            "calls/s",
            (workload(two), two.pids),
            (workload(one), one.pids),
            conditions(MIDDLE),
        )


def _ratio(
    name: str,
    unit: str,
    two: tuple[Workload, Mapping[str, int]],
    one: tuple[Workload, Mapping[str, int]],
    facts: Mapping[str, object],
) -> Result:
    with (
        running_clients(two[0], CLIENTS, CLIENT_PROCESSES) as of_two,
        running_clients(one[0], CLIENTS, CLIENT_PROCESSES) as of_one,
    ):
        for clients in (of_two, of_one):
            clients.run(1.0)
        return ratio(
            name,
            ROUNDS,
            (f"two processes, {unit}", lambda: of_two.run(ROUND_S).operations_per_s),
            (f"one process, {unit}", lambda: of_one.run(ROUND_S).operations_per_s),
            {**two[1], **of_two.pids},
            {"clients": CLIENTS, **facts},
            {**one[1], **of_one.pids},
        )


def _processes(service: str, number: int) -> dict[str, str]:
    return {f"{service}_PROCESSES": str(number)}
