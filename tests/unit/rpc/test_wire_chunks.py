"""Messages of one chunk, written without protobuf: byte for byte what protobuf writes."""

import pytest

from services.rpc.wire_chunks import chunk_to_wire
from tieredstorage.v1 import remote_storage_manager_pb2 as pb


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 1024 * 1024, 2**21 - 1, 2**21])
def test_a_chunk_is_on_the_wire_as_protobuf_writes_it(size: int) -> None:
    data = bytes(size)
    assert chunk_to_wire(data) == pb.FetchLogSegmentResponse(data=data).SerializeToString()
