"""Bound the partitions that the watches of one identity name."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from services.api.errors import ThrottledError

AGE_SPREAD = 0.2
"""The share of the maximum age by which ages differ, so that clients do not resume at one time."""


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """The limits of watches; RlmmSettings describes each.

    Attributes:
        partitions: of all watches of one identity.
        partitions_in_all: of all watches of the process.
    """

    partitions: int = 100_000
    partitions_in_all: int = 100_000
    max_age_s: float = 3_600.0

    def random_age_s(self) -> float:
        """Return the age at which one watch ends."""
        return self.max_age_s * (1 - AGE_SPREAD * random.random())


class WatchedPartitions:
    """Count the partitions of all watches, by identity. Thread-safe."""

    def __init__(self, limits: WatchLimits) -> None:
        self._most = limits.partitions
        self._most_of_all = limits.partitions_in_all
        self._of_identity: dict[str, int] = {}
        self._all = 0
        self._lock = Lock()

    @contextmanager
    def counted(self, identity: str, count: int) -> Iterator[None]:
        """Count the partitions of one watch while the block runs.

        Raises:
            ThrottledError: the identity, or all of them together, would watch too many.
        """
        self._add(identity, count)
        try:
            yield
        finally:
            self._remove(identity, count)

    def _add(self, identity: str, count: int) -> None:
        with self._lock:
            own = self._of_identity.get(identity, 0)
            if own + count > self._most:
                raise _too_many(f"partitions of {identity}", self._most, own, count)
            if self._all + count > self._most_of_all:
                raise _too_many("partitions in all", self._most_of_all, self._all, count)
            self._of_identity[identity] = own + count
            self._all += count

    def _remove(self, identity: str, count: int) -> None:
        with self._lock:
            self._all -= count
            self._of_identity[identity] -= count
            if not self._of_identity[identity]:
                del self._of_identity[identity]


def _too_many(what: str, limit: int, watched: int, count: int) -> ThrottledError:
    return ThrottledError(
        f"too many watched {what} (limit {limit:,}): {watched:,} are watched and this watch names "
        f"{count:,}; retry when others have ended, or raise RLMM_WATCHED_PARTITIONS_MAX"
    )
