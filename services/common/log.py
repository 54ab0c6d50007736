"""Log one JSON object a line on standard error, and bound the volume of repeated lines."""

import json
import logging
import sys
import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, whatever was passed as `extra`, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((k, v) for k, v in vars(record).items() if k not in _STANDARD)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: str) -> None:
    """Send the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It tells of every repeated request; what became of the call is told by who made it.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    # It tells that the end of a pipeline failed where its statement did; who ran it tells why.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    # It tells of every connection and of every failure as an error; who asked raises it.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)


BURST = 10
LINES_PER_S = 1.0


class LineBudget:
    """So many lines at once for each kind, then so many a second.

    The kinds must be few: each is kept for ever.
    """

    def __init__(
        self,
        burst: int = BURST,
        lines_per_s: float = LINES_PER_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._lines_per_s = lines_per_s
        self._now = now
        self._lock = Lock()
        self._kinds: dict[Hashable, _Kind] = {}

    def line(self, kind: Hashable) -> int | None:
        """How many lines of this kind were left out since the last one; None: leave this out."""
        with self._lock:
            now = self._now()
            state = self._kinds.setdefault(kind, _Kind(self._burst, now))
            earned = (now - state.at) * self._lines_per_s
            state.left = min(self._burst, state.left + earned)
            state.at = now
            if state.left < 1:
                state.left_out += 1
                return None
            state.left -= 1
            left_out, state.left_out = state.left_out, 0
            return left_out


class _Kind:
    __slots__ = ("at", "left", "left_out")

    def __init__(self, left: float, at: float) -> None:
        self.left = left
        self.at = at
        self.left_out = 0


BOUNDED_LINES_PER_S = 0.2
"""While all partitions fail, as in an outage, their number must not fill the log."""


class BoundedLines:
    """Ten lines at once of each text, then one in five seconds; how many were left out before it is
    the `not_logged` of the next one. Thread-safe.

    The texts are constants of the code, each with places for what differs from line to line.
    """

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._budget = LineBudget(lines_per_s=BOUNDED_LINES_PER_S, now=now)

    def info(self, text: str, *args: object) -> None:
        self._line(logging.INFO, text, args)

    def warning(
        self, text: str, *args: object, exc_info: BaseException | bool | None = None
    ) -> None:
        self._line(logging.WARNING, text, args, exc_info)

    def error(self, text: str, *args: object, exc_info: BaseException | bool | None = None) -> None:
        self._line(logging.ERROR, text, args, exc_info)

    def _line(
        self,
        level: int,
        text: str,
        args: tuple[object, ...],
        exc_info: BaseException | bool | None = None,
    ) -> None:
        not_logged = self._budget.line(text)
        if not_logged is not None:
            extra = {"not_logged": not_logged} if not_logged else None
            self._log.log(level, text, *args, exc_info=exc_info, extra=extra)
