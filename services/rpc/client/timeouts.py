"""Cancel streamed calls whose peer makes no progress, and report calls that wait for an answer."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread, Timer
from typing import Generic, Protocol, TypeVar

import grpc

from services.common.retry import timely_rounds

# How long a reader waits for its first message before a thread waits for the call's metadata.
_LISTEN_AFTER_S = 0.5
_SILENT_S = 3.0
T = TypeVar("T")
_log = logging.getLogger("sediment.rpc")


class Wait:
    """How long one side of a call has waited for the other; it begins with a wait."""

    def __init__(self) -> None:
        self._since: float | None = time.monotonic()

    def begin(self) -> None:
        self._since = time.monotonic()

    def end(self) -> None:
        self._since = None

    def idle_s(self) -> float:
        """Return the length of the present wait; 0 if there is none."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since


class Source(Generic[T]):
    """Iterate once over `items` and record errors and progress.

    gRPC requests the items in a thread of its own, as fast as the peer takes them.

    Attributes:
        error: the error of `items`; gRPC only reports that the stream was cancelled.
        idle_s: returns how long gRPC has not requested the next item; 0 while `items` makes one.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items
        self._wait = Wait()
        self.idle_s = self._wait.idle_s
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[T]:
        try:
            self._wait.end()
            for item in self._items:
                self._wait.begin()
                yield item
                self._wait.end()
        except Exception as e:
            self.error = e
            raise
        finally:
            self._wait.begin()


class SlowCalls:
    """Report each server once from which a call has had no answer for a while.

    Attributes:
        report: is called with a line for people; None: nothing is reported.
    """

    report: Callable[[str], None] | None = None

    def __init__(self) -> None:
        self._reported: set[str] = set()

    @contextmanager
    def watched(self, peer: object) -> Iterator[None]:
        """Report the peer if the block lasts."""
        timer = Timer(_SILENT_S, self.add, [peer]) if self.report else None
        if timer:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            if timer:
                timer.cancel()

    def add(self, peer: object) -> None:
        """Report a peer that is slow to answer."""
        if self.report and str(peer) not in self._reported:
            self._reported.add(str(peer))
            self.report(f"waiting for {peer}")


SLOW_CALLS = SlowCalls()


class StreamedCall(Protocol):
    """A call; its waiting thread gets an error when the call is cancelled."""

    def cancel(self) -> object: ...

    def initial_metadata(self) -> object:
        """Wait for the metadata, or for the end of the call."""


class StreamTimeout:
    """Cancel a streamed call whose peer makes no progress in time.

    A call may wait in the server's queue: until the server is known to serve it, another limit
    holds.

    Attributes:
        cancel_reason: why the call was cancelled; empty if it was not.
    """

    def __init__(
        self,
        call: StreamedCall,
        idle_s: Callable[[], float],
        limit_s: float,
        queue_limit_s: float,
        fault: str,
        peer: object = "",
        *,
        listens: bool = False,
    ) -> None:
        """Set the limits.

        Args:
            idle_s: returns for how long the peer has made no progress.
            limit_s: the longest time without progress while the server serves the call.
            queue_limit_s: the same until the server is known to serve the call.
            fault: what the peer has failed to do, for the reason ("has sent nothing").
            peer: its name in SLOW_CALLS.
            listens: find out in a thread whether the server serves the call.
        """
        self._call = call
        self._idle_s = idle_s
        self._limit_s = limit_s
        self._queue_limit_s = queue_limit_s
        self._fault = fault
        self._peer = peer
        self._listens = listens
        self._served_since: float | None = None
        self.cancel_reason = ""

    def record_start(self) -> None:
        """Record that the server serves the call."""
        if self._served_since is None:
            self._served_since = time.monotonic()

    def cancel_if_overdue(self) -> None:
        if self.cancel_reason:
            return
        idle_s, served_since = self._idle_s(), self._served_since
        if served_since is not None:
            if min(idle_s, time.monotonic() - served_since) > self._limit_s:
                self._end(f"{self._fault} for {self._limit_s} s")
        elif idle_s > self._queue_limit_s:
            limit_s = self._queue_limit_s
            self._end(f"has not begun to serve the call within {limit_s} s; retry later")
        elif self._listens and idle_s > _LISTEN_AFTER_S:
            Thread(target=self._listen, name="listen-for-start", daemon=True).start()
            self._listens = False
        elif idle_s > _SILENT_S:
            SLOW_CALLS.add(self._peer)

    def _listen(self) -> None:
        # gRPC passes the metadata only to a thread that waits for them. If the reader waited for
        # them, it would get its first message later, and that message usually arrives at once.
        with suppress(grpc.RpcError):
            self._call.initial_metadata()
        self.record_start()

    def _end(self, reason: str) -> None:
        self.cancel_reason = reason
        self._call.cancel()


class TimeoutWatch:
    """Check all calls of a process periodically, in a thread that runs while there are any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a watch whose rounds follow `clock`."""
        self._clock = clock
        self._lock = Lock()
        self._watched: set[StreamTimeout] = set()
        self._thread: Thread | None = None

    def add(self, timeout: StreamTimeout) -> None:
        with self._lock:
            self._watched.add(timeout)
            # In a forked process the thread of the parent is not alive.
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="timeout-watch", daemon=True)
                self._thread.start()

    def remove(self, timeout: StreamTimeout) -> None:
        with self._lock:
            self._watched.discard(timeout)

    def _run(self) -> None:
        for _ in timely_rounds(Event().wait, self._clock):
            with self._lock:
                timeouts = list(self._watched)
                if not timeouts:
                    self._thread = None
                    return
            for timeout in timeouts:
                try:
                    timeout.cancel_if_overdue()
                except Exception:  # noqa: BLE001 - logged below
                    # A possible cause is that no thread could be started. The others must still be
                    # checked.
                    _log.exception("the timeout of a call could not be checked; checking it again")


TIMEOUT_WATCH = TimeoutWatch()
