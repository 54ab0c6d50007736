"""One identity abuses a service as it is deployed: another one is served meanwhile, at what rate.

The rates are printed (`-s`, or `-rP`). The bounds are wide, because the abuse, the service and the
honest client share a few cores here.
"""

import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from services.api.errors import RetriableRemoteStorageError, ThrottledError
from services.api.roles import Role
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rpc.converters.shared import metadata_to_proto
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied, fetched
from tests.deep.test_service_processes import SERVING, Running, files_settings, started
from tests.harness.background import Background
from tests.harness.eventually import eventually
from tests.harness.idle_streams import Connection, idle_peer
from tests.harness.secured_server import Deployment, spiffe
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

RSM = "/tieredstorage.v1.RemoteStorageManager"
MEASURED_S = 4.0
LOG = bytes(range(256)) * 4 * 256  # 256 KiB
LARGE_LOG = LOG * 64
CONNECTIONS = 40
FLOODING = 3
# An honest client that is starved reaches nothing. Floods take their CPU from all: the abuse, the
# client and the service have two cores here.
LEAST_ROUNDS_PER_S = 0.25
MIB = 1024 * 1024
MOST_GROWTH_BYTES = 192 * MIB


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = Deployment(tmp_path_factory.mktemp("secured"))
    for name in ("honest", "abuser", "unbounded"):
        made.grant(spiffe(name), Role.SHIPPER, Role.READER, Role.DELETER)
    return made


def rsm_settings(deployment: Deployment, directory: Path) -> dict[str, str]:
    return {
        **files_settings(directory),
        **deployment.environment("RSM"),
        # No abuse ends because it is idle for too long.
        "RSM_STREAM_IDLE_TIMEOUT_MS": "600000",
        "RSM_DEFAULT_DEADLINE_MS": "600000",
    }


