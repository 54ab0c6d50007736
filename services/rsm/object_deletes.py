"""Deleting objects of a store that may have no time for it."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.rsm.backends.protocol import StorageBackend
from services.rsm.clean_up import cleaning_up
from services.rsm.delete_pace import DeletePace
from services.rsm.in_time import in_time, require_wanted
from services.rsm.waiting import Waiting

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0


class ObjectDeletes:
    """Every delete of a process goes through here, and here alone it is repeated.

    A request for many keys is a POST, which no HTTP client repeats by itself; yet to delete twice
    is to delete. What is repeated are the keys that the store failed on for the moment, after a
    pause that doubles each time, at a pace that adapts.
    """

    def __init__(self, pace: DeletePace, retries: int, waiting: Waiting) -> None:
        self._pace = pace
        self._retries = retries
        self._waiting = waiting

    def in_time(self) -> AbstractContextManager[None]:
        """Around the deletes of one call: they end, done or not, while their caller still hears of
        it. See in_time."""
        return in_time(self._waiting)

    def delete(
        self, backend: StorageBackend, keys: Sequence[str]
    ) -> Mapping[str, RemoteStorageError]:
        """Delete up to MAX_DELETE_KEYS objects; answer those that may still be there, and why.

        Idempotent: a key without an object counts as deleted. Never raises. Nothing is asked of the
        store for a caller that is gone.
        """
        return self._delete(backend, keys, self._take_turns)

    def clean_up(
        self, backend: StorageBackend, keys: Sequence[str]
    ) -> Mapping[str, RemoteStorageError]:
        """As `delete`, of the few keys of a failed copy, for CLEAN_UP_S at most, whether or not a
        caller waits, and ahead of all batches: one of those may take longer than that."""
        with cleaning_up(self._waiting):
            return self._delete(backend, keys, self._pace.take_at_once)

    def _delete(
        self, backend: StorageBackend, keys: Sequence[str], take: Callable[[int], float]
    ) -> Mapping[str, RemoteStorageError]:
        """`take`: wait until so many keys may be deleted; answers when that was."""
        for_good: dict[str, RemoteStorageError] = {}
        for_now: dict[str, RemoteStorageError] = {}
        left = list(keys)
        for attempt in range(self._retries + 1):
            try:
                self._pause_before(attempt)
                began_s = take(len(left))
            except RetriableRemoteStorageError as e:
                # What the store said, if it was asked, says more.
                return for_good | {key: for_now.get(key, e) for key in left}
            answered = backend.delete(left)
            for_now = {key: e for key, e in answered.items() if _is_for_now(e)}
            for_good |= {key: e for key, e in answered.items() if not _is_for_now(e)}
            left = list(for_now)
            if not left:
                self._pace.speed_up()
                break
            self._pace.slow_down(began_s)
        return for_good | for_now

    def _take_turns(self, keys: int) -> float:
        return self._pace.take(keys, _is_wanted)

    def _pause_before(self, attempt: int) -> None:
        if attempt:
            longest_s = min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
            pause_s = longest_s * random.uniform(0.5, 1)
            self._waiting.until(self._waiting.now() + pause_s, _is_wanted)
        require_wanted()


def _is_wanted() -> bool:
    """Never False: who waits is told why it need not."""
    require_wanted()
    return True


def _is_for_now(error: RemoteStorageError) -> bool:
    return isinstance(error, RetriableRemoteStorageError)
