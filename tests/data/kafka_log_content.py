"""What is written into the bundled Kafka log: seven topics, in rounds.

Keys, values, headers, timestamps and batch boundaries are the same each time. What each topic is
for stands in README.md.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import replace

from confluent_kafka import Producer

from tests.harness.kafka_client import (
    CLIENT_TIMEOUT_S,
    CODECS,
    NOW,
    Cluster,
    Header,
    Record,
    Topic,
    send_batch,
)

ROUNDS = 3  # the broker restarts between them, so that leader epochs change
ROUND_MS = 3_600_000
RECORD_MS = 250
FIRST_TIMESTAMP_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
CLICKS_LOG_START_OFFSET = 5

ORDERS = Topic("orders.eu-west", 3, 8192)
PAYMENTS = Topic("payments", 2, 8192)
CLICKS = Topic("clicks", 2, 8192)
PROFILES = Topic("profiles", 1, 8192)
TELEMETRY = Topic("telemetry", 1, 65_536)
MIXED = Topic("mixed-codecs", 1, 8192)
AUDIT = Topic("audit", 1, 8192, {"message.timestamp.type": "LogAppendTime"})
TOPICS = (ORDERS, PAYMENTS, CLICKS, PROFILES, TELEMETRY, MIXED, AUDIT)


class RecordMaker:
    """Seeded records of one topic in one round, each ``RECORD_MS`` after the one before."""

    def __init__(self, topic: Topic, round_number: int) -> None:
        self.random = random.Random(f"{topic.name} {round_number}")
        self._timestamp_ms = FIRST_TIMESTAMP_MS + round_number * ROUND_MS

    def next_timestamp_ms(self) -> int:
        self._timestamp_ms += RECORD_MS
        return self._timestamp_ms

    def text(self, length: int) -> str:
        return self.random.randbytes(length // 2).hex()

    def json_record(self, key: str | None, headers: Sequence[Header] = ()) -> Record:
        fields = {
            "id": self.text(16),
            "amount_cents": self.random.randrange(100_000),
            "currency": self.random.choice(("EUR", "GBP", "SEK")),
            "note": self.text(self.random.randrange(20, 160)),
        }
        value = json.dumps(fields).encode()
        encoded_key = None if key is None else key.encode()
        return Record(encoded_key, value, self.next_timestamp_ms(), headers)


def produce_orders(cluster: Cluster, round_number: int) -> None:
    """Keys and headers from an idempotent producer, lz4; partition 2 stays empty for ever."""
    make = RecordMaker(ORDERS, round_number)
    with cluster.idempotent("lz4") as producer:
        for number in range(40):
            headers: list[Header] = [("trace-id", make.random.randbytes(8)), ("source", b"web")]
            batch = [make.json_record(f"order-{make.random.randrange(500)}", headers)]
            batch += [make.json_record(f"order-{make.random.randrange(500)}") for _ in range(5)]
            send_batch(producer, ORDERS, number % 2, batch)


def produce_payments(cluster: Cluster, round_number: int) -> None:
    """Two transactional producers and a plain one, interleaved in the same partitions.

    The middle round aborts nothing, so its segments have no transaction index. The records carry
    the time of the run, because the broker stamps the transaction markers with it: next to older
    records the markers would own the time index and make Kafka roll a segment at each of them.
    """
    make = RecordMaker(PAYMENTS, round_number)
    may_abort = round_number != 1

    def send(producer: Producer, partition: int) -> None:
        batch = [make.json_record(f"payment-{make.random.randrange(99)}") for _ in range(4)]
        batch = [replace(record, timestamp_ms=NOW) for record in batch]
        send_batch(producer, PAYMENTS, partition, batch)

    with (
        cluster.transactional("payments-a") as first,
        cluster.transactional("payments-b") as second,
        cluster.producer() as plain,
    ):
        for number in range(12):
            first.begin_transaction()
            send(first, 0)
            second.begin_transaction()
            send(second, 0)
            send(plain, 0)
            send(first, 1)
            _end_transaction(first, abort=may_abort and number % 4 == 1)
            send(second, 1)
            _end_transaction(second, abort=may_abort and number % 5 == 2)
        # Longer than a segment, so that it spans at least one roll; aborted in the first round.
        first.begin_transaction()
        for _ in range(12):
            send(first, 1)
        _end_transaction(first, abort=round_number == 0)


def _end_transaction(producer: Producer, *, abort: bool) -> None:
    if abort:
        producer.abort_transaction(CLIENT_TIMEOUT_S)
    else:
        producer.commit_transaction(CLIENT_TIMEOUT_S)


def produce_clicks(cluster: Cluster, round_number: int) -> None:
    """Null keys from a producer without an id, gzip; nothing in the middle round."""
    if round_number == 1:
        return
    make = RecordMaker(CLICKS, round_number)
    with cluster.producer("gzip") as producer:
        for number in range(50):
            batch = [make.json_record(None) for _ in range(8)]
            send_batch(producer, CLICKS, number % 2, batch)


def produce_profiles(cluster: Cluster, round_number: int) -> None:
    """Tombstones, empty keys and values, odd headers; snappy."""
    make = RecordMaker(PROFILES, round_number)
    odd_headers: list[Header] = [("twice", b"1"), ("twice", b"2"), ("empty", b""), ("null", None)]
    with cluster.idempotent("snappy") as producer:
        for number in range(30):
            key = f"profile-{make.random.randrange(60)}"
            batch = [make.json_record(f"profile-{make.random.randrange(60)}") for _ in range(5)]
            batch.append(Record(key.encode(), None, make.next_timestamp_ms()))
            batch.append(Record(b"empty-value", b"", make.next_timestamp_ms()))
            batch.append(Record(None, None, make.next_timestamp_ms(), odd_headers))
            if number % 10 == 0:
                batch.append(Record(b"", "späte Grüße, 你好".encode(), make.next_timestamp_ms()))
            send_batch(producer, PROFILES, 0, batch)


def produce_telemetry(cluster: Cluster, round_number: int) -> None:
    """Large values, timestamps out of order; zstd."""
    make = RecordMaker(TELEMETRY, round_number)
    with cluster.idempotent("zstd") as producer:
        for _ in range(16):
            batch = []
            for sensor in range(4):
                jitter_ms = make.random.randrange(-30_000, 30_000)
                value = make.text(make.random.randrange(1500, 6000)).encode()
                timestamp_ms = make.next_timestamp_ms() + jitter_ms
                batch.append(Record(f"sensor-{sensor}".encode(), value, timestamp_ms))
            send_batch(producer, TELEMETRY, 0, batch)


def produce_mixed(cluster: Cluster, round_number: int) -> None:
    """Each batch in another codec, from five producers in turn."""
    make = RecordMaker(MIXED, round_number)
    producers = [cluster.idempotent(codec) for codec in CODECS]
    for number in range(30):
        batch = [make.json_record(f"key-{make.random.randrange(50)}") for _ in range(6)]
        send_batch(producers[number % len(producers)], MIXED, 0, batch)
    for producer in producers:
        producer.close()


def produce_audit(cluster: Cluster, round_number: int) -> None:
    """So little that it never rolls; the broker stamps the time."""
    make = RecordMaker(AUDIT, round_number)
    with cluster.idempotent("none") as producer:
        send_batch(producer, AUDIT, 0, [make.json_record("login") for _ in range(4)])


PRODUCERS = (
    produce_orders,
    produce_payments,
    produce_clicks,
    produce_profiles,
    produce_telemetry,
    produce_mixed,
    produce_audit,
)


def produce_round(cluster: Cluster, round_number: int) -> None:
    """Write one round into all topics, which exist."""
    for produce in PRODUCERS:
        produce(cluster, round_number)


def raise_log_start(cluster: Cluster) -> None:
    """Move one log start into the middle of its first segment, which therefore stays."""
    cluster.delete_records(CLICKS.name, 1, CLICKS_LOG_START_OFFSET)
