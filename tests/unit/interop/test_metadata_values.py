"""Check values and keys of Kafka's metadata topic; tests/kafka compares with Kafka's classes."""

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.errors import InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.interop.metadata_topic import (
    MetadataKey,
    decode_key,
    encode_key,
    formatter_line,
    metadata_partition,
)
from services.interop.metadata_values import (
    MetadataValue,
    MetadataValueError,
    decode_value,
    encode_value,
)
from tests.harness.kafka_metadata import draw_value

TP = TopicIdPartition(UUID("00010203-0405-0607-0809-0a0b0c0d0e0f"), "foo", 0)
SEGMENT_ID = RemoteLogSegmentId(TP, UUID("10111213-1415-1617-1819-1a1b1c1d1e1f"))
ID_HEX = "04666f6f000102030405060708090a0b0c0d0e0f0000000000101112131415161718191a1b1c1d1e1f00"
SEGMENT = RemoteLogSegmentMetadata(
    SEGMENT_ID,
    start_offset=0,
    end_offset=100,
    max_timestamp_ms=-1,
    broker_id=1,
    event_timestamp_ms=123,
    segment_leader_epochs=segment_leader_epochs([(0, 0), (1, 20), (2, 80)]),
    segment_size_in_bytes=1024,
    txn_idx_empty=True,
)
UPDATE = RemoteLogSegmentMetadataUpdate(
    SEGMENT_ID, 123, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1, b"\x01\x02"
)
DELETION = RemotePartitionDeleteMetadata(
    TP, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 123, 1
)
UPDATE_HEX = ID_HEX + "00000001000000000000007b03010201"
VECTORS = {
    "010000" + ID_HEX + "0000000000000000000000000000006400000001ffffffffffffffff000000000000007b"
    "040000000000000000000000000000000001000000000000001400000000020000000000000050000000040000"
    "0001000101": MetadataValue(SEGMENT),
    "010100" + UPDATE_HEX + "00": MetadataValue(UPDATE),
    "010200" + "04666f6f000102030405060708090a0b0c0d0e0f0000000000" + "00000001000000000000007b"
    "0000": MetadataValue(DELETION),
    # The proposal's version: tag 0 the epoch, tag 1 the end offset.
    "010101" + UPDATE_HEX + "02" + "000400000007" + "01080000000000000064": MetadataValue(
        UPDATE, 1, 7, 100
    ),
}


@pytest.mark.parametrize("hexadecimal", VECTORS)
def test_values_have_known_bytes(hexadecimal: str) -> None:
    data, value = bytes.fromhex(hexadecimal), VECTORS[hexadecimal]
    assert encode_value(value) == data
    assert decode_value(data) == value


def test_every_kind_comes_back() -> None:
    random = Random(7)
    for _ in range(500):
        value = draw_value(random)
        assert decode_value(encode_value(value)) == value


def test_a_segment_of_the_proposal_has_its_epoch_under_either_tag() -> None:
    keyed = MetadataValue(SEGMENT, 1, 7)
    data = encode_value(keyed)
    assert decode_value(data).metadata.broker_leader_epoch == 7  # type: ignore[union-attr]  # a segment
    # As the proposal's text has it: tag 0, of four bytes, and so no TxnIndexEmpty.
    as_written = encode_value(MetadataValue(SEGMENT, 1))
    assert as_written.endswith(bytes([1, 0, 1, 1]))
    drafted = decode_value(as_written[:-4] + bytes([1, 0, 4, 0, 0, 0, 7]))
    assert drafted.broker_leader_epoch == 7


def test_unknown_tags_are_passed_over() -> None:
    data = bytes.fromhex("010100" + UPDATE_HEX + "01" + "0903abcdef")
    assert decode_value(data) == MetadataValue(UPDATE)


