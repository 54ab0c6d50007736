"""Say again and again that long work still runs, and what it waits for."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

SILENT_S = 4.0
"""The longest silence while something runs."""


@contextmanager
def still_said(say: Callable[[str], None], what: str, silent_s: float = SILENT_S) -> Iterator[None]:
    """Print `what`, and again with its time every `silent_s` seconds until the block ends."""
    say(what)
    with said_every(silent_s, lambda past_s: say(f"{what}: {past_s:.0f} s so far")):
        yield


@contextmanager
def said_every(period_s: float, say_past: Callable[[float], None]) -> Iterator[None]:
    """Call with the seconds that are past, every `period_s` seconds until the block ends."""
    ended, began = Event(), time.monotonic()

    def repeat() -> None:
        while not ended.wait(period_s):
            say_past(time.monotonic() - began)

    repeater = Thread(target=repeat, name="progress", daemon=True)
    repeater.start()
    try:
        yield
    finally:
        ended.set()
        repeater.join()
