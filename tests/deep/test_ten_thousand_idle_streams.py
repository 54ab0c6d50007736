"""Ten thousand calls that do nothing, on a hundred connections to a service as it is deployed."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.api.errors import ThrottledError
from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rpc.server.server import HEALTH_THREADS, WAITING_PER_STREAM_THREAD
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied, fetched
from tests.deep.test_service_processes import SERVING, Running, files_settings, started
from tests.harness.eventually import eventually
from tests.harness.idle_streams import idle_peer
from tests.harness.variants import first_of

RSM = "/tieredstorage.v1.RemoteStorageManager"
HEALTH = "/grpc.health.v1.Health"
CONNECTIONS = 100
MOST_GROWTH_BYTES = 64 * 1024 * 1024
LOG = bytes(range(256)) * 4 * 4096
IDLE_MS = 20_000
SETTINGS = {
    "RSM_STREAM_IDLE_TIMEOUT_MS": str(IDLE_MS),
    # For a read that is under way at SIGTERM.
    "RSM_DRAIN_TIMEOUT_MS": "20000",
}


@pytest.fixture
def rsm(tmp_path: Path) -> Iterator[Running]:
    settings = {**files_settings(tmp_path / "files"), **SETTINGS}
    with started("rsm", settings, tmp_path / "rsm") as rsm:
        rsm.wait_until(SERVING)
        yield rsm


@pytest.fixture
def client(rsm: Running) -> Iterator[RemoteStorageManagerClient]:
    with open_channel(rsm.address, PLAINTEXT) as channel:
        yield RemoteStorageManagerClient(channel, rsm.address)


def be_served(rsm: Running, client: RemoteStorageManagerClient) -> None:
    """Copy, read, delete and probe."""
    segment = copied(client, Files(LOG))
    assert fetched(client, segment) == LOG
    assert client.delete_log_segment_data_batch([segment]) == [None]
    assert rsm.status() == SERVING


@pytest.mark.deep
@pytest.mark.parametrize(
    ("method", "kind"),
    first_of(
        [
            pytest.param("CopyLogSegmentData", "stream-in"),
            pytest.param("FetchLogSegment", "stream-out"),
        ]
    ),
)
def test_ten_thousand_idle_streams_are_refused_or_ended_and_cost_little(
    rsm: Running, client: RemoteStorageManagerClient, method: str, kind: str
) -> None:
    be_served(rsm, client)
    segment = copied(client, Files(LOG))
    before_bytes = rss_bytes(rsm)
    with idle_peer(rsm.address, CONNECTIONS) as peer:
        peer.open_calls(f"{RSM}/{method}", 10_000)
        # Of those that come at one moment gRPC itself cancels some, whoever's they are.
        eventually(lambda: peer.ended > 9_900, 60_000)
        with pytest.raises(ThrottledError, match=f"too many concurrent {kind} calls"):
            copied(client, Files(LOG)) if kind == "stream-in" else fetched(client, segment)
        for _ in range(20):
            assert rsm.status() == SERVING
            assert client.delete_log_segment_data_batch([a_segment()]) == [None]
        assert peer.ended < 10_000
        assert rss_bytes(rsm) - before_bytes < MOST_GROWTH_BYTES
        # The idle ones in the queue get their turns one after the other.
        turns = 1 + WAITING_PER_STREAM_THREAD
        eventually(lambda: peer.ended == 10_000, (turns * IDLE_MS + 60_000))
        be_served(rsm, client)
    assert len(rsm.log().splitlines()) < 200


def rss_bytes(rsm: Running) -> int:
    return int(psutil.Process(rsm.process.pid).memory_info().rss)


def test_probes_that_never_send_their_request_leave_room_for_others(rsm: Running) -> None:
    with idle_peer(rsm.health, 20) as peer:
        peer.open_calls(f"{HEALTH}/Check", 2000)
        eventually(lambda: peer.ended == 2000, 60_000)
        for _ in range(20):
            assert rsm.status() == SERVING


def test_watches_that_never_end_leave_room_for_checks(rsm: Running) -> None:
    watches = HEALTH_THREADS.streams_out * (1 + WAITING_PER_STREAM_THREAD)
    with idle_peer(rsm.health, 20) as peer:
        peer.open_calls(f"{HEALTH}/Watch", 2000, b"")
        eventually(lambda: peer.ended >= 2000 - watches, 60_000)
        for _ in range(20):
            assert rsm.status() == SERVING
