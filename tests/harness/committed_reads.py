"""Read committed records through Fetch as a consumer of Kafka does, one answer at a time."""

from collections.abc import Iterator
from time import monotonic

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    IsolationLevel,
    RemoteLogManager,
)
from services.records.batches import Batch, walk_batches
from services.records.committed import CommittedReader
from services.records.decode import Marker, control_marker
from tests.harness.eventually import PATIENCE_MS

READ_COMMITTED = IsolationLevel.READ_COMMITTED


class BytesWindow:
    """Walk over bytes as if they were a file."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read(self, position: int, length: int) -> memoryview:
        return self._data[position : position + length]


def batches_in(data: bytes) -> Iterator[Batch]:
    return walk_batches(BytesWindow(data), 0, len(data), 0, verify=True)


def committed_answer(
    rlm: RemoteLogManager, name: TopicIdPartition, offset: int, max_bytes: int
) -> list[FetchPart]:
    """Fetch until a read is in time; fail if the answer is an error."""
    wanted = (FetchPartition(name, offset, max_bytes),)
    deadline_s = monotonic() + PATIENCE_MS / 1000
    while True:
        parts = list(rlm.fetch(FetchRequest(wanted, max_bytes, READ_COMMITTED)))
        assert {part.error for part in parts} == {FetchError.NONE}, parts
        # A read that was late is answered without records and without an error, as in Kafka.
        if not any(part.throttle_time_ms for part in parts) or monotonic() > deadline_s:
            return parts


def kept_batches(parts: list[FetchPart]) -> tuple[list[Batch], int]:
    """Return the batches that a reader of an answer keeps, and the offset after all; -1: none."""
    reader = CommittedReader()
    kept, data, end = [], b"", -1
    for part in parts:
        reader.add(part.aborted_transactions)
        data += part.record_batches
    for batch in batches_in(data):
        end = batch.last_offset + 1
        if not reader.skips(batch):
            kept.append(batch)
    return kept, end


def committed_offsets(
    rlm: RemoteLogManager, name: TopicIdPartition, offset: int = 0, max_bytes: int = 1024 * 1024
) -> tuple[set[int], int]:
    """Read from `offset` to the end; return the offsets of all committed batches, and that end."""
    found: set[int] = set()
    while True:
        parts = committed_answer(rlm, name, offset, max_bytes)
        kept, end = kept_batches(parts)
        if end < 0:
            return found, offset
        for batch in kept:
            found.update(range(max(batch.base_offset, offset), batch.last_offset + 1))
        offset = end


def committed_in(data: bytes) -> tuple[set[int], int]:
    """Return the offsets of committed batches by their markers alone, and the stable end."""
    committed: set[int] = set()
    still_open: dict[int, list[tuple[int, int]]] = {}
    end = 0
    for each in batches_in(data):
        end = each.last_offset + 1
        if each.is_control:
            ended = still_open.pop(each.producer_id, [])
            if control_marker(each) is Marker.COMMIT:
                committed.update(*(range(first, last + 1) for first, last in ended))
        elif each.is_transactional:
            still_open.setdefault(each.producer_id, []).append((each.base_offset, each.last_offset))
        else:
            committed.update(range(each.base_offset, end))
    stable = min((first[0][0] for first in still_open.values()), default=end)
    return {offset for offset in committed if offset < stable}, stable
