"""A whole partition as RLM's Fetch gives it, and what its batches say."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kafka.record import MemoryRecords

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPartition,
    FetchRequest,
    RecordSource,
    RemoteLogManager,
)
from services.records.batches import walk_batches
from services.records.decode import Marker, control_marker
from tests.harness.committed_reads import BytesWindow
from tests.harness.kafka_client import Record

_FETCH_BYTES = 1024 * 1024


@dataclass
class ReadLog:
    """
    Attributes:
        data: the batches as Kafka wrote them, control batches too.
        remote_bytes, local_bytes: by where they were read.
    """

    data: bytes = b""
    remote_bytes: int = 0
    local_bytes: int = 0


@dataclass
class Content:
    """What batches hold.

    Attributes:
        records: by offset, those of aborted transactions too.
        committed: the offsets that a reader of read_committed is given.
        markers: how many transactions ended so.
        end_offset: behind the last batch.
    """

    records: dict[int, Record] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    markers: dict[Marker, int] = field(default_factory=lambda: dict.fromkeys(Marker, 0))
    end_offset: int = 0


def fetch_all(rlm: RemoteLogManager, name: TopicIdPartition) -> ReadLog:
    """Every batch from offset 0 to the end.

    Raises:
        AssertionError: a fetch was answered with an error.
    """
    log, offset = ReadLog(), 0
    while True:
        request = FetchRequest((FetchPartition(name, offset, _FETCH_BYTES),), _FETCH_BYTES)
        parts = list(rlm.fetch(request))
        for part in parts:
            assert part.error is FetchError.NONE, f"{name} at {offset}: {part}"
            if part.source is RecordSource.REMOTE:
                log.remote_bytes += len(part.record_batches)
            else:
                log.local_bytes += len(part.record_batches)
        data = b"".join(part.record_batches for part in parts)
        if not data and parts[0].throttle_time_ms:
            continue  # The store was slow.
        if not data:
            assert offset == parts[0].high_watermark, f"{name} ends at {offset}: {parts[0]}"
            return log
        for batch in walk_batches(BytesWindow(data), 0, len(data), offset, verify=True):
            offset = batch.last_offset + 1
        log.data += data


def content_of(data: bytes) -> Content:
    """Of whole batches from offset 0 on.

    Raises:
        AssertionError: an offset is missing.
        BatchError: a batch is damaged.
    """
    content = Content()
    open_offsets: dict[int, set[int]] = {}
    for batch in walk_batches(BytesWindow(data), 0, len(data), 0, verify=True):
        assert batch.base_offset == content.end_offset, f"{content.end_offset} is missing"
        content.end_offset = batch.last_offset + 1
        if batch.is_control:
            marker = control_marker(batch)
            assert marker is not None
            content.markers[marker] += 1
            ended = open_offsets.pop(batch.producer_id, set())
            if marker is Marker.COMMIT:
                content.committed |= ended
            continue
        records = dict(records_of(bytes(batch.data)))
        content.records |= records
        if batch.is_transactional:
            open_offsets.setdefault(batch.producer_id, set()).update(records)
        else:
            content.committed.update(records)
    return content


def records_of(data: bytes) -> Iterator[tuple[int, Record]]:
    """The records of whole batches, by offset."""
    reader = MemoryRecords(data)
    while reader.has_next():
        for record in reader.next_batch():
            yield (
                record.offset,
                Record(record.key, record.value, record.timestamp, list(record.headers)),
            )
