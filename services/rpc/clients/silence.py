"""Ends calls whose servers have done nothing for too long.

gRPC's own deadline is of a whole call: a reader that takes its time would use it up, and so would
the wait for a thread of the server. That wait has a bound of its own. It ends with the initial
metadata, which our servers send when they take a stream up, or with the first answer where that is
there within a second; others may send them with an answer that comes late.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Protocol

import grpc

from services.rpc.clients.sources import Source
from services.rpc.rounds import rounds_in_time

_LISTEN_AFTER_S = 0.5
_log = logging.getLogger("sediment.rpc")


class Cancellable(Protocol):
    """A call; once it is cancelled, who waits for it hears of that."""

    def cancel(self) -> object: ...


class StreamedCall(Cancellable, Protocol):
    """A call with many answers."""

    def initial_metadata(self) -> object:
        """Waits for them, or for the end of the call."""


class Watched(Protocol):
    """What a SilenceWatch looks at."""

    def end_call_if_too_long(self) -> None: ...


class Silence:
    """Of one call: how long its reader has waited for the next message, the first in its turn.

    Attributes:
        ended_because: why the call was ended; empty: it was not.
    """

    __slots__ = (
        "_call",
        "_limit_s",
        "_listens",
        "_taken_up_at",
        "_turn_limit_s",
        "_waiting_since",
        "ended_because",
    )

    def __init__(self, call: StreamedCall, limit_s: float, turn_limit_s: float) -> None:
        """The reader waits for the first message. `turn_limit_s` is for the time until the server
        is known to have taken the call up."""
        self._call = call
        self._limit_s = limit_s
        self._turn_limit_s = turn_limit_s
        self._waiting_since: float | None = time.monotonic()
        self._taken_up_at: float | None = None
        self._listens = False
        self.ended_because = ""

    def begin(self) -> None:
        """The reader waits for another message."""
        self._waiting_since = time.monotonic()

    def end(self) -> None:
        """It has one, and the server nothing to do with how long it keeps it."""
        if self._taken_up_at is None:
            self._taken_up_at = self._waiting_since
        self._waiting_since = None

    def end_call_if_too_long(self) -> None:
        since = self._waiting_since
        if since is None or self.ended_because:
            return
        now = time.monotonic()
        if self._taken_up_at is None:
            if now - since > self._turn_limit_s:
                self._end(_not_taken_up(self._turn_limit_s))
            elif now - since > _LISTEN_AFTER_S and not self._listens:
                Thread(target=self._listen, name="taken-up", daemon=True).start()
                self._listens = True
        elif now - max(since, self._taken_up_at) > self._limit_s:
            self._end(f"has sent nothing for {self._limit_s} s")

    def _listen(self) -> None:
        # gRPC tells it only to who waits for it. A reader that did would have its first message
        # later, and as a rule that comes at once.
        with suppress(grpc.RpcError):
            self._call.initial_metadata()
        self._taken_up_at = time.monotonic()

    def _end(self, because: str) -> None:
        self.ended_because = because
        self._call.cancel()


class Standstill:
    """Of one call to which its caller streams: how long the server has taken nothing.

    Attributes:
        ended_because: why the call was ended; empty: it was not.
    """

    __slots__ = ("_call", "_limit_s", "_source", "_taken_up_at", "_turn_limit_s", "ended_because")

    def __init__(
        self, call: Cancellable, source: Source[Any], limit_s: float, turn_limit_s: float
    ) -> None:
        """`turn_limit_s` is for the time until the server is known to have taken the call up: by
        its word, or because it reads."""
        self._call = call
        self._source = source
        self._limit_s = limit_s
        self._turn_limit_s = turn_limit_s
        self._taken_up_at: float | None = None
        self.ended_because = ""

    def taken_up(self) -> None:
        self._taken_up_at = time.monotonic()

    def end_call_if_too_long(self) -> None:
        taken_up_at, idle_s = self._taken_up_at, self._source.idle_s()
        if taken_up_at is not None:
            idle_s = min(idle_s, time.monotonic() - taken_up_at)
        elif not self._source.was_read:
            self._end_if(idle_s > self._turn_limit_s, _not_taken_up(self._turn_limit_s))
            return
        self._end_if(idle_s > self._limit_s, f"has made no progress for {self._limit_s} s")

    def _end_if(self, too_long: bool, because: str) -> None:
        if too_long and not self.ended_because:
            self.ended_because = because
            self._call.cancel()


def _not_taken_up(limit_s: float) -> str:
    return f"has not taken the call up for {limit_s} s"


class SilenceWatch:
    """Looks at all calls of a process again and again, in a thread that is there while any is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is that of its rounds."""
        self._clock = clock
        self._lock = Lock()
        self._watched: set[Watched] = set()
        self._thread: Thread | None = None

    def add(self, watched: Watched) -> None:
        with self._lock:
            self._watched.add(watched)
            # In a process that was forked the thread of its parent is not alive.
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="silence-watch", daemon=True)
                self._thread.start()

    def remove(self, watched: Watched) -> None:
        with self._lock:
            self._watched.discard(watched)

    def _run(self) -> None:
        for _ in rounds_in_time(Event().wait, self._clock):
            with self._lock:
                all_watched = list(self._watched)
                if not all_watched:
                    self._thread = None
                    return
            for watched in all_watched:
                try:
                    watched.end_call_if_too_long()
                except Exception:  # noqa: BLE001 - logged below
                    # Such as no thread to listen. All others must be watched still.
                    _log.exception("a call could not be looked at, and will be again")


SILENCE_WATCH = SilenceWatch()
