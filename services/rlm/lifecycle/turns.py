"""A long deletion, a bounded part of it at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from services.api.errors import DeletionRefusedError
from services.api.ids import TopicIdPartition
from services.api.remote_storage_manager import MAX_DELETE_BATCH
from services.api.segment_deletion import DeletionOutcome
from services.rlm.scheduler import PassFailedError


@dataclass(frozen=True, slots=True)
class Finishing:
    """The key under which a scheduler has turns that outlast the partition's role."""

    topic_id_partition: TopicIdPartition


class DeletionTurns:
    """Goes through what `begin` yields. Not thread-safe.

    Args:
        size: segments of one turn.
    """

    def __init__(
        self, begin: Callable[[], Iterator[DeletionOutcome]], size: int = MAX_DELETE_BATCH
    ) -> None:
        self._begin = begin
        self._size = size
        self._outcomes: Iterator[DeletionOutcome] | None = None
        self.failure = ""
        """Of the first segment that failed since the beginning; empty: none has."""

    def go_on(self) -> bool:
        """Take the next turn; False: it was the last one, and the next begins anew.

        Raises:
            DeletionRefusedError: each segment of the turn was refused; the next turn begins anew.
            PassFailedError: none of the turn was deleted; likewise: nothing says that the segments
                behind them fare better.
            RemoteStorageError: as the deletion does; likewise.
        """
        if self._outcomes is None:
            self._outcomes, self.failure = self._begin(), ""
        outcomes, self._outcomes = self._outcomes, None
        taken = list(islice(outcomes, self._size))
        failed = [o for o in taken if o.error is not None]
        first = next((f"{o.segment.remote_log_segment_id}: {o.error}" for o in failed), "")
        self.failure = self.failure or first
        if failed and len(failed) == len(taken):
            is_refused = all(isinstance(o.error, DeletionRefusedError) for o in failed)
            raise DeletionRefusedError(first) if is_refused else PassFailedError(first)
        if len(taken) < self._size:
            return False
        self._outcomes = outcomes
        return True
