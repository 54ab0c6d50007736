"""Runs a task per partition, again and again: several at once, none twice at once.

Kafka's own scheduler never runs a task again that threw an Error; this one reschedules whatever a
task raises.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass

from services.api.errors import RemoteStorageError
from services.rlm.backoff import Backoff

Task = Callable[[], None]


class PassFailedError(Exception):
    """A task did not do all that can be done; the message says why."""


_log = logging.getLogger(__name__)


@dataclass
class _Entry:
    task: Task
    due_s: float
    failures: int = 0
    last_success_s: float = 0.0
    running: bool = False


class Scheduler:
    """Gives each task its turn `interval_s` after its last end, or a back-off after a failure.

    `tick()` starts what is due and has a free thread; `start()` ticks on its own.

    Args:
        clock: seconds that only grow.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        interval_s: float,
        backoff: Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._threads = threads
        self._interval_s = interval_s
        self._backoff = backoff
        self._clock = clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._changed = threading.Condition()
        self._entries: dict[Hashable, _Entry] = {}
        self._running = 0
        self._stopping = False
        self._ticker: threading.Thread | None = None

    def schedule(self, key: Hashable, task: Task) -> None:
        """Run `task` from the next tick on; a key that is scheduled already keeps its turn."""
        with self._changed:
            now = self._clock()
            self._entries.setdefault(key, _Entry(task, now, last_success_s=now)).task = task
            self._changed.notify_all()

    def retain(self, keys: Iterable[Hashable]) -> None:
        """Forget all other tasks; one that is running ends as it will."""
        with self._changed:
            kept = set(keys)
            self._entries = {key: e for key, e in self._entries.items() if key in kept}

    def tick(self) -> None:
        """Start the tasks that are due, longest due first, as far as threads are free."""
        with self._changed:
            now = self._clock()
            due = [e for e in self._entries.values() if not e.running and e.due_s <= now]
            due.sort(key=lambda entry: entry.due_s)
            for entry in due[: self._threads - self._running]:
                if not self._stopping:
                    self._start(entry)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no task is running; False: the time was up first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._running == 0, timeout_s)

    def seconds_since_last_success(self) -> dict[Hashable, float]:
        """Of each task, since it last ended well; of one that never did, since it was scheduled."""
        with self._changed:
            now = self._clock()
            return {key: now - entry.last_success_s for key, entry in self._entries.items()}

    def start(self) -> None:
        """Tick in a thread of its own until `stop`."""
        self._ticker = threading.Thread(target=self._run, name=f"{self._name}-ticker", daemon=True)
        self._ticker.start()

    def stop(self, grace_s: float) -> bool:
        """Start nothing any more and wait for what is running; False: something still is."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._ticker is not None:
            self._ticker.join(grace_s)
        idle = self.wait_idle(grace_s)
        self._pool.shutdown(wait=False, cancel_futures=True)
        return idle

    def _run(self) -> None:
        while True:
            self.tick()
            with self._changed:
                if self._stopping:
                    return
                self._changed.wait(self._until_next_s())

    def _until_next_s(self) -> float:
        """A task's end wakes the ticker, so only the clock is waited for."""
        if self._running >= self._threads:
            return self._interval_s
        waiting = (e.due_s for e in self._entries.values() if not e.running)
        next_s = min(waiting, default=self._clock() + self._interval_s)
        return max(0.0, min(next_s - self._clock(), self._interval_s))

    def _start(self, entry: _Entry) -> None:
        entry.running = True
        self._running += 1
        future = self._pool.submit(entry.task)
        future.add_done_callback(lambda done: self._ended(entry, done))

    def _ended(self, entry: _Entry, future: "Future[None]") -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            is_known = isinstance(error, (PassFailedError, RemoteStorageError))
            traceback = None if is_known else error
            _log.warning("%s: a task failed: %s", self._name, error, exc_info=traceback)
        with self._changed:
            now = self._clock()
            entry.running = False
            self._running -= 1
            if error is None:
                entry.failures = 0
                entry.last_success_s = now
                entry.due_s = now + self._interval_s
            else:
                entry.failures += 1
                entry.due_s = now + self._backoff.delay_s(entry.failures)
            self._changed.notify_all()
