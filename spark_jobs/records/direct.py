"""Read logs from the object store itself, by the URLs that RSM hands out."""

from collections.abc import Iterator
from contextlib import closing

from crc32c import crc32c
from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import HTTPError

from services.api.errors import DirectReadRefusedError, NotServedError, ThrottledError
from services.api.remote_storage_manager import LogDigest, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata

_PARTIAL = 206
_TIMEOUT = Timeout(connect=5.0, read=30.0)


class DirectReader:
    """Read ranges of logs by URLs, each chunk verified, or stream them by RSM.

    RSM streams what it gives no URL for, and what the store does not give or gives damaged: it
    reports what is wrong by name.
    """

    def __init__(self, rsm: RemoteStorageManager) -> None:
        self._rsm = rsm
        self._pool = PoolManager(timeout=_TIMEOUT, retries=False)
        self._is_off = False

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int
    ) -> Iterator[bytes]:
        """Read the bytes from `start` to `end`, both inclusive, or to the end of the log."""
        at = start
        for data in self._direct(metadata, start, end):
            at += len(data)
            yield data
        if at <= end and at < metadata.segment_size_in_bytes:
            yield from self._rsm.fetch_log_segment(metadata, at, end)

    def close(self) -> None:
        self._pool.clear()

    def _direct(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        """Read from the store until something is wrong."""
        if self._is_off:
            return
        try:
            opened = self._rsm.open_log_segment(metadata)
        except NotServedError:
            self._is_off = True
            return
        except (DirectReadRefusedError, ThrottledError):
            return
        size = opened.log.chunk_bytes
        first, end = start // size, min(end, opened.log.size_bytes - 1)
        if start > end:
            return
        last = min((end // size + 1) * size, opened.log.size_bytes) - 1
        headers = {"Range": f"bytes={first * size}-{last}"}
        try:
            answer = self._pool.request(
                "GET", opened.url, headers=headers, preload_content=False, decode_content=False
            )
            with closing(answer):
                for number, chunk in enumerate(_chunks(answer, opened.log, first), start=first):
                    position = number * size
                    yield chunk[max(start - position, 0) : end + 1 - position]
        except HTTPError:
            return  # Not logged: its text may have the URL, which is a secret.


def _chunks(answer: BaseHTTPResponse, log: LogDigest, first: int) -> Iterator[bytes]:
    """Yield verified chunks from the first on; end at one that is cut off or damaged."""
    if answer.status != _PARTIAL:
        return
    for expected in log.chunk_crc32c[first:]:
        chunk = answer.read(log.chunk_bytes)
        if not chunk or crc32c(chunk) != expected:
            return
        yield chunk
