"""Group concurrent changes into one transaction, because a commit takes longer than a change.

One call leads: it applies its own change and those of all waiting calls, then passes the lead on.
Its queue gathers changes for the leader to apply; it is no waiting line for a turn, as
services.common.fair_queue is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TypeAlias

from sqlalchemy import Connection

from services.api.calls import MutationOutcome
from services.api.errors import RetriableRemoteStorageError
from services.rlmm.changes.batch import (
    Outcomes,
    Requested,
    SegmentChange,
    SegmentKey,
    rows_of,
    segment_id_of,
    segment_key,
    tp_of,
)
from services.rlmm.database.db import PartitionKey, Transactions, key_of

MAX_WAIT_S = 1.0

MAX_ROWS = 1_000
"""The most rows of a transaction, unless one change alone has more."""


class _Turn(Enum):
    """The next step of a waiter whose change the leader did not apply."""

    LEAD = auto()
    LEAVE = auto()


_Answer: TypeAlias = MutationOutcome | Exception | _Turn

_Apply: TypeAlias = Callable[[Connection, Mapping[int, Requested[SegmentChange]]], Outcomes]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    requested: Requested[SegmentChange]
    answer: SimpleQueue[_Answer] = field(default_factory=SimpleQueue)


class GroupCommit:
    """Apply changes, several in one transaction if they wait together. Thread-safe; has no
    threads.
    """

    def __init__(
        self,
        transactions: Transactions,
        apply_unlocked: _Apply,
        apply_locked: _Apply,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        """Prepare a group commit.

        Args:
            apply_unlocked: applies changes, no two of one segment, in one transaction, without
                those whose partition is locked or unknown.
            apply_locked: the same for changes of one partition; waits for its lock, creates it.
            max_wait_s: the longest wait for the lead of the changes of all partitions. There is one
                leader: two would share the changes between them, so that each has fewer and all
                take longer.
        """
        self._transactions = transactions
        self._apply_locked = apply_locked
        self._lock = Lock()
        self._queue = _Queue(transactions, apply_unlocked, max_wait_s)
        self._locked: dict[PartitionKey, _PartitionQueue] = {}

    def change(self, item: SegmentChange) -> MutationOutcome:
        """Apply one change, perhaps together with others.

        Raises:
            RemoteStorageError: the change was refused. If the result of a commit is unknown, every
                change in the commit fails with this error.
        """
        requested, key = Requested(item), key_of(tp_of(item))
        # While changes of a partition wait for its lock, more of them would find it locked.
        answer = _Turn.LEAVE if key in self._locked else self._queue.answer(requested)
        if isinstance(answer, _Turn):
            answer = self._answer_of_partition(key, requested)
        if isinstance(answer, _Turn):
            answer = self._transactions.change(self._apply_locked, {0: requested})[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def waiting(self) -> int:
        """Return the number of changes that wait for the lead of all partitions."""
        return self._queue.waiting()

    def waiting_for_locks(self) -> int:
        """Return the number of changes that wait for others that wait for a partition's lock."""
        with self._lock:
            return sum(queue.waiting() for queue in self._locked.values())

    def _answer_of_partition(
        self, key: PartitionKey, requested: Requested[SegmentChange]
    ) -> _Answer:
        """Apply a change together with others of its partition, which all wait for its lock."""
        with self._lock:
            queue = self._locked.get(key)
            if queue is None:
                queue = _PartitionQueue(self._transactions, self._apply_locked)
                self._locked[key] = queue
            queue.users += 1
        try:
            return queue.answer(requested)
        finally:
            with self._lock:
                queue.users -= 1
                if not queue.users:
                    del self._locked[key]


