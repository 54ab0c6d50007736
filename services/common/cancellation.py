"""Flags that ask a task to end, by itself or with the whole process."""

from threading import Event
from typing import Protocol


class Flag(Protocol):
    """As a threading.Event is read."""

    def is_set(self) -> bool: ...


class Cancellation:
    """Set on its own, or with `everything`."""

    def __init__(self, everything: Flag) -> None:
        self._everything = everything
        self._own = Event()

    def set(self) -> None:
        self._own.set()

    def is_set(self) -> bool:
        return self._own.is_set() or self._everything.is_set()
