"""Opaque page tokens: what the page before ended with, bound to the query it belongs to."""

import base64
import binascii
import hashlib

from services.api.errors import InvalidRequestError
from services.api.segment_objects import MAX_OBJECTS
from services.api.validation import require

_CHECK_BYTES = 8


def page_limit(page_size: int) -> int:
    """How many items a page may have."""
    require(page_size >= 0, "page_size", f"must not be negative, is {page_size}")
    return min(page_size or MAX_OBJECTS, MAX_OBJECTS)


def encode(query: object, last: str) -> str:
    """A token for what follows `last` in `query`."""
    body = last.encode()
    return base64.urlsafe_b64encode(body + _check(query, body)).decode("ascii")


def decode(query: object, token: str) -> str:
    """What `encode` was given; "" for "", the beginning.

    Raises:
        InvalidRequestError: not a token of ours, or one of another query.
    """
    if not token:
        return ""
    try:
        raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        body, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
        last = body.decode()
    except (binascii.Error, UnicodeError) as e:
        raise InvalidRequestError("page_token: not a page token") from e
    require(check == _check(query, body), "page_token", "is of another query")
    return last


def _check(query: object, body: bytes) -> bytes:
    # Not a secret: a token says only where to go on in what its bearer may read anyway.
    return hashlib.blake2b(repr(query).encode() + b"\0" + body, digest_size=_CHECK_BYTES).digest()
