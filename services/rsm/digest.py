"""Digests of files, taken as their bytes pass by."""

from collections.abc import Iterator

from crc32c import crc32c

from services.api.segment_digests import DIGEST_CHUNK_BYTES, FileDigest, LogDigest
from services.rsm.joined_crc import joined_crc32c


class RunningDigest:
    """Takes a file's bytes in order, however they are cut, and looks at each once."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._chunks: list[int] = []

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            filled = self._size_bytes % DIGEST_CHUNK_BYTES
            piece = view[: DIGEST_CHUNK_BYTES - filled]
            if not filled:
                self._chunks.append(0)
            self._chunks[-1] = crc32c(piece, self._chunks[-1])
            self._size_bytes += len(piece)
            view = view[len(piece) :]

    @property
    def whole(self) -> FileDigest:
        return FileDigest(self._size_bytes, joined_crc32c(self._pieces(0, self._size_bytes)))

    @property
    def log(self) -> LogDigest:
        return LogDigest(self.whole, tuple(self._chunks))

    def crc32c_of(self, offset: int, size_bytes: int) -> int | None:
        """Of `size_bytes` bytes from byte `offset` on; None: they have not all passed by, or are
        not made of whole chunks."""
        end = offset + size_bytes
        has_passed = end <= self._size_bytes
        is_whole = offset % DIGEST_CHUNK_BYTES == 0 and (
            end % DIGEST_CHUNK_BYTES == 0 or end == self._size_bytes
        )
        return joined_crc32c(self._pieces(offset, end)) if has_passed and is_whole else None

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The crc32c and the size of each chunk between two ends of chunks."""
        for at in range(start, end, DIGEST_CHUNK_BYTES):
            size_bytes = min(DIGEST_CHUNK_BYTES, end - at)
            yield self._chunks[at // DIGEST_CHUNK_BYTES], size_bytes
