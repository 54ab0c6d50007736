"""The steps that partitions of one call are given up in: some at a time, none kept by another."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from services.api.errors import (
    ConcurrentUpdateError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.partition_lifecycle import LifecycleOutcome
from services.rlm.kafka_log.errors import LogFileError, SegmentVanishedError
from services.rlm.reporting import LineageUnknownError

AT_ONCE = 4
"""A partition that is locked in RLMM keeps a step waiting for seconds; RLMM has other callers."""
FAILURES_UNTIL_ASKED = 3
"""After so many in a row RLMM is asked whether it is there, or those partitions alone cannot be
changed."""
_log = logging.getLogger(__name__)

Left = RemoteStorageError | Callable[[], "Left"] | None
"""Of a stop: the next step, or its outcome."""


def take_steps(stops: Sequence[Left], is_rlmm_ready: Callable[[], bool]) -> list[Left]:
    """Do the next step of each that has one, in any order. Once RLMM is away it is not asked again:
    where it is silent, each question waits for its whole deadline.

    Args:
        is_rlmm_ready: raises RemoteStorageError, or answers False, where RLMM is away.
    """
    steps = _Steps(is_rlmm_ready)
    # What RLMM is asked bears the id of the call that is served.
    context = copy_context()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="stops") as pool:
        return list(pool.map(lambda step: context.copy().run(steps.take, step), stops))


def outcome_of(left: Left) -> LifecycleOutcome:
    assert not callable(left), "no stop has a third step"
    return left


class _Steps:
    """Thread-safe."""

    def __init__(self, is_rlmm_ready: Callable[[], bool]) -> None:
        self._is_rlmm_ready = is_rlmm_ready
        self._lock = threading.Lock()
        self._failures_in_a_row = 0
        self._away: RetriableRemoteStorageError | None = None

    def take(self, step: Left) -> Left:
        if not callable(step):
            return step
        away = self._away
        if away is not None:
            return away
        left = _result_of(step)
        # Whoever asks waits for as long as RLMM is silent; the others' steps do not wait for it.
        if self._is_to_be_asked(left) and not self._is_there():
            assert isinstance(left, RetriableRemoteStorageError)
            self._away = left
        return left

    def _is_to_be_asked(self, left: Left) -> bool:
        with self._lock:
            if not isinstance(left, RetriableRemoteStorageError):
                self._failures_in_a_row = 0
                return False
            self._failures_in_a_row += 1
            return self._failures_in_a_row % FAILURES_UNTIL_ASKED == 0

    def _is_there(self) -> bool:
        try:
            return self._is_rlmm_ready()
        except RemoteStorageError:
            return False


def _result_of(step: Callable[[], Left]) -> Left:
    try:
        return step()
    except RemoteStorageError as e:
        return e
    except (LogFileError, SegmentVanishedError, LineageUnknownError) as e:
        return ConcurrentUpdateError(f"not known where the log begins; try again: {e}")
    except Exception as e:  # noqa: BLE001 - a boundary: no partition stops another
        _log.exception("a partition was not given up")
        return RemoteStorageError(f"{type(e).__name__}; see the log")
