"""Page tokens of RSM: the key that the page ended with; of an upload in a second line its id."""

from services.api import page_tokens
from services.api.segment_objects import MAX_OBJECTS
from services.api.validation import require

MAX_LINE_BYTES = 1_024
"""The longest key of S3, and the longest id of an upload that is ended here."""


def page_limit(page_size: int) -> int:
    """How many items a page may have."""
    return page_tokens.page_limit(page_size, MAX_OBJECTS, MAX_OBJECTS)


def encode(query: object, last: str) -> str:
    """A token for what follows `last` in `query`."""
    return page_tokens.seal(query, last.encode())


def decode(query: object, token: str) -> str:
    """What `encode` was given; "" for "", the beginning.

    Raises:
        InvalidRequestError: not a token of ours, or one of another query.
    """
    if not token:
        return ""
    body = page_tokens.unseal(query, token)
    # What `encode` did not make is any place to begin at, but no longer than a store may be asked.
    is_short = all(len(line) <= MAX_LINE_BYTES for line in body.split(b"\n", 1))
    require(is_short, "page_token", "not a page token")
    return body.decode(errors="replace")
