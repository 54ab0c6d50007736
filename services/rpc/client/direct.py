"""Read logs from the object store itself, by the URLs that RSM hands out."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from urllib.parse import urlsplit

from cachetools import TLRUCache
from crc32c import crc32c
from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import HTTPError

from services.api.errors import DirectReadRefusedError, NotServedError, ThrottledError
from services.api.ids import RemoteLogSegmentId
from services.api.remote_storage_manager import LogDigest, OpenedLogSegment, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, is_transformed
from services.common.single_flight import SingleFlight

_log = logging.getLogger(__name__)

NOT_SERVED_S = 600.0
"""How long no URLs are requested from RSM after it answered that it hands out none."""

STORE_AWAY_S = 60.0
"""How long the store is not read after it did not answer, or refused a URL."""

_PARTIAL = 206
_TIMEOUT = Timeout(connect=5.0, read=30.0)
_CONNECTIONS = 16
_MAX_OPENED = 64
_USED_SHARE = 0.8


class _FailedReadError(Exception):
    """The error of a direct read; its text never has the URL, which is a secret."""


def _ignore(*_: object) -> None:
    """Do nothing."""


class DirectReader:
    """Read ranges of logs by URLs, each chunk verified, or stream them by RSM. Thread-safe.

    RSM streams what has no URL, as transformed logs, and what the store does not return or returns
    damaged: its errors name the fault. A URL is used for several reads of its log.

    Args:
        on_read: called with the size of each verified chunk.
        on_failure: called for each direct read that failed.
        shortest_bytes: of a read for which a URL is requested; RSM charges the whole log for it.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        on_read: Callable[[int], object] = _ignore,
        on_failure: Callable[[], object] = _ignore,
        shortest_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rsm = rsm
        self._on_read = on_read
        self._on_failure = on_failure
        self._shortest_bytes = shortest_bytes
        self._clock = clock
        self._pool = PoolManager(timeout=_TIMEOUT, retries=False, maxsize=_CONNECTIONS)
        self._lock = threading.Lock()
        cache: TLRUCache[RemoteLogSegmentId, OpenedLogSegment] = TLRUCache(
            _MAX_OPENED,
            lambda _, opened, now_s: now_s + opened.valid_for_ms / 1000 * _USED_SHARE,
            timer=clock,
        )
        self._opened = SingleFlight(cache)
        self._off_until_s = clock()
        self._is_failing = False

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int
    ) -> Iterator[bytes | memoryview]:
        """Read the bytes from `start` to `end`, both inclusive, or to the end of the log."""
        at = start
        opened = self._open(metadata, end + 1 - start)
        if opened is not None:
            try:
                for data in self._direct(opened, start, end):
                    at += len(data)
                    yield data
            except _FailedReadError as e:
                self._failed(metadata.remote_log_segment_id, opened, e)
            else:
                self._worked(opened)
        if at <= end and at < metadata.segment_size_in_bytes:
            yield from self._rsm.fetch_log_segment(metadata, at, end)

    def close(self) -> None:
        self._pool.clear()

    def _open(self, metadata: RemoteLogSegmentMetadata, size_bytes: int) -> OpenedLogSegment | None:
        """Return a log's URL and digests; None if the log is to be streamed."""
        name = metadata.remote_log_segment_id
        if self._clock() < self._off_until_s or is_transformed(metadata.custom_metadata):
            return None
        found = self._opened.cached(name)
        if found is not None or size_bytes < self._shortest_bytes:
            return found
        try:
            return self._opened.run(name, partial(self._rsm.open_log_segment, metadata))[0]
        except NotServedError as e:
            _log.info("logs are streamed by RSM, which hands out no URLs: %s", e)
            self._off_until_s = self._clock() + NOT_SERVED_S
            return None
        except (DirectReadRefusedError, ThrottledError):
            return None

    def _direct(self, opened: OpenedLogSegment, start: int, end: int) -> Iterator[bytes]:
        """Read from the store.

        Raises:
            _FailedReadError: if a chunk does not come, or is damaged.
        """
        log, size = opened.log, opened.log.chunk_bytes
        end = min(end, log.size_bytes - 1)
        if start > end:
            return
        first, last = start // size, min((end // size + 1) * size, log.size_bytes) - 1
        headers = {"Range": f"bytes={first * size}-{last}"}
        try:
            answer = self._pool.request(
                "GET", opened.url, headers=headers, preload_content=False, decode_content=False
            )
            with closing(answer):
                for number, chunk in enumerate(_chunks(answer, log, first, end // size), first):
                    self._on_read(len(chunk))
                    position = number * size
                    if start <= position and position + len(chunk) <= end + 1:
                        yield chunk
                    else:
                        yield chunk[max(start - position, 0) : end + 1 - position]
        except HTTPError as e:
            # Without its text, which may have the URL.
            raise _FailedReadError(type(e).__name__) from None

    def _failed(
        self, name: RemoteLogSegmentId, opened: OpenedLogSegment, error: _FailedReadError
    ) -> None:
        self._on_failure()
        self._opened.discard([name])
        with self._lock:
            self._off_until_s = self._clock() + STORE_AWAY_S
            is_news, self._is_failing = not self._is_failing, True
        if is_news:
            _log.warning(
                "%s: the store at %s cannot be read directly: %s; RSM streams all logs, retrying "
                "in %d s; check the route to the store, and `sediment scrub --topic %s`",
                name,
                _host(opened),
                error,
                STORE_AWAY_S,
                name.topic_id_partition.topic,
            )

    def _worked(self, opened: OpenedLogSegment) -> None:
        with self._lock:
            was_failing, self._is_failing = self._is_failing, False
        if was_failing:
            _log.info("the store at %s is read directly again", _host(opened))


def _chunks(answer: BaseHTTPResponse, log: LogDigest, first: int, last: int) -> Iterator[bytes]:
    """Yield verified chunks from the first to the last."""
    if answer.status != _PARTIAL:
        raise _FailedReadError(f"it answered {answer.status}")
    for number in range(first, last + 1):
        chunk = answer.read(log.chunk_bytes)
        if crc32c(chunk) != log.chunk_crc32c[number]:
            position = number * log.chunk_bytes
            raise _FailedReadError(f"the bytes from {position} on are damaged or cut off")
        yield chunk


def _host(opened: OpenedLogSegment) -> str:
    return urlsplit(opened.url).netloc.rpartition("@")[2]
