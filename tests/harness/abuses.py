"""Abuse a service from a process of its own, until its input ends:
`python -m tests.harness.abuses ABUSE HOST:PORT CA CERTIFICATE KEY REQUEST`, the request in hex.

A flood gets only the CPU that nobody else wants: so what an honest client loses is what the service
spends, not what the flood itself costs on this machine.
"""

import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from services.common.client_security import ClientSecurity
from tests.harness.background import Background
from tests.harness.eventually import eventually
from tests.harness.idle_streams import Connection, idle_peer

RSM = "/tieredstorage.v1.RemoteStorageManager"
CONNECTIONS = 40
FLOODING = 3
CALLS = 10_000
STARTED = "started"


@contextmanager
def abused(
    abuse: str, address: str, security: ClientSecurity, request: bytes = b""
) -> Iterator[None]:
    """Run an abuse, one of ABUSES, in a process of its own while the block runs.

    Args:
        security: certificate and key of the identity that abuses the service.
        request: of the calls, if the abuse sends one.
    """
    files = (security.ca, security.certificate, security.key)
    command = [sys.executable, "-m", __name__, abuse, address, *map(str, files), request.hex()]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        if said != STARTED:
            raise RuntimeError(f"{abuse} did not start: {said!r}")
        yield
        assert process.stdin is not None
        process.stdin.close()
        sys.stdout.write(process.stdout.read())


def be_nice() -> None:
    """Take only the CPU that nobody else wants."""
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
    be_nice()
    floods = [Flood(address, tls, abuse) for _ in range(FLOODING)]
    with ExitStack() as running:
        for flood in floods:
            running.enter_context(flood)
        eventually(lambda: all(flood.connections for flood in floods))
        yield
    connections, times = sum(f.connections for f in floods), sum(f.times for f in floods)
    sys.stdout.write(f"  {times:,} times on {connections:,} connections\n")


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
            peer.open_calls(f"{RSM}/{method}", CALLS // len(methods))
        eventually(lambda: peer.ended > CALLS * 0.95)
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
        address, tls, "CopyLogSegmentData", "FetchLogSegment"
    ),
    "requests_that_never_arrive": lambda address, tls, _: _never_asked(
        address, tls, "DeleteLogSegmentData"
    ),
    "slow_readers": _slow_readers,
}


def main(abuse: str, address: str, ca: str, certificate: str, key: str, request: str) -> None:
    tls = ssl.create_default_context(cafile=ca)
    tls.load_cert_chain(certificate, key)
    tls.set_alpn_protocols(["h2"])
    with ABUSES[abuse](address, tls, bytes.fromhex(request)):
        sys.stdout.write(f"{STARTED}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
