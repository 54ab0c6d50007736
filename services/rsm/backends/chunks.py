"""How a range of bytes is cut into chunks on its way out."""

from collections.abc import Callable, Generator

from services.api.errors import CorruptSegmentError, RetriableRemoteStorageError

# A small first chunk brings the first byte early, large ones after it cost the least per byte.
FIRST_CHUNK_BYTES = 16 * 1024
CHUNK_BYTES = 1024 * 1024


def require_reaches(end: int, object_size_bytes: int, what: str) -> None:
    """Raise CorruptSegmentError where an object has no byte at `end`, which was once written."""
    if end >= object_size_bytes:
        raise CorruptSegmentError(f"{what}: the object has {object_size_bytes} bytes only")


def read_chunks(
    read: Callable[[int], bytes], size_bytes: int, what: str
) -> Generator[bytes, None, None]:
    """Chunks of `size_bytes` in all from `read(at most so many bytes)`.

    Raises:
        RetriableRemoteStorageError: `read` came to its end before that.
    """
    left = size_bytes
    limit = FIRST_CHUNK_BYTES
    while left:
        chunk = read(min(limit, left))
        if not chunk:
            missing = f"{what}: the body ended {left} of {size_bytes} bytes early"
            raise RetriableRemoteStorageError(missing)
        left -= len(chunk)
        limit = CHUNK_BYTES
        yield chunk
