"""Read a partition through RLM and compare it, batch by batch, with the broker's files."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPartition,
    FetchRequest,
    RecordSource,
    RemoteLogManager,
)
from services.records.batches import Batch, BatchError, FileWindow, walk_batches
from services.rlm.kafka_log.partition_dir import list_segments

FETCH_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FailedRead:
    """Offsets (inclusive) that were not read back unchanged."""

    first_offset: int
    last_offset: int
    reason: str


@dataclass
class Reading:
    """The result of reading one partition back.

    Attributes:
        first_offset, last_offset: of the batches that were read back unchanged; -1 if there are
            none.
        local_bytes, remote_bytes: of these batches, by their source.
    """

    topic_id_partition: TopicIdPartition
    batches: int = 0
    first_offset: int = -1
    last_offset: int = -1
    local_bytes: int = 0
    remote_bytes: int = 0
    failures: list[FailedRead] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Whole:
    """A batch with a valid CRC, copied from the window through which it was read."""

    base_offset: int
    last_offset: int
    data: bytes
    source: RecordSource | None = None


def read_back(
    manager: RemoteLogManager, tp: TopicIdPartition, original: Path, log_start_offset: int
) -> Reading:
    """Fetch all of `original` and compare it with the fetched batches.

    `original` is the partition's folder as the broker left it, read from `log_start_offset` on. A
    batch is read back if its CRC is valid and its bytes are the broker's. A failed fetch is a
    failure, and reading continues behind it.
    """
    reading = Reading(tp)
    fetched: deque[_Whole] = deque()
    for expected in _original_batches(original, log_start_offset):
        try:
            if not fetched:
                offset = max(expected.base_offset, log_start_offset)
                fetched.extend(_fetch(manager, tp, offset))
            _note_same(expected, fetched.popleft(), reading)
        except _NotReadBackError as e:
            fetched.clear()
            reading.failures.append(FailedRead(expected.base_offset, expected.last_offset, str(e)))
    return reading


class _NotReadBackError(Exception):
    pass


def _note_same(expected: _Whole, read: _Whole, reading: Reading) -> None:
    if read.data != expected.data:
        raise _NotReadBackError(f"other bytes came back (a batch at {read.base_offset})")
    reading.batches += 1
    if reading.first_offset < 0:
        reading.first_offset = read.base_offset
    reading.last_offset = read.last_offset
    if read.source is RecordSource.REMOTE:
        reading.remote_bytes += len(read.data)
    else:
        reading.local_bytes += len(read.data)


def _fetch(manager: RemoteLogManager, tp: TopicIdPartition, offset: int) -> list[_Whole]:
    """Fetch at least one batch, from the one that holds `offset` on."""
    while (found := _fetch_once(manager, tp, offset)) is None:
        pass
    return found


def _fetch_once(
    manager: RemoteLogManager, tp: TopicIdPartition, offset: int
) -> list[_Whole] | None:
    """Fetch once; None if RLM waited for the store as long as it waits, and reads on."""
    request = FetchRequest((FetchPartition(tp, offset, FETCH_BYTES),), FETCH_BYTES)
    found: list[_Whole] = []
    pieces: list[bytes | memoryview] = []
    source: RecordSource | None = None
    is_slow = False
    for part in manager.fetch(request):
        is_slow |= part.error is FetchError.NONE and part.throttle_time_ms > 0
        if part.error is not FetchError.NONE and not (found or pieces):
            raise _NotReadBackError(f"{part.error.value}: {part.error_message}")
        if part.source is not source:
            found.extend(_parse(b"".join(pieces), source))
            pieces, source = [], part.source
        pieces.extend(part.pieces)
    found.extend(_parse(b"".join(pieces), source))
    if not found and is_slow:
        return None
    if not found:
        raise _NotReadBackError("the answer was empty")
    return found


def _parse(data: bytes, source: RecordSource | None) -> list[_Whole]:
    try:
        batches = walk_batches(_BytesWindow(data), 0, len(data), 0, verify=True)
        return [_copied(batch, source) for batch in batches]
    except BatchError as e:
        raise _NotReadBackError(str(e)) from e


def _original_batches(folder: Path, log_start_offset: int) -> Iterator[_Whole]:
    """Yield the folder's batches; of a damaged segment, those before the damage."""
    for segment in list_segments(folder):
        with FileWindow(segment.log_path) as window:
            end = window.size_bytes
            try:
                for batch in walk_batches(window, 0, end, segment.base_offset, verify=True):
                    if batch.last_offset >= log_start_offset:
                        yield _copied(batch, RecordSource.LOCAL)
            except BatchError:
                continue


def _copied(batch: Batch, source: RecordSource | None) -> _Whole:
    return _Whole(batch.base_offset, batch.last_offset, bytes(batch.data), source)


class _BytesWindow:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read(self, position: int, length: int) -> memoryview:
        return self._data[position : position + length]
