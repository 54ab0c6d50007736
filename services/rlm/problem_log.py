"""Log each problem of a partition when it appears, and again if it returns."""

import logging
from collections.abc import Iterable

from services.api.remote_log_manager import Problem, ProblemKind

_log = logging.getLogger(__name__)

_HINTS = {
    ProblemKind.UNREADABLE: "let RLM's user read it, and check its disk",
    ProblemKind.PARTITION_METADATA_MISSING: "restart the broker, so that it writes the file again",
    ProblemKind.LEADER_EPOCHS_MISSING: "restore the file from a replica",
    ProblemKind.TRUNCATED_BATCH: "restore the segment from a replica",
    ProblemKind.CORRUPT_BATCH: "restore the segment from a replica",
    ProblemKind.PRODUCER_SNAPSHOT_MISSING: "restore the file from a replica",
    ProblemKind.HIGH_WATERMARK_UNKNOWN: "check that the broker runs and writes this file",
}

_LOGGED_ELSEWHERE = (
    # Repaired; recorded; logged as the failure of the task.
    ProblemKind.INDEX_REBUILT,
    ProblemKind.LOST_BEFORE_COPY,
    ProblemKind.STORE_UNAVAILABLE,
    # Blocks nothing.
    ProblemKind.DELETED_AT_BROKER,
    ProblemKind.EARLIER_HISTORY,
    ProblemKind.BROKER_RETENTION_SET,
)

_TRANSIENT = (
    ProblemKind.HIGH_WATERMARK_UNKNOWN,
    ProblemKind.PARTITION_METADATA_MISSING,
)
"""A new partition has these problems for some seconds."""


def blocks_copying(problem: Problem) -> bool:
    """Return whether copying waits until a person or the broker repairs something."""
    return problem.kind not in _LOGGED_ELSEWHERE


_Key = tuple[ProblemKind, str, int | None]


class ProblemLog:
    """Remember which problems of a partition, or of the log directories, were logged.

    A gauge and DescribePartitions show the problems as long as they last.
    """

    def __init__(self) -> None:
        self._logged: frozenset[_Key] = frozenset()
        self._not_yet_logged: frozenset[_Key] = frozenset()

    def log(self, where: object, problems: Iterable[Problem]) -> None:
        """Log the problems that are new since the last call.

        A problem that may end without intervention is logged if the second call finds it, too.
        """
        now = {(p.kind, p.path, p.offset): p for p in problems if blocks_copying(p)}
        waits = frozenset(
            key
            for key, problem in now.items()
            if problem.kind in _TRANSIENT and key not in self._logged | self._not_yet_logged
        )
        news = [now[key] for key in now if key not in self._logged | waits]
        self._logged, self._not_yet_logged = frozenset(now) - waits, waits
        for problem in news:
            _log_problem(where, problem)


def _log_problem(where: object, problem: Problem) -> None:
    hint = _HINTS.get(problem.kind)
    _log.warning(
        # Each kind has a limit of lines of its own.
        f"%s: copying has stopped, %d rolled segments wait: {problem.kind.value}: %s: %s%s",
        where,
        problem.blocked_segments,
        problem.path,
        problem.message,
        f"; {hint}" if hint else "",
    )
