"""Bound work by the caller's deadline and by rates that all calls of a process share."""

import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from services.api.calls import current_call, serving
from services.api.errors import RetriableRemoteStorageError
from services.common.fair_queue import TokenBucket
from services.rsm.active_copies import Waiter, outlasting_close

Piece = TypeVar("Piece", bytes, bytes | memoryview)
BURST_S = 0.1
"""Seconds of a rate that an idle process saves up."""

CLEAN_UP_S = 10.0
"""Limit of each of the two steps: aborting an unfinished upload, and deleting objects.

All requests of a step end within it, whether or not a caller waits, since it holds a thread.
"""

ANSWER_S = 1.0
"""Time before its deadline in which a call sends nothing, so that its response arrives.

A tenth of the call's time if it has less than ten seconds.
"""

MOST_EXAMINED = 30
"""Most items that each need requests of their own before they can be deleted together."""

T = TypeVar("T")


def token_bucket(per_s: float, name: str, waiter: Waiter) -> TokenBucket:
    return TokenBucket(per_s, per_s * BURST_S, name=name, now=waiter.now, wait=waiter.wait_for)


class ByteRate:
    """Limit the bytes per second of all streams together."""

    def __init__(self, bytes_per_s: int, waiter: Waiter) -> None:
        """Set the rate; `bytes_per_s`: 0 for no limit."""
        name = f"bytes per second (limit {bytes_per_s})"
        self._bucket = token_bucket(bytes_per_s, name, waiter) if bytes_per_s else None
        self._waiter = waiter

    def limited(self, chunks: Iterator[Piece]) -> Iterator[Piece]:
        """Yield the same chunks, each when its bytes may pass; close `chunks` when it is closed.

        Raises:
            RetriableRemoteStorageError: the caller gave up meanwhile, or the service stops.
        """
        return chunks if self._bucket is None else self._limited(chunks, self._bucket)

    def charge(self, size_bytes: int) -> None:
        """Charge bytes that a client reads from the store itself; never wait.

        Raises:
            ThrottledError: the rate is used up.
        """
        if self._bucket is not None:
            self._bucket.charge(size_bytes)

    def _limited(self, chunks: Iterator[Piece], bucket: TokenBucket) -> Iterator[Piece]:
        try:
            for chunk in chunks:
                is_active = self._waiter.unless_closed(current_call().is_active)
                bucket.spend(len(chunk), is_active)
                yield chunk
        finally:
            if isinstance(chunks, Generator):
                chunks.close()


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates, and numbers of retries.

    Attributes:
        upload_rate_bytes_per_s: of all copies together; 0 for no limit.
        fetch_rate_bytes_per_s: of all fetches together; 0 for no limit.
        delete_rate_keys_per_s: of objects, at most; see DeletePace.
        delete_retries: how often keys that failed temporarily are deleted again.
    """

    upload_rate_bytes_per_s: int = 0
    fetch_rate_bytes_per_s: int = 0
    delete_rate_keys_per_s: int = 3500
    delete_retries: int = 0


DEFAULT_LIMITS = Limits()


@contextmanager
def cleaning_up(waiter: Waiter) -> Iterator[None]:
    """Bound the work inside to CLEAN_UP_S, for any caller and even if the service stops.

    Many copies fail because the service stops.
    """
    end_s = waiter.now() + CLEAN_UP_S

    def left_s() -> float:
        return end_s - waiter.now()

    call = replace(current_call(), is_active=lambda: left_s() > 0, left_s=left_s)
    with serving(call), outlasting_close():
        yield


@contextmanager
def at_most(most_s: float) -> Iterator[None]:
    """Bound the requests inside to a time."""
    call, ends_s = current_call(), time.monotonic() + most_s

    def left_s() -> float:
        return min(call.left_s(), ends_s - time.monotonic())

    def is_active() -> bool:
        return left_s() > 0 and call.is_active()

    with serving(replace(call, is_active=is_active, left_s=left_s)):
        yield


@contextmanager
def within_deadline() -> Iterator[None]:
    """End all requests inside ANSWER_S before the deadline of the current call."""
    call = current_call()
    answer_s = min(ANSWER_S, call.left_s() / 10)

    def left_s() -> float:
        return call.left_s() - answer_s

    def is_active() -> bool:
        return left_s() > 0 and call.is_active()

    with serving(replace(call, is_active=is_active, left_s=left_s)):
        yield


def require_wanted() -> None:
    """Raise RetriableRemoteStorageError if the current call must not start another request."""
    call = current_call()
    if call.left_s() <= 0:
        raise RetriableRemoteStorageError("the deadline passed before this was done; retry")
    if not call.is_active():
        raise RetriableRemoteStorageError(
            "the client has cancelled the call or its deadline has passed; retry"
        )


def next_slice(todo: deque[T]) -> Iterator[T]:
    """Yield the items to examine next, until their objects should be deleted.

    At least one, at most MOST_EXAMINED, and none after a third of the remaining time. The last
    item may take another third, which leaves the last third for deletion.
    """
    enough_s = current_call().left_s() * 2 / 3
    for _ in range(min(MOST_EXAMINED, len(todo))):
        yield todo.popleft()
        if current_call().left_s() < enough_s:
            return
