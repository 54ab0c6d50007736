"""What a caller streams to a service: where it comes from may fail or take its time."""

import time
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from services.rpc.channels import CHUNK_BYTES

# gRPC asks for the next message once all but 64 KiB of the last are on their way, and a peer that
# reads nothing has room for "grpc.http2.lookahead_bytes".
_UNREAD_AT_MOST_BYTES = 2 * CHUNK_BYTES


class Message(Protocol):
    """What protobuf generates."""

    def ByteSize(self) -> int: ...


T = TypeVar("T", bound=Message | bytes)


class Source(Generic[T]):
    """Iterates once over `items`, and keeps what became of that.

    gRPC asks for the items in a thread of its own, as fast as the peer takes them.

    Attributes:
        error: with which `items` failed; gRPC only says that the stream was cancelled.
        was_read: more was taken than fits in between, so that somebody must have read of it.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items
        self._handed_out_at: float | None = time.monotonic()
        self._taken_bytes = 0
        self.error: BaseException | None = None
        self.was_read = False

    def __iter__(self) -> Iterator[T]:
        try:
            self._handed_out_at = None
            for item in self._items:
                self._handed_out_at = time.monotonic()
                yield item
                self._handed_out_at = None
                self._count(item)
        except Exception as e:
            self.error = e
            raise
        finally:
            self._handed_out_at = time.monotonic()

    def _count(self, taken: T) -> None:
        # protobuf writes a message to find its size, so not for longer than anybody asks.
        if not self.was_read:
            size_bytes = len(taken) if isinstance(taken, bytes) else taken.ByteSize()
            self._taken_bytes += size_bytes
            self.was_read = self._taken_bytes > _UNREAD_AT_MOST_BYTES

    def idle_s(self) -> float:
        """For how long nobody has asked for the next item; 0 while `items` makes one."""
        handed_out_at = self._handed_out_at
        return 0.0 if handed_out_at is None else time.monotonic() - handed_out_at
