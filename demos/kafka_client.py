"""Provide topics, producers and consumers of a running Kafka broker."""

from collections.abc import Iterator, Mapping, Sequence
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


class KafkaClientError(RuntimeError):
    """The broker did not complete a client's request in time."""


@dataclass(frozen=True)
class Record:
    """A record for a producer."""

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
        return NewTopic(self.name, self.partitions, 1, config=self.configs())

    def configs(self) -> dict[str, str]:
        """Return all configs that the topic is created with."""
        return {
            "internal.segment.bytes": str(self.segment_bytes),
            "index.interval.bytes": "1024",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            **self.config,
        }


class Cluster:
    """Provide producers and consumers of one running broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        # Level 2: the log of a client that outlives its work is noise here; errors raise anyway.
        self._common: dict[str, str | int | float] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 2,
        }
        self.admin = AdminClient(dict(self._common))

    def producer(self, codec: str = "none", **settings: Any) -> Producer:
        """Return a producer that sends only when flushed, so that a flush makes exactly one
        batch.
        """
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

    def delete(self, topic: str) -> None:
        """Delete a topic; returns before the broker has removed its data."""
        for deleted in self.admin.delete_topics([topic]).values():
            deleted.result(CLIENT_TIMEOUT_S)

    def configure(self, topic: str, **config: str) -> None:
        """Set topic configs; underscores stand for dots."""
        self._configure(ResourceType.TOPIC, topic, config)

    def configure_broker(self, node_id: int, **config: str) -> None:
        """Set configs that a broker takes while it runs, and keeps; underscores stand for dots."""
        self._configure(ResourceType.BROKER, str(node_id), config)

    def _configure(self, kind: ResourceType, name: str, config: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        for altered in self.admin.incremental_alter_configs([resource]).values():
            altered.result(CLIENT_TIMEOUT_S)

    def read(
        self,
        topic: str,
        partition: int,
        isolation_level: str = "read_uncommitted",
        offset: int = OFFSET_BEGINNING,
    ) -> Iterator[Message]:
        """Read all records of a partition from `offset`, by default its log start, to its end."""
        with closing(self.consumer(isolation_level)) as consumer:
            consumer.assign([TopicPartition(topic, partition, offset)])
            while (message := consumer.poll(CLIENT_TIMEOUT_S)) is not None:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                else:
                    raise KafkaException(error)
        raise KafkaClientError(f"{topic}-{partition} did not end")

    def consumer(self, isolation_level: str, **settings: Any) -> Consumer:
        """Return a consumer that is notified of the end of a partition."""
        return Consumer(
            {
                **self._common,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # the end of a partition is reported only after this time
                "check.crcs": True,
                "isolation.level": isolation_level,
                **settings,
            }
        )


def send_batch(
    producer: Producer, topic: Topic, partition: int, records: Sequence[Record]
) -> list[int]:
    """Write one batch and wait until the broker has it; return the offsets of the records."""
    failures: list[KafkaError] = []
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)
        else:
            offset = message.offset()
            assert offset is not None  # a delivered message always has an offset
            offsets.append(offset)

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
        raise KafkaClientError(f"{topic.name}-{partition} did not take a batch: {failures}")
    return offsets
