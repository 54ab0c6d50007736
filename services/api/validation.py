"""Check fields and page tokens of requests; an error names the path of the field."""

import base64
import binascii
import hashlib
from collections.abc import Sized

from services.api.errors import InvalidRequestError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def require(is_valid: bool, field: str, rule: str) -> None:
    """Raise InvalidRequestError("field: rule") unless `is_valid`."""
    if not is_valid:
        raise InvalidRequestError(f"{field}: {rule}")


def require_count(items: Sized, field: str, most: int) -> None:
    """Raise InvalidRequestError if there are no items or too many."""
    require(1 <= len(items) <= most, field, f"must be 1 to {most}, are {len(items)}")


def require_between(value: int, field: str, least: int, most: int) -> None:
    """Raise InvalidRequestError unless `value` is from `least` to `most`, both inclusive."""
    if not least <= value <= most:
        raise InvalidRequestError(f"{field}: must be {least} to {most}, is {value}")


def require_int32(value: int, field: str, *, at_least: int = 0) -> None:
    require_between(value, field, at_least, INT32_MAX)


def require_int64(value: int, field: str, *, at_least: int = 0) -> None:
    if not at_least <= value <= INT64_MAX:
        raise InvalidRequestError(f"{field}: must be {at_least} to 2^63-1, is {value}")


class within:
    """Put `path` and a dot before the field path of an InvalidRequestError raised inside.

    It is a class because contextlib's generators take four times as long, and a batch enters
    thousands.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, InvalidRequestError):
            raise type(error)(f"{self._path}.{error}") from error


_CHECK_BYTES = 8


def page_limit(page_size: int, default: int, most: int) -> int:
    """Return the most items of a page: 0 means `default`, above `most` means `most`.

    Raises:
        InvalidRequestError: if the page size is negative.
    """
    require(page_size >= 0, "page_size", f"must not be negative, is {page_size}")
    return min(page_size or default, most)


def seal(query: object, body: bytes) -> str:
    """Make a page token of `body` that is valid only for `query`.

    Equal queries must have equal reprs.
    """
    return base64.urlsafe_b64encode(body + _check(query, body)).decode("ascii")


def unseal(query: object, token: str, body_bytes: int | None = None) -> bytes:
    """Return the body of a token of `seal`; `body_bytes` is its length, or None for any.

    Raises:
        InvalidRequestError: if the token is not of `seal`, or of another query.
    """
    try:
        raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as e:
        raise InvalidRequestError("page_token: not a page token") from e
    body, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
    has_right_size = body_bytes is None or len(raw) == body_bytes + _CHECK_BYTES
    require(has_right_size, "page_token", "not a page token")
    require(check == _check(query, body), "page_token", "is of another query")
    return body


def _check(query: object, body: bytes) -> bytes:
    content = repr(query).encode() + b"\0" + body
    return hashlib.blake2b(content, digest_size=_CHECK_BYTES).digest()
