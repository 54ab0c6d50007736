"""Decode real and damaged batches."""

import base64
import gzip
import json
import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import zstandard

from services.api.validation import INT64_MAX
from services.common.inflate import Codec
from services.records.batches import Batch, FileWindow, walk_batches
from services.records.decode import (
    DecodedRecord,
    UnreadableRecordsError,
    decompressed,
    records_of,
)
from tests.harness.parsers.of_logs import Content
from tests.harness.synthetic_log import bomb, record_of_headers
from tests.unit.rlm.kafka_bytes import batch

DATA = Path(__file__).parents[2] / "data"
LIMIT_BYTES = 1024 * 1024


def consumed() -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """Return what a consumer of Kafka read, by topic and partition."""
    found: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    with gzip.open(DATA / "kafka-log.records.jsonl.gz", "rt") as lines:
        for read in map(json.loads, lines):
            row = (
                read["offset"],
                read["timestamp_ms"],
                int(read["timestamp_type"] == "LogAppendTime"),
                read["leader_epoch"],
                plain(read["key"]),
                plain(read["value"]),
                tuple((name, plain(value)) for name, value in read["headers"]) or None,
            )
            found.setdefault((read["topic"], read["partition"]), []).append(row)
    return found


def plain(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def row_of(made: Batch, each: DecodedRecord) -> tuple[Any, ...]:
    time_type = int(made.has_append_time)
    content = each.key, each.value, each.headers or None
    return each.offset, each.timestamp_ms, time_type, made.leader_epoch, *content


def test_every_record_of_a_real_log_is_as_a_consumer_read_it() -> None:
    for (topic, partition), wanted in consumed().items():
        rows = []
        for path in sorted((DATA / "kafka-log" / f"{topic}-{partition}").glob("*.log")):
            with FileWindow(path) as window:
                for each in walk_batches(window, 0, window.size_bytes, 0, verify=True):
                    if not each.is_control:
                        rows += [row_of(each, record) for record in records_of(each, LIMIT_BYTES)]
        # A log may begin inside of a batch.
        assert rows[-len(wanted) :] == wanted, topic


def one(data: bytes) -> Batch:
    [found] = walk_batches(Content(data), 0, len(data), 0, verify=True)
    return found


def record(value: bytes, delta: int = 0) -> bytes:
    number = delta << 1
    varint = bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80, number >> 7])
    body = b"\0\0" + varint + bytes([1, len(value) << 1]) + value + b"\0"
    return bytes([len(body) << 1]) + body


def test_times_and_offsets_are_those_of_the_decoded_records() -> None:
    """Of every codec, with pieces shorter than a batch."""
    for log in sorted((DATA / "kafka-log").glob("*/*.log")):
        with FileWindow(log) as window:
            for each in walk_batches(window, 0, window.size_bytes, 0, verify=True):
                found = records_of(each, 64 * LIMIT_BYTES, piecewise=True)
                assert list(found) == list(records_of(each, 64 * LIMIT_BYTES))


def test_times_of_many_records_are_read_in_little_memory() -> None:
    made = many_records(2_000_000)
    assert made.size_bytes < 2_000
    tracemalloc.start()
    try:
        (found,) = islice(records_of(made, 64 * LIMIT_BYTES, piecewise=True), 40_000, 40_001)
        assert (found.timestamp_ms, found.offset) == (1000, 5)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * LIMIT_BYTES


def test_more_records_than_the_memory_allows_are_not_decoded() -> None:
    with pytest.raises(UnreadableRecordsError, match="has 200000 records, of at most 131072"):
        decompressed(many_records(200_000), 8 * LIMIT_BYTES)


def many_records(count: int) -> Batch:
    """Return a batch of records as short as they can be, compressed."""
    records = zstandard.compress(record(b"") * count)
    return one(batch(5, count, payload=records, attributes=int(Codec.ZSTD)))


def test_offsets_of_a_batch_with_many_records_are_decoded() -> None:
    """From the 65th record on an offset delta takes two bytes, that of the time still one."""
    made = one(batch(5, 100, payload=b"".join(record(b"v", at) for at in range(100))))
    assert [each.offset for each in records_of(made, LIMIT_BYTES)] == list(range(5, 105))


@pytest.mark.parametrize("none", [b"\0", b"\x80\0"], ids=["one byte", "two bytes"])
def test_no_headers_may_be_written_in_any_length(none: bytes) -> None:
    """Kafka's ByteUtils.readVarint reads a zero of two bytes too."""
    body = bytes([0, 0, 0, 1, 2]) + b"v" + none
    data = bytes([len(body) << 1]) + body
    (found,) = records_of(one(batch(0, payload=data)), LIMIT_BYTES)
    assert (found.value, found.headers) == (b"v", ())


DAMAGED = [
    (batch(0, payload=record(b"a")[:-1]), "a record is cut off"),
    (batch(0, payload=record(b"a") + b"x"), "1 bytes follow its 1 records"),
    (batch(0, payload=record(b"a", 1)), "a record has offset 1, outside of its batch"),
    (batch(0, payload=b"\x06\0\0\0"), "a record is cut off"),
    (batch(0, payload=b"\xff" * 12), "a number has more than ten bytes"),
    (batch(0, payload=b"\x0c\0\0\0\x01\x7ea"), "a key, value or header is longer"),
    (batch(0, payload=b"\x0c\0\0\0\x03\x02a"), "a length of -2"),
    (
        batch(0, timestamp_ms=INT64_MAX, payload=record(b"a").replace(b"\0\0", b"\0\2", 1)),
        "timestamp",
    ),
    (batch(0, payload=record_of_headers(10_001)), "10001 headers, more than the limit of 10000"),
    (batch(0, attributes=7), "unknown compression 7"),
    (batch(0, attributes=Codec.GZIP), "not valid gzip data"),
    (batch(0, attributes=Codec.ZSTD, payload=bomb(Codec.ZSTD, 16 * 1024 * 1024)), "more than the"),
    (batch(0, payload=bytes(LIMIT_BYTES + 1)), "inflates to more than the limit"),
]


@pytest.mark.parametrize(("data", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_what_is_no_record_is_refused_by_the_offsets_of_its_batch(
    data: bytes, message: str
) -> None:
    with pytest.raises(UnreadableRecordsError, match=f"offset 0 to 0.*{message}"):
        list(records_of(one(data), LIMIT_BYTES))
