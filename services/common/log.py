"""Log one JSON object per line to standard error, and limit repeated lines."""

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from services.common.printable import json_line

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Format time, level, logger, message, the fields of `extra`, and the traceback if any."""

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
        return json_line(line)


LINES_PER_WINDOW = 10
WINDOW_S = 60.0
MAX_KEYS = 1_000


@dataclass(slots=True)
class _Window:
    """The lines of one key since `start_s`."""

    start_s: float
    passed: int = 0
    suppressed: int = 0


class RepeatFilter(logging.Filter):
    """Pass a number of lines per window for each logger, level and format string.

    The first line of a later window has the number of suppressed lines as `not_logged`. DEBUG lines
    always pass, because DEBUG is enabled to get all lines. If a value needs a limit of its own,
    call sites put it into the format string. At most `max_keys` keys are remembered: the key whose
    window began first is dropped.
    """

    def __init__(
        self,
        lines_per_window: int = LINES_PER_WINDOW,
        window_s: float = WINDOW_S,
        max_keys: int = MAX_KEYS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._lines_per_window = lines_per_window
        self._window_s = window_s
        self._max_keys = max_keys
        self._now = now
        self._lock = Lock()
        # In the order in which the windows began.
        self._windows: OrderedDict[tuple[str, int, str], _Window] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        key = (record.name, record.levelno, str(record.msg))
        with self._lock:
            now = self._now()
            window = self._windows.get(key)
            if window is None or now - window.start_s >= self._window_s:
                if window is not None and window.suppressed:
                    record.not_logged = window.suppressed
                window = self._windows[key] = _Window(now)
                self._windows.move_to_end(key)
                if len(self._windows) > self._max_keys:
                    self._windows.popitem(last=False)
            if window.passed >= self._lines_per_window:
                window.suppressed += 1
                return False
            window.passed += 1
            return True


def configure_logging(level: str) -> None:
    """Send the log of this process to standard error, with repeated lines limited."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # urllib3 logs every retried request; the caller of the request logs its outcome.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    # psycopg logs a failed pipeline twice; the caller of the statement logs the reason.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    # kafka-python logs every connection, and every failure as an error; callers get an exception.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
