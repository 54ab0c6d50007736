"""Compare chunks of a copy, written and read without protobuf, with protobuf's bytes."""

import pytest
from google.protobuf.message import DecodeError

from services.api.remote_storage_manager import SegmentChunk, SegmentFile
from services.rpc.converters.shared import segment_file
from services.rpc.wire import copied_chunk_to_wire, request_from_wire, request_to_wire
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

SIZES = [0, 1, 125, 126, 127, 128, 16_379, 16_383, 16_384, 1024 * 1024, 2**21 - 6, 2**21]


def message_of(chunk: SegmentChunk) -> pb.CopyLogSegmentDataRequest:
    file, data = segment_file.to_proto(chunk.file), bytes(chunk.data)
    return pb.CopyLogSegmentDataRequest(chunk=pb.SegmentChunk(file=file, data=data))


@pytest.mark.parametrize("file", SegmentFile)
@pytest.mark.parametrize("size", [size for size in SIZES if size])
def test_a_chunk_is_on_the_wire_as_protobuf_writes_it(size: int, file: SegmentFile) -> None:
    chunk = SegmentChunk(file, bytes(size))
    assert copied_chunk_to_wire(chunk) == message_of(chunk).SerializeToString()


@pytest.mark.parametrize("file", SegmentFile)
@pytest.mark.parametrize("size", SIZES)
def test_chunk_is_equal_after_conversion(size: int, file: SegmentFile) -> None:
    chunk = SegmentChunk(file, b"\x12" * size)
    back = request_from_wire(copied_chunk_to_wire(chunk))
    assert isinstance(back, SegmentChunk)
    assert (back.file, back.data) == (chunk.file, chunk.data)


def test_other_messages_are_left_to_protobuf() -> None:
    header = pb.CopyLogSegmentDataRequest(header=pb.CopyLogSegmentHeader())
    assert request_from_wire(request_to_wire(header)) == header
    assert request_from_wire(b"") == pb.CopyLogSegmentDataRequest()


WHOLE = copied_chunk_to_wire(SegmentChunk(SegmentFile.LOG, b"data"))
SIZE, FILE, DATA = WHOLE[1:2], WHOLE[2:4], WHOLE[4:]


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"\x12\x06" + DATA, id="no file"),
        pytest.param(b"\x12" + SIZE + DATA + FILE, id="the data before the file"),
        pytest.param(b"\x12\x02" + FILE, id="no data"),
        pytest.param(b"\x12\x00", id="nothing"),
        pytest.param(b"\x12\x08\x08\x63" + DATA, id="an unknown file"),
        pytest.param(b"\x12\x09\x08\x81\x01" + DATA, id="a file in two bytes"),
        pytest.param(WHOLE + b"\x12\x02" + FILE, id="a second chunk"),
        pytest.param(b"\x12\x0a" + FILE + DATA + b"\x18\x01", id="a field of a later release"),
        pytest.param(b"\x12\x88\x00" + FILE + DATA, id="a length in more bytes than it needs"),
    ],
)
def test_other_encodings_are_read_like_protobuf(wire: bytes) -> None:
    expected = pb.CopyLogSegmentDataRequest.FromString(wire)
    found = request_from_wire(wire)
    assert (message_of(found) if isinstance(found, SegmentChunk) else found) == expected


@pytest.mark.parametrize("end", range(1, len(WHOLE)))
def test_a_message_that_was_cut_off_is_none(end: int) -> None:
    with pytest.raises(DecodeError):
        request_from_wire(WHOLE[:end])


@pytest.mark.parametrize("wire", [b"\x12" + b"\xff" * 9, b"\x12\x08\x08\x01\x12" + b"\xff" * 3])
def test_a_length_without_end_is_none(wire: bytes) -> None:
    with pytest.raises(DecodeError):
        request_from_wire(wire)
