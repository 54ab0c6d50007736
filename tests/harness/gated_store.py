"""Wrap a real store so that the n-th call of one kind blocks until a test releases it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Literal, cast

from services.rsm.backends.protocol import StorageBackend

GIVE_UP_S = 120.0


@dataclass
class Gate:
    """The point at which calls block: before or after the store does the `nth` call of `method`.

    Attributes:
        then: called when the gate opens, in the waiting thread; the caller of the store gets its
            exception, as if the store's response was lost.
    """

    method: str
    nth: int = 1
    moment: Literal["before", "after"] = "before"
    then: Callable[[], None] = lambda: None
    reached: Event = field(default_factory=Event)
    opened: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)
    _calls: int = 0

    def is_next(self) -> bool:
        """Count a call; return whether it is the one to block."""
        with self._lock:
            self._calls += 1
            return self._calls == self.nth

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(GIVE_UP_S), f"nobody opened the gate at {self.method}"
        self.then()


def gated(store: StorageBackend, gate: Gate) -> StorageBackend:
    """Wrap `store`, so that every call passes but the one that `gate` blocks."""
    return cast(StorageBackend, _GatedStore(store, gate))


class _GatedStore:
    def __init__(self, store: StorageBackend, gate: Gate) -> None:
        self._store = store
        self._gate = gate

    def __getattr__(self, name: str) -> object:
        method = getattr(self._store, name)
        if name != self._gate.method:
            return method

        def stopped(*args: object) -> object:
            stops = self._gate.is_next()
            if stops and self._gate.moment == "before":
                self._gate.wait()
            result = method(*args)
            if stops and self._gate.moment == "after":
                self._gate.wait()
            return result

        return stopped
