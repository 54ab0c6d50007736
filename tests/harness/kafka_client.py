"""Producers and consumers of a real broker, for tests and test data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

NOW = 0  # the client library's own sign
CLIENT_TIMEOUT_S = 30.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

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


@dataclass(frozen=True)
class Offsets:
    """What a client may ask of a partition: its first offset, and the ones behind its last stable
    and its last record."""

    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int


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

    def create(self, *topics: Topic) -> None:
        for created in self.admin.create_topics([topic.new() for topic in topics]).values():
            created.result(CLIENT_TIMEOUT_S)

    def configure(self, topic: str, **config: str) -> None:
        """Set topic configs; underscores stand for dots."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for altered in self.admin.incremental_alter_configs([resource]).values():
            altered.result(CLIENT_TIMEOUT_S)

    def offsets(self, topic: str, partition: int) -> Offsets:
        """What the broker says of a partition now."""
        _, last_stable_offset = self._watermarks(topic, partition, "read_committed")
        start, end = self._watermarks(topic, partition, "read_uncommitted")
        return Offsets(start, last_stable_offset, end)

    def _watermarks(self, topic: str, partition: int, isolation_level: str) -> tuple[int, int]:
        with closing(self._consumer(isolation_level)) as consumer:
            wanted = TopicPartition(topic, partition)
            start, end = consumer.get_watermark_offsets(wanted, CLIENT_TIMEOUT_S, cached=False)
            return start, end

    def offsets_for_times(
        self, topic: str, partition: int, timestamps_ms: Iterable[int]
    ) -> dict[int, int]:
        """For each time the first offset with a record of that time or later, as the broker finds
        it through its indexes; -1: none."""
        found = {}
        with closing(self._consumer("read_uncommitted")) as consumer:
            for timestamp_ms in timestamps_ms:
                wanted = TopicPartition(topic, partition, timestamp_ms)
                (answer,) = consumer.offsets_for_times([wanted], CLIENT_TIMEOUT_S)
                found[timestamp_ms] = answer.offset
        return found

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Raise the partition's log start."""
        start = TopicPartition(topic, partition, before_offset)
        for deleted in self.admin.delete_records([start]).values():
            deleted.result(CLIENT_TIMEOUT_S)

    def read(
        self, topic: str, partition: int, isolation_level: str = "read_uncommitted"
    ) -> Iterator[Message]:
        """All records of a partition from its log start to its end."""
        with closing(self._consumer(isolation_level)) as consumer:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            while (message := consumer.poll(CLIENT_TIMEOUT_S)) is not None:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                else:
                    raise KafkaException(error)
        raise TimeoutError(f"{topic}-{partition} did not end")

    def _consumer(self, isolation_level: str) -> Consumer:
        return Consumer(
            {
                **self._common,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # the end of a partition is told only after this
                "check.crcs": True,
                "isolation.level": isolation_level,
            }
        )


def send_batch(producer: Producer, topic: Topic, partition: int, records: Sequence[Record]) -> None:
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


def headers_of(message: Message) -> list[Header]:
    headers: Any = message.headers()  # declared as any shape that a producer may be given
    return list(headers or ())
