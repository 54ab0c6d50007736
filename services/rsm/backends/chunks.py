"""How a range of bytes is cut into chunks on its way out."""

import time
from collections.abc import Callable, Generator

from services.api.errors import CorruptSegmentError, RetriableRemoteStorageError

# A small first chunk brings the first byte early, large ones after it cost the least per byte.
FIRST_CHUNK_BYTES = 16 * 1024
CHUNK_BYTES = 1024 * 1024
# As long as a chunk takes, nobody looks whether the reader is still there.
_CHUNK_S = 2.0


def require_reaches(end: int, object_size_bytes: int, what: str) -> None:
    """Raise CorruptSegmentError where an object has no byte at `end`, which was once written."""
    if end >= object_size_bytes:
        raise CorruptSegmentError(f"{what}: the object has {object_size_bytes} bytes only")


def read_chunks(
    read: Callable[[int], bytes],
    size_bytes: int,
    what: str,
    now: Callable[[], float] = time.monotonic,
) -> Generator[bytes, None, None]:
    """Chunks of `size_bytes` in all from `read(at most so many bytes)`.

    Of a store that drips they are smaller: what comes in _CHUNK_S, as fast as the one before came.

    Raises:
        RetriableRemoteStorageError: `read` came to its end before that.
    """
    left = size_bytes
    limit = FIRST_CHUNK_BYTES
    while left:
        began_s = now()
        chunk = read(min(limit, left))
        if not chunk:
            missing = f"{what}: the body ended {left} of {size_bytes} bytes early"
            raise RetriableRemoteStorageError(missing)
        left -= len(chunk)
        limit = _limit_after(len(chunk), now() - began_s)
        yield chunk


def _limit_after(size_bytes: int, took_s: float) -> int:
    if took_s * CHUNK_BYTES <= size_bytes * _CHUNK_S:
        return CHUNK_BYTES
    return max(1, int(size_bytes * _CHUNK_S / took_s))
