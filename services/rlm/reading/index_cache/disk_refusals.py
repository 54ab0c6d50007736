"""What the disk refused: counted, told, and not asked of it again for a while."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from services.rlm.reading.index_cache.metrics import DAMAGED, FAILURES
from services.rpc.log_lines import LineBudget

RETRY_AFTER_S = 10.0
"""How long the disk is not asked for what it refused."""
_LINES_PER_S = 1 / 60
_log = logging.getLogger(__name__)


class DiskRefusals:
    """Thread-safe. Of each kind a line a minute is told: failures, damaged files, recoveries.

    Args:
        directory: as lines name it.
        clock: seconds that only grow.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._refused_at_s: dict[str, float] = {}
        self._lines = LineBudget(burst=1, lines_per_s=_LINES_PER_S, now=clock)

    def failed(self, operation: str, error: OSError) -> None:
        """Count and tell it, and let `operation` rest."""
        self.tell_failed(operation, error)
        self.rest(operation)

    def tell_failed(self, operation: str, error: OSError) -> None:
        """Count and tell it; `operation` may be tried again at once."""
        FAILURES.labels(operation).inc()
        text = f"{operation}: {error}; reads go on without what it was for"
        self._tell(logging.WARNING, "failed", text)

    def damaged(self, name: str, error: Exception) -> None:
        DAMAGED.inc()
        self._tell(logging.WARNING, "damaged", f"{name} is fetched anew: {error}")

    def rest(self, operation: str) -> None:
        with self._lock:
            self._refused_at_s[operation] = self._clock()

    def is_resting(self, operation: str) -> bool:
        with self._lock:
            refused_at_s = self._refused_at_s.get(operation)
        return refused_at_s is not None and self._clock() - refused_at_s < RETRY_AFTER_S

    def worked(self, operation: str) -> None:
        with self._lock:
            refused_at_s = self._refused_at_s.pop(operation, None)
        if refused_at_s is not None:
            self._tell(logging.INFO, "worked", f"{operation} works again")

    def opened(self) -> None:
        """The directory: perhaps it is another one, of which nothing was refused yet."""
        self.worked("open")
        with self._lock:
            self._refused_at_s.clear()

    def _tell(self, level: int, kind: str, text: str) -> None:
        left_out = self._lines.line(kind)
        if left_out is not None:
            more = f" ({left_out} such lines left out)" if left_out else ""
            _log.log(level, "index cache %s: %s%s", self._directory, text, more)
