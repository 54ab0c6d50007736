"""Test that readers over gRPC that do not take their answers hold up no honest read."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from services.api.errors import RetriableRemoteStorageError, ThrottledError
from services.api.remote_log_manager import FetchPartition, FetchRequest
from services.rlm.fetch.reads import ReadLimits
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.converters.log import fetch_request_to_proto
from tests.harness.eventually import eventually
from tests.harness.idle_streams import Connection
from tests.harness.served import served_rlm
from tests.harness.ship_stack import EVERYTHING, Stack, read
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch

FETCH = "/tieredstorage.v1.RemoteLogManager/Fetch"
ABUSER = "127.0.0.2"
SLOW_READERS = 6
DATA = 0
BATCHES = 40
MOST_THREADS = 100
"""Of reads of the tier, their calls, and the server: far less than one for each abusive call."""


@pytest.fixture
def rlm(stack: Stack) -> BrokerRemoteLogManager:
    """Everything is in the tier; an answer has 4 MB, far more than a stream's first window."""
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [batch(offset, payload=bytes(100_000)) for offset in range(BATCHES)])
    files.snapshot(BATCHES)
    files.segment(BATCHES, [batch(BATCHES)])
    stack.ship()
    return stack.tier_reader(limits=RlmLimits(read=ReadLimits(threads=2)))


@pytest.fixture
def request_bytes() -> bytes:
    request = FetchRequest((FetchPartition(NAME, 0, EVERYTHING),), EVERYTHING)
    return fetch_request_to_proto(request).SerializeToString()


@pytest.fixture
def served(rlm: BrokerRemoteLogManager) -> Iterator[tuple[RemoteLogManagerClient, str]]:
    with served_rlm(rlm) as (channel, address):
        yield RemoteLogManagerClient(channel, address), address


def reads_all(honest: RemoteLogManagerClient) -> bool:
    """Return whether an honest reader gets the whole log."""
    try:
        found = read(honest, 0)
    except (ThrottledError, RetriableRemoteStorageError):
        return False
    return isinstance(found, bytes) and len(found) > BATCHES * 100_000


def test_readers_that_grant_no_flow_control_hold_no_slot(
    rlm: BrokerRemoteLogManager, served: tuple[RemoteLogManagerClient, str], request_bytes: bytes
) -> None:
    honest, address = served
    assert eventually(lambda: reads_all(honest))
    before = threading.active_count()
    with ExitStack() as opened:
        for _ in range(SLOW_READERS):
            connection = Connection(address, ABUSER)
            opened.callback(connection.socket.close)
            connection.open_calls(FETCH, 1, request_bytes)
            eventually(partial(has_data, connection))
        for _ in range(3):
            assert eventually(lambda: reads_all(honest))
        eventually(lambda: rlm.tier_calls.queue.idle_ratio == 1)
        assert threading.active_count() - before < MOST_THREADS
    assert eventually(lambda: reads_all(honest))


def has_data(connection: Connection) -> bool:
    return any(kind == DATA for kind, _, _ in connection.read_frames())


@pytest.mark.parametrize("ends", ["cancels", "closes early"])
def test_readers_that_leave_in_mid_read_leave_nothing(
    rlm: BrokerRemoteLogManager,
    served: tuple[RemoteLogManagerClient, str],
    request_bytes: bytes,
    ends: str,
) -> None:
    honest, address = served
    assert eventually(lambda: reads_all(honest))
    before = threading.active_count()
    for _ in range(5):
        connection = Connection(address, ABUSER)
        connection.open_calls(FETCH, 20, request_bytes)
        if ends == "cancels":
            connection.reset_all()
        connection.socket.close()
        assert eventually(lambda: reads_all(honest))
    eventually(lambda: rlm.tier_calls.queue.idle_ratio == 1)
    eventually(lambda: threading.active_count() - before < MOST_THREADS)
