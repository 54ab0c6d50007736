"""Opaque page tokens: where the page before ended, bound to the query that it belongs to.

No secrets: a token says only where to go on in what its bearer may read anyway. The digest finds
out mistakes; whoever makes a token by hand gets a page that begins somewhere else.
"""

import base64
import binascii
import hashlib

from services.api.errors import InvalidRequestError
from services.api.validation import require

_CHECK_BYTES = 8


def page_limit(page_size: int, default: int, most: int) -> int:
    """How many items a page may have: 0 means `default`, above `most` means `most`.

    Raises:
        InvalidRequestError: a negative page size.
    """
    require(page_size >= 0, "page_size", f"must not be negative, is {page_size}")
    return min(page_size or default, most)


def seal(query: object, body: bytes) -> str:
    """A token of `body`, for `query` alone: equal queries are those of equal repr."""
    return base64.urlsafe_b64encode(body + _check(query, body)).decode("ascii")


def unseal(query: object, token: str, body_bytes: int | None = None) -> bytes:
    """The body in a token of `seal`, which has `body_bytes` where that is known.

    Raises:
        InvalidRequestError: not a token of ours, or one of another query.
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
    said = repr(query).encode() + b"\0" + body
    return hashlib.blake2b(said, digest_size=_CHECK_BYTES).digest()
