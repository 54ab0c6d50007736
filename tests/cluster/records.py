"""The records of log files, decoded by Kafka's client library alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kafka.record import MemoryRecords


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def records_of(partition: Path) -> Iterator[Record]:
    """Decode the records of a partition's folder in their order, without control records."""
    for file in sorted(partition.glob("*.log")):
        batches = MemoryRecords(file.read_bytes())
        while (batch := batches.next_batch()) is not None:
            if getattr(batch, "is_control_batch", False):
                continue
            for record in batch:
                headers = tuple(record.headers)
                yield Record(record.offset, record.timestamp, record.key, record.value, headers)
