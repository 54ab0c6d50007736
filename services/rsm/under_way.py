"""Which segments this process copies now."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from typing import Self

from services.api.calls import current_call
from services.api.errors import RetriableRemoteStorageError
from services.rsm.keys import SegmentKeys
from services.rsm.waiting import Waiting

# Longer than the store, as a rule, takes for a manifest.
COMMIT_WAIT_S = 60.0


@dataclass
class _Copies:
    """Of one segment: how many there are, and the lock that they commit under."""

    count: int = 0
    committing: Lock = field(default_factory=Lock)


class CopiesUnderWay:
    """Shared by copies and deletes: what a copy is still to write no delete could find."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._lock = Lock()
        self._copies: dict[str, _Copies] = {}

    @contextmanager
    def copying(self, keys: SegmentKeys) -> Iterator["CommitTurn"]:
        """Inside, and until what a failed copy wrote is removed, the segment is being copied.

        Gives the turn to take before the manifest is put, which lasts to the end of the block:
        until it is known whether the manifest counts, and what does not is removed. So no copy
        takes another's manifest for one that counts while that one gives up on it.
        """
        with self._lock:
            copies = self._copies.setdefault(keys.stem, _Copies())
            copies.count += 1
        try:
            with CommitTurn(keys.stem, copies.committing, self._waiting) as turn:
                yield turn
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


class CommitTurn:
    """Of one copy: whether it is its turn to commit. Leaving `with` ends the turn, if it came."""

    def __init__(self, stem: str, committing: Lock, waiting: Waiting) -> None:
        self._stem = stem
        self._committing = committing
        self._waiting = waiting
        self._came = False

    def wait(self) -> None:
        """Return when no other copy of the segment commits.

        Raises:
            RetriableRemoteStorageError: the caller gave up, the service stops, or another copy has
                not ended for COMMIT_WAIT_S.
        """
        end_s, is_active = self._waiting.now() + COMMIT_WAIT_S, current_call().is_active

        def is_wanted() -> bool:
            if self._waiting.now() >= end_s:
                text = f"another copy of {self._stem} has not ended for {COMMIT_WAIT_S:.0f} s"
                raise RetriableRemoteStorageError(text)
            return is_active()

        self._waiting.out(self._left_s, is_wanted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._came:
            self._committing.release()

    def _left_s(self) -> float:
        self._came = self._committing.acquire(blocking=False)
        return 0 if self._came else inf
