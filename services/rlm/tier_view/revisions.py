"""How far RLMM is with each partition: asked for many at once, so that a partition in which
nothing happens costs next to nothing."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_batches import MAX_REVISIONS


@dataclass(frozen=True, slots=True)
class _Told:
    revision: int
    at_s: float


class Revisions:
    """What RLMM told lately. Thread-safe.

    Args:
        max_age_s: what was told longer ago is not told on: then each is to be asked about itself,
            as while RLMM is away.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        max_age_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rlmm = rlmm
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[TopicIdPartition, _Told] = {}

    def poll(self, names: Sequence[TopicIdPartition]) -> None:
        """Ask about these, and forget all others.

        Raises:
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        told: dict[TopicIdPartition, _Told] = {}
        waiting = iter(names)
        while batch := list(islice(waiting, MAX_REVISIONS)):
            # Before the question: what is told then is no older than that.
            at_s = self._clock()
            told |= {name: _Told(r, at_s) for name, r in self._ask(batch).items()}
        with self._lock:
            self._told = told

    def _ask(self, names: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, int]:
        """Of all but those that RLMM refuses to be asked about, as where it knows a topic id under
        another name: they must not keep the others from being told."""
        try:
            return dict(zip(names, self._rlmm.partition_revisions(names), strict=True))
        except InvalidRequestError:
            if len(names) == 1:
                return {}
            middle = len(names) // 2
            return self._ask(names[:middle]) | self._ask(names[middle:])

    def of(self, name: TopicIdPartition) -> int | None:
        """The revision that the partition had a short while ago; None: nobody knows."""
        with self._lock:
            told = self._told.get(name)
        if told is None or self._clock() - told.at_s > self._max_age_s:
            return None
        return told.revision
