"""Print a line every few seconds while something runs."""

import sys
import threading
from collections.abc import Callable
from typing import Self

EVERY_S = 5.0


class Progress:
    """Print what `text` returns every five seconds until the end of the block."""

    def __init__(self, text: Callable[[], str], every_s: float = EVERY_S) -> None:
        self._text = text
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _print(self) -> None:
        while not self._over.wait(self._every_s):
            print_line(self._text())


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