class _Queue:
    """Changes that wait for a transaction; one call leads and applies those of all."""

    fails_together: tuple[type[Exception], ...] = ()
    """Errors that each change would meet alone too."""

    def __init__(self, transactions: Transactions, apply: _Apply, max_wait_s: float | None) -> None:
        self._transactions = transactions
        self._apply = apply
        self._max_wait_s = max_wait_s
        self._lock = Lock()
        self._lead_is_free = True
        self._waiters: list[_Waiter] = []

    def answer(self, requested: Requested[SegmentChange]) -> _Answer:
        """Return the answer to a change; LEAVE if it is to be applied outside of this queue."""
        own = _Waiter(requested)
        answer = _Turn.LEAD if self._acquires_lead(own) else self._waited(own)
        return self._lead(own) if answer is _Turn.LEAD else answer

    def waiting(self) -> int:
        with self._lock:
            return len(self._waiters)

    def _acquires_lead(self, own: _Waiter) -> bool:
        """Take the lead if it is free, or queue `own`."""
        with self._lock:
            if self._lead_is_free:
                self._lead_is_free = False
                return True
            self._waiters.append(own)
            return False

    def _waited(self, own: _Waiter) -> _Answer:
        try:
            return own.answer.get(timeout=self._max_wait_s)
        except Empty:
            with self._lock:
                if own in self._waiters:
                    self._waiters.remove(own)
                    return _Turn.LEAVE
        return own.answer.get()  # The leader is applying the change.

    def _lead(self, own: _Waiter) -> _Answer:
        """Apply `own` and the waiting changes, then pass the lead on."""
        others = self._next_group(own)
        interrupted = RetriableRemoteStorageError(
            "the transaction this change was grouped into was interrupted; retry"
        )
        answers: list[_Answer] = [interrupted] * (1 + len(others))
        try:
            answers = self._answers([own, *others])
        finally:
            for waiter, answer in zip(others, answers[1:], strict=True):
                waiter.answer.put(answer)
            self._pass_lead_on()
        return answers[0]

    def _next_group(self, own: _Waiter) -> list[_Waiter]:
        """Take the waiting changes, in their order.

        A second change of a segment stays in the queue, and so do changes that exceed the size of
        one transaction.
        """
        with self._lock:
            segments, rows = {_segment_of(own)}, rows_of(own.requested.item)
            group: list[_Waiter] = []
            later: list[_Waiter] = []
            for waiter in self._waiters:
                segment, more_rows = _segment_of(waiter), rows_of(waiter.requested.item)
                if segment in segments or rows + more_rows > MAX_ROWS:
                    later.append(waiter)
                else:
                    segments.add(segment)
                    rows += more_rows
                    group.append(waiter)
            self._waiters = later
            return group

    def _pass_lead_on(self) -> None:
        with self._lock:
            if self._waiters:
                self._waiters.pop(0).answer.put(_Turn.LEAD)
            else:
                self._lead_is_free = True

    def _answers(self, together: list[_Waiter]) -> list[_Answer]:
        items = {place: waiter.requested for place, waiter in enumerate(together)}
        connected = committing = False

        def work(connection: Connection) -> Outcomes:
            nonlocal connected, committing
            connected, committing = True, False
            outcomes = self._apply(connection, items)
            committing = True
            return outcomes

        try:
            outcomes = self._transactions.change(work)
        except Exception as e:  # noqa: BLE001 - each gets it, or meets it again alone
            # Nothing is done before the commit; if the changes are applied one by one, only the
            # faulty one fails. Without a connection all of them would fail.
            is_of_all = committing or not connected or isinstance(e, self.fails_together)
            return [e if is_of_all else _Turn.LEAVE] * len(together)
        return [outcomes.get(place, _Turn.LEAVE) for place in items]


class _PartitionQueue(_Queue):
    """Changes of one partition that another transaction has locked.

    Without it, each change would wait for the lock in a transaction of its own. The next change
    would find the partition locked by one of these, and so on as long as changes arrive.
    """

    fails_together = (RetriableRemoteStorageError,)

    def __init__(self, transactions: Transactions, apply: _Apply) -> None:
        super().__init__(transactions, apply, max_wait_s=None)
        self.users = 0


def _segment_of(waiter: _Waiter) -> SegmentKey:
    return segment_key(segment_id_of(waiter.requested.item))
