"""A record as a consumer gets it and as RLM serves it, made comparable."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import RemoteLogManager
from services.cli.fetch import PrintedRecord, records
from tests.harness.kafka_client import Cluster, Header, headers_of


@dataclass(frozen=True)
class SeenRecord:
    """All that a reader sees of a record."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def consumed(
    cluster: Cluster, name: TopicIdPartition, isolation_level: str = "read_uncommitted"
) -> list[SeenRecord]:
    """What a real consumer reads from the broker, from the log start to the log end."""
    read = cluster.read(name.topic, name.partition, isolation_level)
    return [of_message(message) for message in read]


def fetched(manager: RemoteLogManager, name: TopicIdPartition, offset: int) -> list[SeenRecord]:
    """What RLM serves from `offset` on."""
    return [_of_printed(record) for record in records(manager, name, offset)]


def sources(manager: RemoteLogManager, name: TopicIdPartition, offset: int) -> dict[int, str]:
    """Where RLM reads each record from `offset` on: LOCAL or REMOTE."""
    return {record["offset"]: record["source"] for record in records(manager, name, offset)}


def of_message(message: Message) -> SeenRecord:
    """The record of a message that has no error."""
    offset, (_, timestamp_ms) = message.offset(), message.timestamp()
    assert offset is not None
    key: Any = message.key()
    value: Any = message.value()
    return SeenRecord(offset, timestamp_ms, key, value, tuple(headers_of(message)))


def _of_printed(record: PrintedRecord) -> SeenRecord:
    return SeenRecord(
        record["offset"],
        record["timestamp_ms"],
        _bytes_of(record, "key"),
        _bytes_of(record, "value"),
        tuple((header["name"], _bytes_of(header, "value")) for header in record["headers"]),
    )


def _bytes_of(printed: Mapping[str, str | None], name: str) -> bytes | None:
    in_base64 = printed.get(f"{name}_base64")
    if in_base64 is not None:
        return base64.b64decode(in_base64)
    text = printed[name]
    return None if text is None else text.encode()
