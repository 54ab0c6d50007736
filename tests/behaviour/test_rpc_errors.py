"""Test that errors keep their class over gRPC, and that the transport's own errors are
retriable.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from uuid import UUID

import grpc
import pytest
from prometheus_client import REGISTRY

from services.api.calls import current_call
from services.api.errors import (
    CorruptSegmentError,
    NotServedError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    every_error_class,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import IndexType, LogSegmentData, OpenedLogSegment
from services.api.segment_objects import SegmentObjects
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from services.common.client_security import PLAINTEXT
from services.common.log import LINES_PER_WINDOW
from services.rpc.client.calls import call_stream
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rpc.converters.storage import CopyRequest
from services.rpc.statuses import status_of
from services.rsm.servicer import RemoteStorageManagerServicer
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.eventually import eventually
from tests.harness.served import served
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc

SEGMENT = RemoteLogSegmentMetadata(
    remote_log_segment_id=RemoteLogSegmentId(
        TopicIdPartition(UUID(int=1), "orders", 0), UUID(int=2)
    ),
    start_offset=0,
    end_offset=9,
    max_timestamp_ms=-1,
    broker_id=1,
    event_timestamp_ms=0,
    segment_leader_epochs=segment_leader_epochs([(0, 0)]),
    segment_size_in_bytes=3,
)


class Failing:
    """A RemoteStorageManager that fails every call with the error it was made with."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.actors: list[str] = []

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        raise self.error

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes]:
        raise self.error

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedLogSegment:
        raise self.error

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType, *, as_stored: bool = False
    ) -> Iterator[bytes]:
        raise self.error

    @property
    def objects(self) -> SegmentObjects:
        raise self.error

    def find_partition_object(self, topic_id_partition: TopicIdPartition) -> str | None:
        raise self.error

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.actors.append(current_call().actor)
        raise self.error

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        return [RemoteStorageError("first"), None, CorruptSegmentError("third")]


@contextmanager
def client_of(manager: Failing) -> Iterator[RemoteStorageManagerClient]:
    def add(server: grpc.Server) -> None:
        servicer = RemoteStorageManagerServicer(manager)
        pb_grpc.add_RemoteStorageManagerServicer_to_server(servicer, server)

    with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, address):
        yield RemoteStorageManagerClient(channel, address)


TYPED = [cls for cls in every_error_class() if cls is not RemoteStorageError]


@pytest.mark.parametrize("cls", TYPED, ids=lambda cls: cls.__name__)
def test_every_error_class_reaches_the_client_with_its_message(
    cls: type[RemoteStorageError],
) -> None:
    with client_of(Failing(cls("the field was odd"))) as client:
        with pytest.raises(RemoteStorageError, match=r"^the field was odd$") as unary:
            client.delete_log_segment_data(SEGMENT)
        with pytest.raises(RemoteStorageError, match=r"^the field was odd$") as stream:
            list(client.fetch_index(SEGMENT, IndexType.OFFSET))
    assert (type(unary.value), type(stream.value)) == (cls, cls)


@pytest.mark.parametrize("error", [RemoteStorageError("password=secret"), KeyError("secret")])
def test_details_of_unknown_errors_stay_on_the_server(error: Exception) -> None:
    with client_of(Failing(error)) as client, pytest.raises(RemoteStorageError) as caught:
        client.delete_log_segment_data(SEGMENT)
    assert type(caught.value) is RemoteStorageError
    assert "secret" not in str(caught.value)
    assert "request id" in str(caught.value)


def test_a_server_that_is_not_there_is_retriable_and_named() -> None:
    with open_channel("127.0.0.1:1", PLAINTEXT) as channel:
        client = RemoteStorageManagerClient(channel, "127.0.0.1:1")
        with pytest.raises(RetriableRemoteStorageError, match=r"rsm at 127\.0\.0\.1:1"):
            client.delete_log_segment_data(SEGMENT)


