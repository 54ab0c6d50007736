"""Cache parts of remote segments in memory; one request to the store fills each of them."""

import logging
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Protocol

from services.api.calls import IN_PROCESS, current_call, serving
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError, ThrottledError
from services.api.ids import RemoteLogSegmentId
from services.api.segments import RemoteLogSegmentMetadata
from services.common.copied_bytes import BYTES_COPIED
from services.rlm.metrics import (
    CHUNK_EVICTIONS,
    CHUNK_HITS,
    CHUNK_MISSES,
    CHUNK_READ_AHEAD_BYTES,
    CHUNK_UNUSED_BYTES,
    CHUNKS_BYTES,
)

_log = logging.getLogger(__name__)

MIB = 1024 * 1024

ABANDONED_AFTER_S = 10.0
"""A reader that has read nothing for so long may have stopped, seconds."""

FILLS_AHEAD = 8
"""The most concurrent requests for bytes that no reader needs yet."""


class LogSource(Protocol):
    """Read logs: RSM, or a reader of the store that RSM permits."""

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int, /
    ) -> Iterator[bytes | memoryview]: ...


class Chunk:
    """A part of a segment, readable while its bytes arrive.

    Attributes:
        start, end: positions in the segment; `end` is exclusive.
        counted_bytes: towards the cache's limit, from before the first byte arrives.
    """

    def __init__(self, segment: RemoteLogSegmentId, start: int, end: int) -> None:
        self.segment = segment
        self.start = start
        self.end = end
        self.counted_bytes = end - start
        self._pieces: list[memoryview] = []
        self._piece_ends: list[int] = []
        self._error: Exception | None = None
        self._arrived = threading.Condition()
        # The cache changes the following, under its lock.
        self.readers = 0
        self.used_s = 0.0
        self.is_filling = True
        self.is_cached = True
        self.is_consumed = False
        self.is_reread = False
        self.is_ahead = False

    def view(self, position: int, end: int, wait_s: float) -> memoryview | None:
        """Wait for the bytes from `position` to `end`, which is in the chunk.

        Bytes that arrived together are not copied; only those of several messages are joined.

        Args:
            wait_s: how long to wait for the next of them, from now and from each that arrives.

        Returns:
            The bytes, and perhaps more after them; fewer if only the first of them arrived in
            time, or at all. None if none has arrived in time; no bytes if the segment ends here.

        Raises:
            RemoteStorageError: if the first of them will not arrive.
        """
        with self._arrived:
            while not self._is_decided(end) and self._arrived.wait(wait_s):
                pass
            at = bisect_right(self._piece_ends, position)
            if at == len(self._pieces):
                if self._error is not None:
                    raise self._error
                return None if position < self.end else memoryview(b"")
            after = bisect_left(self._piece_ends, end) + 1
            pieces, first_end = self._pieces[at:after], self._piece_ends[at]
        pieces[0] = pieces[0][position - first_end :]
        if len(pieces) == 1:
            return pieces[0]
        before_last = sum(map(len, pieces[:-1]))
        pieces[-1] = pieces[-1][: end - position - before_last]
        BYTES_COPIED.labels("joined").inc(end - position)
        return memoryview(b"".join(pieces))

    def add(self, piece: bytes | memoryview) -> None:
        """Append the next bytes, without those beyond the chunk's end."""
        with self._arrived:
            view = memoryview(piece)[: self.end - self._arrived_end]
            if view:
                self._pieces.append(view)
                self._piece_ends.append(self._arrived_end + len(view))
                self._arrived.notify_all()

    @property
    def is_whole(self) -> bool:
        """Return whether all bytes are here, though their request may not have ended."""
        with self._arrived:
            return self._arrived_end == self.end

    def finish(self, error: Exception | None) -> bool:
        """End the arrival of bytes; return whether all are there.

        Readers get `error` for the bytes that are missing; without one the segment ends here.
        """
        with self._arrived:
            is_whole = self._arrived_end == self.end
            self._error = None if is_whole else error
            if error is None:
                self.end = self._arrived_end
            self._arrived.notify_all()
            return is_whole

    @property
    def _arrived_end(self) -> int:
        return self._piece_ends[-1] if self._piece_ends else self.start

    def _is_decided(self, end: int) -> bool:
        """Return whether the bytes before `end` are here, or will not arrive."""
        return end <= self._arrived_end or self._error is not None or end > self.end


