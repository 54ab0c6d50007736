"""Read secrets from files; an error names the file and never has its content."""

from pathlib import Path

from services.common.bounded_file import read_bounded

MAX_SECRET_BYTES = 64 * 1024


class SecretFileError(Exception):
    """The file holds no secret that can be used; the message names it and says why."""


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
