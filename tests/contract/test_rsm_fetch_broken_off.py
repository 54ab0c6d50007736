"""Test fetches from a real S3 store that breaks off or is slow, and readers that leave early."""

import socket
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import cast

import grpc
import pytest

from services.api.calls import Call, serving
from services.api.errors import CorruptSegmentError, RetriableRemoteStorageError
from services.api.remote_storage_manager import IndexType
from services.local.seaweedfs import S3Endpoint
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    LARGE,
    MIB,
    Files,
    fetched,
    index,
    some_bytes,
    without,
)
from tests.contract.rsm_over_s3 import settings_for
from tests.contract.rsm_through_faults import SILENCE_MS
from tests.harness.eventually import eventually
from tests.harness.faults import Answer, Corrupt, Cut, Direction, Reset, Stall, Truncate
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy
from tests.harness.served import served
from tests.harness.stores import StoredCopy, stored_copy
from tests.harness.wrapper import Wrapper

pytestmark = pytest.mark.deep

SIZE = 3 * MIB
# What may be under way on a connection beyond what is read: the buffers of four sockets.
UNDER_WAY = 24 * MIB


class CountingProxy(HttpProxy):
    """Counts its connections, the open ones, and the bytes sent back on them."""

    taken = 0
    open = 0
    sent_bytes = 0

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self.taken += 1
            self.open += 1
        try:
            super()._relay(cast(socket.socket, _Counted(client, self)), server)
        finally:
            with self._lock:
                self.open -= 1


class _Counted(Wrapper[socket.socket]):
    def __init__(self, client: socket.socket, proxy: CountingProxy) -> None:
        super().__init__(client)
        self._proxy = proxy

    def sendall(self, data: bytes) -> None:
        self.real.sendall(data)
        self._proxy.sent_bytes += len(data)


Copy = StoredCopy[CountingProxy]


@pytest.fixture
def proxy(s3: S3Endpoint) -> Iterator[CountingProxy]:
    with CountingProxy(s3.endpoint, s3_operation) as running:
        yield running


@pytest.fixture
def settings(s3: S3Endpoint) -> RsmSettings:
    # The reads here count their GETs: without one for the manifest.
    return settings_for(s3, {"retries": 2, "verify_reads": "off"})


@pytest.fixture
def copy(settings: RsmSettings, proxy: CountingProxy) -> Iterator[Copy]:
    log = some_bytes(SIZE)
    files = Files(log, {**without(IndexType.OFFSET), IndexType.OFFSET: log})
    with stored_copy(settings, proxy, files) as made:
        yield made


@pytest.mark.parametrize("after", [0, 1, 16_383, 16_384, 16_385, MIB, 2 * MIB + 77, SIZE - 1])
@pytest.mark.parametrize("ending", [Cut, Reset])
def test_a_body_that_is_dropped_is_resumed(
    copy: Copy, ending: type[Cut | Reset], after: int
) -> None:
    copy.proxy.faults.add(ending(after, Direction.RESPONSE), operation="GetObject")
    assert fetched(copy.reader(), copy.segment) == copy.files.log
    copy.assert_requests(GetObject=2)


@pytest.mark.parametrize("after", [0, 1, 16_384, 2 * MIB + 77])
def test_a_range_that_is_dropped_is_resumed(copy: Copy, after: int) -> None:
    copy.proxy.faults.add(Cut(after, Direction.RESPONSE), operation="GetObject")
    assert fetched(copy.reader(), copy.segment, 5, SIZE - 9) == copy.files.log[5 : SIZE - 8]
    copy.proxy.faults.add(Cut(after, Direction.RESPONSE), operation="GetObject")
    assert index(copy.reader(), copy.segment, IndexType.OFFSET) == copy.files.log
    # Two for the range; for the index one, and the manifest in two parts.
    copy.assert_requests(GetObject=5)


def test_resumed_fetch_sends_no_byte_twice(copy: Copy) -> None:
    copy.proxy.faults.add(Cut(2 * MIB + 77, Direction.RESPONSE), operation="GetObject")
    fetched(copy.reader(), copy.segment)
    eventually(lambda: copy.proxy.sent_bytes >= SIZE)
    assert copy.proxy.sent_bytes < SIZE + 4096, "two heads, and no byte of the body twice"


@pytest.mark.deep
def test_a_store_that_falls_silent_within_a_body_is_asked_again(copy: Copy) -> None:
    copy.proxy.faults.add(Stall(MIB, Direction.RESPONSE), operation="GetObject")
    assert fetched(copy.reader(read_timeout_ms=SILENCE_MS), copy.segment) == copy.files.log
    copy.assert_requests(GetObject=2)


