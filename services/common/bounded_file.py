"""Read files from outside, up to a limit; an error about a secret never has its content."""

import errno
import os
import stat
from pathlib import Path

MAX_PEM_BYTES = 1024 * 1024
"""The limit of certificates and keys; the authorities of an operating system take a quarter."""

MAX_SECRET_BYTES = 64 * 1024


class SecretFileError(Exception):
    """The file holds no secret that can be used; the message names it and says why."""


def open_regular(path: Path) -> int:
    """Open a regular file to read; anything else could keep the caller waiting, as a pipe does.

    Raises:
        OSError: the file cannot be opened, or is no regular file; `strerror` has the reason.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return fd


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


def read_secret(path: Path) -> str:
    """Read a secret without the newline at its end.

    Raises:
        SecretFileError: the file cannot be read, is not UTF-8, is empty or too large.
    """
    try:
        content = read_bounded(path, MAX_SECRET_BYTES)
    except OSError as e:
        raise SecretFileError(f"{path}: cannot be read: {e.strerror or type(e).__name__}") from None
    try:
        secret = content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        # No cause is attached: it has the content.
        raise SecretFileError(f"{path}: is not UTF-8") from None
    if not secret.strip():
        raise SecretFileError(f"{path}: is empty")
    return secret
