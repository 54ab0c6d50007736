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
    pieces=(b"\x3a" * 300,),
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
    part = replace(PART, pieces=(bytes(size),))
    assert ReceivedPart(part_to_wire(part)).part() == part


def test_pieces_are_sent_as_one() -> None:
    records = memoryview(bytes(range(256)) * 2)
    part = replace(PART, pieces=(records[:7], b"", records[7:300], records[300:]))
    received = ReceivedPart(part_to_wire(part)).part()
    assert received == replace(part, pieces=(records,))
    assert received.record_batches == part.record_batches == bytes(records)
    assert received.size_bytes == part.size_bytes == len(records)


@pytest.mark.parametrize("transactions", [1, 1000])
def test_parts_that_differ_in_their_records_only_are_read_each(transactions: int) -> None:
    aborted = tuple(AbortedTransaction(at, at) for at in range(transactions))
    parts = [
        replace(PART, aborted_transactions=aborted, pieces=(bytes([n]) * n,)) for n in range(1, 4)
    ]
    parts.append(replace(parts[0], pieces=(), source=None))
    assert [ReceivedPart(part_to_wire(part)).part() for part in parts * 2] == parts * 2


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
