"""Cancel one task, or all tasks of a process."""

from threading import Event
from typing import Protocol


class Flag(Protocol):
    """The reading half of a threading.Event."""

    def is_set(self) -> bool: ...


class Cancellation:
    """A flag of one task, which is also set while `everything` is set."""

    def __init__(self, everything: Flag) -> None:
        self._everything = everything
        self._own = Event()

    def set(self) -> None:
        self._own.set()

    def is_set(self) -> bool:
        return self._own.is_set() or self._everything.is_set()
