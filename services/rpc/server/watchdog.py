"""End calls whose clients keep them waiting, so that their threads and buffers are released."""

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

import grpc

from services.common.retry import rounds_in_time
from services.rpc.server.admission import address_of

_NEVER = math.inf
_TELL_AFTER_S = 1.0

# One for all calls: few are told.
_TELLING = Lock()
_log = logging.getLogger("sediment.rpc")


class ServedCall:
    """One call, as the watchdog sees it. Its thread begins by waiting for the peer's request.

    Attributes, times in s on the clock of time.monotonic:
        address: of the peer, as far as calls are counted by it (see address_of).
        started: when a thread took the call up.
        waiting_since: since when its thread waits for the peer; infinite while it does not.
        due_at: when it must have been answered; infinite where the peer named a deadline of its
            own, or there is none.
        ended_because: why the watchdog ended it; empty: it did not.
    """

    __slots__ = (
        "_context",
        "_peer",
        "_to_be_told",
        "due_at",
        "ended_because",
        "started",
        "waiting_since",
    )

    def __init__(
        self, context: grpc.ServicerContext, peer: str, deadline_s: float = math.inf
    ) -> None:
        """`peer` is what gRPC calls it; empty: it need not be known but for the log."""
        self._context = context
        self._peer = peer
        self.started = self.waiting_since = time.monotonic()
        self.due_at = self.started + deadline_s
        self.ended_because = ""
        self._to_be_told = False

    @property
    def address(self) -> str:
        return address_of(self._peer)

    def peer(self) -> str:
        """Once the call is over gRPC does not know it any more."""
        return self._peer or self._context.peer()

    def wait_for_peer(self) -> None:
        self.waiting_since = time.monotonic()

    def work(self) -> None:
        """The peer has done its part."""
        self.waiting_since = _NEVER

    def tell_if_it_takes_long(self) -> None:
        """Have the watchdog send the peer the initial metadata, unless an answer does so before."""
        self._to_be_told = True

    def tell_no_more(self) -> None:
        """Before its status is sent: gRPC would keep a call for ever that is told after that."""
        with _TELLING:
            self._to_be_told = False

    def tell(self, now: float) -> None:
        """That it has been taken up, where that was a while ago and the peer does not know it."""
        if not self._to_be_told or now - self.started <= _TELL_AFTER_S:
            return
        with _TELLING:
            if self._to_be_told:
                self._to_be_told = False
                # ValueError: an answer was faster. RpcError: the peer has left.
                with suppress(ValueError, grpc.RpcError):
                    self._context.send_initial_metadata(())

    def end(self, because: str) -> None:
        """Cancel: wakes a thread that waits for the peer, and a peer that waits for us.

        gRPC sends no status of ours beside it: behind bytes that the peer does not take none would
        arrive. A client takes a status without our reason for one to try again.
        """
        if not self.ended_because:
            self.ended_because = because
            self._context.cancel()  # type: ignore[no-untyped-call]  # in the stubs


class CallGroup:
    """The calls that share some threads, and how long their peers may keep those waiting."""

    def __init__(self, patience_s: Callable[[ServedCall, int], float]) -> None:
        """`patience_s` is asked for a call that waits, and is told how many of the group wait."""
        self._patience_s = patience_s
        self._calls: set[ServedCall] = set()

    # The two that each call passes through: one step of the interpreter each, so no lock.

    def add(self, call: ServedCall) -> None:
        self._calls.add(call)

    def remove(self, call: ServedCall) -> None:
        self._calls.discard(call)

    def end_overdue(self, now: float) -> None:
        """End the calls whose peers have had their time, and tell others that it is their turn."""
        calls = self._calls.copy()
        waiting = sum(call.waiting_since < _NEVER for call in calls)
        for call in calls:
            call.tell(now)
            if now > call.due_at:
                call.end("not answered within the deadline of calls that name none")
                continue
            waited_s = now - call.waiting_since
            if waited_s > 0 and waited_s > self._patience_s(call, waiting):
                call.end(f"the peer has done nothing for {waited_s:.1f} s")


class Watchdog:
    """A thread that looks at the groups again and again, inside `with`."""

    def __init__(self) -> None:
        self._groups: list[CallGroup] = []
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="watchdog", daemon=True)

    def watch(self, group: CallGroup) -> None:
        """Before the thread runs."""
        self._groups.append(group)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        for now in rounds_in_time(self._stopping.wait):
            self._look(now)

    def _look(self, now: float) -> None:
        for group in self._groups:
            try:
                group.end_overdue(now)
            except Exception:  # noqa: BLE001 - logged below
                # Without the watchdog idle peers would take all threads, one by one.
                _log.exception("the watchdog failed, and goes on")
