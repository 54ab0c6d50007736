"""Say every few seconds that something still runs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

SILENT_S = 4.0
"""How long nothing is said."""


@contextmanager
def still_said(say: Callable[[str], None], what: str, silent_s: float = SILENT_S) -> Iterator[None]:
    """Say `what`, and say it again with its time every `silent_s` seconds until the block ends."""
    ended, began = Event(), time.monotonic()

    def repeat() -> None:
        while not ended.wait(silent_s):
            say(f"{what}: {time.monotonic() - began:.0f} s so far")

    say(what)
    repeater = Thread(target=repeat, name="progress", daemon=True)
    repeater.start()
    try:
        yield
    finally:
        ended.set()
        repeater.join()
