"""Page tokens of RSM: the key that the page ended with."""

from services.api import page_tokens
from services.api.segment_objects import MAX_OBJECTS


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
    # Of a body that `encode` did not make: any place to begin at is as good.
    return page_tokens.unseal(query, token).decode(errors="replace") if token else ""
