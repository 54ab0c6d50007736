"""Abuse a service from a process of its own, until its input ends:
`python -m tests.harness.abuses ABUSE HOST:PORT CA CERTIFICATE KEY REQUEST CPU`, the request in hex.

A real abuser brings its own machine. Here its share of the CPU decides how much of an honest
client's loss is what the service spends, and how much is what the abuse costs on this machine.
"""

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from services.common.client_security import ClientSecurity
from tests.harness.eventually import Background, eventually
from tests.harness.idle_streams import Connection, idle_peer

RSM = "/tieredstorage.v1.RemoteStorageManager"
RLMM = "/tieredstorage.v1.RemoteLogMetadataManager"
CONNECTIONS = 40
FLOODING = 3
CALLS = 10_000
STARTED = "started"


class Cpu(Enum):
    """The CPU that the process of an abuse gets."""

    EQUAL = "equal"
    """As much as any other process."""
    LEFT_OVER = "left-over"
    """CPU time that nothing else uses."""
    OWN_CORE = "own-core"
    """The last core of the machine: the others must leave it."""


@dataclass
class Counted:
    """What an abuse has done; known when it has ended, and 0 if it is no flood."""

    times: int = 0
    connections: int = 0


@contextmanager
def abused(
    abuse: str,
    address: str,
    security: ClientSecurity,
    request: bytes = b"",
    cpu: Cpu = Cpu.EQUAL,
) -> Iterator[Counted]:
    """Run an abuse, one of ABUSES or RLMM_ABUSES, in a process of its own while the block runs.

    Args:
        security: certificate and key of the identity that abuses the service.
        request: of the calls, if the abuse sends one.
    """
    files = (security.ca, security.certificate, security.key)
    arguments = (abuse, address, *map(str, files), request.hex(), cpu.value)
    command = [sys.executable, "-m", __name__, *arguments]
    counted = Counted()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        if said != STARTED:
            raise RuntimeError(f"{abuse} did not start: {said!r}")
        yield counted
        assert process.stdin is not None
        process.stdin.close()
        counted.times, counted.connections = json.loads(process.stdout.read() or "[0, 0]")


def take(cpu: Cpu) -> None:
    """Take that CPU from now on, in the threads that this one starts, too."""
    if cpu is Cpu.OWN_CORE:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    elif cpu is Cpu.LEFT_OVER:
        os.nice(19)
        with suppress(OSError):  # Linux may divide the CPU by sessions first.
            Path("/proc/self/autogroup").write_text("19")


class Flood(Background):
    """Repeats one abuse as fast as the server takes it, on a new connection when one is closed."""

    def __init__(
        self, address: str, tls: ssl.SSLContext, abuse: Callable[[Connection], int]
    ) -> None:
        super().__init__()
        self._address = address
        self._tls = tls
        self._abuse = abuse
        self.connections = 0
        self.times = 0

    def run(self) -> None:
        while not self.wait(0):
            with suppress(OSError), self._connection() as connection:
                while not self.wait(0):
                    self.times += self._abuse(connection)
                    for _ in connection.read_frames():
                        pass

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        connection = Connection(self._address, tls=self._tls)
        self.connections += 1
        try:
            yield connection
        finally:
            connection.socket.close()


@contextmanager
def _flood(address: str, tls: ssl.SSLContext, abuse: Callable[[Connection], int]) -> Iterator[None]:
    floods = [Flood(address, tls, abuse) for _ in range(FLOODING)]
    with ExitStack() as running:
        for flood in floods:
            running.enter_context(flood)
        eventually(lambda: all(flood.connections for flood in floods))
        yield
    sys.stdout.write(json.dumps([sum(f.times for f in floods), sum(f.connections for f in floods)]))


def _ping(connection: Connection) -> int:
    connection.send_pings(100)
    return 100


def _reset(connection: Connection) -> int:
    connection.send_resets(f"{RSM}/DeleteLogSegmentData", 50)
    return 50


def _give_up(connection: Connection) -> int:
    raise ConnectionError


@contextmanager
def _never_asked(address: str, tls: ssl.SSLContext, *methods: str) -> Iterator[None]:
    """Open calls that send no request, until those that found no room are refused."""
    with idle_peer(address, CONNECTIONS, tls=tls) as peer:
        for method in methods:
            peer.open_calls(method, CALLS // len(methods))
        eventually(lambda: peer.ended > CALLS * 0.95)
        yield


@contextmanager
def _slow_watchers(address: str, tls: ssl.SSLContext, request: bytes) -> Iterator[None]:
    """Watch partitions with many calls, and take nothing beyond the first window."""
    with idle_peer(address, 4, tls=tls) as peer:
        peer.open_calls(f"{RLMM}/WatchPartitions", 400, request)
        eventually(lambda: peer.ended > 300)
        yield


@contextmanager
def _slow_readers(address: str, tls: ssl.SSLContext, request: bytes) -> Iterator[None]:
    """Read with many streams, and take nothing beyond the first window."""
    with idle_peer(address, 4, tls=tls) as peer:
        peer.open_calls(f"{RSM}/FetchLogSegment", 400, request)
        eventually(lambda: peer.ended > 350)
        yield


Abuse = Callable[[str, ssl.SSLContext, bytes], AbstractContextManager[None]]
ABUSES: dict[str, Abuse] = {
    "ping_flood": lambda address, tls, _: _flood(address, tls, _ping),
    "rapid_resets": lambda address, tls, _: _flood(address, tls, _reset),
    "reconnects": lambda address, tls, _: _flood(address, tls, _give_up),
    "idle_streams": lambda address, tls, _: _never_asked(
        address, tls, f"{RSM}/CopyLogSegmentData", f"{RSM}/FetchLogSegment"
    ),
    "requests_that_never_arrive": lambda address, tls, _: _never_asked(
        address, tls, f"{RSM}/DeleteLogSegmentData"
    ),
    "slow_readers": _slow_readers,
}
RLMM_ABUSES: dict[str, Abuse] = {
    "idle_unary_calls": lambda address, tls, _: _never_asked(
        address, tls, f"{RLMM}/GetPartitionState"
    ),
    "slow_watchers": _slow_watchers,
}
FLOODS = ("ping_flood", "rapid_resets", "reconnects")
"""The abuses that send as fast as they can; the others open calls and then wait."""


def main(
    abuse: str, address: str, ca: str, certificate: str, key: str, request: str, cpu: str
) -> None:
    take(Cpu(cpu))
    tls = ssl.create_default_context(cafile=ca)
    tls.load_cert_chain(certificate, key)
    tls.set_alpn_protocols(["h2"])
    with {**ABUSES, **RLMM_ABUSES}[abuse](address, tls, bytes.fromhex(request)):
        sys.stdout.write(f"{STARTED}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
