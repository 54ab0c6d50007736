"""Deleting objects of a store that may have no time for it."""

import random
from collections.abc import Callable, Mapping, Sequence

from services.api.calls import current_call
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.rsm.backends.protocol import StorageBackend
from services.rsm.delete_pace import DeletePace
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

    def delete(
        self,
        backend: StorageBackend,
        keys: Sequence[str],
        is_wanted: Callable[[], bool] | None = None,
    ) -> Mapping[str, RemoteStorageError]:
        """Delete up to MAX_DELETE_KEYS objects; answer those that may still be there, and why.

        Idempotent: a key without an object counts as deleted. Never raises. It ends early where
        nobody wants it any more: `is_wanted`, by default whether the call's caller waits.
        """
        is_wanted = is_wanted or current_call().is_active
        for_good: dict[str, RemoteStorageError] = {}
        for_now: dict[str, RemoteStorageError] = {}
        left = list(keys)
        for attempt in range(self._retries + 1):
            try:
                self._pause_before(attempt, is_wanted)
                began_s = self._pace.take(len(left), is_wanted)
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

    def delete_within(
        self, backend: StorageBackend, keys: Sequence[str], wait_s: float
    ) -> Mapping[str, RemoteStorageError]:
        """As `delete`, wanted for so long, whether or not a caller waits."""
        end_s = self._waiting.now() + wait_s
        return self.delete(backend, keys, is_wanted=lambda: self._waiting.now() < end_s)

    def _pause_before(self, attempt: int, is_wanted: Callable[[], bool]) -> None:
        if attempt:
            longest_s = min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
            pause_s = longest_s * random.uniform(0.5, 1)
            self._waiting.until(self._waiting.now() + pause_s, is_wanted)


def _is_for_now(error: RemoteStorageError) -> bool:
    return isinstance(error, RetriableRemoteStorageError)
