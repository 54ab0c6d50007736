"""Group concurrent changes into one transaction, because a commit takes longer than a change.

One call leads: it applies its own change and those of all waiting calls, then passes the lead on.
Its queue gathers changes for the leader to apply; it is no waiting line for a turn, as
services.common.fair_queue is.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from threading import Lock
from typing import TypeAlias

from sqlalchemy.orm import Session

from services.api.calls import MutationOutcome
from services.api.errors import RetriableRemoteStorageError
from services.rlmm.batch import Asked, Outcome, Outcomes, SegmentChange, rows_of, tp_of
from services.rlmm.db import Transactions

MAX_WAIT_S = 1.0

MAX_ROWS = 1_000
"""The most rows of a transaction, unless one change alone has more."""


class _Turn(Enum):
    """The next step of a waiter whose change the leader did not apply."""

    LEAD = auto()
    ALONE = auto()


_Answer: TypeAlias = MutationOutcome | Exception | _Turn


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    asked: Asked[SegmentChange]
    answer: Future[_Answer] = field(default_factory=Future)


class GroupCommit:
    """Apply changes, several in one transaction if they wait together. Thread-safe; has no
    threads.
    """

    def __init__(
        self,
        transactions: Transactions,
        apply_unlocked: Callable[[Session, Mapping[int, Asked[SegmentChange]]], Outcomes],
        apply_single: Callable[[SegmentChange], Outcome],
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        """Prepare a group commit.

        Args:
            apply_unlocked: applies changes, no two of one partition, in one transaction, without
                those whose partition is locked.
            apply_single: applies one change; waits for the lock.
            max_wait_s: the longest wait for the lead. There is one leader: two would share the
                changes between them, so that each has fewer and all take longer.
        """
        self._transactions = transactions
        self._apply_unlocked = apply_unlocked
        self._apply_single = apply_single
        self._lock = Lock()
        self._max_wait_s = max_wait_s
        self._lead_is_free = True
        self._waiters: list[_Waiter] = []

    def change(self, item: SegmentChange) -> MutationOutcome:
        """Apply one change, perhaps together with others.

        Raises:
            RemoteStorageError: the change was refused. If the result of a commit is unknown, every
                change in the commit fails with this error.
        """
        own = _Waiter(Asked(item))
        answer = _Turn.LEAD if self._takes_lead(own) else self._waited(own)
        if answer is _Turn.LEAD:
            answer = self._lead(own)
        if isinstance(answer, _Turn):
            answer = self._apply_single(item)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def waiting(self) -> int:
        """Return the number of changes that wait for the lead."""
        with self._lock:
            return len(self._waiters)

    def _takes_lead(self, own: _Waiter) -> bool:
        """Take the lead if it is free, or queue `own`."""
        with self._lock:
            if self._lead_is_free:
                self._lead_is_free = False
                return True
            self._waiters.append(own)
            return False

    def _waited(self, own: _Waiter) -> _Answer:
        try:
            return own.answer.result(self._max_wait_s)
        except TimeoutError:
            with self._lock:
                if own in self._waiters:
                    self._waiters.remove(own)
                    return _Turn.ALONE
        return own.answer.result()  # The leader is applying the change.

    def _lead(self, own: _Waiter) -> _Answer:
        """Apply `own` and the waiting changes, then pass the lead on."""
        others = self._take_waiting(own)
        interrupted = RetriableRemoteStorageError(
            "the transaction this change was grouped into was interrupted; retry"
        )
        answers: list[_Answer] = [interrupted] * (1 + len(others))
        try:
            answers = self._answers([own, *others])
        finally:
            for waiter, answer in zip(others, answers[1:], strict=True):
                waiter.answer.set_result(answer)
            self._pass_lead_on()
        return answers[0]

    def _take_waiting(self, own: _Waiter) -> list[_Waiter]:
        """Take the waiting changes, in their order.

        A second change of a partition stays in the queue, and so do changes that exceed the size of
        one transaction.
        """
        with self._lock:
            tps, rows = {tp_of(own.asked.item)}, rows_of(own.asked.item)
            taken: list[_Waiter] = []
            left: list[_Waiter] = []
            for waiter in self._waiters:
                tp, more_rows = tp_of(waiter.asked.item), rows_of(waiter.asked.item)
                if tp in tps or rows + more_rows > MAX_ROWS:
                    left.append(waiter)
                else:
                    tps.add(tp)
                    rows += more_rows
                    taken.append(waiter)
            self._waiters = left
            return taken

    def _pass_lead_on(self) -> None:
        with self._lock:
            if self._waiters:
                self._waiters.pop(0).answer.set_result(_Turn.LEAD)
            else:
                self._lead_is_free = True

    def _answers(self, together: list[_Waiter]) -> list[_Answer]:
        items = {place: waiter.asked for place, waiter in enumerate(together)}
        connected = committing = False

        def work(session: Session) -> Outcomes:
            nonlocal connected, committing
            connected = committing = False
            session.connection()
            connected = True
            outcomes = self._apply_unlocked(session, items)
            committing = True
            return outcomes

        try:
            outcomes = self._transactions.change(work)
        except Exception as e:  # noqa: BLE001 - each gets it, or meets it again alone
            # Nothing is done before the commit; if the changes are applied one by one, only the
            # faulty one fails. Without a connection all of them would fail.
            is_of_all = committing or not connected
            return [e if is_of_all else _Turn.ALONE] * len(together)
        return [outcomes.get(place, _Turn.ALONE) for place in items]
