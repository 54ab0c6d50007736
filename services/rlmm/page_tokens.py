"""Opaque page tokens: where the page before ended, bound to the query it belongs to."""

import base64
import binascii
import hashlib
import struct
from uuid import UUID

from services.api.errors import InvalidRequestError
from services.api.segment_queries import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from services.api.validation import require

Position = tuple[int, UUID]

_NUMBER = struct.Struct(">q")
_CHECK_BYTES = 8
_TOKEN_BYTES = _NUMBER.size + 16 + _CHECK_BYTES


def page_limit(page_size: int) -> int:
    """How many rows the page may have."""
    require(page_size >= 0, "page_size", f"must not be negative, is {page_size}")
    return min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def encode(query: tuple[object, ...], position: Position) -> str:
    """A token for what follows `position` in `query`."""
    number, uuid = position
    body = _NUMBER.pack(number) + uuid.bytes
    return base64.urlsafe_b64encode(body + _check(query, body)).decode("ascii")


def decode(query: tuple[object, ...], token: str) -> Position | None:
    """The position in a token of `encode`; None for "", the beginning.

    Raises:
        InvalidRequestError: not a token of ours, or one of another query.
    """
    if not token:
        return None
    try:
        raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as e:
        raise InvalidRequestError("page_token: not a page token") from e
    require(len(raw) == _TOKEN_BYTES, "page_token", "not a page token")
    body, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
    require(check == _check(query, body), "page_token", "is of another query")
    (number,) = _NUMBER.unpack(body[: _NUMBER.size])
    return number, UUID(bytes=body[_NUMBER.size :])


def _check(query: tuple[object, ...], body: bytes) -> bytes:
    # Not a secret: a token says only where to go on in what its bearer may read anyway.
    said = repr(query).encode() + b"\0" + body
    return hashlib.blake2b(said, digest_size=_CHECK_BYTES).digest()
