"""Write records for the demos with a Kafka broker, and check that a reader gets exactly these."""

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message, Producer

from demos.kafka_client import CODECS, Cluster, Record, Topic, send_batch

BATCHES = 480
RECORDS_PER_BATCH = 100
TRANSACTION_BATCHES = 6
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
_NOTE_BYTES = 300


@dataclass(frozen=True, slots=True)
class Sent:
    """A record that the broker accepted at this offset."""

    offset: int
    record: Record
    transaction: str | None  # "committed", "aborted"; None if outside of any

    def is_for(self, isolation_level: str) -> bool:
        """Return whether a consumer of this isolation level must get the record."""
        return isolation_level == READ_UNCOMMITTED or self.transaction != "aborted"

    @property
    def size_bytes(self) -> int:
        """Return the size of key and value, before compression."""
        return len(self.record.key or b"") + len(self.record.value or b"")


def produce(
    cluster: Cluster,
    topic: Topic,
    batches: int = BATCHES,
    seed: int = 405,
    continues: Callable[[], bool] = lambda: True,
) -> list[Sent]:
    """Write keyed records into partition 0 and return them by offset.

    Uses each codec in turn, batch by batch, with one committed and one aborted transaction between
    the batches.

    Args:
        continues: called before each batch; it may wait. False ends the writing early.
    """
    sent: list[Sent] = []
    made = _records(seed)
    with ExitStack() as cleanup:
        plain = [cleanup.enter_context(cluster.idempotent(codec)) for codec in CODECS]
        transactional = cleanup.enter_context(cluster.transactional("demo"))
        for number in range(batches):
            if not continues():
                break
            if number == batches // 4:
                sent += _transaction(transactional, topic, made, "committed")
            if number == batches // 2:
                sent += _transaction(transactional, topic, made, "aborted")
            sent += _batch(plain[number % len(plain)], topic, made, None)
    return sent


def differences(
    expected: Sequence[Sent], messages: Sequence[Message], isolation_level: str
) -> list[str]:
    """Return a sentence for each record that is missing, unexpected, or changed."""
    return content_differences(expected, map(_content, messages), isolation_level)


def content_differences(
    expected: Sequence[Sent], read: Iterable[tuple[int, Record]], isolation_level: str
) -> list[str]:
    """Return a sentence for each difference, as `differences`, from offsets and records."""
    wanted = {sent.offset: sent for sent in expected if sent.is_for(isolation_level)}
    found = []
    last_offset = -1
    for offset, record in read:
        sent = wanted.pop(offset, None)
        if offset <= last_offset:
            found.append(f"offset {offset}: came after offset {last_offset}")
        elif sent is None:
            found.append(f"offset {offset}: no consumer of {isolation_level} should get it")
        elif record != sent.record:
            found.append(f"offset {offset}: is not as it was sent")
        last_offset = max(last_offset, offset)
    return found + [f"offset {offset}: did not come" for offset in wanted]


def _content(message: Message) -> tuple[int, Record]:
    offset, (_, timestamp_ms) = message.offset(), message.timestamp()
    assert offset is not None  # a consumed message always has an offset
    key: Any = message.key()
    value: Any = message.value()
    headers: Any = message.headers()  # declared with every type that a producer accepts
    return offset, Record(key, value, timestamp_ms, list(headers or ()))


def _transaction(
    producer: Producer, topic: Topic, made: Iterator[Record], outcome: str
) -> list[Sent]:
    producer.begin_transaction()
    sent = []
    for _ in range(TRANSACTION_BATCHES):
        sent += _batch(producer, topic, made, outcome)
    if outcome == "committed":
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    return sent


def _batch(
    producer: Producer, topic: Topic, made: Iterator[Record], transaction: str | None
) -> list[Sent]:
    records = [next(made) for _ in range(RECORDS_PER_BATCH)]
    offsets = send_batch(producer, topic, 0, records)
    return [Sent(o, r, transaction) for o, r in zip(offsets, records, strict=True)]


def _records(seed: int) -> Iterator[Record]:
    """Yield orders, about half of whose bytes compression removes."""
    chance, number = random.Random(seed), 0
    while True:
        order = {"order": number, "note": chance.randbytes(_NOTE_BYTES).hex()}
        key = f"customer-{chance.randrange(1000):03}".encode()
        now_ms = time.time_ns() // 1_000_000
        headers = [("order", str(number).encode())]
        yield Record(key, json.dumps(order).encode(), now_ms, headers)
        number += 1
