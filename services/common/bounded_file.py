"""Read files from outside, up to a limit; an error about a secret never has its content."""

import errno
import os
import re
import stat
from pathlib import Path

MAX_PEM_BYTES = 1024 * 1024
"""The limit of certificates and keys; the authorities of an operating system take a quarter."""

MAX_SECRET_BYTES = 64 * 1024


_EXTENSIONS = (".crt", ".json", ".key", ".pem", ".toml")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


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


def shown(path: Path) -> str:
    """Return the name of a file for a message, unless it may be a secret typed in its place: it
    names neither a file nor one in an existing directory, and has no usual extension.
    """
    try:
        is_name = path.exists() or (len(path.parts) > 1 and path.parent.is_dir())
    except OSError:  # It is too long for a name.
        is_name = False
    is_name = is_name or path.suffix in _EXTENSIONS
    return str(path) if is_name else "<not shown: names no file, and may be the secret itself>"


def require_one_line(secret: str) -> str:
    """Return the secret; with a line break, clients that send it would print it in their errors.

    Raises:
        ValueError: it has a control character.
    """
    if _CONTROL.search(secret):
        raise ValueError("has a line break or control character inside; write the secret alone")
    return secret


def read_secret(path: Path) -> str:
    """Read a secret without the newline at its end.

    Raises:
        SecretFileError: the file cannot be read, is not UTF-8, is empty or too large, or has a line
            break inside.
    """
    try:
        content = read_bounded(path, MAX_SECRET_BYTES)
    except OSError as e:
        reason = e.strerror or type(e).__name__
        raise SecretFileError(f"{shown(path)}: cannot be read: {reason}") from None
    try:
        secret = content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        # No cause is attached: it has the content.
        raise SecretFileError(f"{path}: is not UTF-8") from None
    if not secret.strip():
        raise SecretFileError(f"{path}: is empty")
    try:
        return require_one_line(secret)
    except ValueError as e:
        raise SecretFileError(f"{path}: {e}") from None
