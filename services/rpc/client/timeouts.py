"""Cancel streamed calls whose peer makes no progress, however long a call may last as a whole."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Generic, Protocol, TypeVar

import grpc

from services.common.retry import timely_rounds

# How long a reader waits for its first message before a thread asks whether the call is served.
_LISTEN_AFTER_S = 0.5
T = TypeVar("T")
_log = logging.getLogger("sediment.rpc")


class Source(Generic[T]):
    """Iterate once over `items` and record errors and progress.

    gRPC requests the items in a thread of its own, as fast as the peer takes them.

    Attributes:
        error: the error of `items`; gRPC only reports that the stream was cancelled.
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
        """Return how long gRPC has not requested the next item; 0 while `items` makes one."""
        handed_out_at = self._handed_out_at
        return 0.0 if handed_out_at is None else time.monotonic() - handed_out_at


class StreamedCall(Protocol):
    """A call; its waiting thread gets an error when the call is cancelled."""

    def cancel(self) -> object: ...

    def initial_metadata(self) -> object:
        """Wait for the metadata, or for the end of the call."""


class Watched(Protocol):
    """A timeout that a TimeoutWatch checks."""

    def cancel_if_overdue(self) -> None: ...


class ReadIdleTimeout:
    """Cancel a streamed call whose next message does not arrive in time.

    A call may wait in the server's queue: until the server is known to serve it, another limit
    holds.

    Attributes:
        cancel_reason: why the call was cancelled; empty if it was not.
    """

    def __init__(self, call: StreamedCall, limit_s: float, queue_limit_s: float) -> None:
        """Start the wait for the first message.

        `queue_limit_s` holds until the server is known to serve the call.
        """
        self._call = call
        self._limit_s = limit_s
        self._queue_limit_s = queue_limit_s
        self._waiting_since: float | None = time.monotonic()
        self._served_since: float | None = None
        self._listens = False
        self.cancel_reason = ""

    def begin(self) -> None:
        """Start the wait for another message."""
        self._waiting_since = time.monotonic()

    def end(self) -> None:
        """End the wait: the server does not account for the time that the reader takes."""
        if self._served_since is None:
            self._served_since = self._waiting_since
        self._waiting_since = None

    def cancel_if_overdue(self) -> None:
        since = self._waiting_since
        if since is None or self.cancel_reason:
            return
        now = time.monotonic()
        if self._served_since is None:
            if now - since > self._queue_limit_s:
                self._end(_not_served(self._queue_limit_s))
            elif now - since > _LISTEN_AFTER_S and not self._listens:
                Thread(target=self._listen, name="listen-for-start", daemon=True).start()
                self._listens = True
        elif now - max(since, self._served_since) > self._limit_s:
            self._end(f"has sent nothing for {self._limit_s} s")

    def _listen(self) -> None:
        # gRPC passes the metadata only to a thread that waits for them. If the reader waited for
        # them, it would get its first message later, and that message usually arrives at once.
        with suppress(grpc.RpcError):
            self._call.initial_metadata()
        self._served_since = time.monotonic()

    def _end(self, reason: str) -> None:
        self.cancel_reason = reason
        self._call.cancel()


class SendStallTimeout:
    """Cancel a call whose client streams if the server reads nothing for too long.

    Attributes:
        cancel_reason: why the call was cancelled; empty if it was not.
    """

    def __init__(
        self, call: StreamedCall, source: Source[Any], limit_s: float, queue_limit_s: float
    ) -> None:
        """Start to watch a call.

        `queue_limit_s` holds until the server is known to serve the call, by its metadata.
        """
        self._call = call
        self._source = source
        self._limit_s = limit_s
        self._queue_limit_s = queue_limit_s
        self._served_since: float | None = None
        self.cancel_reason = ""

    def record_start(self) -> None:
        self._served_since = time.monotonic()

    def cancel_if_overdue(self) -> None:
        if self.cancel_reason:
            return
        served_since, idle_s = self._served_since, self._source.idle_s()
        if served_since is None:
            if idle_s > self._queue_limit_s:
                self._end(_not_served(self._queue_limit_s))
        elif min(idle_s, time.monotonic() - served_since) > self._limit_s:
            self._end(f"has made no progress for {self._limit_s} s")

    def _end(self, reason: str) -> None:
        self.cancel_reason = reason
        self._call.cancel()


def _not_served(limit_s: float) -> str:
    return f"has not begun to serve the call within {limit_s} s; retry later"


class TimeoutWatch:
    """Check all calls of a process periodically, in a thread that runs while there are any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a watch whose rounds follow `clock`."""
        self._clock = clock
        self._lock = Lock()
        self._watched: set[Watched] = set()
        self._thread: Thread | None = None

    def add(self, watched: Watched) -> None:
        with self._lock:
            self._watched.add(watched)
            # In a forked process the thread of the parent is not alive.
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="timeout-watch", daemon=True)
                self._thread.start()

    def remove(self, watched: Watched) -> None:
        with self._lock:
            self._watched.discard(watched)

    def _run(self) -> None:
        for _ in timely_rounds(Event().wait, self._clock):
            with self._lock:
                all_watched = list(self._watched)
                if not all_watched:
                    self._thread = None
                    return
            for watched in all_watched:
                try:
                    watched.cancel_if_overdue()
                except Exception:  # noqa: BLE001 - logged below
                    # A possible cause is that no thread could be started. The others must still be
                    # checked.
                    _log.exception("the timeout of a call could not be checked; checking it again")


TIMEOUT_WATCH = TimeoutWatch()
