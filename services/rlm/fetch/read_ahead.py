"""Stream remote segments through the chunk cache, ahead of readers that read one after another."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakSet

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError, ThrottledError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.fetch.chunk_cache import MIB, Chunk, ChunkCache

MIN_REQUEST_BYTES = 64 * 1024
MIN_SEQUENTIAL_BYTES = 8 * MIB
MAX_REQUEST_BYTES = 16 * MIB
"""The sizes of requests to the store: the least, the least for a sequential reader, the most."""

RETRY_PAUSE_S = 0.1
_REMEMBERED_READS = 1024


class ReadTimeoutError(Exception):
    """The error if bytes do not arrive in time; their request goes on.

    It is not of the tree of errors that services send: clients would take others for it.
    """


NextSegment = Callable[[], RemoteLogSegmentMetadata | None]
"""Find the segment that a sequential reader reads next."""


@dataclass(slots=True)
class SequentialRead:
    """What a reader has read without a gap, in one fetch or several.

    Attributes:
        run_bytes: before the present read; 0 for a reader that was not seen before.
        used: chunks in which the reader was, and that may not make room for others yet. Weak: a
            remembered read keeps no bytes that the cache has dropped.
        looked_behind: the segment whose successor was looked up.
    """

    run_bytes: int = 0
    used: WeakSet[Chunk] = field(default_factory=WeakSet)
    looked_behind: RemoteLogSegmentId | None = None

    @property
    def is_sequential(self) -> bool:
        return self.run_bytes > 0


class SequentialReads:
    """Recognize readers by the offset at which an earlier read ended. Thread-safe.

    A fetch does not name its reader.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: OrderedDict[tuple[TopicIdPartition, int], SequentialRead] = OrderedDict()

    def begin(self, name: TopicIdPartition, offset: int) -> SequentialRead:
        """Return the read that ended before `offset`, or a new one."""
        with self._lock:
            return self._ended.pop((name, offset), None) or SequentialRead()

    def end(self, name: TopicIdPartition, next_offset: int, read: SequentialRead) -> None:
        """Remember a read until its reader continues."""
        with self._lock:
            self._ended[name, next_offset] = read
            self._ended.move_to_end((name, next_offset))
            if len(self._ended) > _REMEMBERED_READS:
                self._ended.popitem(last=False)


class SegmentStream:
    """Stream the bytes of a remote segment from the chunk cache. Single use.

    The first read of a reader requests from the store what it wants. If the next one continues
    where it ended, requests become longer, and are sent ahead of the reader.

    Args:
        position: of the first byte.
        wanted_end: the position up to which the reader surely reads, here or in the next segment.
        wait_s: how long to wait for the next bytes, and to retry failed requests for them.
    """

    def __init__(
        self,
        cache: ChunkCache,
        segment: RemoteLogSegmentMetadata,
        position: int,
        wanted_end: int,
        read: SequentialRead,
        wait_s: float,
        next_segment: NextSegment,
    ) -> None:
        self._cache = cache
        self._segment = segment
        self._start = self._position = position
        self._end = segment.segment_size_in_bytes
        self._wanted_end = wanted_end
        self._read = read
        self._wait_s = wait_s
        self._until_s = time.monotonic() + wait_s
        self._next_segment = next_segment
        self._longest = max(min(MAX_REQUEST_BYTES, cache.limits.total_bytes // 4), MIB)

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the bytes to the segment's end.

        Raises:
            ReadTimeoutError: if the next bytes do not arrive in time.
            RemoteStorageError: as RemoteStorageManager.fetch_log_segment.
            ThrottledError: too many requests to the store are active.
        """
        while self._position < self._end:
            try:
                yield from self._to_end_of_chunk()
            except (RetriableRemoteStorageError, ThrottledError):
                if time.monotonic() + RETRY_PAUSE_S >= self._until_s:
                    raise
                time.sleep(RETRY_PAUSE_S)
        # The next read begins in another segment, or never.
        self._leave_others(None)

    def _to_end_of_chunk(self) -> Iterator[memoryview]:
        # A batch may be longer than what is wanted.
        wanted = max(self._wanted_end - self._position, self._position - self._start)
        chunk = self._cache.acquire(
            self._segment, self._position, self._length(wanted), self._read.used
        )
        self._leave_others(chunk)
        has_requested_next = False
        try:
            while self._position < chunk.end:
                if not has_requested_next and _nears_end(chunk, self._position):
                    self._request_next(chunk)
                    has_requested_next = True
                left_s = max(self._until_s - time.monotonic(), 0.0)
                piece = chunk.piece_at(self._position, left_s)
                if piece is None:
                    raise _late(chunk, self._position, self._wait_s)
                if not piece:  # The object is shorter than the metadata says.
                    self._end = self._position
                    return
                self._position += len(piece)
                yield piece
                self._until_s = time.monotonic() + self._wait_s
        finally:
            self._cache.release(chunk)

    def _length(self, wanted: int) -> int:
        if self._read.is_sequential:
            wanted = max(wanted, MIN_SEQUENTIAL_BYTES, 2 * self._read.run_bytes)
        return min(max(wanted, MIN_REQUEST_BYTES), self._longest)

    def _leave_others(self, chunk: Chunk | None) -> None:
        for other in self._read.used:
            if other is not chunk:
                self._cache.passed(other)
        self._read.used = WeakSet() if chunk is None else WeakSet([chunk])

    def _request_next(self, chunk: Chunk) -> None:
        wanted = self._wanted_end - chunk.end
        if wanted <= 0 and not self._read.is_sequential:
            return
        length = self._length(wanted)
        name = self._segment.remote_log_segment_id
        if chunk.end < self._segment.segment_size_in_bytes:
            self._cache.fetch_ahead(self._segment, chunk.end, length)
        elif self._read.looked_behind != name:
            self._read.looked_behind = name
            with suppress(RemoteStorageError):
                following = self._next_segment()
                if following is not None and following.segment_size_in_bytes > 0:
                    self._cache.fetch_ahead(following, 0, length)


def _nears_end(chunk: Chunk, position: int) -> bool:
    """Return whether to request what follows: before the reader needs it, but not much earlier."""
    return not chunk.is_filling or 2 * (position - chunk.start) >= chunk.end - chunk.start


def _late(chunk: Chunk, position: int, wait_s: float) -> ReadTimeoutError:
    return ReadTimeoutError(
        f"{chunk.segment}: the store has not sent the byte at position {position} within "
        f"{wait_s:g} s; RLM continues to read it, so that a later fetch may find it; retry"
    )
