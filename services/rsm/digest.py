"""Digests of files, taken as their bytes pass by."""

from crc32c import crc32c

from services.api.segment_digests import DIGEST_CHUNK_BYTES, FileDigest, LogDigest


class RunningDigest:
    """Takes a file's bytes in order, however they are cut."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._crc32c = 0
        self._chunks: list[int] = []

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        # The whole could be made of the chunks' instead: of 256 MiB that saves 0.03 s, where its
        # copy takes seconds, of which the sha256 of a signed payload is 0.5.
        self._crc32c = crc32c(view, self._crc32c)
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
        return FileDigest(self._size_bytes, self._crc32c)

    @property
    def log(self) -> LogDigest:
        return LogDigest(self.whole, tuple(self._chunks))
