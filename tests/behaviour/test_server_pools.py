"""Test that each kind of call has threads of its own and a limit of concurrent calls."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Event, Semaphore

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.api.calls import Call, current_call, serving
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_storage_manager import IndexType, LogSegmentData, OpenedLogSegment
from services.api.segment_objects import SegmentObjects
from services.api.segments import RemoteLogSegmentMetadata
from services.common.client_security import PLAINTEXT
from services.common.settings import ServiceSettings
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rpc.converters.shared import metadata_to_proto
from services.rpc.server.server import Service, start_grpc
from services.rsm.servicer import RemoteStorageManagerServicer
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied, fetched
from tests.harness.eventually import eventually
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc

NAME = "tieredstorage.v1.RemoteStorageManager"
KINDS = ("copy", "fetch", "delete")
# Of unary calls: one in the thread for them, and three that wait for it.
LIMIT = 4


class Holding:
    """A RemoteStorageManager that holds calls of one kind until a test releases them."""

    LONGEST_S = 120

    def __init__(self) -> None:
        self.held_kind = ""
        self.held = Semaphore(0)
        self.release = Event()
        self.calls: list[Call] = []

    def _serve(self, kind: str) -> None:
        self.calls.append(current_call())
        if kind == self.held_kind:
            self.held.release()
            self.release.wait(timeout=self.LONGEST_S)

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        self._serve("copy")
        return b"copied"

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes]:
        self._serve("fetch")
        yield b"fetched"

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedLogSegment:
        raise NotImplementedError

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType, *, as_stored: bool = False
    ) -> Iterator[bytes]:
        yield b""

    @property
    def objects(self) -> SegmentObjects:
        raise NotImplementedError

    def find_partition_object(self, topic_id_partition: TopicIdPartition) -> str | None:
        return None

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._serve("delete")

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        return [None for _ in metadatas]


@dataclass(frozen=True)
class Served:
    manager: Holding
    channel: grpc.Channel
    address: str

    def client(self, timeout_s: float = 10) -> RemoteStorageManagerClient:
        return RemoteStorageManagerClient(
            self.channel, self.address, copy_timeout_s=timeout_s, fetch_timeout_s=timeout_s
        )

    def deletes(self, count: int) -> "list[grpc.Future[pb.DeleteLogSegmentDataResponse]]":
        stub = pb_grpc.RemoteStorageManagerStub(self.channel)
        request = pb.DeleteLogSegmentDataRequest(metadata=metadata_to_proto(a_segment()))
        return [stub.DeleteLogSegmentData.future(request, timeout=30) for _ in range(count)]


@pytest.fixture
def server() -> Iterator[Served]:
    """Provide a server with one thread for each pool."""
    manager = Holding()

    def add(server: grpc.Server) -> None:
        servicer = RemoteStorageManagerServicer(manager)
        pb_grpc.add_RemoteStorageManagerServicer_to_server(servicer, server)

    service = Service("test", NAME, add, lambda: None, lambda: None, client_stream_threads=1)
    settings = ServiceSettings(
        plaintext=True, unary_threads=1, stream_threads=1, drain_timeout_ms=1000
    )
    with ExitStack() as cleanup:
        address = start_grpc(service, settings, cleanup).address
        channel = cleanup.enter_context(open_channel(address, PLAINTEXT))
        cleanup.callback(manager.release.set)
        yield Served(manager, channel, address)


def call(kind: str, client: RemoteStorageManagerClient) -> None:
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: copied(client, Files(b"log")),
        "fetch": lambda: fetched(client, a_segment()),
        "delete": lambda: client.delete_log_segment_data(a_segment()),
    }
    calls[kind]()


@contextmanager
def a_held(kind: str, server: Served) -> Iterator[None]:
    """Occupy the one thread for this kind of call during the block."""
    server.manager.held_kind = kind
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(call, kind, server.client(timeout_s=30))
        assert server.manager.held.acquire(timeout=10)
        yield
        assert not holding.done()
        server.manager.release.set()
        holding.result(timeout=10)


@pytest.mark.parametrize(
    ("held", "other"), [(held, other) for held in KINDS for other in KINDS if held != other]
)
def test_no_kind_of_call_waits_behind_another(server: Served, held: str, other: str) -> None:
    with a_held(held, server):
        call(other, server.client())


@pytest.mark.parametrize("other", ["copy", "delete"])
def test_an_idle_reflection_stream_takes_the_thread_of_a_fetch_at_most(
    server: Served, other: str
) -> None:
    done = Event()

    def requests() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        done.wait(timeout=30)

    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    stream = stub.ServerReflectionInfo(requests(), timeout=30)
    names = [service.name for service in next(stream).list_services_response.service]
    assert NAME in names
    call(other, server.client())
    done.set()
    assert list(stream) == []


def test_one_call_over_the_limit_is_refused_and_all_others_are_served(server: Served) -> None:
    server.manager.held_kind = "delete"
    calls = server.deletes(LIMIT + 1)
    (refused,) = eventually(lambda: [call for call in calls if call.done()])
    assert "RESOURCE_EXHAUSTED" in str(refused.exception())
    call("copy", server.client())
    call("fetch", server.client())
    server.manager.release.set()
    assert [call.exception() for call in calls].count(None) == LIMIT


@pytest.mark.parametrize("kind", ["copy", "fetch"])
def test_a_stream_that_is_not_answered_in_time_is_retriable(server: Served, kind: str) -> None:
    server.manager.held_kind = kind
    said = {"copy": "has made no progress for 0.2 s", "fetch": "has sent nothing for 0.2 s"}
    with pytest.raises(RetriableRemoteStorageError, match=said[kind]):
        call(kind, server.client(timeout_s=0.2))


def test_a_call_knows_when_its_caller_has_left(server: Served) -> None:
    server.manager.held_kind = "delete"
    (waiting,) = server.deletes(1)
    assert server.manager.held.acquire(timeout=10)
    (seen,) = server.manager.calls
    assert seen.is_active()
    waiting.cancel()
    eventually(lambda: not seen.is_active())


@pytest.mark.parametrize("kind", KINDS)
def test_calls_made_for_a_call_have_its_request_id(server: Served, kind: str) -> None:
    with serving(Call("somebody", "fetch-17")):
        call(kind, server.client())
    assert [seen.request_id for seen in server.manager.calls] == ["fetch-17"]


def test_calls_without_a_parent_have_their_own_ids(server: Served) -> None:
    for _ in range(2):
        call("delete", server.client())
    first, second = (seen.request_id for seen in server.manager.calls)
    assert "-" not in (first, second)
    assert first != second


def test_calls_that_outlast_the_drain_stop_waiting() -> None:
    """Else the end of the process would wait for their threads as long as they like."""
    manager = Holding()
    manager.held_kind = "delete"

    def add(server: grpc.Server) -> None:
        servicer = RemoteStorageManagerServicer(manager)
        pb_grpc.add_RemoteStorageManagerServicer_to_server(servicer, server)

    service = Service(
        "test", NAME, add, lambda: None, lambda: None, stop_waiting=manager.release.set
    )
    settings = ServiceSettings(
        plaintext=True, unary_threads=1, stream_threads=1, drain_timeout_ms=100
    )
    with ThreadPoolExecutor(1) as pool, ExitStack() as cleanup:
        address = start_grpc(service, settings, cleanup).address
        with open_channel(address, PLAINTEXT) as channel:
            ended = pool.submit(call, "delete", RemoteStorageManagerClient(channel, address))
            assert manager.held.acquire(timeout=30)
            began_s = time.monotonic()
            cleanup.close()
        assert isinstance(ended.exception(30), RetriableRemoteStorageError)
    assert manager.release.is_set()
    assert time.monotonic() - began_s < Holding.LONGEST_S / 2
