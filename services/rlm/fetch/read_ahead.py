"""Stream remote segments through the chunk cache, ahead of readers that read one after another.

What for. Kafka's consumers read a partition in answers of about 1 MiB. One request to RSM for each
would cost a look-up, an index and a first byte every time. A reader that continues where an earlier
read of the partition ended gets requests of 8 to 16 MiB, the next ones while it reads this one.
What a reader surely reads is requested in ranges of 8 MiB, all at once as far as its share of the
memory reaches.

How to use. SequentialReads stores where reads of a partition ended: `begin` a read at an offset,
`end` it with the offset after it; `upcoming` returns what the next read at an offset would
continue. A SegmentWindow reads the bytes of one segment at any position, from chunks of the cache;
close it. `request_first` requests the first bytes without waiting for them.

Invariants.
* A reader that does not continue gets little more than it requests: random reads cost no more.
* All readers share the cache's memory: the more there are, the shorter their requests, and the last
  ones get none ahead.
* Chunks that a reader has consumed are released at once; those ahead stay for its next read for a
  while, across segments.

Cancellation. A window that is closed early releases its chunks; their requests continue, for a
reader may soon need them. Crash: nothing is stored. A dead store: a reader waits for the next bytes
as long as TierWait allows, then gets ReadTimeoutError; bytes that arrive later are cached for the
next read.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from weakref import WeakSet

from cachetools import LRUCache

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError, ThrottledError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.common.copied_bytes import BYTES_COPIED
from services.rlm.fetch.chunk_cache import ABANDONED_AFTER_S, MIB, Chunk, ChunkCache
from services.rlm.fetch.errors import ReadTimeoutError
from services.rlm.fetch.tier_calls import TierWait

MIN_REQUEST_BYTES = 64 * 1024
RANGE_BYTES = 8 * MIB
MAX_REQUEST_BYTES = 16 * MIB
"""The sizes of requests to the store: the least, that of several at once, the most."""

SKIPPED_AHEAD_BYTES = 64 * 1024
_STORED_READS = 1024

NextSegment = Callable[[], RemoteLogSegmentMetadata | None]
"""Find the segment that a sequential reader reads next."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class SequentialRead:
    """What a reader has read without a gap, in one fetch or several.

    Attributes:
        run_bytes: before the present read; 0 for a reader that continues none.
        used: chunks in which the reader was, and that may not make room for others yet. Weak: a
            stored read keeps no bytes in memory that the cache has dropped.
        prefetched_after: the segment whose successor was looked up.
        ended_in, ended_at: the segment, and the position after the last batch that was read.
        last_s: when it was last begun or ended.
    """

    run_bytes: int = 0
    used: WeakSet[Chunk] = field(default_factory=WeakSet)
    prefetched_after: RemoteLogSegmentId | None = None
    ended_in: RemoteLogSegmentId | None = None
    ended_at: int = 0
    last_s: float = -inf

    @property
    def is_sequential(self) -> bool:
        return self.run_bytes > 0