def test_another_service_under_the_address_is_named_as_such() -> None:
    with served(lambda server: None, "none") as (channel, address):
        client = RemoteStorageManagerClient(channel, address)
        files = Files(b"log", dict.fromkeys(IndexType, b"index"))
        named = f"^rsm at {re.escape(address)}: .* the address of another service"
        for call in (
            lambda: client.delete_log_segment_data(SEGMENT),
            lambda: client.copy_log_segment_data(SEGMENT, files.data()),
            lambda: list(client.fetch_log_segment(SEGMENT, 0)),
        ):
            with pytest.raises(NotServedError, match=named):
                call()


def test_a_caller_that_leaves_before_it_said_anything_is_no_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ended() -> float:
        """Count both codes: grpcio may show the end of the requests before the cancellation."""
        method = "/tieredstorage.v1.RemoteStorageManager/CopyLogSegmentData"
        name = "sediment_rpc_seconds_count"
        codes = ("CANCELLED", "INVALID_ARGUMENT")
        labels = [{"method": method, "code": code} for code in codes]
        return sum(REGISTRY.get_sample_value(name, each) or 0 for each in labels)

    begun = Event()

    class Servicer(RemoteStorageManagerServicer):
        def CopyLogSegmentData(
            self, request_iterator: Iterator[CopyRequest], context: grpc.ServicerContext
        ) -> pb.CopyLogSegmentDataResponse:
            begun.set()
            return super().CopyLogSegmentData(request_iterator, context)

    def add(server: grpc.Server) -> None:
        servicer = Servicer(Failing(KeyError()))
        pb_grpc.add_RemoteStorageManagerServicer_to_server(servicer, server)

    def nothing() -> Iterator[pb.CopyLogSegmentDataRequest]:
        gone.wait(60)
        yield from ()

    before, gone = ended(), Event()
    with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, _):
        call = pb_grpc.RemoteStorageManagerStub(channel).CopyLogSegmentData.future(nothing())
        assert begun.wait(60)
        call.cancel()  # type: ignore[no-untyped-call]
        gone.set()
        eventually(lambda: ended() > before)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_each_outcome_of_a_batch_keeps_its_class() -> None:
    with client_of(Failing(KeyError())) as client:
        outcomes = client.delete_log_segment_data_batch([SEGMENT] * 3)
    assert [type(outcome) for outcome in outcomes] == [
        RemoteStorageError,
        type(None),
        CorruptSegmentError,
    ]


def test_unexpected_outcomes_of_a_batch_do_not_fill_the_log(
    limited_log: pytest.LogCaptureFixture,
) -> None:
    class Cause(Exception):
        """A kind of its own, of which no other test has logged anything."""

    for number in range(1000):
        error = RemoteStorageError(f"item {number}")
        error.__cause__ = Cause()
        assert status_of(error).code == grpc.StatusCode.INTERNAL.value[0]
    lines = [r for r in limited_log.records if r.getMessage() == "internal error (Cause)"]
    assert len(lines) == LINES_PER_WINDOW


def test_a_failed_call_of_ours_never_passes_for_a_peer_that_left() -> None:
    with client_of(Failing(grpc.RpcError())) as client:
        with pytest.raises(RemoteStorageError, match="internal error"):
            client.delete_log_segment_data(SEGMENT)
        with pytest.raises(RemoteStorageError, match="internal error"):
            list(client.fetch_index(SEGMENT, IndexType.OFFSET))


def test_a_stream_that_cannot_be_begun_raises_our_error() -> None:
    def method(request: object, **_: object) -> Iterator[bytes]:
        raise grpc.RpcError("not begun")

    with pytest.raises(RetriableRemoteStorageError, match="rsm at nowhere: not begun"):
        list(call_stream(method, b"", "rsm at nowhere", timeout_s=60))


def test_without_tls_the_actor_is_anonymous() -> None:
    manager = Failing(KeyError())
    with client_of(manager) as client, pytest.raises(RemoteStorageError):
        client.delete_log_segment_data(SEGMENT)
    assert manager.actors == ["anonymous"]
