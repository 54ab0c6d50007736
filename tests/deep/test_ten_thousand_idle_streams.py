"""Ten thousand calls that do nothing, on a hundred connections to a service as it is deployed."""

import os
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.rpc.channels import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rpc.server.server import HEALTH_THREADS, WAITING_PER_STREAM_THREAD
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied, fetched
from tests.deep.test_service_processes import SERVING, Running, files_settings, started
from tests.harness.eventually import eventually
from tests.harness.idle_streams import idle_peer

RSM = "/tieredstorage.v1.RemoteStorageManager"
HEALTH = "/grpc.health.v1.Health"
CONNECTIONS = 100
ELSEWHERE = "127.0.0.2"
LOG = bytes(range(256)) * 4 * 4096
SETTINGS = {
    # Idle streams are to be there until the end of a test, however long it takes.
    "RSM_STREAM_IDLE_TIMEOUT_MS": "600000",
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
    with open_channel(rsm.address) as channel:
        yield RemoteStorageManagerClient(channel, rsm.address)


def be_served(rsm: Running, client: RemoteStorageManagerClient) -> None:
    """Copy, read, delete and probe."""
    segment = copied(client, Files(LOG))
    assert fetched(client, segment) == LOG
    assert client.delete_log_segment_data_batch([segment]) == [None]
    assert rsm.status() == SERVING


@pytest.mark.deep
@pytest.mark.parametrize("method", ["CopyLogSegmentData", "FetchLogSegment"])
def test_ten_thousand_idle_streams_leave_others_and_probes_served(
    rsm: Running, client: RemoteStorageManagerClient, method: str
) -> None:
    be_served(rsm, client)
    with idle_peer(rsm.address, CONNECTIONS, ELSEWHERE) as peer:
        peer.open_calls(f"{RSM}/{method}", 10_000)
        # Of those that come at one moment gRPC itself cancels some, whoever's they are.
        eventually(lambda: peer.ended > 9_900, 60_000)
        for _ in range(20):
            be_served(rsm, client)
        assert peer.ended < 10_000
    assert len(rsm.log().splitlines()) < 200


# A Watch needs its request, that of a Check is not sent.
@pytest.mark.parametrize(
    ("method", "request_", "left"),
    [
        ("Check", None, HEALTH_THREADS.unary),
        ("Watch", b"", HEALTH_THREADS.streams_out * (1 + WAITING_PER_STREAM_THREAD)),
    ],
)
def test_probes_that_never_end_leave_room_for_others(
    rsm: Running, method: str, request_: bytes | None, left: int
) -> None:
    with idle_peer(rsm.health, 20) as peer:
        peer.open_calls(f"{HEALTH}/{method}", 2000, request_)
        # As long as more Checks than threads are left, a probe may be refused.
        eventually(lambda: peer.ended > 2000 - left, 60_000)
        for _ in range(20):
            assert rsm.status() == SERVING


def test_sigterm_ends_a_service_that_is_full_of_idle_streams(
    rsm: Running, client: RemoteStorageManagerClient
) -> None:
    segment = copied(client, Files(LOG * 8))
    reading = client.fetch_log_segment(segment, 0)
    first = next(reading)
    with idle_peer(rsm.address, 20, ELSEWHERE) as peer:
        peer.open_calls(f"{RSM}/CopyLogSegmentData", 1000)
        peer.open_calls(f"{RSM}/FetchLogSegment", 1000)
        eventually(lambda: peer.ended > 1900, 60_000)
        os.kill(rsm.process.pid, SIGTERM)
        eventually(lambda: "stopping" in rsm.log(), 30_000)
        assert first + b"".join(reading) == LOG * 8
        eventually(lambda: not rsm.process.is_running(), 60_000)
    with pytest.raises(RetriableRemoteStorageError):
        client.delete_log_segment_data(a_segment())
