"""Which segments this process copies now."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from services.api.errors import RetriableRemoteStorageError
from services.rsm.keys import SegmentKeys


@dataclass
class _Copies:
    """Of one segment: how many there are, and the lock that they commit under."""

    count: int = 0
    committing: Lock = field(default_factory=Lock)


class CopiesUnderWay:
    """Shared by copies and deletes: what a copy is still to write no delete could find."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._copies: dict[str, _Copies] = {}

    @contextmanager
    def copying(self, keys: SegmentKeys) -> Iterator[Lock]:
        """Inside, and until what a failed copy wrote is removed, the segment is being copied.

        Gives a lock to hold from before the manifest is put until it is known whether it counts,
        and what does not is removed: so that no copy takes another's manifest for one that counts
        while that one gives up on it.
        """
        with self._lock:
            copies = self._copies.setdefault(keys.stem, _Copies())
            copies.count += 1
        try:
            yield copies.committing
        finally:
            with self._lock:
                copies.count -= 1
                if not copies.count:
                    del self._copies[keys.stem]

    def require_none(self, keys: SegmentKeys) -> None:
        """Raise RetriableRemoteStorageError if the segment is being copied by this process."""
        with self._lock:
            is_copied = keys.stem in self._copies
        if is_copied:
            raise RetriableRemoteStorageError(f"{keys.stem} is being copied now")
