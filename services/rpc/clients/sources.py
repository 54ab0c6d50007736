"""What a caller streams to a service: where it comes from may fail or take its time."""

import time
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Source(Generic[T]):
    """Iterates once over `items`, and keeps what became of that.

    gRPC asks for the items in a thread of its own, as fast as the peer takes them.

    Attributes:
        error: with which `items` failed; gRPC only says that the stream was cancelled.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items
        self._handed_out_at: float | None = time.monotonic()
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[T]:
        try:
            self._handed_out_at = None
            for item in self._items:
                self._handed_out_at = time.monotonic()
                yield item
                self._handed_out_at = None
        except Exception as e:
            self.error = e
            raise
        finally:
            self._handed_out_at = time.monotonic()

    def idle_s(self) -> float:
        """For how long nobody has asked for the next item; 0 while `items` makes one."""
        handed_out_at = self._handed_out_at
        return 0.0 if handed_out_at is None else time.monotonic() - handed_out_at
