"""Compare messages of one chunk, written and read without protobuf, with protobuf's bytes."""

import pytest
from google.protobuf.message import DecodeError

from services.rpc.wire import fetched_chunk_from_wire, fetched_chunk_to_wire
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

SIZES = [1, 127, 128, 16_383, 16_384, 1024 * 1024, 2**21 - 1, 2**21]
WHOLE = fetched_chunk_to_wire(b"data")


@pytest.mark.parametrize("size", SIZES)
def test_a_chunk_is_on_the_wire_as_protobuf_writes_it(size: int) -> None:
    data = bytes(size)
    assert fetched_chunk_to_wire(data) == pb.FetchLogSegmentResponse(data=data).SerializeToString()


@pytest.mark.parametrize("size", SIZES)
def test_chunk_is_equal_after_conversion(size: int) -> None:
    data = b"\x0a" * size
    assert fetched_chunk_from_wire(fetched_chunk_to_wire(data)) == data


@pytest.mark.parametrize(
    ("wire", "data"),
    [
        pytest.param(b"", b"", id="nothing"),
        pytest.param(b"\x0a\x00", b"", id="nothing, written"),
        pytest.param(WHOLE + WHOLE, b"data", id="twice"),
        pytest.param(WHOLE + b"\x10\x01", b"data", id="a field of a later release"),
        pytest.param(b"\x0a\x84\x00data", b"data", id="a length in more bytes than it needs"),
    ],
)
def test_other_encodings_are_read_like_protobuf(wire: bytes, data: bytes) -> None:
    assert fetched_chunk_from_wire(wire) == data == pb.FetchLogSegmentResponse.FromString(wire).data


@pytest.mark.parametrize("wire", [*(WHOLE[:end] for end in range(1, len(WHOLE))), b"\x0a\xff\xff"])
def test_a_message_that_was_cut_off_is_none(wire: bytes) -> None:
    with pytest.raises(DecodeError):
        fetched_chunk_from_wire(wire)
