"""Compare the parts of a Fetch, written and read without protobuf, with protobuf's."""

from dataclasses import replace
from uuid import UUID

import pytest
from google.protobuf.message import DecodeError

from services.api.ids import TopicIdPartition
from services.api.lineage import EpochEnd
from services.api.remote_log_manager import (
    AbortedTransaction,
    FetchError,
    FetchPart,
    RecordSource,
)
from services.rpc.converters.log import fetch_part_to_proto
from services.rpc.wire_parts import ReceivedPart, part_to_wire
from tieredstorage.v1 import remote_log_manager_pb2 as pb

PART = FetchPart(
    TopicIdPartition(UUID(int=7), "payments", 3),
    high_watermark=900,
    last_stable_offset=-1,
    record_batches=b"\x3a" * 300,
    source=RecordSource.REMOTE,
    aborted_transactions=(AbortedTransaction(5, 77),),
    metadata_age_ms=0,
)
EMPTY = FetchPart(PART.topic_id_partition, FetchError.UNKNOWN_SERVER_ERROR, "why")
DIVERGING = replace(EMPTY, diverging_epoch=EpochEnd(4, 10), throttle_time_ms=1)
SIZES = [1, 127, 128, 16_384, 1024 * 1024]
WIRE = part_to_wire(PART)


@pytest.mark.parametrize("part", [PART, EMPTY, DIVERGING])
def test_protobuf_reads_what_we_write_and_we_read_what_protobuf_writes(part: FetchPart) -> None:
    message = fetch_part_to_proto(part)
    assert pb.FetchResponse.FromString(part_to_wire(part)) == message
    assert ReceivedPart(message.SerializeToString()).part() == part


@pytest.mark.parametrize("size", SIZES)
def test_a_part_is_equal_after_conversion(size: int) -> None:
    part = replace(PART, record_batches=bytes(size))
    assert ReceivedPart(part_to_wire(part)).part() == part


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(WIRE + WIRE, id="twice"),
        pytest.param(WIRE + b"\x78\x01", id="a field of a later release"),
        pytest.param(b"\x3a\x84\x00data", id="a length in more bytes than it needs"),
        pytest.param(b"\x20\x05\x3a\x04data", id="records behind another field"),
    ],
)
def test_other_encodings_are_read_like_protobuf(wire: bytes) -> None:
    received = ReceivedPart(wire)
    assert received.message() == pb.FetchResponse.FromString(wire)


@pytest.mark.parametrize("end", [*range(1, 12), len(WIRE) - 1])
def test_a_message_that_was_cut_off_is_none(end: int) -> None:
    with pytest.raises(DecodeError):
        ReceivedPart(WIRE[:end])
