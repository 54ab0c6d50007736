"""Call RLMM and RSM for readers of the tier: slots, threads, deadlines, retries and late calls.

What for. A read of the tier waits for others: RLMM, RSM, the store. This module decides how long,
in which thread, how often a call is repeated, and what happens to a call for which no request waits
any more: a slow store never takes the threads of local reads, nor one partition those of another.

How to use. An RLM has one TierCalls. Each read of a partition has its own RequestCalls: `call`
makes one call within a slot, unless its answer is in memory; `slot` keeps a slot over several
calls; `from_memory` runs work that needs no call, without a slot or another thread; `begin` and
`result` run a part of the read in a thread of the pool; `in_time` runs work with calls in another
pool, and waits as for one answer. TierWait says how long; the reads of one request may share it.

Invariants.
* Every request to RLMM or RSM for a reader holds a slot, so that enough threads are left for local
  reads. A read holds one slot at most: if it waited for a second one, it could wait for itself.
* The pools are apart: reads that wait for slots run in `pool`, and what holds a slot waits for
  `calls`, so that neither can starve the other.
* Of one partition at most _MOST_LATE late calls run: a consumer that repeats its request must not
  fill the pool.

Cancellation. Work that is late continues without a slot, under the call of its request, and leaves
what it finds in the caches for a later read; its view is of no use then. `abandon` releases the
slot, now or, if a thread is about to get one, when it has it. Crash: nothing is stored. A dead
store: calls are repeated every RETRY_PAUSE_S until the wait is over; then the read ends with
ReadTimeoutError or with the last error.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDoneError
from contextlib import contextmanager
from math import inf
from threading import TIMEOUT_MAX, Lock
from typing import Any, TypeVar

from services.api.calls import current_call, serving
from services.api.errors import RetriableRemoteStorageError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchRequest
from services.common.fair_queue import FairQueue, Slot
from services.common.threads import started_pool
from services.rlm.fetch.errors import ReadTimeoutError
from services.rlm.metrics import READ_SECONDS

RETRY_PAUSE_S = 0.1
_ROUNDING_S = 0.005
"""A wait for another read may end so much before the time is over."""
_THREADS_FOR_ONE = 4
"""As many threads for each read that runs at once, because late calls keep theirs."""
_MOST_LATE = 2

T = TypeVar("T")


class _CallNeededError(Exception):
    """Raised if work that may use only what is in memory needs a call."""


class TierWait:
    """Limit how long one request waits for the tier.

    A read of one partition waits so long for each answer. Reads of several partitions share the
    time, so that a slow one delays the others no longer.

    Args:
        wait_s: seconds.
        is_shared: it is the time of all reads together.
        retry_s: how long a refused call is repeated, if that is shorter.
    """

    def __init__(self, wait_s: float, is_shared: bool = False, retry_s: float = inf) -> None:
        self.wait_s = wait_s
        self._retry_s = retry_s
        self._until_s = time.monotonic() + wait_s if is_shared else inf

    @property
    def left_s(self) -> float:
        """Return how long the next answer may take, seconds."""
        return max(min(self.wait_s, self._until_s - time.monotonic()), 0.0)

    @contextmanager
    def one_answer(self) -> Iterator[None]:
        """Wait in the block as for one answer, however many calls that takes."""
        until_s = self._until_s
        self._until_s = min(until_s, time.monotonic() + self.wait_s)
        try:
            yield
        finally:
            self._until_s = until_s

    def end_sharing(self) -> None:
        """Wait for each answer from now on."""
        self._until_s = inf

    def retry(self, call: Callable[[], T]) -> T:
        """Return the result of a call that is repeated for a while if the tier refuses it.

        Raises:
            RetriableRemoteStorageError, ThrottledError: if it still fails at the end of the wait.
            Others: the error of the call.
        """
        until_s = time.monotonic() + min(self.left_s, self._retry_s)
        while True:
            try:
                return call()
            except (RetriableRemoteStorageError, ThrottledError):
                if time.monotonic() + RETRY_PAUSE_S >= until_s:
                    raise
            time.sleep(RETRY_PAUSE_S)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the block, in which the client receives records."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._until_s += time.monotonic() - began_s


class LateCalls:
    """Count the calls of each partition that no request waits for any more. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running = Counter[TopicIdPartition]()

    def are_too_many(self, tp: TopicIdPartition) -> bool:
        """Return whether a partition must not begin another call."""
        return self._running[tp] >= _MOST_LATE

    def add(self, tp: TopicIdPartition, call: "Future[Any]") -> None:
        """Count a call until it ends."""
        with self._lock:
            self._running[tp] += 1
        call.add_done_callback(lambda _: self._end(tp))

    def _end(self, tp: TopicIdPartition) -> None:
        with self._lock:
            self._running[tp] -= 1
            if not self._running[tp]:
                del self._running[tp]


