"""Run tasks repeatedly, in lanes: several tasks at once, but never two runs of one task."""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from services.api.errors import RemoteStorageError
from services.common.retry import Backoff

_FEW = 64

_WAKE_EVERY_S = 0.05
"""Tasks that are due this close together run in one thread: with thousands of tasks, a wake-up for
each would cost more than a pass that finds nothing."""

_START_AGAIN_AFTER_S = 1.0
"""The pause after the machine refused a new thread."""

_log = logging.getLogger(__name__)


class WaitingTasks:
    """Order keys by the time at which they are due, seconds on any clock. Not thread-safe."""

    def __init__(self) -> None:
        self._waits: dict[Hashable, tuple[float, int, Hashable]] = {}
        # Also has discarded and moved entries, until they reach the top or are too many.
        self._heap: list[tuple[float, int, Hashable]] = []
        # Of two entries that are due at once, the earlier one is first; keys need no order.
        self._numbers = count()

    def put(self, key: Hashable, due_s: float) -> None:
        """Set the time at which the key is due, in place of any earlier one."""
        turn = (due_s, next(self._numbers), key)
        self._waits[key] = turn
        heappush(self._heap, turn)
        if len(self._heap) > 2 * len(self._waits) + _FEW:
            self._heap = list(self._waits.values())
            heapify(self._heap)

    def discard(self, key: Hashable) -> None:
        self._waits.pop(key, None)

    def pop_due(self, now_s: float) -> Hashable | None:
        """Remove and return the key that has been due for longest; None if none is due."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        _, _, key = heappop(self._heap)
        del self._waits[key]
        return key

    def next_due_s(self) -> float | None:
        """Return when the next key is due; None if there is no key."""
        while self._heap and self._waits.get(self._heap[0][2]) is not self._heap[0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None


@dataclass(frozen=True, slots=True)
class RunAgain:
    """The result of a pass that has more to do.

    It runs again after `after_s` seconds, or after the interval if that is sooner, after the tasks
    that wait by then.
    """

    after_s: float = 0.0


PassResult = bool | RunAgain | None
"""True: there is more to do, and the pass runs again after the tasks that wait now."""

Task = Callable[[], PassResult]


class PassFailedError(Exception):
    """The error of a task that could not do everything; the message has the reason."""


@dataclass
class _Entry:
    task: Task
    last_success_s: float
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    key: Hashable
    entry: _Entry


class Scheduler:
    """Start the due tasks of all lanes, from one thread. Thread-safe.

    It alone retries a pass that failed. Within a pass, a copy waits for a busy RSM, and outdated
    plans are made again (docs/understand/architecture.md, Retries).

    Args:
        backoff: the pause after a task failed.
        clock: monotonic seconds.
        around: entered around each run of a task, with the names of lane and task.
    """

    def __init__(
        self,
        backoff: Backoff,
        clock: Callable[[], float] = time.monotonic,
        around: Callable[[str, Hashable], AbstractContextManager[None]] = lambda *_: nullcontext(),
    ) -> None:
        self.backoff = backoff
        self.clock = clock
        self.around = around
        self.lanes: list[Lane] = []
        self.lock = threading.RLock()
        self._due_earlier = threading.Condition(self.lock)
        self._wakes_at_s = 0.0
        self._ticker: threading.Thread | None = None
        self.is_stopping = False

    def lane(self, name: str, threads: int, interval_s: float) -> "Lane":
        """Add a lane, in which no task waits for a thread of another lane."""
        lane = Lane(self, name, threads, interval_s)
        self.lanes.append(lane)
        return lane

    def start(self) -> None:
        """Start due tasks in a thread until `stop`."""
        self._ticker = threading.Thread(target=self._run, name="ticker", daemon=True)
        self._ticker.start()

    def stop(self, grace_s: float) -> bool:
        """Start no more tasks and wait for running ones; return False if some still run."""
        until_s = time.monotonic() + grace_s
        with self.lock:
            self.is_stopping = True
            self._due_earlier.notify()
        if self._ticker is not None:
            self._ticker.join(grace_s)
        idle = [lane.wait_idle(max(until_s - time.monotonic(), 0.0)) for lane in self.lanes]
        return all(idle)

    @property
    def runs_more(self) -> bool:
        """Return whether the thread of an ended task may start another one."""
        return self._ticker is not None and not self.is_stopping

    def wake(self, due_s: float | None = None) -> None:
        """Wake the ticker, if it would sleep beyond `due_s`; None: in any case."""
        with self.lock:
            if due_s is None or due_s < self._wakes_at_s:
                self._due_earlier.notify()

    def _run(self) -> None:
        with self._due_earlier:
            while not self.is_stopping:
                # One per wake-up: its thread runs other due tasks; another follows if it is slow.
                for lane in self.lanes:
                    lane.start_next()
                wait_s = min(lane.until_next_s() for lane in self.lanes)
                self._wakes_at_s = self.clock() + wait_s
                self._due_earlier.wait(wait_s)


class Lane:
    """Run each task `interval_s` after its last end, or after a back-off if it failed.

    `tick()` starts due tasks while threads are free; after `Scheduler.start` this happens when a
    task ends and when the ticker wakes. Thread-safe.
    """

    def __init__(self, scheduler: Scheduler, name: str, threads: int, interval_s: float) -> None:
        self.name = name
        self._scheduler = scheduler
        self._clock = scheduler.clock
        self._threads = threads
        self._interval_s = interval_s
        self._changed = threading.Condition(scheduler.lock)
        self._starts_from_s: float | None = None
        self._entries: dict[Hashable, _Entry] = {}
        # Each key of an entry either waits or runs.
        self._waiting = WaitingTasks()
        self._running: set[Hashable] = set()
        self._paused = False

    def schedule(self, key: Hashable, task: Task) -> None:
        """Run `task` from the next tick on; a scheduled key keeps its time.

        If a forgotten task of this key still runs, it ends first.
        """
        with self._changed:
            entry = self._entries.get(key)
            if entry is not None:
                entry.task = task
                return
            now = self._clock()
            self._entries[key] = _Entry(task, last_success_s=now)
            if key not in self._running:
                self._waiting.put(key, now)
                self._scheduler.wake()

    def forget(self, key: Hashable, task: Task | None = None) -> None:
        """Stop scheduling the task of this key; a running pass is not interrupted.

        Args:
            task: if given, forget only this task.
        """
        with self._changed:
            entry = self._entries.get(key)
            if entry is not None and task in (None, entry.task):
                del self._entries[key]
                self._waiting.discard(key)

    def tick(self) -> None:
        """Start due tasks, longest due first, while threads are free."""
        with self._changed:
            while self.start_next():
                pass

    def pause(self) -> None:
        """Start no more passes until `resume`; running passes continue to their end."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        """Start passes again, first those that became due meanwhile."""
        with self._changed:
            self._paused = False
            self._scheduler.wake()

    @property
    def running(self) -> int:
        """Return the number of passes that run."""
        with self._changed:
            return len(self._running)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no task is running; return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def wait_ended(self, key: Hashable, timeout_s: float) -> bool:
        """Wait until the task of this key is not running; return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: key not in self._running, timeout_s)

    def seconds_since_last_success(self) -> dict[Hashable, float]:
        """Return the seconds since each task last succeeded, or since it was scheduled."""
        with self._changed:
            now = self._clock()
            return {key: now - entry.last_success_s for key, entry in self._entries.items()}

    @property
    def idle_ratio(self) -> float:
        """Return the share of threads that run no task, 0 to 1."""
        return 1 - len(self._running) / self._threads

    def until_next_s(self) -> float:
        """Return how long the ticker may sleep, seconds."""
        due_s = self._waiting.next_due_s()
        if due_s is None or self._paused or len(self._running) >= self._threads:
            return self._interval_s
        if self._starts_from_s is not None:
            due_s = max(due_s, self._starts_from_s)
        return min(max(due_s - self._clock(), _WAKE_EVERY_S), self._interval_s)

    def start_next(self) -> bool:
        """Start the next due task; return False if none is due or no thread is available."""
        with self._changed:
            if self._scheduler.is_stopping or self._paused or len(self._running) >= self._threads:
                return False
            if self._starts_from_s is not None and self._clock() < self._starts_from_s:
                return False
            run = self._pop_due()
            return run is not None and self._start_run(run)

    def _start_run(self, run: _Run) -> bool:
        """Start a thread for a run; return False if that failed."""
        try:
            threading.Thread(target=self._work, args=(run,), name=self.name).start()
        except Exception as e:  # noqa: BLE001 - a boundary: no thread, or no memory, for now
            self._starts_from_s = self._clock() + _START_AGAIN_AFTER_S
            error = PassFailedError(f"no thread could be started: {e}")
            self._log_failure(run.key, error)
            self._finish(run, None, error)
            return False
        self._starts_from_s = None
        return True

    def _pop_due(self) -> _Run | None:
        key = self._waiting.pop_due(self._clock())
        if key is None:
            return None
        self._running.add(key)
        return _Run(key, self._entries[key])

    def _work(self, run: _Run | None) -> None:
        """Run a task in this thread, then other due tasks until none is due."""
        while run is not None:
            result, error = None, None
            try:
                with self._scheduler.around(self.name, run.key):
                    result = run.entry.task()
            except BaseException as e:  # noqa: BLE001 - a boundary: it is logged and run again
                error = e
                self._log_failure(run.key, e)
            with self._changed:
                self._finish(run, result, error)
                run = self._next_after()

    def _next_after(self) -> _Run | None:
        if not self._scheduler.runs_more or self._paused:
            return None
        run = self._pop_due()
        self._scheduler.wake(self._clock() + self.until_next_s())
        return run

    def _log_failure(self, key: Hashable, error: BaseException) -> None:
        """Log the failure; each kind of task has its own limit of lines."""
        if isinstance(error, (PassFailedError, RemoteStorageError)):
            _log.warning(f"{self.name}: a task failed: %s: %s", key, error)
        else:
            _log.error(f"{self.name}: a task failed: %s: %s", key, error, exc_info=error)

    def _finish(self, run: _Run, result: PassResult, error: BaseException | None) -> None:
        now, entry = self._clock(), run.entry
        self._running.remove(run.key)
        if error is not None:
            entry.failures += 1
            due_s = now + self._scheduler.backoff.delay_s(entry.failures)
        else:
            entry.failures = 0
            if isinstance(result, RunAgain):
                due_s = now + min(result.after_s, self._interval_s)
            else:
                entry.last_success_s = now
                due_s = now if result else now + self._interval_s
        scheduled = self._entries.get(run.key)
        if scheduled is not None:
            # A forgotten task may have been replaced by another one meanwhile.
            self._waiting.put(run.key, due_s if scheduled is entry else now)
        self._changed.notify_all()
