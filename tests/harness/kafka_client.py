"""Provide producers and consumers of a real broker, for tests and test data."""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from demos import kafka_client
from demos.kafka_client import (
    CLIENT_TIMEOUT_S,
    CODECS,
    NOW,
    Header,
    Record,
    Topic,
    send_batch,
)

__all__ = [
    "CLIENT_TIMEOUT_S",
    "CODECS",
    "NOW",
    "Cluster",
    "Header",
    "Offsets",
    "Record",
    "Topic",
    "headers_of",
    "send_batch",
]


@dataclass(frozen=True)
class Offsets:
    """The first offset of a partition, and the ends behind its last stable and its last record."""

    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int


class Cluster(kafka_client.Cluster):
    """Provides producers and consumers of one running broker, and further requests of tests."""

    def offsets(self, topic: str, partition: int) -> Offsets:
        """Read a partition's offsets from the broker."""
        _, last_stable_offset = self._watermarks(topic, partition, "read_committed")
        start, end = self._watermarks(topic, partition, "read_uncommitted")
        return Offsets(start, last_stable_offset, end)

    def _watermarks(self, topic: str, partition: int, isolation_level: str) -> tuple[int, int]:
        with closing(self.consumer(isolation_level)) as consumer:
            wanted = TopicPartition(topic, partition)
            start, end = consumer.get_watermark_offsets(wanted, CLIENT_TIMEOUT_S, cached=False)
            return start, end

    def offsets_for_times(
        self, topic: str, partition: int, timestamps_ms: Iterable[int]
    ) -> dict[int, int]:
        """Find for each time the first offset with a record of that time or later; -1 if there is
        none.

        The broker finds the offset through its indexes.
        """
        found = {}
        with closing(self.consumer("read_uncommitted")) as consumer:
            for timestamp_ms in timestamps_ms:
                wanted = TopicPartition(topic, partition, timestamp_ms)
                (answer,) = consumer.offsets_for_times([wanted], CLIENT_TIMEOUT_S)
                found[timestamp_ms] = answer.offset
        return found

    def read_through_faults(
        self, topic: str, partition: int, deadline_s: float = 60.0
    ) -> Iterator[Message]:
        """Read as `read`, but continue to poll after errors.

        Fetches little at a time, so that the returned records are never far behind the fetched.
        """
        deadline = time.monotonic() + deadline_s
        little = {
            "fetch.message.max.bytes": 65_536,
            "queued.min.messages": 1,
            "queued.max.messages.kbytes": 64,
            "fetch.queue.backoff.ms": 10,
        }
        with closing(self.consumer("read_uncommitted", **little)) as consumer:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            while time.monotonic() < deadline:
                message = consumer.poll(1.0)
                error = None if message is None else message.error()
                if message is not None and error is None:
                    yield message
                elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return
        raise TimeoutError(f"{topic}-{partition} did not end")

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Raise the partition's log start."""
        start = TopicPartition(topic, partition, before_offset)
        for deleted in self.admin.delete_records([start]).values():
            deleted.result(CLIENT_TIMEOUT_S)


def headers_of(message: Message) -> list[Header]:
    headers: Any = message.headers()  # declared with every type that a producer accepts
    return list(headers or ())