class TierCalls:
    """The slots and threads of all readers of an RLM. Thread-safe.

    Source: RemoteLogManager.remoteStorageReaderThreadPool.

    Args:
        threads: reads at once; the pools have more, for late calls and reads that wait for a slot.
        wait_s: how long a reader waits for one answer.
        max_waiting: reads that may wait for a slot; further ones are refused.
    """

    def __init__(self, threads: int = 10, wait_s: float = 0.5, max_waiting: int = 100) -> None:
        self.threads = threads
        self.wait_s = wait_s
        name = f"concurrent remote reads (limit {threads})"
        self.queue = FairQueue(name, threads, max_waiters=max_waiting)
        self.pool = started_pool(threads * _THREADS_FOR_ONE, "tier-read")
        self.calls = started_pool(threads * _THREADS_FOR_ONE, "tier-call")
        self.late = LateCalls()
        self._lock = Lock()
        self._submitted: set[Future[Any]] = set()

    def wait_of(self, request: FetchRequest) -> float:
        """Return how long the reads of a fetch wait, seconds: its own time, or the usual one."""
        return request.timeout_ms / 1000 or self.wait_s

    def acquire_slot(self, wait: TierWait) -> Slot:
        """Wait for a slot.

        Raises:
            ThrottledError: if too many reads wait already.
            ReadTimeoutError: if no slot became free in time.
        """
        try:
            return self.queue.acquire(timeout_s=wait.left_s)
        except RetriableRemoteStorageError as e:
            raise ReadTimeoutError(str(e)) from e

    def submit(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
        """Begin work in a thread of one of the pools, under the call of the request.

        Raises:
            RuntimeError: if the pool is closed.
        """
        call = current_call()

        def run() -> T:
            with serving(call):
                return work()

        submitted = pool.submit(run)
        with self._lock:
            self._submitted.add(submitted)
        submitted.add_done_callback(self._end)
        return submitted

    def _end(self, done: Future[Any]) -> None:
        with self._lock:
            self._submitted.discard(done)

    @property
    def is_idle(self) -> bool:
        """Return whether no work runs or waits, not even for a request that has ended."""
        return not self._submitted

    def close(self) -> None:
        """Begin nothing more. Idempotent."""
        for pool in (self.pool, self.calls):
            pool.shutdown(wait=False, cancel_futures=True)


class RequestCalls:
    """The calls for one partition of a request.

    Not thread-safe but for `abandon`: only one thread at a time uses it, that of the request or one
    of the pool.

    Args:
        wait: for a slot, and for each answer; by default as long as for any reader.
        needs_slot: False for work on behalf of a reader that holds a slot.
    """

    def __init__(
        self,
        shared: TierCalls,
        topic_id_partition: TopicIdPartition,
        wait: TierWait | None = None,
        *,
        needs_slot: bool = True,
    ) -> None:
        self.wait = wait or TierWait(shared.wait_s)
        self._shared = shared
        self._topic_id_partition = topic_id_partition
        self._lock = Lock()
        self._slot: Slot | None = None
        self._needs_slot = needs_slot
        self._is_late = False
        self._may_call = True

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot for remote reads; within another block it is the same slot.

        Raises:
            ThrottledError, ReadTimeoutError: if no slot is free, or became free in time.
        """
        if self._slot is not None or not (self._needs_slot and self._may_call):
            yield
            return
        self._set_slot(self._shared.acquire_slot(self.wait))
        try:
            yield
        finally:
            self._release_slot()

    def call(self, call: Callable[[], T], known: Callable[[], T | None] = lambda: None) -> T:
        """Call RLMM or RSM within a slot, and again for a while if that fails for now.

        Args:
            known: returns the answer if it is in memory; else None.

        Raises as TierWait.retry and `slot`.
        """
        answer = known()
        if answer is not None:
            return answer
        if not self._may_call:
            raise _CallNeededError
        with self.slot():
            return self.wait.retry(call)

    def from_memory(self, work: Callable[[], T]) -> T | None:
        """Return the result of work in this thread; None if it needs a call."""
        self._may_call = False
        try:
            return work()
        except _CallNeededError:
            return None
        finally:
            self._may_call = True

    @contextmanager
    def without_slot(self) -> Iterator[None]:
        """Release the slot for the block, in which a client receives records, however slowly.

        Raises:
            ThrottledError, ReadTimeoutError: if no slot is free afterwards.
        """
        had_slot = self._slot is not None
        self._release_slot()
        yield
        if had_slot:
            self._set_slot(self._shared.acquire_slot(self.wait))

    def _set_slot(self, slot: Slot) -> None:
        with self._lock:
            if self._needs_slot:
                self._slot = slot
                return
        slot.release()

    def _release_slot(self) -> None:
        with self._lock:
            slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()

    def begin(self, work: Callable[[], T]) -> "Future[T]":
        """Begin work in a thread of the pool; get its result with `result`."""

        def timed() -> T:
            with READ_SECONDS.time():
                return work()

        return self._submit(self._shared.pool, timed)

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> "Future[T]":
        if self._shared.late.are_too_many(self._topic_id_partition):
            return Future()  # Never completes: the caller waits instead of retrying at once.
        try:
            return self._shared.submit(pool, work)
        except RuntimeError:  # The pool is closed, or no thread can be started.
            never: Future[T] = Future()
            never.cancel()
            return never

    def result(self, work: "Future[T]") -> T:
        """Wait for work of `begin` for as long as the wait allows.

        Raises:
            ReadTimeoutError: if the work is late.
            Others: the error of the work.
        """
        try:
            try:
                return work.result(timeout=min(self.wait.left_s, TIMEOUT_MAX))
            except NotDoneError:
                if not work.done():
                    raise
                return work.result()  # It has ended just now.
        except RetriableRemoteStorageError as e:
            if self.wait.left_s > _ROUNDING_S:
                raise
            raise ReadTimeoutError(str(e)) from e  # It waited for another read.
        except (NotDoneError, CancelledError):
            if not work.cancel():
                self._shared.late.add(self._topic_id_partition, work)
            self._is_late = True
            self.abandon()
            raise ReadTimeoutError(
                f"{self._topic_id_partition}: RLMM or RSM has not answered within "
                f"{self.wait.wait_s:g} s; retry"
            ) from None

    def in_time(self, work: Callable[[], T]) -> T:
        """Run work that may call RLMM or RSM in the pool, and wait as for one answer.

        Raises as `result`.
        """
        known = self.from_memory(work)
        if known is not None:
            return known
        if self._is_late:
            raise ReadTimeoutError(f"{self._topic_id_partition}: an earlier call is late")
        with self.wait.one_answer():
            return self.result(self._submit(self._shared.calls, work))

    def abandon(self) -> None:
        """Release the slot; work that still runs needs none."""
        with self._lock:
            self._needs_slot = False
        self._release_slot()
