"""Bound the calls of each kind: their threads, a short queue, and the time of an idle peer.

What it is for. A server has a fixed number of threads for each kind of call (unary, streams in,
streams out, watches), so that no kind waits behind another and no burst fills memory. Identities
share each kind: one identity has the limits of the settings, and a process has room for more.

How it is used. gRPC's own thread calls `try_enter` before a call gets a thread; a call without a
place is refused in a thread of its own pool. The call's thread then calls `start`, knows the
identity, waits in `turn_of` until the identity and the process have room, and at last calls `end`
and `leave`. One Watchdog calls `cancel_overdue` of all queues once a second.

Invariants.
* A call that entered leaves exactly once, whatever becomes of it.
* At most `most` calls of an identity are served at once, and at most `waiting` wait: others are
  refused by name (ThrottledError), first come first served.
* A call's deadline and the wait for its peer begin again when its turn comes.
* A queue of an identity exists only while it has calls: invented identities fill no memory.

What happens on
* cancellation: a waiting call leaves the line when it next calls `is_active`; a call that its
  client gave up before the request arrived is retained for RETAINED_S (see `retain`).
* an idle peer, an expired token, a policy that changed: the watchdog cancels the call; its status
  is one without a reason of ours, so that the client tries again and is refused by name.
* a dead store or database: calls hold their threads until their own deadlines, and further ones
  wait, then are refused; other kinds of calls and the health server are not touched.
* a crash of the watchdog's round: it is logged, and the next round runs.
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Self

import grpc
from prometheus_client import Gauge

from services.api.errors import ThrottledError
from services.common.fair_queue import FairQueue
from services.common.retry import timely_rounds
from services.common.settings import whole_of
from services.common.threads import started_pool
from services.rpc.server.access import DENIED_CALLS, Permit

_NEVER = math.inf

RETAINED_S = 1.0
"""How long a call is retained that its client gave up before its request arrived, s."""

# Bounds the memory of retained calls, some ten KB each.
_MOST_RETAINED = 1_024

# For calls without a deadline gRPC also reports a remaining time, of some 300 thousand million
# years.
_NO_DEADLINE_S = 1e12
_log = logging.getLogger("sediment.rpc")

CALLS_IN_PROGRESS = Gauge(
    "sediment_rpc_calls_in_progress",
    "Calls that have a thread, by kind: unary, stream-in (RSM's copies), stream-out (fetches and "
    "lists), watch.",
    ["kind"],
)
CALLS_LIMIT = Gauge(
    "sediment_rpc_calls_limit", "Calls of a kind that may have a thread at once.", ["kind"]
)
CALLS_WAITING = Gauge(
    "sediment_rpc_calls_waiting",
    "Calls that wait for a thread, or for their identity's turn, by kind.",
    ["kind"],
)


class ServedCall:
    """A call that has a thread: it waits for its turn, and then for the peer's request.

    Attributes, times in s on the clock of time.monotonic:
        started: when the call got the thread, and later when its turn came.
        waiting_since: since when the thread waits for the peer; infinite while it does not.
        due_at: when the call is cancelled; infinite if the peer set a deadline or there is none.
        cancel_reason: why the watchdog cancelled the call; empty if it did not.
        code: the status of a cancelled call in log and metrics.
        has_request: a request has arrived.
        permit: what the policy allows the call; None while TLS is off, or not yet checked.
    """

    __slots__ = (
        "_context",
        "_has_deadline",
        "cancel_reason",
        "code",
        "due_at",
        "has_request",
        "permit",
        "started",
        "waiting_since",
    )

    def __init__(self, context: grpc.ServicerContext, default_deadline_s: float = math.inf) -> None:
        self._context = context
        self._has_deadline = context.time_remaining() < _NO_DEADLINE_S
        self.cancel_reason = ""
        self.has_request = False
        self.code = grpc.StatusCode.DEADLINE_EXCEEDED
        self.permit: Permit | None = None
        self.begin(default_deadline_s)

    def begin(self, default_deadline_s: float) -> None:
        """Start the times: when the call gets its thread, and again when its turn comes."""
        self.started = self.waiting_since = time.monotonic()
        self.due_at = math.inf if self._has_deadline else self.started + default_deadline_s

    def require_topic(self, topic: str) -> None:
        """Raise PermissionDeniedError if the policy does not grant the caller this topic."""
        if self.permit is not None:
            self.permit.require_topic(topic)

    def wait_for_peer(self) -> None:
        self.waiting_since = time.monotonic()

    def work(self) -> None:
        """Record that the thread no longer waits for the peer."""
        self.waiting_since = _NEVER

    def is_active(self) -> bool:
        """Return whether the peer still waits. gRPC's own value depends on an event that may be
        late.
        """
        context = self._context
        return not self.cancel_reason and context.time_remaining() > 0 and context.is_active()

    def left_s(self) -> float:
        return min(self._context.time_remaining(), self.due_at - time.monotonic())

    def cancel(self, reason: str) -> None:
        """Cancel the call, which wakes a thread that waits for the peer.

        gRPC sends no status of ours with it: a status would not arrive behind bytes that the peer
        does not read. Clients retry a status without a reason of ours.
        """
        if not self.cancel_reason:
            self.cancel_reason = reason
            self._context.cancel()  # type: ignore[no-untyped-call]  # in the stubs


@dataclass(slots=True)
class _OfIdentity:
    """The queue of one identity, while there are calls in it."""

    turns: FairQueue
    calls: int = 0


class AdmissionQueue:
    """The calls of one kind: those that are served, and those that wait. Thread-safe.

    If there is room for other identities, a call waits for its turn in a thread, because only that
    knows its identity. Otherwise it waits for a thread, which costs less.
    """

    def __init__(
        self,
        kind: str,
        most: int,
        waiting: int,
        idle_timeout_s: float,
        default_deadline_s: float = math.inf,
        identity_share_percent: int = 100,
    ) -> None:
        """Create the threads and the queue of a kind.

        Args:
            kind: of the calls, in thread names and messages ("unary").
            most: calls of one identity that are served at once.
            waiting: calls of one identity that may wait.
            idle_timeout_s: how long a thread waits for its peer before the call is cancelled.
            default_deadline_s: the deadline of a call that sets none.
            identity_share_percent: the percentage of all calls that `most` is; there is room for
                the others beside it, for other identities.
        """
        served = whole_of(most, identity_share_percent)
        places = served + whole_of(waiting, identity_share_percent)
        self._kind = kind
        self._name = f"concurrent {kind} calls"
        self._most, self._most_waiting = most, waiting
        self._turns = FairQueue(f"{self._name} (limit {served})", served)
        self._of_identity: dict[str, _OfIdentity] = {}
        self._lock = Lock()
        self.pool = started_pool(served if served == most else places, kind)
        self._free_places = self._all_places = places
        self._idle_timeout_s = idle_timeout_s
        self._default_deadline_s = default_deadline_s
        self._served: set[ServedCall] = set()
        self._retained: list[grpc.ServicerContext] = []
        self._retained_until = -math.inf

    def try_enter(self) -> bool:
        """Count a call if there is room for it; the call must `leave` once."""
        with self._lock:
            if not self._free_places:
                return False
            self._free_places -= 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._free_places += 1

    def publish(self) -> None:
        """Publish the numbers of calls of this kind, as they are at each scrape."""
        CALLS_IN_PROGRESS.labels(self._kind).set_function(self.in_progress)
        CALLS_LIMIT.labels(self._kind).set_function(lambda: self._turns.capacity)
        CALLS_WAITING.labels(self._kind).set_function(self.waiting)

    def in_progress(self) -> int:
        """Return how many calls have a thread and their turn."""
        with self._lock:
            turns = [self._turns, *(own.turns for own in self._of_identity.values())]
        return max(len(self._served) - sum(each.waiting for each in turns), 0)

    def waiting(self) -> int:
        """Return how many calls wait for a thread or for their turn."""
        return max(self._all_places - self._free_places - self.in_progress(), 0)

    def refuse(self) -> ThrottledError:
        limit = self._turns.capacity
        return ThrottledError(
            f"too many {self._name} (limit {limit}) and the queue is full; retry in a few seconds"
        )

    @contextmanager
    def turn_of(self, identity: str, method: str, served: ServedCall) -> Iterator[None]:
        """Wait until it is the turn of a call, and count it while the block runs.

        Raises:
            ThrottledError: too many calls of the identity wait already.
            RetriableRemoteStorageError: the client has left meanwhile.
        """
        served.work()
        own = self._queue_of(identity)
        try:
            try:
                turn = own.turns.acquire(is_active=served.is_active)
            except ThrottledError:
                DENIED_CALLS.labels(method, "share").inc()
                raise
            with turn, self._turns.acquire(is_active=served.is_active):
                served.begin(self._default_deadline_s)
                yield
        finally:
            with self._lock:
                own.calls -= 1
                if not own.calls:
                    del self._of_identity[identity]

    def _queue_of(self, identity: str) -> "_OfIdentity":
        """Count a call of an identity, and return the queue of its calls."""
        with self._lock:
            own = self._of_identity.get(identity)
            if own is None:
                name = f"{self._name} of {identity} (limit {self._most})"
                own = _OfIdentity(FairQueue(name, self._most, max_waiters=self._most_waiting))
                self._of_identity[identity] = own
            own.calls += 1
            return own

    # Each call passes through these two; one atomic step of the interpreter each needs no lock.

    def start(self, context: grpc.ServicerContext) -> ServedCall:
        """Watch a call that has got a thread."""
        served = ServedCall(context, self._default_deadline_s)
        self._served.add(served)
        return served

    def end(self, served: ServedCall) -> None:
        self._served.discard(served)

    def retain(self, context: grpc.ServicerContext) -> None:
        """Retain a call that its client gave up before its request arrived, RETAINED_S at most.

        gRPC counts a call of a connection for as long as it is in memory, and refuses further ones
        by itself, without the interpreter ("grpc.http.overload_protection", on by default). So a
        connection resets at most MAX_CALLS_OF_A_CONNECTION calls per RETAINED_S at our cost.
        """
        if len(self._retained) < _MOST_RETAINED:
            self._retained.append(context)

    def cancel_overdue(self, now: float) -> None:
        """Cancel calls that are past their default deadline, whose peer is idle for too long, whose
        token has expired, or that the policy allows no longer.
        """
        if now >= self._retained_until:
            self._retained, self._retained_until = [], now + RETAINED_S
        for served in self._served.copy():
            idle_s = now - served.waiting_since
            permit = served.permit
            if now > served.due_at:
                served.cancel("the call set no deadline and exceeded the default; set one")
            elif idle_s > self._idle_timeout_s:
                served.cancel(f"the peer was idle for {idle_s:.1f} s")
            elif permit is not None and not served.cancel_reason:
                _cancel_if_not_valid(served, permit)


def _cancel_if_not_valid(served: ServedCall, permit: Permit) -> None:
    """Cancel a call whose token has expired or that the policy allows no longer.

    The client retries it, and is refused by name or sends a newer token.
    """
    if time.time() > permit.expires_at_s:
        DENIED_CALLS.labels(permit.method, "token_expired").inc()
        served.code = grpc.StatusCode.UNAUTHENTICATED
        served.cancel(f"the token of {permit.identity} has expired; send a new one")
    elif not permit.is_valid():
        DENIED_CALLS.labels(permit.method, "policy_change").inc()
        served.code = grpc.StatusCode.PERMISSION_DENIED
        served.cancel(f"the policy no longer allows this call to {permit.identity}")


class Watchdog:
    """Cancel overdue calls in a thread that runs during the `with` block."""

    def __init__(self, queues: Sequence[AdmissionQueue]) -> None:
        self._queues = queues
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        for now in timely_rounds(self._stopping.wait):
            for queue in self._queues:
                try:
                    queue.cancel_overdue(now)
                except Exception:  # noqa: BLE001 - logged below
                    # Without the watchdog idle peers would occupy all threads, one by one.
                    _log.exception("the watchdog failed; it continues with the next round")
