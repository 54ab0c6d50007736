"""Measure abuses: what one honest client keeps of its rate while another identity abuses RSM, and
what an abuse costs RSM.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.measure import QUICK, Result, Side, counted_rounds, tree_cpu_seconds
from benchmarks.segments import RandomSegment
from services.api.errors import RetriableRemoteStorageError, ThrottledError
from services.api.roles import Role
from services.api.segments import RemoteLogSegmentMetadata
from services.common.client_security import ClientSecurity
from services.local.stack import ServiceProcess
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rpc.converters.shared import metadata_to_proto
from tests.harness.abuses import ABUSES, FLOODS, Counted, Cpu, abused
from tests.harness.secured import Deployment, spiffe
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

ROUNDS = 2 if QUICK else 5
MEASURED_S = 1.0 if QUICK else 2.0
SIZE_BYTES = 1024 * 1024
UNREAD_BYTES = 64 * 1024 * 1024
MOST_S = 30.0
"""An honest client that has done no round by then counts as starved."""


@dataclass(frozen=True)
class Row:
    """The effect of one abuse.

    Attributes:
        kept: by CPU of the abuse, the share of its rate that the honest client keeps; a median.
        cores: the CPU that RSM spends on the abuse alone, on the cores that are left to it.
        us_per_time: the CPU of RSM per ping, reset or connection, microseconds; None if no flood.
    """

    abuse: str
    kept: dict[str, list[float]]
    cores: float
    us_per_time: float | None


class Abused:
    """An RSM over files with TLS and a policy, with an honest client and one that abuses it."""

    def __init__(
        self,
        pid: int,
        address: str,
        abuser: ClientSecurity,
        honest: RemoteStorageManagerClient,
        segments: Path,
    ) -> None:
        self._pid = pid
        self._address = address
        self._abuser = abuser
        self._honest = honest
        self._segment = RandomSegment(segments / "segment.log", SIZE_BYTES)
        unread = RandomSegment(segments / "unread.log", UNREAD_BYTES).copied(honest)
        self._request = _fetch_request(unread)

    def measured(self, abuse: str) -> Row:
        kept: dict[str, list[float]] = {cpu.value: [] for cpu in Cpu}
        costs = []
        for _ in counted_rounds(abuse, ROUNDS):
            for cpu in Cpu:
                with self._cores_left_by(cpu):
                    alone = self._rounds_per_s()
                    with self._abused(abuse, cpu):
                        kept[cpu.value].append(self._rounds_per_s() / alone)
            costs.append(self._cost(abuse))
        per_time = [cpu_s / times * 1e6 for cpu_s, _, times in costs if times]
        return Row(
            abuse,
            kept,
            statistics.median(cpu_s / elapsed_s for cpu_s, elapsed_s, _ in costs),
            statistics.median(per_time) if per_time else None,
        )

    def _cost(self, abuse: str) -> tuple[float, float, int]:
        """Return CPU seconds of RSM, elapsed seconds, and times of an abuse beside nothing else."""
        with self._cores_left_by(Cpu.OWN_CORE):
            before, began_s = tree_cpu_seconds(self._pid), time.monotonic()
            with self._abused(abuse, Cpu.OWN_CORE) as counted:
                time.sleep(MEASURED_S)
            elapsed_s = time.monotonic() - began_s
            # Reconnects do nothing else on a connection.
            times = counted.times or counted.connections
            return tree_cpu_seconds(self._pid) - before, elapsed_s, times

    @contextmanager
    def _abused(self, abuse: str, cpu: Cpu) -> Iterator[Counted]:
        with abused(abuse, self._address, self._abuser, self._request, cpu) as counted:
            yield counted

    @contextmanager
    def _cores_left_by(self, cpu: Cpu) -> Iterator[None]:
        """Keep RSM and the client off the core that the abuse has for itself."""
        cores = os.sched_getaffinity(0)
        pids = (os.getpid(), self._pid)
        try:
            _keep_to(cores - {max(cores)} if cpu is Cpu.OWN_CORE else cores, pids)
            yield
        finally:
            _keep_to(cores, pids)

    def _rounds_per_s(self) -> float:
        """Copy, read and delete a segment again and again."""
        began_s, done = time.monotonic(), 0
        while (elapsed_s := time.monotonic() - began_s) < MEASURED_S or not done:
            if elapsed_s > MOST_S:
                return 0.0
            # The client of a flooded service tries again.
            with suppress(ThrottledError, RetriableRemoteStorageError):
                copied = self._segment.copied(self._honest)
                for _ in self._honest.fetch_log_segment(copied, 0, SIZE_BYTES - 1):
                    pass
                self._honest.delete_log_segment_data(copied)
                done += 1
        return done / elapsed_s


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name, _rsm(Path(name)) as rsm:
        rows = [rsm.measured(abuse) for abuse in ABUSES]
    _print(rows)
    by_own_core = {row.abuse: row.kept[Cpu.OWN_CORE.value] for row in rows}
    worst = min(by_own_core, key=lambda abuse: statistics.median(by_own_core[abuse]))
    return Result(
        "abuses",
        f"share that an honest client keeps beside the worst, {worst}",
        statistics.median(by_own_core[worst]),
        by_own_core[worst],
        Side("beside the abuse"),
        Side("alone"),
        {
            "rounds": ROUNDS,
            "cores": os.cpu_count(),
            "size_bytes": SIZE_BYTES,
            "floods": FLOODS,
            "rows": [asdict(row) for row in rows],
        },
    )


@contextmanager
def _rsm(directory: Path) -> Iterator[Abused]:
    made = Deployment(directory)
    for name in ("honest", "abuser"):
        made.grant(spiffe(name), Role.SHIPPER, Role.READER, Role.DELETER)
    files = directory / "files"
    files.mkdir()
    settings = {
        "RSM_BACKEND": "filesystem",
        "RSM_DIRECTORY": str(files),
        # No abuse ends because it is idle for too long.
        "RSM_STREAM_IDLE_TIMEOUT_MS": "600000",
        **made.environment("RSM"),
    }
    service = ServiceProcess("rsm", settings, directory)
    service.start()
    try:
        with open_channel(service.address, made.client("honest")) as channel:
            client = RemoteStorageManagerClient(channel, service.address)
            pid, abuser = service.process.pid, made.client("abuser")
            yield Abused(pid, service.address, abuser, client, directory)
    finally:
        service.stop()


def _keep_to(cores: Iterable[int], pids: Iterable[int]) -> None:
    """Run the threads of processes, and those that they start, on these cores only."""
    for pid in pids:
        for thread in psutil.Process(pid).threads():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cores)


def _fetch_request(segment: RemoteLogSegmentMetadata) -> bytes:
    request = pb.FetchLogSegmentRequest(metadata=metadata_to_proto(segment), start_position=0)
    return request.SerializeToString()


def _print(rows: Iterable[Row]) -> None:
    table = Table(title="abuses", title_justify="left")
    titles = [f"kept, abuse with CPU: {cpu.value}" for cpu in Cpu]
    for title in ("abuse", *titles, "RSM's cores", "CPU us each time"):
        table.add_column(title, overflow="fold")
    for row in rows:
        kept = (
            f"{statistics.median(shares):.0%} ({min(shares):.0%} - {max(shares):.0%})"
            for shares in row.kept.values()
        )
        each = "" if row.us_per_time is None else f"{row.us_per_time:.2f}"
        table.add_row(row.abuse, *kept, f"{row.cores:.2f}", each)
    Console(width=130).print(table)


if __name__ == "__main__":
    run()
