"""Rows that are made of all records at once are those that are made record by record."""

from random import Random

import pyarrow as pa
import pytest

from services.api.ids import TopicIdPartition, random_uuid
from services.api.validation import INT64_MAX
from services.common.inflate import Codec
from services.records.batches import HEADER_BYTES, Batch, walk_batches
from services.records.decode import RecordColumns, UnreadableRecordsError, decode
from spark_jobs.records.decoding import RecordsBuilder
from spark_jobs.records.options import RecordsOptions, records_options
from spark_jobs.records.schema import RECORDS_ARROW, as_batch
from tests.harness.parsers.of_logs import Content
from tests.spark.made_logs import varint
from tests.unit.rlm.kafka_bytes import batch

pytestmark = pytest.mark.spark
TP = TopicIdPartition(random_uuid(), "orders", 3)
APPEND_TIME = 0x08


def options(**given: str) -> RecordsOptions:
    return records_options({"topic": "orders", **given})[1]


def text(chance: Random) -> bytes:
    """Return a key or value with its length: null, empty, short or long."""
    size = chance.choice([-1, 0, 1, 7, 63, 64, 300, 9_000])
    return varint(size) + chance.randbytes(max(size, 0))


def record(chance: Random, delta: int, headers: bytes) -> bytes:
    times = varint(chance.choice([0, 0, 1, -1, 63, 64, 10**6, 10**12]))
    body = b"\0" + times + varint(delta) + text(chance) + text(chance) + headers
    return varint(len(body)) + body


def random_batch(chance: Random, base: int, *, with_headers: bool = False) -> bytes:
    count = chance.choice([1, 2, 30, 200])
    headers = varint(1) + varint(1) + b"h" + text(chance) if with_headers else b"\0"
    payload = b"".join(record(chance, delta, headers) for delta in range(count))
    attributes = chance.choice([0, APPEND_TIME])
    return batch(base, count, payload=payload, attributes=attributes, timestamp_ms=1_000_000)


def batches_of(data: bytes) -> list[Batch]:
    return list(walk_batches(Content(data), 0, len(data), 0, verify=True))


def one_by_one(
    batches: list[Batch], first: int, last: int, chosen: RecordsOptions
) -> pa.RecordBatch:
    columns = RecordColumns()
    for each in batches:
        decode(each, first, last, chosen.max_batch_bytes, columns)
    return as_batch(columns, TP, chosen)


def at_once(batches: list[Batch], first: int, last: int, chosen: RecordsOptions) -> pa.RecordBatch:
    made = RecordsBuilder(TP, chosen)
    for each in batches:
        made.add(each, first, last)
    rows = made.rows()
    rows.validate(full=True)
    assert rows.schema == RECORDS_ARROW
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_random_records_give_the_same_rows(seed: int) -> None:
    chance = Random(seed)
    log, base = b"", 5
    for _ in range(6):
        made = random_batch(chance, base, with_headers=seed % 5 == 4)
        log += made
        base += int.from_bytes(made[23:27], "big") + 1
    batches = batches_of(log)
    first, last = sorted(chance.choices(range(base + 5), k=2))
    times = {"fromTime": "1000000", "toTime": "1000063"}
    for chosen in (options(), options(**times)):
        for bounds in ((0, INT64_MAX), (first, last)):
            wanted = one_by_one(batches, *bounds, chosen)
            assert at_once(batches, *bounds, chosen).equals(wanted)


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
        batches = batches_of(batch(0, max(count, 1), payload=bytes(payload)))
        outcomes = []
        for way in (one_by_one, at_once):
            try:
                outcomes.append(way(batches, 0, INT64_MAX, options()).to_pydict())
            except UnreadableRecordsError as e:
                outcomes.append(str(e))
        assert outcomes[0] == outcomes[1]


def test_what_inflates_beyond_the_bound_is_refused_before_it_is_decoded() -> None:
    [made] = batches_of(batch(0, payload=bytes(2_000), attributes=Codec.NONE))
    with pytest.raises(UnreadableRecordsError, match="more than the limit of 1000"):
        RecordsBuilder(TP, options(maxBatchBytes="1000")).add(made, 0, 0)
