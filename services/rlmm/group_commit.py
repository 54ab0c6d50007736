"""Group concurrent changes into one transaction, because a commit takes longer than a change."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from threading import Lock
from typing import TypeAlias

from sqlalchemy.orm import Session

from services.api.calls import MutationOutcome
from services.api.errors import RetriableRemoteStorageError
from services.rlmm.db import Transactions
from services.rlmm.segment_batch import Asked, Outcome, Outcomes, SegmentChange, rows_of, tp_of

MAX_WAIT_S = 1.0

MAX_ROWS = 1_000
"""Of a transaction, unless one change alone has more."""


class _Turn(Enum):
    """What one who waits is to do, where its change was not done for it."""

    LEAD = auto()
    ALONE = auto()


_Answer: TypeAlias = MutationOutcome | Exception | _Turn


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    asked: Asked[SegmentChange]
    answer: Future[_Answer] = field(default_factory=Future)


class GroupCommit:
    """Thread-safe; has no threads of its own."""

    def __init__(
        self,
        transactions: Transactions,
        apply_unlocked: Callable[[Session, Mapping[int, Asked[SegmentChange]]], Outcomes],
        apply_single: Callable[[SegmentChange], Outcome],
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        """
        Args:
            apply_unlocked: does changes, no two of one partition, in one transaction; leaves out
                those whose partition is locked.
            apply_single: waits for the lock.
            max_wait_s: for the place. There is one: two share the changes between them, so that
                each has fewer, and all take longer.
        """
        self._transactions = transactions
        self._apply_unlocked = apply_unlocked
        self._apply_single = apply_single
        self._lock = Lock()
        self._max_wait_s = max_wait_s
        self._place_is_free = True
        self._waiting: list[_Waiting] = []

    def change(self, item: SegmentChange) -> MutationOutcome:
        """
        Raises:
            RemoteStorageError: what the change was refused with. A commit that got no answer is
                told to all whose changes were in it.
        """
        own = _Waiting(Asked(item))
        answer = _Turn.LEAD if self._takes_place(own) else self._waited(own)
        if answer is _Turn.LEAD:
            answer = self._lead(own)
        if isinstance(answer, _Turn):
            answer = self._apply_single(item)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def waiting(self) -> int:
        """How many changes wait for the place."""
        with self._lock:
            return len(self._waiting)

    def _takes_place(self, own: _Waiting) -> bool:
        """Whether it was free; otherwise `own` waits."""
        with self._lock:
            if self._place_is_free:
                self._place_is_free = False
                return True
            self._waiting.append(own)
            return False

    def _waited(self, own: _Waiting) -> _Answer:
        try:
            return own.answer.result(self._max_wait_s)
        except TimeoutError:
            with self._lock:
                if own in self._waiting:
                    self._waiting.remove(own)
                    return _Turn.ALONE
        return own.answer.result()  # it is under way

    def _lead(self, own: _Waiting) -> _Answer:
        """Change for oneself and all who wait, and give the place away."""
        others = self._taken_along(own)
        interrupted = RetriableRemoteStorageError("who did this with other changes was interrupted")
        answers: list[_Answer] = [interrupted] * (1 + len(others))
        try:
            answers = self._answers([own, *others])
        finally:
            for waiting, answer in zip(others, answers[1:], strict=True):
                waiting.answer.set_result(answer)
            self._give_place_away()
        return answers[0]

    def _taken_along(self, own: _Waiting) -> list[_Waiting]:
        """Who waits, in the order in which they came. A second change of a partition stays, and
        what is too much for one transaction."""
        with self._lock:
            tps, rows = {tp_of(own.asked.item)}, rows_of(own.asked.item)
            taken: list[_Waiting] = []
            left: list[_Waiting] = []
            for waiting in self._waiting:
                tp, more_rows = tp_of(waiting.asked.item), rows_of(waiting.asked.item)
                if tp in tps or rows + more_rows > MAX_ROWS:
                    left.append(waiting)
                else:
                    tps.add(tp)
                    rows += more_rows
                    taken.append(waiting)
            self._waiting = left
            return taken

    def _give_place_away(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.pop(0).answer.set_result(_Turn.LEAD)
            else:
                self._place_is_free = True

    def _answers(self, together: list[_Waiting]) -> list[_Answer]:
        items = {place: waiting.asked for place, waiting in enumerate(together)}
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
        except Exception as e:  # noqa: BLE001 - each is told, or meets it again alone
            # Before the commit nothing was done, and whose fault it was shows when all go alone;
            # where there is no connection it is nobody's.
            is_of_all = committing or not connected
            return [e if is_of_all else _Turn.ALONE] * len(together)
        return [outcomes.get(place, _Turn.ALONE) for place in items]
