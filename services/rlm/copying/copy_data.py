"""A segment's files on their way to RSM, in chunks, with bounded memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

from services.api.failpoints import failpoint
from services.api.remote_log_manager import ProblemKind
from services.api.remote_storage_manager import (
    LogSegmentData,
    SegmentChunk,
    SegmentFile,
    SegmentFileHeader,
)
from services.rlm.copying.inspection import InspectedSegment
from services.rlm.kafka_log.errors import LogFileError
from services.rlm.kafka_log.partition_dir import reading_segment

BytesSent = Callable[[int], None]
GoingOn = Callable[[], None]
"""Raises CopyCancelledError where the copy is to stop."""


class CopyCancelledError(Exception):
    """The copy stops on purpose; the next pass cleans up what was begun."""


class SegmentSource:
    """Reads an inspected segment for one copy; anew where the copy is begun anew.

    The log comes from the file again, announced with the length and CRC it was inspected with; the
    other files are the very bytes that were checked. Reading may end with CopyCancelledError,
    LogFileError or SegmentVanishedError, which any RemoteStorageManager raises as it is.
    """

    def __init__(
        self, inspected: InspectedSegment, chunk_bytes: int, sent: BytesSent, going_on: GoingOn
    ) -> None:
        self._inspected = inspected
        self._chunk_bytes = chunk_bytes
        self._sent = sent
        self._going_on = going_on
        self._told_bytes = 0

    def require_going_on(self) -> None:
        """Raise CopyCancelledError where the copy is to stop."""
        self._going_on()

    def data(self) -> LogSegmentData:
        """From the beginning; what was told as sent before is taken back."""
        self._tell(-self._told_bytes)
        log, others = self._inspected, self._side_files()
        headers = [SegmentFileHeader(SegmentFile.LOG, log.size_bytes, log.crc32c)]
        headers += [SegmentFileHeader(file, len(data)) for file, data in others]
        return LogSegmentData(headers, self._chunks())

    def _side_files(self) -> list[tuple[SegmentFile, bytes]]:
        files = self._inspected.side_files
        return [(file, files[file]) for file in SegmentFile if file in files]

    def _chunks(self) -> Iterator[SegmentChunk]:
        for data in self._log_chunks(self._inspected.segment.log_path):
            yield SegmentChunk(SegmentFile.LOG, data)
            self._tell(len(data))
            failpoint("copy.some_bytes_sent")
        for file, whole in self._side_files():
            for at in range(0, len(whole), self._chunk_bytes):
                yield SegmentChunk(file, whole[at : at + self._chunk_bytes])

    def _tell(self, size_bytes: int) -> None:
        self._told_bytes += size_bytes
        if size_bytes:
            self._sent(size_bytes)

    def _log_chunks(self, path: Path) -> Iterator[bytes]:
        left = self._inspected.size_bytes
        with reading_segment(path), path.open("rb", buffering=0) as file:
            while left:
                self._going_on()
                data = file.read(min(left, self._chunk_bytes))
                if not data:
                    reason = f"cut off while it was being copied, {left} bytes are missing"
                    raise LogFileError(ProblemKind.COPY_FAILED, path, reason)
                left -= len(data)
                yield data