@pytest.mark.parametrize(
    ("data", "unknown", "text"),
    [
        ("", False, "byte 0: the frame version has 1 bytes, 0 are left"),
        ("02", True, "frame version 2 is not known"),
        ("010400", True, "api key 4 in version 0 is not known"),
        ("010002", True, "api key 0 in version 2 is not known"),
        ("010100" + UPDATE_HEX[:-2] + "0900", True, "state 9 is not known"),
        ("010100" + UPDATE_HEX + "0000", False, "1 bytes follow the message"),
        ("0101", False, "the message version has 1 bytes, 0 are left"),
        ("010100" + "ffffffff7f", False, "the topic has"),
        ("010100" + "ffffffffff7f", False, "is longer than 5 bytes"),
        ("010100" + "00", False, "the topic is null"),
        ("010100" + "02ff", False, "the topic is not UTF-8"),
        ("010100" + UPDATE_HEX[:-2] + "0000", False, "cannot be to COPY_SEGMENT_STARTED"),
        ("010100" + UPDATE_HEX + "02" + "010001" + "000000", False, "do not ascend at 1"),
    ],
)
def test_what_is_no_metadata_is_named(data: str, unknown: bool, text: str) -> None:
    with pytest.raises(MetadataValueError, match=text) as raised:
        decode_value(bytes.fromhex(data))
    assert raised.value.is_unknown == unknown


@given(st.binary(max_size=300))
def test_any_bytes_are_metadata_or_an_error(data: bytes) -> None:
    for each in (data, b"\x01\x00\x00" + data, b"\x01\x01\x00" + data):
        try:
            decode_value(each)
        except MetadataValueError:
            continue


@given(st.randoms(use_true_random=False), st.data())
def test_a_damaged_value_is_metadata_or_an_error(random: Random, draw: st.DataObject) -> None:
    data = bytearray(encode_value(draw_value(random)))
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= draw.draw(st.integers(1, 255))
    cut = draw.draw(st.integers(0, len(data)))
    for damaged in (bytes(data), bytes(data[:cut])):
        try:
            decode_value(damaged)
        except MetadataValueError:
            continue


@pytest.mark.parametrize(
    ("most", "least", "partition", "expected"),
    [
        (0, 1, 0, 35),
        (0, 1, 1, 6),
        (0x0123456789ABCDEF, 0xFEDCBA9876543210, 0, 11),
        (0x0123456789ABCDEF, 0xFEDCBA9876543210, 7, 26),
    ],
)
def test_partitions_have_known_places(most: int, least: int, partition: int, expected: int) -> None:
    tp = TopicIdPartition(UUID(int=most << 64 | least), "foo", partition)
    assert metadata_partition(tp, 50) == expected


ID = "AAECAwQFBgcICQoLDA0ODw"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"{ID}:foo:0:100:7", MetadataKey(TP.topic_id, 0, 100, 7, "foo")),
        (f"{ID}:12:0:100:7", MetadataKey(TP.topic_id, 0, 100, 7, "12")),
        (f"{ID}:0:100:7", MetadataKey(TP.topic_id, 0, 100, 7)),
        (f"{ID}:foo:0", MetadataKey(TP.topic_id, 0, topic="foo")),
        (f"{ID}:0", MetadataKey(TP.topic_id, 0)),
    ],
)
def test_keys_of_both_drafts_are_read(text: str, key: MetadataKey) -> None:
    assert decode_key(text.encode()) == key
    if key.topic:
        assert encode_key(key) == text.encode()


@pytest.mark.parametrize("text", ["", ID, f"{ID}:foo", f"{ID}:a:b:c", "x:0", f"{ID}:a:b:c:d:e"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="key"):
        decode_key(text.encode())


def test_the_line_is_that_of_kafkas_formatter() -> None:
    assert formatter_line(3, 9, SEGMENT) == (
        "partition: 3, offset: 9, value: RemoteLogSegmentMetadata{remoteLogSegmentId="
        f"RemoteLogSegmentId{{topicIdPartition={ID}:foo-0, id=EBESExQVFhcYGRobHB0eHw}}, "
        "startOffset=0, endOffset=100, brokerId=1, maxTimestampMs=-1, eventTimestampMs=123, "
        "segmentLeaderEpochs={0=0, 1=20, 2=80}, segmentSizeInBytes=1024, "
        "customMetadata=Optional.empty, state=COPY_SEGMENT_STARTED, txnIdxEmpty=true}"
    )