def test_breaks_that_bring_a_mebibyte_each_do_not_count(copy: Copy) -> None:
    """There are six breaks, and two retries are allowed."""
    files = Files(some_bytes(LARGE))
    segment = copy.copied(files)
    copy.proxy.faults.add(Cut(2 * MIB, Direction.RESPONSE), operation="GetObject", times=6)
    assert fetched(copy.reader(), segment) == files.log
    copy.assert_requests(GetObject=7)


@pytest.mark.parametrize("after", [0, 1000])
def test_a_store_that_breaks_off_again_and_again_is_abandoned(copy: Copy, after: int) -> None:
    copy.proxy.faults.add(Cut(after, Direction.RESPONSE), operation="GetObject", times=100)
    with pytest.raises(RetriableRemoteStorageError, match=f"broke off at byte {3 * after} "):
        fetched(copy.reader(), copy.segment)
    copy.assert_requests(GetObject=3)


def test_the_rest_is_requested_again_if_the_store_is_overloaded(copy: Copy) -> None:
    copy.proxy.faults.add(Cut(MIB, Direction.RESPONSE), operation="GetObject")
    copy.proxy.faults.add(Answer(503), operation="GetObject")
    assert fetched(copy.reader(), copy.segment) == copy.files.log
    copy.assert_requests(GetObject=3)


def test_the_break_of_a_body_and_failed_requests_for_its_rest_share_the_retries(copy: Copy) -> None:
    copy.proxy.faults.add(Cut(1000, Direction.RESPONSE), operation="GetObject")
    copy.proxy.faults.add(Answer(503), operation="GetObject", times=100)
    with pytest.raises(RetriableRemoteStorageError, match="503"):
        fetched(copy.reader(), copy.segment)
    copy.assert_requests(GetObject=3)


def test_body_is_not_resumed_for_a_cancelled_call(copy: Copy) -> None:
    copy.proxy.faults.add(Cut(2 * MIB, Direction.RESPONSE), operation="GetObject")
    with (
        serving(Call("somebody", "1", is_active=lambda: False)),
        pytest.raises(RetriableRemoteStorageError, match="not retried: the client has left"),
    ):
        fetched(copy.reader(), copy.segment)
    copy.assert_requests(GetObject=1)


@pytest.mark.parametrize("after", [0, 1, MIB])
def test_a_body_that_ends_early_in_order_is_an_error(copy: Copy, after: int) -> None:
    copy.proxy.faults.add(Truncate(after), operation="GetObject")
    with pytest.raises(RetriableRemoteStorageError, match=f"{after} bytes"):
        fetched(copy.reader(), copy.segment)
    copy.assert_requests(GetObject=1)


def test_a_fetch_read_to_its_end_gives_its_connection_back(copy: Copy) -> None:
    rsm = copy.reader()
    for _ in range(5):
        fetched(rsm, copy.segment)
    assert copy.proxy.taken == 1


def test_a_fetch_left_early_ends_its_get(copy: Copy) -> None:
    size = 64 * MIB
    segment, rsm = copy.copied(Files(bytes(size))), copy.reader()
    stream = rsm.fetch_log_segment(segment, 0)
    assert isinstance(stream, Generator)
    next(stream)
    next(stream)
    assert copy.proxy.open == 1
    stream.close()
    eventually(lambda: copy.proxy.open == 0)
    assert copy.proxy.sent_bytes < UNDER_WAY
    assert fetched(rsm, segment, size - 5) == bytes(5)


def test_cancelled_fetch_ends_the_get(copy: Copy) -> None:
    """Over gRPC, after a pause in which the reader reads nothing: the pause blocks the store,
    too.
    """
    segment = copy.copied(Files(bytes(64 * MIB)))

    def add(server: grpc.Server) -> None:
        add_to_server(copy.reader(), server)

    with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, address):
        stream = RemoteStorageManagerClient(channel, address).fetch_log_segment(segment, 0)
        assert isinstance(stream, Generator)
        first = len(next(stream))
        eventually(lambda: copy.proxy.sent_bytes > first)
        stream.close()
        eventually(lambda: copy.proxy.open == 0)
    assert copy.proxy.sent_bytes < UNDER_WAY


@pytest.mark.parametrize("verify", ["always", "off"])
def test_a_byte_that_changes_on_its_way_is_noticed_if_reads_are_verified(
    copy: Copy, verify: str
) -> None:
    rsm = copy.reader(verify_reads=verify)
    # Verified, the manifest is read at the same time: it is too short to be hit.
    gets = 1 if verify == "off" else 2
    copy.proxy.faults.add(Corrupt(MIB + 5, Direction.RESPONSE), operation="GetObject", times=gets)
    if verify == "off":
        assert fetched(rsm, copy.segment) != copy.files.log
    else:
        with pytest.raises(CorruptSegmentError, match="chunk 1 of the log"):
            fetched(rsm, copy.segment)
    assert fetched(rsm, replace(copy.segment, custom_metadata=None)) == copy.files.log