@pytest.fixture(scope="module")
def rsm(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("rsm")
    settings = rsm_settings(deployment, directory / "files")
    with started("rsm", settings, directory / "process") as running:
        running.wait_until(SERVING)
        yield running


@pytest.fixture(scope="module")
def honest(rsm: Running, deployment: Deployment) -> Iterator[RemoteStorageManagerClient]:
    with open_channel(rsm.address, deployment.client("honest")) as channel:
        yield RemoteStorageManagerClient(channel, rsm.address)


@pytest.fixture(scope="module")
def abuser(deployment: Deployment) -> ssl.SSLContext:
    """Provide the TLS of the identity that abuses the service."""
    security = deployment.client("abuser")
    assert security.certificate is not None
    tls = ssl.create_default_context(cafile=str(security.ca))
    tls.load_cert_chain(security.certificate, security.key)
    tls.set_alpn_protocols(["h2"])
    return tls


@pytest.fixture(scope="module")
def undisturbed(honest: RemoteStorageManagerClient) -> float:
    """Provide the honest client's rate without abuse, after a warm-up."""
    rounds_per_s(honest, 1.0)
    return rounds_per_s(honest, MEASURED_S)


T = TypeVar("T")


def rounds_per_s(client: RemoteStorageManagerClient, for_s: float) -> float:
    """Copy, read and delete for so long; return the number of rounds per second."""
    began_s, done = time.monotonic(), 0
    while time.monotonic() - began_s < for_s:
        one_round(client)
        done += 1
    return done / (time.monotonic() - began_s)


def one_round(client: RemoteStorageManagerClient) -> None:
    segment = retried(lambda: copied(client, Files(LOG)))
    assert retried(lambda: fetched(client, segment)) == LOG
    retried(lambda: client.delete_log_segment_data(segment))


def retried(call: Callable[[], T]) -> T:
    """Call again at once if the service is full, as long as eventually does."""
    found: list[T] = []

    def is_served() -> bool:
        with suppress(ThrottledError, RetriableRemoteStorageError):
            found.append(call())
        return bool(found)

    eventually(is_served)
    return found[0]


# The abuses. Each goes on while its block runs.

Abuse = Callable[
    [Running, ssl.SSLContext, RemoteStorageManagerClient], "AbstractContextManager[object]"
]


class Flood(Background):
    """Repeats one abuse as fast as the server takes it, on a new connection when one is closed."""

    def __init__(
        self, address: str, tls: ssl.SSLContext, abuse: Callable[[Connection], None]
    ) -> None:
        super().__init__()
        self._address = address
        self._tls = tls
        self._abuse = abuse

    def run(self) -> None:
        while not self.wait(0):
            with suppress(OSError), self._connection() as connection:
                while not self.wait(0):
                    self._abuse(connection)
                    for _ in connection.read_frames():
                        pass

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        connection = Connection(self._address, tls=self._tls)
        try:
            yield connection
        finally:
            connection.socket.close()


@contextmanager
def flood(rsm: Running, tls: ssl.SSLContext, abuse: Callable[[Connection], None]) -> Iterator[None]:
    with ExitStack() as running:
        for _ in range(FLOODING):
            running.enter_context(Flood(rsm.address, tls, abuse))
        yield


def ping_flood(
    rsm: Running, tls: ssl.SSLContext, honest: RemoteStorageManagerClient
) -> AbstractContextManager[object]:
    return flood(rsm, tls, lambda connection: connection.send_pings(100))


def rapid_resets(
    rsm: Running, tls: ssl.SSLContext, honest: RemoteStorageManagerClient
) -> AbstractContextManager[object]:
    path = f"{RSM}/DeleteLogSegmentData"
    return flood(rsm, tls, lambda connection: connection.send_resets(path, 50))


def reconnects(
    rsm: Running, tls: ssl.SSLContext, honest: RemoteStorageManagerClient
) -> AbstractContextManager[object]:
    def give_up(connection: Connection) -> None:
        raise ConnectionError

    return flood(rsm, tls, give_up)


@contextmanager
def ten_thousand(rsm: Running, tls: ssl.SSLContext, *methods: str) -> Iterator[None]:
    """Open calls that send no request, until those that found no room are refused."""
    with idle_peer(rsm.address, CONNECTIONS, tls=tls) as peer:
        for method in methods:
            peer.open_calls(f"{RSM}/{method}", 10_000 // len(methods))
        eventually(lambda: peer.ended > 9_500)
        yield


def idle_streams(
    rsm: Running, tls: ssl.SSLContext, honest: RemoteStorageManagerClient
) -> AbstractContextManager[object]:
    return ten_thousand(rsm, tls, "CopyLogSegmentData", "FetchLogSegment")


def requests_that_never_arrive(
    rsm: Running, tls: ssl.SSLContext, honest: RemoteStorageManagerClient
) -> AbstractContextManager[object]:
    return ten_thousand(rsm, tls, "DeleteLogSegmentData")


@contextmanager
def slow_readers(
    rsm: Running, tls: ssl.SSLContext, honest: RemoteStorageManagerClient
) -> Iterator[None]:
    """Read a large log with many streams, and take nothing beyond the first window."""
    segment = retried(lambda: copied(honest, Files(LARGE_LOG)))
    request = pb.FetchLogSegmentRequest(metadata=metadata_to_proto(segment), start_position=0)
    with idle_peer(rsm.address, 4, tls=tls) as peer:
        peer.open_calls(f"{RSM}/FetchLogSegment", 400, request.SerializeToString())
        eventually(lambda: peer.ended > 350)
        yield


@pytest.mark.parametrize(
    "abuse",
    [
        ping_flood,
        rapid_resets,
        reconnects,
        idle_streams,
        requests_that_never_arrive,
        slow_readers,
    ],
    ids=lambda abuse: abuse.__name__,
)
def test_an_honest_identity_is_served_beside_an_abuse(
    rsm: Running,
    abuser: ssl.SSLContext,
    honest: RemoteStorageManagerClient,
    undisturbed: float,
    abuse: Abuse,
) -> None:
    before_bytes = rss_bytes(rsm)
    with abuse(rsm, abuser, honest):
        rate = rounds_per_s(honest, MEASURED_S)
        assert rsm.status() == SERVING
        grown = rss_bytes(rsm) - before_bytes
    sys.stdout.write(
        f"{abuse.__name__}: {rate:.1f} rounds/s, {rate / undisturbed:.0%} of {undisturbed:.1f} "
        f"without abuse; memory {grown / MIB:+.0f} MiB\n"
    )
    assert rate >= LEAST_ROUNDS_PER_S
    assert grown < MOST_GROWTH_BYTES
    # And all is as before when the abuse is over.
    one_round(honest)


def test_without_shares_the_honest_identity_would_starve(
    deployment: Deployment, abuser: ssl.SSLContext, tmp_path: Path
) -> None:
    """The bound is what keeps it served: this test says that the others can fail."""
    settings = {**rsm_settings(deployment, tmp_path / "files"), "RSM_IDENTITY_SHARE_PERCENT": "100"}
    with started("rsm", settings, tmp_path / "process") as rsm:
        rsm.wait_until(SERVING)
        with (
            open_channel(rsm.address, deployment.client("unbounded")) as channel,
            ten_thousand(rsm, abuser, "DeleteLogSegmentData"),
        ):
            client = RemoteStorageManagerClient(channel, rsm.address)
            with pytest.raises(ThrottledError, match="too many concurrent unary calls"):
                client.delete_log_segment_data(a_segment())


def rss_bytes(rsm: Running) -> int:
    return int(psutil.Process(rsm.process.pid).memory_info().rss)
