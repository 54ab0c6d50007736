"""Read files from outside, up to a limit."""

import errno
from pathlib import Path

MAX_PEM_BYTES = 1024 * 1024
"""The limit of certificates and keys; the authorities of an operating system take a quarter."""


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a file of at most `max_bytes`, without taking more memory if it is larger.

    Raises:
        OSError: the file cannot be read, or is too large; `strerror` has the reason.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"has over {max_bytes} bytes", str(path))
    return content
