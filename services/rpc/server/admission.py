"""Bound the calls of each kind: their threads, a short queue, and the time of an idle peer."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Lock, Semaphore, Thread
from typing import Any, Self

import grpc

from services.api.errors import ThrottledError
from services.common.retry import timely_rounds
from services.rpc.server.access import DENIED_CALLS, Permit

_NEVER = math.inf

# For calls without a deadline gRPC also reports a remaining time, of some 300 thousand million
# years.
_NO_DEADLINE_S = 1e12
_log = logging.getLogger("sediment.rpc")


class ServedCall:
    """A call that has a thread. At first the thread waits for the peer's request.

    Attributes, times in s on the clock of time.monotonic:
        started: when the call got the thread.
        waiting_since: since when the thread waits for the peer; infinite while it does not.
        due_at: when the call is cancelled; infinite if the peer set a deadline or there is none.
        cancel_reason: why the watchdog cancelled the call; empty if it did not.
        code: the status of a cancelled call in log and metrics.
        permit: what the policy allows the call; None while TLS is off, or not yet checked.
    """

    __slots__ = (
        "_context",
        "cancel_reason",
        "code",
        "due_at",
        "permit",
        "started",
        "waiting_since",
    )

    def __init__(self, context: grpc.ServicerContext, default_deadline_s: float = math.inf) -> None:
        self._context = context
        self.started = self.waiting_since = time.monotonic()
        has_deadline = context.time_remaining() < _NO_DEADLINE_S
        self.due_at = math.inf if has_deadline else self.started + default_deadline_s
        self.cancel_reason = ""
        self.code = grpc.StatusCode.DEADLINE_EXCEEDED
        self.permit: Permit | None = None

    def require_topic(self, topic: str) -> None:
        """Raise PermissionDeniedError if the policy does not grant the caller this topic."""
        if self.permit is not None:
            self.permit.require_topic(topic)

    def pass_at_rate(self, message: Any) -> None:
        """Wait until the caller's rate has room for a message of a stream, bytes or protobuf's.

        Raises:
            RetriableRemoteStorageError: the caller left meanwhile.
        """
        if self.permit is not None and self.permit.rate is not None:
            size = len(message) if isinstance(message, bytes) else message.ByteSize()
            self.permit.rate.take(size, self.is_active)

    def charge_bytes(self, size_bytes: int) -> None:
        """Charge the caller's rate for bytes that the caller reads elsewhere; never wait.

        Raises:
            ThrottledError: the rate is used up.
        """
        if self.permit is not None and self.permit.rate is not None:
            self.permit.rate.charge(size_bytes)

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


class AdmissionQueue:
    """Bound the threads of one kind of call, and the number of calls that wait for a thread.

    A call enters before it gets a thread, in gRPC's own thread, and leaves when its thread is done:
    so a burst of calls costs no threads and no memory beyond the bound. Thread-safe.
    """

    def __init__(
        self,
        kind: str,
        threads: int,
        waiting: int,
        idle_timeout_s: float,
        default_deadline_s: float = math.inf,
        identity_share_percent: int = 100,
    ) -> None:
        """Create the threads and the queue of a kind.

        Args:
            kind: of the calls, in thread names and messages ("unary").
            idle_timeout_s: how long a thread waits for its peer before the call is cancelled.
            default_deadline_s: the deadline of a call that sets none.
            identity_share_percent: the share of the threads that one identity may have, rounded
                down to at least one thread.
        """
        self._kind = kind
        self._most_of_identity = max(1, threads * identity_share_percent // 100)
        self._of_identity: Counter[str] = Counter()
        self._lock = Lock()
        self.pool = ThreadPoolExecutor(threads, kind)
        self.refusal = (
            f"too many concurrent {kind} calls (limit {threads}) and the queue is full; "
            f"retry in a few seconds"
        )
        self._room = Semaphore(threads + waiting)
        self._idle_timeout_s = idle_timeout_s
        self._default_deadline_s = default_deadline_s
        self._served: set[ServedCall] = set()

    def try_enter(self) -> bool:
        """Count a call if there is room for it; the call must `leave` once."""
        return self._room.acquire(blocking=False)

    def leave(self) -> None:
        self._room.release()

    def refuse(self) -> ThrottledError:
        return ThrottledError(self.refusal)

    @contextmanager
    def share_of(self, identity: str, method: str) -> Iterator[None]:
        """Count a call of an identity that has a thread.

        Raises:
            ThrottledError: the identity has its share of the threads. The rest is for others, so
                the call does not wait with its thread.
        """
        with self._lock:
            if self._of_identity[identity] >= self._most_of_identity:
                DENIED_CALLS.labels(method, "share").inc()
                raise ThrottledError(
                    f"too many concurrent {self._kind} calls of {identity} "
                    f"(limit {self._most_of_identity}); retry in a few seconds"
                )
            self._of_identity[identity] += 1
        try:
            yield
        finally:
            with self._lock:
                self._of_identity[identity] -= 1
                if not self._of_identity[identity]:
                    del self._of_identity[identity]

    # Each call passes through these two; one atomic step of the interpreter each needs no lock.

    def start(self, context: grpc.ServicerContext) -> ServedCall:
        """Watch a call that has got a thread."""
        served = ServedCall(context, self._default_deadline_s)
        self._served.add(served)
        return served

    def end(self, served: ServedCall) -> None:
        self._served.discard(served)

    def cancel_overdue(self, now: float) -> None:
        """Cancel calls that are past their default deadline, whose peer is idle for too long, or
        that the policy allows no longer.
        """
        for served in self._served.copy():
            idle_s = now - served.waiting_since
            permit = served.permit
            if now > served.due_at:
                served.cancel("no answer within the default deadline of calls that name none")
            elif idle_s > self._idle_timeout_s:
                served.cancel(f"the peer was idle for {idle_s:.1f} s")
            elif permit is not None and not served.cancel_reason and not permit.is_valid():
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
