"""Read fuzzed parts of messages: ids, page tokens, chunks, statuses, topic settings, records."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from services.api.errors import (
    InvalidRequestError,
    NotServedError,
    RemoteStorageError,
    ThrottledError,
)
from services.api.ids import uuid_from_text, uuid_to_text
from services.api.remote_log_manager import FetchPart, RecordSource
from services.api.remote_storage_manager import SegmentChunk, SegmentFile
from services.api.segment_objects import ObjectQuery
from services.api.topic_config import topic_config
from services.api.validation import INT64_MAX, seal
from services.rlm.describe import page_of, token_after
from services.rlmm.database import limits
from services.rpc.converters.log import fetch_part_from_proto, fetch_part_to_proto
from services.rpc.statuses import map_rpc_errors, status_of
from services.rpc.wire import (
    copied_chunk_to_wire,
    fetched_chunk_from_wire,
    fetched_chunk_to_wire,
    request_from_wire,
)
from services.rpc.wire_parts import ReceivedPart, part_to_wire
from services.rsm import segment_objects
from tests.harness.parsers.target import Target
from tests.unit.rlm.kafka_bytes import NAME
from tieredstorage.v1 import remote_log_manager_pb2 as pb_rlm
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

_QUERY = ObjectQuery(1, 2, 3)
_ROWS = ("rows", 1)
_ROW_TOKEN_BYTES = 24
_CHUNK = SegmentChunk(SegmentFile.LOG, memoryview(b"data"))


def _read_id(data: bytes) -> None:
    found = uuid_from_text(data.decode("utf-8", "replace"), "id")
    assert uuid_from_text(uuid_to_text(found), "id") == found


def _ids() -> Sequence[bytes]:
    some = UUID("5e6cbc1e-2f4b-4f7a-9c0a-5d3d6a7f1b22")
    return [uuid_to_text(some).encode(), str(some).encode(), some.hex.encode()]


def _read_object_token(data: bytes) -> None:
    """Read the bytes as a token of ListSegmentObjects, and as the body of a forged one."""
    for token in (seal(_QUERY, data), data.decode("utf-8", "replace")):
        segment_objects.last_of_page(_QUERY, token).encode("utf-8")


def _read_row_token(data: bytes) -> None:
    """Read the bytes as a token of RLMM's lists, or as the body of a forged one."""
    is_body = len(data) == _ROW_TOKEN_BYTES
    token = seal(_ROWS, data) if is_body else data.decode("utf-8", "replace")
    position = limits.decode(_ROWS, token)
    assert position is None or -INT64_MAX - 1 <= position[0] <= INT64_MAX


def _read_partition_token(data: bytes) -> None:
    assert page_of([], 1, data.decode("utf-8", "replace")) == ([], False)


def _read_copy_request(data: bytes) -> None:
    """Compare the short way of decoding a chunk with protobuf's own."""
    theirs = pb.CopyLogSegmentDataRequest.FromString(data)
    ours = request_from_wire(data)
    if isinstance(ours, SegmentChunk):
        assert theirs.WhichOneof("message") == "chunk"
        assert theirs.chunk.data == bytes(ours.data)
        assert (
            pb.CopyLogSegmentDataRequest.FromString(copied_chunk_to_wire(ours)).chunk.file
            == theirs.chunk.file
        )
    else:
        assert ours == theirs


def _read_fetch_response(data: bytes) -> None:
    theirs = pb.FetchLogSegmentResponse.FromString(data)
    assert fetched_chunk_from_wire(data) == theirs.data


def _read_part(data: bytes) -> None:
    """Compare the short way of decoding a part of a Fetch with protobuf's own.

    If a message has records and again none, protobuf goes by the last: no service sends it.
    """
    theirs, received = pb_rlm.FetchResponse.FromString(data), ReceivedPart(data)
    if not theirs.record_batches:
        received.part()
        return
    assert received.message() == theirs
    assert received.part() == fetch_part_from_proto(theirs, theirs.record_batches)


def _parts() -> Sequence[bytes]:
    part = FetchPart(NAME, pieces=(b"records",), source=RecordSource.REMOTE)
    return [part_to_wire(part), fetch_part_to_proto(part).SerializeToString()]


class _Failed(grpc.RpcError, grpc.Call):
    """A call that failed with these details, as a server or anything before it may send them."""

    def __init__(self, details: bytes) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    def details(self) -> str:
        return "the queue is full"

    def trailing_metadata(self) -> Any:
        return (("grpc-status-details-bin", self._details),)

    def initial_metadata(self) -> Any:
        return ()

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> float:
        return 0.0

    def cancel(self) -> bool:
        return False

    def add_callback(self, callback: object) -> bool:
        return False


def _read_status(data: bytes) -> None:
    """Every failed call is an error of the tree, whatever details came with it."""
    with suppress(RemoteStorageError), map_rpc_errors("host:1"):
        raise _Failed(data)


def _statuses() -> Sequence[bytes]:
    throttled = status_of(ThrottledError("the queue is full"))
    other = status_pb2.Status(code=8, message="the queue is full")
    return [
        throttled.SerializeToString(),
        other.SerializeToString(),
        status_of(NotServedError("the queue is full")).SerializeToString(),
    ]


def _read_topic_config(data: bytes) -> None:
    """Read lines NAME=VALUE as a topic's settings."""
    lines = data.decode("utf-8", "replace").split("\n")
    topic_config(dict(line.split("=", 1) for line in lines if "=" in line))


def _topic_configs() -> Sequence[bytes]:
    return [
        b"retention.ms=1000\nlocal.retention.ms=500\nremote.storage.enable=true",
        b"retention.bytes=-1\nlocal.retention.bytes=-2\ncleanup.policy=delete",
        b"sediment.owner=team\nsediment.retention.owner=sweep",
    ]


TARGETS = (
    Target("id", _read_id, (InvalidRequestError,), _ids),
    Target(
        "object_token",
        _read_object_token,
        (InvalidRequestError,),
        lambda: [b"", seal(_QUERY, b"tier/key").encode(), b"tier/key"],
    ),
    Target(
        "row_token",
        _read_row_token,
        (InvalidRequestError,),
        lambda: [limits.encode(_ROWS, (7, UUID(int=3))).encode(), bytes(_ROW_TOKEN_BYTES)],
    ),
    Target(
        "partition_token",
        _read_partition_token,
        (InvalidRequestError,),
        lambda: [token_after(NAME).encode()],
    ),
    Target(
        "copy_request",
        _read_copy_request,
        (DecodeError,),
        lambda: [
            copied_chunk_to_wire(_CHUNK),
            pb.CopyLogSegmentDataRequest(header=pb.CopyLogSegmentHeader()).SerializeToString(),
        ],
    ),
    Target(
        "fetch_response",
        _read_fetch_response,
        (DecodeError,),
        lambda: [fetched_chunk_to_wire(b"data")],
    ),
    Target("part_of_fetch", _read_part, (DecodeError, InvalidRequestError), _parts),
    Target("error_status", _read_status, (), _statuses),
    Target("topic_config", _read_topic_config, (InvalidRequestError,), _topic_configs),
)
