"""Makes ``kafka-log/`` and ``kafka-log.records.jsonl.gz``, beside this file, with a real Kafka.

    python -m tests.data.make_kafka_log

Keys, values, headers, timestamps and batch boundaries are the same in each run; ids that Kafka
draws (cluster, directory, topics, producers) and the times in ``audit`` and ``payments`` are not.
What each topic is for stands in README.md; ``_check`` refuses a log that lacks what is promised
there.
"""

import base64
import gzip
import json
import random
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.harness.kafka_broker import KafkaBroker

HERE = Path(__file__).resolve().parent
LOG_DIR = HERE / "kafka-log"
RECORDS = HERE / "kafka-log.records.jsonl.gz"

ROUNDS = 3  # the broker restarts between them, so that leader epochs change
ROUND_MS = 3_600_000
RECORD_MS = 250
FIRST_TIMESTAMP_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
CLICKS_LOG_START_OFFSET = 5
NOW = 0  # the client library's own sign
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CLIENT_TIMEOUT_S = 30.0
TOTAL_LIMIT_BYTES = 4 << 20
FILE_LIMIT_BYTES = 1 << 20

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Record:
    """What a producer is given."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int  # NOW: the time of sending
    headers: Sequence[Header] = ()


@dataclass(frozen=True)
class Topic:
    """A topic; segments are kept small by the setting that Kafka's own tests use."""

    name: str
    partitions: int
    segment_bytes: int
    config: Mapping[str, str] = field(default_factory=dict)

    def new(self) -> NewTopic:
        config = {
            "internal.segment.bytes": str(self.segment_bytes),
            "index.interval.bytes": "1024",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            **self.config,
        }
        return NewTopic(self.name, self.partitions, 1, config=config)


ORDERS = Topic("orders.eu-west", 3, 8192)
PAYMENTS = Topic("payments", 2, 8192)
CLICKS = Topic("clicks", 2, 8192)
PROFILES = Topic("profiles", 1, 8192)
TELEMETRY = Topic("telemetry", 1, 65_536)
MIXED = Topic("mixed-codecs", 1, 8192)
AUDIT = Topic("audit", 1, 8192, {"message.timestamp.type": "LogAppendTime"})
TOPICS = (ORDERS, PAYMENTS, CLICKS, PROFILES, TELEMETRY, MIXED, AUDIT)


class Cluster:
    """Producers and consumers of one running broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        # Level 2: the log of a client that outlives its work is noise here; errors raise anyway.
        self._common: dict[str, str | int | float] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 2,
        }
        self.admin = AdminClient(dict(self._common))

    def producer(self, codec: str = "none", **settings: Any) -> Producer:
        """A producer that sends only when flushed, so that a flush makes exactly one batch."""
        config = {**self._common, "compression.type": codec, "linger.ms": 30_000, "acks": "all"}
        return Producer({**config, **settings})

    def idempotent(self, codec: str) -> Producer:
        return self.producer(codec, **{"enable.idempotence": True})

    def transactional(self, transactional_id: str) -> Producer:
        producer = self.producer(**{"transactional.id": transactional_id})
        producer.init_transactions(CLIENT_TIMEOUT_S)
        return producer

    def read(self, topic: Topic, partition: int, isolation_level: str) -> Iterator[Message]:
        """All records of a partition from its log start to its end."""
        consumer = Consumer(
            {
                **self._common,
                "group.id": "make-kafka-log",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "check.crcs": True,
                "isolation.level": isolation_level,
            }
        )
        consumer.assign([TopicPartition(topic.name, partition, OFFSET_BEGINNING)])
        try:
            while (message := consumer.poll(CLIENT_TIMEOUT_S)) is not None:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        raise TimeoutError(f"{topic.name}-{partition} did not end")


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


def _send_batch(
    producer: Producer, topic: Topic, partition: int, records: Sequence[Record]
) -> None:
    """Write one batch and wait until the broker has it."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for record in records:
        producer.produce(
            topic.name,
            partition=partition,
            key=record.key,
            value=record.value,
            timestamp=record.timestamp_ms,
            headers=list(record.headers) or None,
            on_delivery=delivered,
        )
    if producer.flush(CLIENT_TIMEOUT_S) or failures:
        raise RuntimeError(f"{topic.name}-{partition} did not take a batch: {failures}")


def _produce_orders(cluster: Cluster, round_number: int) -> None:
    """Keys and headers from an idempotent producer, lz4; partition 2 stays empty for ever."""
    make = RecordMaker(ORDERS, round_number)
    with cluster.idempotent("lz4") as producer:
        for number in range(40):
            headers: list[Header] = [("trace-id", make.random.randbytes(8)), ("source", b"web")]
            batch = [make.json_record(f"order-{make.random.randrange(500)}", headers)]
            batch += [make.json_record(f"order-{make.random.randrange(500)}") for _ in range(5)]
            _send_batch(producer, ORDERS, number % 2, batch)


def _produce_payments(cluster: Cluster, round_number: int) -> None:
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
        _send_batch(producer, PAYMENTS, partition, batch)

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


def _produce_clicks(cluster: Cluster, round_number: int) -> None:
    """Null keys from a producer without an id, gzip; nothing in the middle round."""
    if round_number == 1:
        return
    make = RecordMaker(CLICKS, round_number)
    with cluster.producer("gzip") as producer:
        for number in range(50):
            batch = [make.json_record(None) for _ in range(8)]
            _send_batch(producer, CLICKS, number % 2, batch)


def _produce_profiles(cluster: Cluster, round_number: int) -> None:
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
            _send_batch(producer, PROFILES, 0, batch)


def _produce_telemetry(cluster: Cluster, round_number: int) -> None:
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
            _send_batch(producer, TELEMETRY, 0, batch)