class SequentialReads:
    """Recognize readers by the offset at which an earlier read ended. Thread-safe.

    A fetch does not name its reader.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sequential: WeakSet[SequentialRead] = WeakSet()
        self._ended = LRUCache[tuple[TopicIdPartition, int], SequentialRead](_STORED_READS)

    def begin(self, name: TopicIdPartition, offset: int) -> SequentialRead:
        """Return the read that ended before `offset`, or a new one."""
        with self._lock:
            read = self._ended.pop((name, offset), None)
            if read is None:
                return SequentialRead()
            read.last_s = self._clock()
            self._sequential.add(read)
            return read

    def active(self) -> int:
        """Count the sequential readers that have read a short while ago, or read now."""
        since_s = self._clock() - ABANDONED_AFTER_S
        with self._lock:
            return sum(read.last_s >= since_s for read in self._sequential)

    def upcoming(self, name: TopicIdPartition, offset: int) -> SequentialRead:
        """Return the same, without beginning it."""
        with self._lock:
            return self._ended.get((name, offset), SequentialRead())

    def end(self, name: TopicIdPartition, next_offset: int, read: SequentialRead) -> None:
        """Store a read until its reader continues."""
        with self._lock:
            read.last_s = self._clock()
            self._ended[name, next_offset] = read


class SegmentWindow:
    """Read a remote segment forward through the chunk cache. Single use; close it.

    Args:
        expected_bytes: how much the reader surely reads, here or in the next segment.
        wait: how long to wait for the next bytes, and to retry failed requests for them.
        readers: sequential readers that share the cache's memory, this one included.
        skipped_bytes: about how much the reader skips before what it surely reads.
    """

    def __init__(
        self,
        cache: ChunkCache,
        segment: RemoteLogSegmentMetadata,
        expected_bytes: int,
        read: SequentialRead,
        wait: TierWait,
        next_segment: NextSegment,
        readers: int = 1,
        skipped_bytes: int = 0,
    ) -> None:
        self._cache = cache
        self._segment = segment
        self._end = segment.segment_size_in_bytes
        self._expected_bytes = expected_bytes + skipped_bytes
        self._read = read
        self._wait = wait
        self._next_segment = next_segment
        self._longest, self._share_bytes = _share(cache.total_bytes, readers)
        self._begin = self._expected_end = 0
        self._chunk: Chunk | None = None
        self._has_requested_next = False
        self._data = memoryview(b"")
        self._data_start = 0
        self._read_end = 0

    def read(self, position: int, length: int) -> memoryview:
        """Read `length` bytes at `position`, fewer only at the segment's end.

        Raises:
            ReadTimeoutError: if the next bytes do not arrive in time.
            RemoteStorageError: as RemoteStorageManager.fetch_log_segment.
            ThrottledError: too many requests to the store are active.
        """
        at = position - self._data_start
        if not 0 <= at <= at + length <= len(self._data):
            self._data, self._data_start = self._from_cache(position, length), position
            at = 0
        data = self._data[at : at + length]
        self._read_end = position + len(data)
        if not self._has_requested_next:
            self._request_next(self._read_end)
        return data

    def buffered(self, position: int) -> memoryview:
        """Return the bytes from `position` on that a reader need not wait for; perhaps none."""
        at = position - self._data_start
        return self._data[at if at >= 0 else len(self._data) :]

    def request_first(self, position: int) -> Chunk:
        """Request the first bytes without waiting for them; release the chunk after the read.

        Raises:
            ThrottledError: too many requests to the store are active, or memory has no room.
        """
        length = self._length(position, self._expected_bytes)
        return self._cache.acquire(
            self._segment, position, length, self._read.used, needs_room=True
        )

    def close(self) -> None:
        """Release the chunks that the reader does not need any more."""
        self._release_chunk()
        if self._read_end >= self._end:
            # The next read begins in another segment, or never.
            self._mark_consumed()

    def _from_cache(self, position: int, length: int) -> memoryview:
        """Return the bytes at `position`: `length`, or more that need no copy."""
        pieces: list[memoryview] = []
        end = min(position + length, self._end)
        while position < end:
            piece = self._wait.retry(partial(self._piece, position, end))
            if not piece:  # The object is shorter than the metadata says.
                self._end = position
                break
            pieces.append(piece)
            position += len(piece)
        if len(pieces) == 1:
            return pieces[0]
        joined = memoryview(b"".join(pieces))
        BYTES_COPIED.labels("joined").inc(len(joined))
        return joined

    def _piece(self, position: int, end: int) -> memoryview:
        """Return the next bytes, of one chunk; after an error the next call requests them again."""
        try:
            chunk = self._chunk_at(position)
            piece = chunk.view(position, min(end, chunk.end), self._wait.left_s)
        except (RetriableRemoteStorageError, ThrottledError):
            self._release_chunk()
            raise
        if piece is None:
            raise ReadTimeoutError(
                f"{chunk.segment}: the store has not sent the byte at position {position} within "
                f"{self._wait.wait_s:g} s; RLM continues to read it for a later fetch; retry"
            )
        return piece

    def _chunk_at(self, position: int) -> Chunk:
        chunk = self._chunk
        if chunk is not None and chunk.start <= position < chunk.end:
            return chunk
        if chunk is None or position != chunk.end:
            self._begin, self._expected_end = position, position + self._expected_bytes
        # A batch may be longer than expected.
        length = self._length(position, max(self._expected_end - position, position - self._begin))
        used = tuple(self._read.used)
        # First, so that they make room for the next one.
        self._release_chunk()
        self._mark_consumed(but_at=position)
        self._chunk = chunk = self._cache.acquire(self._segment, position, length, used)
        self._read.used.add(chunk)
        self._request_ahead(chunk, self._expected_end)
        self._request_next(position)
        return chunk

    def _release_chunk(self) -> None:
        chunk, self._chunk, self._has_requested_next = self._chunk, None, False
        if chunk is not None:
            self._cache.release(chunk)

    def _length(self, position: int, expected_bytes: int) -> int:
        """Return the length of a request at `position`.

        Those of a sequential reader end after a whole MiB: RSM and direct reads verify whole ones.
        """
        range_bytes = min(RANGE_BYTES, self._longest)
        if not self._read.is_sequential:
            return min(max(expected_bytes, MIN_REQUEST_BYTES), range_bytes)
        # Half as many requests once the reader has shown that it goes on.
        length = self._longest if self._read.run_bytes >= range_bytes else range_bytes
        return length - (position + length) % MIB if length > MIB else length

    def _mark_consumed(self, but_at: int | None = None) -> None:
        """Let the chunks that were used make room for others, but for the one at a position."""
        unconsumed = WeakSet[Chunk]()
        for chunk in self._read.used:
            is_here = chunk.segment == self._segment.remote_log_segment_id
            if is_here and but_at is not None and chunk.start <= but_at < chunk.end:
                unconsumed.add(chunk)
            else:
                self._cache.mark_consumed(chunk)
        self._read.used = unconsumed

    def _request_next(self, position: int) -> None:
        """Request what follows the reader's chunk when the reader nears the chunk's end."""
        chunk = self._chunk
        if chunk is None or not _nears_end(chunk, position):
            return
        self._has_requested_next = True
        wanted_end = self._expected_end
        if self._read.is_sequential:
            # As much as it has read: a reader that stops soon leaves little.
            wanted_end = max(wanted_end, chunk.end + max(self._read.run_bytes, 1))
        end, limit = self._request_ahead(chunk, wanted_end), chunk.start + self._share_bytes
        name, length = self._segment.remote_log_segment_id, self._length(0, wanted_end - end)
        if end < self._end or end >= wanted_end or self._read.prefetched_after == name:
            return
        if end + length > limit:
            return
        self._read.prefetched_after = name
        with suppress(RemoteStorageError):
            following = self._next_segment()
            if following is not None and following.segment_size_in_bytes > 0:
                self._cache.fetch_ahead(following, 0, length)

    def _request_ahead(self, chunk: Chunk, wanted_end: int) -> int:
        """Request what follows the reader's chunk in the segment, in several ranges at once.

        Returns:
            The end of the bytes that are here or requested, without a gap from the reader on.
        """
        position: int = chunk.end
        while position < min(wanted_end, self._end):
            length = self._length(position, wanted_end - position)
            if min(position + length, self._end) > chunk.start + self._share_bytes:
                break
            end = self._cache.fetch_ahead(self._segment, position, length)
            if end is None:
                break
            position = end
        return position


def _share(total_bytes: int, readers: int) -> tuple[int, int]:
    """Return a reader's longest request, and how much it may have here and requested at once.

    Two readers, and one that does not read ahead for long, always leave room for first reads.
    """
    share_bytes = total_bytes // max(readers, 2)
    if share_bytes >= 2 * RANGE_BYTES or readers <= 2:
        longest = max(min(MAX_REQUEST_BYTES, share_bytes // 2 // MIB * MIB), MIB)
        return longest, max(share_bytes, 2 * longest)
    # Longer requests on demand cost less than short ones ahead of the reader.
    alone_bytes = max(min(RANGE_BYTES, share_bytes // MIB * MIB), MIB)
    return alone_bytes, alone_bytes


def _nears_end(chunk: Chunk, position: int) -> bool:
    """Return whether to request what follows: before the reader needs it, but not much earlier."""
    return not chunk.is_filling or 2 * (position - chunk.start) >= chunk.end - chunk.start
