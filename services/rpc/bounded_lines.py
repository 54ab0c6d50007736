"""Lines of which each of thousands of partitions, copies or reads may have one."""

import logging
import time
from collections.abc import Callable

from services.rpc.log_lines import LineBudget

LINES_PER_S = 0.2
"""While all partitions fail, as in an outage, their number must not fill the log."""


class BoundedLines:
    """Ten lines at once of each text, then one in five seconds; how many were left out before it is
    the `not_logged` of the next one. Thread-safe.

    The texts are constants of the code, each with places for what differs from line to line.
    """

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._budget = LineBudget(lines_per_s=LINES_PER_S, now=now)

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
