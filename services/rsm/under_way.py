"""Which segments this process copies now."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from services.api.errors import RetriableRemoteStorageError
from services.rsm.keys import SegmentKeys


class CopiesUnderWay:
    """Shared by copies and deletes: what a copy is still to write no delete could find."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    @contextmanager
    def copying(self, keys: SegmentKeys) -> Iterator[None]:
        """Inside, and until what a failed copy wrote is removed, the segment is being copied."""
        with self._lock:
            self._counts[keys.stem] += 1
        try:
            yield
        finally:
            with self._lock:
                self._counts[keys.stem] -= 1
                self._counts += Counter()  # Drops what is at 0.

    def require_none(self, keys: SegmentKeys) -> None:
        """Raise RetriableRemoteStorageError if the segment is being copied by this process."""
        with self._lock:
            copies = self._counts[keys.stem]
        if copies:
            raise RetriableRemoteStorageError(f"{keys.stem} is being copied now")
