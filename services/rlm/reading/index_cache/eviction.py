"""Makes files of the cache go, a lot at a time, and goes on past those that cannot be removed."""

import threading
from collections.abc import Callable, Iterable

from services.rlm.reading.index_cache.directory import CacheDirectory
from services.rlm.reading.index_cache.disk_refusals import DiskRefusals
from services.rlm.reading.index_cache.held_files import HeldFile, HeldFiles
from services.rlm.reading.index_cache.metrics import EVICTIONS

_MAX_REFUSED = 8
"""How many files that cannot be removed are passed over at once."""


class Eviction:
    """A file leaves the books before it leaves the disk: if it is written anew in between, the
    books have one that is not there, which the next read of it puts right.

    Args:
        lock: guards the books; it is never held while the disk works.
    """

    def __init__(
        self,
        held: HeldFiles,
        lock: threading.Lock,
        refusals: DiskRefusals,
        clock: Callable[[], float],
    ) -> None:
        self._held = held
        self._lock = lock
        self._refusals = refusals
        self._clock = clock

    def evict(
        self, directory: CacheDirectory, goes: Callable[[HeldFile], bool], reason: str
    ) -> bool:
        """Remove the least recently used as long as `goes`, which is asked with the lock held, says
        so of the next one; False: the disk refuses too many."""
        refused = 0
        while refused < _MAX_REFUSED:
            with self._lock:
                lot = self._held.take_oldest(goes)
            if not lot:
                return True
            refused += self.remove(directory, lot, reason)
        return False

    def remove(self, directory: CacheDirectory, files: Iterable[HeldFile], reason: str) -> int:
        """Those were taken out of the books. How many cannot be removed: they go on to count."""
        refused = 0
        for file in files:
            try:
                directory.remove(file.name)
                EVICTIONS.labels(reason).inc()
            except OSError as e:
                refused += 1
                self._refusals.failed("remove", e)
                with self._lock:
                    self._held.put_back(file, self._clock())
        return refused