class ChunkCache:
    """Cache chunks of remote segments, up to a limit of bytes. Thread-safe.

    Readers of the same bytes share one request, which continues if they leave. Only chunks that a
    reader has consumed, or that no reader has used for a while, make room for others: those that
    were read once go first, so that a scan does not evict what several readers use.

    Args:
        total_bytes: of all chunks, also of those that are being filled.
        max_fills: concurrent requests to the store.
    """

    def __init__(
        self,
        logs: LogSource,
        total_bytes: int = 64 * MIB,
        max_fills: int = 32,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_bytes = total_bytes
        self._max_fills = max_fills
        self._logs = logs
        self._clock = clock
        self._lock = threading.Lock()
        self._of_segment: dict[RemoteLogSegmentId, list[Chunk]] = {}
        # The least recently used first.
        self._chunks: OrderedDict[Chunk, None] = OrderedDict()
        self._counted_bytes = 0
        self._fills = self._fills_ahead = 0
        self._is_closed = False

    def acquire(
        self,
        segment: RemoteLogSegmentMetadata,
        position: int,
        length: int,
        used: Collection[Chunk] = (),
        *,
        needs_room: bool = False,
    ) -> Chunk:
        """Get the chunk with the byte at `position`; release it after use.

        If there is none, request the whole MiBs with `length` bytes from the store, fewer if a
        chunk begins in them or if there is no room: RSM and direct reads verify whole ones.

        Args:
            used: the chunks in which the reader was before.
            needs_room: request nothing without room; for bytes that are needed later.

        Raises:
            ThrottledError: too many requests to the store are active, or there is no room.
        """
        with self._lock:
            chunk = self._at(segment.remote_log_segment_id, position)
            if chunk is not None:
                CHUNK_HITS.inc()
                chunk.is_reread |= chunk.is_consumed and chunk not in used
                self._chunks.move_to_end(chunk)
            else:
                CHUNK_MISSES.inc()
                if not self._may_fill():
                    raise ThrottledError(
                        f"too many active requests for segments to the store (limit "
                        f"{self._max_fills}); retry in a few seconds"
                    )
                start, end = self._range(segment, position, length)
                has_room = self._make_room(end - start)
                if needs_room and not has_room:
                    raise ThrottledError("no room in memory for a part that is needed later; retry")
                if not has_room:
                    start, end = self._range(segment, position, 1)
                chunk = self._begin(segment, start, end)
                # Removed when its reader leaves it.
                chunk.is_cached = has_room
            chunk.readers += 1
            chunk.is_ahead = False
            chunk.used_s = self._clock()
            return chunk

    def release(self, chunk: Chunk) -> None:
        """End one use of a chunk."""
        with self._lock:
            chunk.readers -= 1
            chunk.used_s = self._clock()
            if not chunk.is_cached and not chunk.is_filling and not chunk.readers:
                self._drop(chunk)

    def mark_consumed(self, chunk: Chunk) -> None:
        """Let a chunk make room for others: its reader does not need it any more."""
        with self._lock:
            chunk.is_consumed = True

    def fetch_ahead(
        self, segment: RemoteLogSegmentMetadata, position: int, length: int
    ) -> int | None:
        """Request bytes that a reader will need next, if they are missing and there is room.

        Returns:
            The end of the chunk that has them, or will have them; None if there is none.
        """
        with self._lock:
            chunk = self._at(segment.remote_log_segment_id, position)
            if chunk is not None:
                return chunk.end
            if self._fills_ahead >= FILLS_AHEAD or not self._may_fill():
                return None
            start, end = self._range(segment, position, length)
            if not self._make_room(end - start):
                return None
            with suppress(RetriableRemoteStorageError):
                chunk = self._begin(segment, start, end, is_ahead=True)
                CHUNK_READ_AHEAD_BYTES.inc(chunk.counted_bytes)
                return end
            return None

    def remove(self, segments: Sequence[RemoteLogSegmentId]) -> None:
        """Remove the chunks of deleted or damaged segments."""
        with self._lock:
            for segment in segments:
                for chunk in list(self._of_segment.get(segment, ())):
                    self._drop(chunk)

    def close(self) -> None:
        """Drop all chunks and request no more. Idempotent."""
        with self._lock:
            self._is_closed = True
            for chunk in list(self._chunks):
                self._drop(chunk)

    def _may_fill(self) -> bool:
        return self._fills < self._max_fills and not self._is_closed

    def _at(self, segment: RemoteLogSegmentId, position: int) -> Chunk | None:
        chunks = self._of_segment.get(segment, [])
        at = bisect_right(chunks, position, key=lambda chunk: chunk.start) - 1
        return chunks[at] if at >= 0 and position < chunks[at].end else None

    def _range(
        self, segment: RemoteLogSegmentMetadata, position: int, length: int
    ) -> tuple[int, int]:
        """Return the whole MiBs around some bytes, as far as no other chunk has them."""
        chunks = self._of_segment.get(segment.remote_log_segment_id, [])
        at = bisect_right(chunks, position, key=lambda chunk: chunk.start)
        before = chunks[at - 1].end if at else 0
        following = chunks[at].start if at < len(chunks) else segment.segment_size_in_bytes
        start, end = position - position % MIB, position + max(length, 1)
        return max(start, before), min(end - end % -MIB, following)

    def _begin(
        self, segment: RemoteLogSegmentMetadata, start: int, end: int, is_ahead: bool = False
    ) -> Chunk:
        name = segment.remote_log_segment_id
        chunk = Chunk(name, start, end)
        chunk.used_s, chunk.is_ahead = self._clock(), is_ahead
        insort(self._of_segment.setdefault(name, []), chunk, key=lambda chunk: chunk.start)
        self._chunks[chunk] = None
        self._count(chunk.counted_bytes)
        self._fills += 1
        self._fills_ahead += is_ahead
        # The request outlives its caller, but has the caller's request id and trace.
        caller = current_call()
        call = replace(IN_PROCESS, request_id=caller.request_id, trace=caller.trace)

        def fill() -> None:
            with serving(call):
                self._fill(segment, chunk, is_ahead)

        try:
            threading.Thread(target=fill, name="fill-chunk", daemon=True).start()
        except RuntimeError as e:  # No thread can be started.
            self._fills, self._fills_ahead = self._fills - 1, self._fills_ahead - is_ahead
            chunk.is_filling = False
            self._drop(chunk)
            raise RetriableRemoteStorageError(f"{name}: cannot start a read: {e}") from e
        return chunk

    def _fill(self, segment: RemoteLogSegmentMetadata, chunk: Chunk, is_ahead: bool) -> None:
        last = chunk.end - 1
        error: RemoteStorageError | None = None
        try:
            for piece in self._logs.fetch_log_segment(segment, chunk.start, last):
                chunk.add(piece)
                if chunk not in self._chunks:
                    error = RetriableRemoteStorageError(f"{chunk.segment}: the read was stopped")
                    break
        except RemoteStorageError as e:
            error = e
        except Exception as e:  # noqa: BLE001 - logged; its readers must not wait for ever
            _log.exception("%s: read of bytes %d to %d failed", chunk.segment, chunk.start, last)
            error = RemoteStorageError(f"{chunk.segment}: {e}")
        with self._lock:
            self._fills, self._fills_ahead = self._fills - 1, self._fills_ahead - is_ahead
            chunk.is_filling = False
            # Removed before its readers get the error: their next read must not find it.
            if not chunk.finish(error) or not (chunk.is_cached or chunk.readers):
                self._drop(chunk)

    def _make_room(self, size_bytes: int) -> bool:
        """Evict chunks until so many bytes fit; evict none if that is not enough."""
        missing_bytes = self._counted_bytes + size_bytes - self.total_bytes
        if missing_bytes <= 0:
            return True
        abandoned_s = self._clock() - ABANDONED_AFTER_S
        idle = [
            chunk
            for chunk in self._chunks
            if not chunk.readers
            and (chunk.is_whole or not chunk.is_filling)
            and (chunk.is_consumed or chunk.used_s <= abandoned_s)
        ]
        if sum(chunk.counted_bytes for chunk in idle) < missing_bytes:
            return False
        for chunk in sorted(idle, key=attrgetter("is_reread")):
            CHUNK_EVICTIONS.inc()
            self._drop(chunk)
            missing_bytes -= chunk.counted_bytes
            if missing_bytes <= 0:
                break
        return True

    def _drop(self, chunk: Chunk) -> None:
        if chunk not in self._chunks:
            return
        del self._chunks[chunk]
        chunks = self._of_segment[chunk.segment]
        chunks.remove(chunk)
        if not chunks:
            del self._of_segment[chunk.segment]
        self._count(-chunk.counted_bytes)
        if chunk.is_ahead:
            CHUNK_UNUSED_BYTES.inc(chunk.counted_bytes)

    def _count(self, size_bytes: int) -> None:
        self._counted_bytes += size_bytes
        CHUNKS_BYTES.set(self._counted_bytes)
