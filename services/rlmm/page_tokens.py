"""Page tokens of RLMM: the key of the page's last row, a number and an id."""

import struct
from uuid import UUID

from services.api import page_tokens
from services.api.segment_queries import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE

Position = tuple[int, UUID]

_NUMBER = struct.Struct(">q")
_BODY_BYTES = _NUMBER.size + 16


def page_limit(page_size: int) -> int:
    """How many rows the page may have."""
    return page_tokens.page_limit(page_size, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def encode(query: tuple[object, ...], position: Position) -> str:
    """A token for what follows `position` in `query`."""
    number, uuid = position
    return page_tokens.seal(query, _NUMBER.pack(number) + uuid.bytes)


def decode(query: tuple[object, ...], token: str) -> Position | None:
    """The position in a token of `encode`; None for "", the beginning.

    Raises:
        InvalidRequestError: not a token of ours, or one of another query.
    """
    if not token:
        return None
    body = page_tokens.unseal(query, token, _BODY_BYTES)
    (number,) = _NUMBER.unpack(body[: _NUMBER.size])
    return number, UUID(bytes=body[_NUMBER.size :])
