"""Wait with a deadline for a condition."""

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

T = TypeVar("T")

DEFAULT_DEADLINE_MS = 60_000
"""On a shared machine a process is sometimes paused for some seconds."""


def eventually(
    check: Callable[[], T], deadline_ms: int = DEFAULT_DEADLINE_MS, poll_ms: int = 20
) -> T:
    """Call `check` until it returns a truthy value, and return that value.

    An AssertionError of `check` counts as "not yet"; any other exception passes at once. For checks
    that only assert, see `eventually_holds`.

    Raises:
        AssertionError: the deadline passed; the last failure of `check` itself if it raised.
    """
    deadline = time.monotonic() + deadline_ms / 1000
    while True:
        try:
            result = check()
            if result:
                return result
            failure = AssertionError(f"still {result!r} after {deadline_ms} ms")
        except AssertionError as e:
            failure = e
        if time.monotonic() >= deadline:
            raise failure
        Event().wait(poll_ms / 1000)


def eventually_holds(
    check: Callable[[], None], deadline_ms: int = DEFAULT_DEADLINE_MS, poll_ms: int = 20
) -> None:
    """Call `check` until it stops raising AssertionError; see `eventually`."""

    def held() -> bool:
        check()
        return True

    eventually(held, deadline_ms, poll_ms)
