"""A copy's place at RSM. RSM serves so many copies of one address, lets some wait, and refuses more
before it takes a byte: to be refused is no failed attempt, and is asked again."""

import logging
import threading
import time
from dataclasses import dataclass, field

from services.api.errors import ThrottledError
from services.api.ids import RemoteLogSegmentId
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.backoff import Backoff
from services.rlm.copying.copy_data import CopyCancelledError, SegmentSource
from services.rlm.ending import Flag
from services.rlm.metrics import COPIES_WAITING_FOR_RSM
from services.rpc.log_lines import LineBudget

_LOOK_EVERY_S = 0.1
_TOO_MANY = (
    "%s has waited for a place at RSM for %d s, more copies come than RSM serves: raise "
    "RSM_COPY_THREADS, or run more RSMs: %s"
)
_log = logging.getLogger(__name__)
_lines = LineBudget()


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """
    Attributes:
        backoff: between two questions.
        timeout_s: for so long it is asked, as long as RSM's client waits for a thread; then the
            copy has failed.
        told_after_s: a copy that has waited for so long is told of as a warning.
    """

    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=0.5, max_s=5.0))
    timeout_s: float = 1800.0
    told_after_s: float = 60.0


def copy_in_turn(
    rsm: RemoteStorageManager,
    started: RemoteLogSegmentMetadata,
    source: SegmentSource,
    stopping: Flag,
    limits: TurnLimits,
) -> bytes | None:
    """RemoteStorageManager.copy_log_segment_data, asked under the same id until RSM has a place.

    Args:
        stopping: set: ask no more.

    Raises:
        CopyCancelledError: the copy is to stop.
        ThrottledError: RSM had no place for too long.
    """
    turn = _Turn(started.remote_log_segment_id, limits)
    while True:
        try:
            return rsm.copy_log_segment_data(started, source.data())
        except ThrottledError as e:
            turn.refused(e)
        turn.wait(source, stopping)


class _Turn:
    """The wait of a copy that is refused a place."""

    def __init__(self, segment_id: RemoteLogSegmentId, limits: TurnLimits) -> None:
        self._segment_id = segment_id
        self._limits = limits
        self._since_s = time.monotonic()
        self._refusals = 0
        self._is_told = False

    def refused(self, error: ThrottledError) -> None:
        """
        Raises:
            ThrottledError: it has been waited for too long.
        """
        now_s = time.monotonic()
        if self._refusals == 0:
            self._since_s = now_s
            _tell(logging.INFO, "%s waits for a place at RSM: %s", self._segment_id, error)
        self._refusals += 1
        self._wait_s = self._limits.backoff.delay_s(self._refusals)
        waited_s = now_s - self._since_s
        if waited_s + self._wait_s > self._limits.timeout_s:
            raise error
        if waited_s >= self._limits.told_after_s and not self._is_told:
            self._is_told = True
            _tell(logging.WARNING, _TOO_MANY, self._segment_id, waited_s, error)

    def wait(self, source: SegmentSource, stopping: Flag) -> None:
        """Until RSM is to be asked again.

        Raises:
            CopyCancelledError: the copy is to stop.
        """
        until_s = time.monotonic() + self._wait_s
        with COPIES_WAITING_FOR_RSM.track_inprogress():
            while (left_s := until_s - time.monotonic()) > 0:
                source.require_going_on()
                if stopping.is_set():
                    reason = "stopped while it waited for a place at RSM"
                    raise CopyCancelledError(f"{self._segment_id}: {reason}")
                threading.Event().wait(min(left_s, _LOOK_EVERY_S))


def _tell(level: int, text: str, *args: object) -> None:
    not_logged = _lines.line(level)
    if not_logged is not None:
        extra = {"not_logged": not_logged} if not_logged else None
        _log.log(level, text, *args, extra=extra)
