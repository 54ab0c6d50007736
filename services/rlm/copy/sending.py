"""Send one segment to RSM, and wait while RSM is busy."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from services.api.errors import ThrottledError
from services.api.ids import RemoteLogSegmentId
from services.api.remote_log_manager import ProblemKind
from services.api.remote_storage_manager import (
    LogSegmentData,
    RemoteStorageManager,
    SegmentChunk,
    SegmentFile,
    SegmentFileHeader,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.common.bounded_file import open_regular
from services.common.cancellation import Flag
from services.common.copied_bytes import BYTES_COPIED
from services.common.failpoints import failpoint
from services.common.retry import Backoff
from services.rlm.copy.inspection import InspectedSegment
from services.rlm.copy.leases import CopyCancelledError
from services.rlm.kafka_log.partition_dir import LogFileError, reading_segment
from services.rlm.metrics import COPIES_WAITING_FOR_RSM

_POLL_S = 0.1
_log = logging.getLogger(__name__)

BytesSent = Callable[[int], None]

RequireRunning = Callable[[], None]
"""Raises CopyCancelledError if the copy is to stop."""


@dataclass(eq=False)
class SegmentSource:
    """Read an inspected segment for one copy, from the beginning for each request.

    The log is read from its file again, with the length and CRC of its inspection; the other files
    are the bytes that were inspected. Reading may raise CopyCancelledError, LogFileError or
    SegmentVanishedError, which every RemoteStorageManager passes on.
    """

    inspected: InspectedSegment
    chunk_bytes: int
    sent: BytesSent
    require_running: RequireRunning
    _counted_bytes: int = field(init=False, default=0)

    def data(self) -> LogSegmentData:
        """Read from the beginning; bytes that were counted as sent before are subtracted."""
        self._count(-self._counted_bytes)
        log, others = self.inspected, self._side_files()
        headers = [SegmentFileHeader(SegmentFile.LOG, log.size_bytes, log.crc32c)]
        headers += [SegmentFileHeader(file, len(data)) for file, data in others]
        return LogSegmentData(headers, self._chunks())

    def _side_files(self) -> list[tuple[SegmentFile, bytes]]:
        files = self.inspected.side_files
        return [(file, files[file]) for file in SegmentFile if file in files]

    def _chunks(self) -> Iterator[SegmentChunk]:
        for data in self._log_chunks(self.inspected.segment.log_path):
            yield SegmentChunk(SegmentFile.LOG, data)
            BYTES_COPIED.labels("message").inc(len(data))
            self._count(len(data))
            failpoint("copy.some_bytes_sent")
        for file, whole in self._side_files():
            for at in range(0, len(whole), self.chunk_bytes):
                yield SegmentChunk(file, whole[at : at + self.chunk_bytes])

    def _count(self, size_bytes: int) -> None:
        self._counted_bytes += size_bytes
        if size_bytes:
            self.sent(size_bytes)

    def _log_chunks(self, path: Path) -> Iterator[bytes]:
        remaining_bytes = self.inspected.size_bytes
        with reading_segment(path), open(open_regular(path), "rb", buffering=0) as file:
            file.seek(self.inspected.first_position)
            while remaining_bytes:
                self.require_running()
                data = file.read(min(remaining_bytes, self.chunk_bytes))
                if not data:
                    reason = (
                        f"the file was truncated while it was copied; {remaining_bytes} bytes are "
                        "missing"
                    )
                    raise LogFileError(ProblemKind.COPY_FAILED, path, reason)
                remaining_bytes -= len(data)
                yield data


@dataclass(frozen=True, slots=True)
class ThrottleRetry:
    """The limits of a copy's wait for RSM to accept it.

    Attributes:
        backoff: between two requests.
        timeout_s: time after which the copy fails; RSM's client waits as long for a thread.
        warn_after_s: time after which the wait is logged as a warning.
    """

    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=0.5, max_s=5.0))
    timeout_s: float = 1800.0
    warn_after_s: float = 60.0


def copy_with_throttle_retry(
    rsm: RemoteStorageManager,
    started: RemoteLogSegmentMetadata,
    source: SegmentSource,
    stopping: Flag,
    retry: ThrottleRetry,
) -> bytes | None:
    """Copy a segment's data; repeat the request under the same id while RSM is busy.

    A new attempt for each refusal would cost three metadata changes.

    Args:
        stopping: once set, stop waiting.

    Raises:
        CopyCancelledError: if the copy was cancelled.
        ThrottledError: if RSM was busy for longer than the timeout.
    """
    segment_id, began_s = started.remote_log_segment_id, time.monotonic()
    refusals, is_warned = 0, False
    while True:
        try:
            return rsm.copy_log_segment_data(started, source.data())
        except ThrottledError as e:
            now_s = time.monotonic()
            if refusals == 0:
                began_s = now_s
                _log.info("%s waits because RSM is busy: %s", segment_id, e)
            refusals += 1
            waited_s, wait_s = now_s - began_s, retry.backoff.delay_s(refusals)
            if waited_s + wait_s > retry.timeout_s:
                raise
            if waited_s >= retry.warn_after_s and not is_warned:
                is_warned = True
                _log.warning(
                    "%s has waited %d s for RSM, which has more copies than it serves at once: "
                    "raise RSM_COPY_THREADS or run more RSMs: %s",
                    segment_id,
                    waited_s,
                    e,
                )
        _wait_for_rsm(segment_id, now_s + wait_s, source, stopping)


def _wait_for_rsm(
    segment_id: RemoteLogSegmentId, until_s: float, source: SegmentSource, stopping: Flag
) -> None:
    with COPIES_WAITING_FOR_RSM.track_inprogress():
        while (remaining_s := until_s - time.monotonic()) > 0:
            source.require_running()
            if stopping.is_set():
                raise CopyCancelledError(f"{segment_id}: stopped while waiting for RSM")
            threading.Event().wait(min(remaining_s, _POLL_S))
