"""Rows that are made of all records at once are those that are made record by record."""

from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from services.api.ids import TopicIdPartition, random_uuid
from services.api.validation import INT64_MAX
from services.common.inflate import DEFAULT_LIMIT_BYTES, Codec
from services.records.batches import HEADER_BYTES, Batch
from services.records.columns import RECORDS_SCHEMA, RecordsBuilder
from services.records.decode import UnreadableRecordsError
from tests.harness.committed_reads import batches_in
from tests.unit.rlm.kafka_bytes import TRANSACTIONAL, batch, varint

TP = TopicIdPartition(random_uuid(), "orders", 3)
APPEND_TIME = 0x08


def text(chance: Random) -> bytes:
    """Return a key or value with its length: null, empty, short or long."""
    size = chance.choice([-1, 0, 1, 7, 63, 64, 300, 9_000])
    return varint(size) + chance.randbytes(max(size, 0))


def record(chance: Random, delta: int, headers: bytes) -> bytes:
    times = varint(chance.choice([0, 0, 1, -1, 63, 64, 10**6, 10**12, 2**40, 2**60, -(2**60)]))
    return framed(b"\0" + times + varint(delta) + text(chance) + text(chance) + headers)


def framed(body: bytes) -> bytes:
    return varint(len(body)) + body


def random_batch(chance: Random, base: int, *, with_headers: bool = False) -> bytes:
    count = chance.choice([1, 2, 30, 200])
    headers = varint(1) + varint(1) + b"h" + text(chance) if with_headers else b"\0"
    payload = b"".join(record(chance, delta, headers) for delta in range(count))
    attributes = chance.choice([0, APPEND_TIME, TRANSACTIONAL])
    first_ms, last_ms = 1_000_000, 1_000_050
    return batch(
        base,
        count,
        payload=payload,
        attributes=attributes,
        timestamp_ms=first_ms,
        max_timestamp_ms=last_ms,
    )


def one_by_one(batches: list[Batch], first: int, last: int) -> pa.RecordBatch:
    made = RecordsBuilder(TP, DEFAULT_LIMIT_BYTES)
    for each in batches:
        made.add(each, first, last)
    return made.decoded_rows()


def at_once(batches: list[Batch], first: int, last: int) -> pa.RecordBatch:
    made = RecordsBuilder(TP, DEFAULT_LIMIT_BYTES)
    for each in batches:
        made.add(each, first, last)
    rows = made.rows()
    rows.validate(full=True)
    assert rows.schema == RECORDS_SCHEMA
    return rows


Way = Callable[[list[Batch], int, int], pa.RecordBatch]


def outcome(way: Way, batches: list[Batch]) -> dict[str, Any] | str:
    """Return all rows, or why they cannot be decoded."""
    try:
        rows: dict[str, Any] = way(
            batches,
            0,
            INT64_MAX,
        ).to_pydict()
    except UnreadableRecordsError as e:
        return str(e)
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_random_records_give_the_same_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, with_headers = Random(seed), seed % 5 == 4
    log, base = b"", 5
    for _ in range(6):
        made = random_batch(chance, base, with_headers=with_headers)
        log += made
        base += int.from_bytes(made[23:27], "big") + 1
    batches = list(batches_in(log))
    first, last = sorted(chance.choices(range(base + 5), k=2))
    for bounds in ((0, INT64_MAX), (first, last)):
        wanted = one_by_one(batches, *bounds)
        with monkeypatch.context() as patched:
            if not with_headers:  # they are usual: none is decoded by itself
                patched.setattr("services.records.columns.records_of", None)
            assert at_once(batches, *bounds).equals(wanted)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_records_are_refused_in_the_same_words(seed: int) -> None:
    """Each byte of a batch may be wrong though its CRC is right."""
    chance = Random(seed)
    whole = random_batch(chance, 0)
    for _ in range(40):
        payload = bytearray(whole[HEADER_BYTES:])
        for _ in range(chance.choice([1, 1, 3])):
            payload[chance.randrange(min(len(payload), 400))] = chance.randrange(256)
        count = int.from_bytes(whole[57:61], "big") + chance.choice([0, 0, 0, 1, -1])
        batches = list(batches_in(batch(0, max(count, 1), payload=bytes(payload))))
        assert outcome(at_once, batches) == outcome(one_by_one, batches)


USUAL = b"\0" + varint(0) + varint(0) + varint(-1) + varint(-1) + b"\0"


@pytest.mark.parametrize(
    ("payload", "timestamp_ms"),
    [
        pytest.param(varint(-len(USUAL) - 1) + USUAL, 0, id="length of the record below 0"),
        pytest.param(framed(b"\0\0\0" + varint(-2) + b"\1\0"), 0, id="length of the key below -1"),
        pytest.param(framed(USUAL + b"\0"), 0, id="one byte more than its fields"),
        pytest.param(framed(b"\0" + varint(-(2**63)) + USUAL[2:]), 10**6, id="time of ten bytes"),
        pytest.param(framed(b"\0" + varint(2**61) + USUAL[2:]), INT64_MAX, id="time too late"),
    ],
)
def test_an_unusual_record_has_the_same_outcome(payload: bytes, timestamp_ms: int) -> None:
    batches = list(batches_in(batch(0, payload=payload, timestamp_ms=timestamp_ms)))
    assert outcome(at_once, batches) == outcome(one_by_one, batches)


def test_what_inflates_beyond_the_bound_is_refused_before_it_is_decoded() -> None:
    [made] = batches_in(batch(0, payload=bytes(2_000), attributes=Codec.NONE))
    with pytest.raises(UnreadableRecordsError, match="more than the limit of 1000"):
        RecordsBuilder(TP, 1_000).add(made, 0, 0)