def _produce_mixed(cluster: Cluster, round_number: int) -> None:
    """Each batch in another codec, from five producers in turn."""
    make = RecordMaker(MIXED, round_number)
    producers = [cluster.idempotent(codec) for codec in CODECS]
    for number in range(30):
        batch = [make.json_record(f"key-{make.random.randrange(50)}") for _ in range(6)]
        _send_batch(producers[number % len(producers)], MIXED, 0, batch)
    for producer in producers:
        producer.close()


def _produce_audit(cluster: Cluster, round_number: int) -> None:
    """So little that it never rolls; the broker stamps the time."""
    make = RecordMaker(AUDIT, round_number)
    with cluster.idempotent("none") as producer:
        _send_batch(producer, AUDIT, 0, [make.json_record("login") for _ in range(4)])


PRODUCERS = (
    _produce_orders,
    _produce_payments,
    _produce_clicks,
    _produce_profiles,
    _produce_telemetry,
    _produce_mixed,
    _produce_audit,
)


def _create_topics(cluster: Cluster) -> None:
    for created in cluster.admin.create_topics([topic.new() for topic in TOPICS]).values():
        created.result(CLIENT_TIMEOUT_S)


def _raise_log_start(cluster: Cluster) -> None:
    """Move one log start into the middle of its first segment, which therefore stays."""
    start = TopicPartition(CLICKS.name, 1, CLICKS_LOG_START_OFFSET)
    for deleted in cluster.admin.delete_records([start]).values():
        deleted.result(CLIENT_TIMEOUT_S)


def _read_records(cluster: Cluster) -> Iterator[dict[str, object]]:
    for topic in TOPICS:
        for partition in range(topic.partitions):
            committed = {m.offset() for m in cluster.read(topic, partition, "read_committed")}
            for message in cluster.read(topic, partition, "read_uncommitted"):
                timestamp_type, timestamp_ms = message.timestamp()
                log_append = timestamp_type == TIMESTAMP_LOG_APPEND_TIME
                yield {
                    "topic": topic.name,
                    "partition": partition,
                    "offset": message.offset(),
                    "leader_epoch": message.leader_epoch(),
                    "timestamp_type": "LogAppendTime" if log_append else "CreateTime",
                    "timestamp_ms": timestamp_ms,
                    "key": _base64(message.key()),
                    "value": _base64(message.value()),
                    "headers": [[name, _base64(value)] for name, value in _headers(message)],
                    "committed": message.offset() in committed,
                }


def _headers(message: Message) -> list[Header]:
    headers: Any = message.headers()  # declared as any shape that a producer may be given
    return list(headers or ())


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _write_records(records: Iterator[dict[str, object]], path: Path) -> None:
    # No name and no time in the gzip header: equal records give an equal file.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        for record in records:
            packed.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")


def _check(log_dir: Path) -> None:
    """Refuse a log that lacks what README.md promises or is too large to be committed."""
    sizes = {path: path.stat().st_size for path in log_dir.rglob("*") if path.is_file()}
    problems = [f"{path.name} is too large" for path, n in sizes.items() if n > FILE_LIMIT_BYTES]
    if sum(sizes.values()) > TOTAL_LIMIT_BYTES:
        problems.append("the whole is too large")
    for topic in TOPICS:
        for partition in range(topic.partitions):
            directory = log_dir / f"{topic.name}-{partition}"
            # The snapshot a rolled segment ends with is named by the next segment's base offset.
            bases = sorted(path.stem for path in directory.glob("*.log"))
            for base in bases[1:]:
                if not (directory / f"{base}.snapshot").is_file():
                    problems.append(f"{directory.name}/{base}.snapshot is missing")
    epochs = (log_dir / "orders.eu-west-0" / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    if len(epochs) < ROUNDS:
        problems.append(f"orders.eu-west-0 has only the leader epochs {epochs}")
    indexes = {path.stem for path in log_dir.glob("payments-0/*.txnindex") if sizes[path]}
    if not indexes or indexes >= {path.stem for path in log_dir.glob("payments-0/*.log")}:
        problems.append("payments-0 needs segments with and without aborted transactions")
    spanning = [
        path.name
        for path in log_dir.glob("payments-1/*.txnindex")
        for _, _, first_offset, _, _ in struct.iter_unpack(">hqqqq", path.read_bytes())
        if first_offset < int(path.stem)
    ]
    if not spanning:
        problems.append("payments-1 needs an aborted transaction that spans a roll")
    if problems:
        raise RuntimeError("; ".join(problems))


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="make-kafka-log-") as scratch:
        directory, records = Path(scratch) / "kafka", Path(scratch) / RECORDS.name
        # Apart, as operators may have it: then log.dir holds nothing but logs and checkpoints.
        settings = {"metadata.log.dir": str(directory / "metadata"), "log.retention.ms": "-1"}
        with KafkaBroker(directory, settings) as broker:
            _create_topics(Cluster(broker.bootstrap_servers))
            for round_number in range(ROUNDS):
                if round_number > 0:
                    broker.restart()
                cluster = Cluster(broker.bootstrap_servers)
                for produce in PRODUCERS:
                    produce(cluster, round_number)
            _raise_log_start(cluster)
            _write_records(_read_records(cluster), records)
        _check(broker.log_dir)
        if records.stat().st_size > FILE_LIMIT_BYTES:
            raise RuntimeError(f"{records.name} is too large")
        shutil.rmtree(LOG_DIR, ignore_errors=True)
        shutil.copytree(broker.log_dir, LOG_DIR)
        shutil.copyfile(records, RECORDS)
    print(f"wrote {LOG_DIR.name}/ and {RECORDS.name} into {HERE.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
