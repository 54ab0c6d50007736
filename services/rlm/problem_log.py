"""Log each problem of a partition once: when it appears, and again after it went away."""

import logging
from collections.abc import Iterable

from services.api.remote_log_manager import Problem, ProblemKind

_log = logging.getLogger(__name__)

_WHAT_TO_DO = {
    ProblemKind.UNREADABLE: "let RLM's user read it, and look whether its disk is well",
    ProblemKind.PARTITION_METADATA_MISSING: "restart the broker, which writes it",
    ProblemKind.LEADER_EPOCHS_MISSING: "bring it back from a replica",
    ProblemKind.TRUNCATED_BATCH: "bring the segment back from a replica",
    ProblemKind.CORRUPT_BATCH: "bring the segment back from a replica",
    ProblemKind.PRODUCER_SNAPSHOT_MISSING: "bring it back from a replica",
    ProblemKind.HIGH_WATERMARK_UNKNOWN: "look whether the broker runs and writes this file",
}


_TOLD_ELSEWHERE = (
    # Mended; recorded; the task's own failure.
    ProblemKind.INDEX_REBUILT,
    ProblemKind.LOST_BEFORE_COPY,
    ProblemKind.STORE_UNAVAILABLE,
)


_ENDS_BY_ITSELF = (ProblemKind.HIGH_WATERMARK_UNKNOWN,)
"""A partition that is new has it for some seconds."""


def holds_back(problem: Problem) -> bool:
    """Whether nothing goes on where the problem is before a person, or the broker, has mended
    something."""
    return problem.kind not in _TOLD_ELSEWHERE


_Key = tuple[ProblemKind, str, int | None]


class ProblemLog:
    """Of one partition, or of the log directories: what the log has been told of. Of what lasts
    there are a gauge and DescribePartitions."""

    def __init__(self) -> None:
        self._told: frozenset[_Key] = frozenset()
        self._not_yet_told: frozenset[_Key] = frozenset()

    def log(self, where: object, problems: Iterable[Problem]) -> None:
        """Those of the problems that there are now, and were not when this was told last; of what
        ends by itself, those that were there then, too."""
        now = {(p.kind, p.path, p.offset): p for p in problems if holds_back(p)}
        waits = frozenset(
            key
            for key, problem in now.items()
            if problem.kind in _ENDS_BY_ITSELF and key not in self._told | self._not_yet_told
        )
        news = [now[key] for key in now if key not in self._told | waits]
        self._told, self._not_yet_told = frozenset(now) - waits, waits
        for problem in news:
            _tell(where, problem)


def _tell(where: object, problem: Problem) -> None:
    hint = _WHAT_TO_DO.get(problem.kind)
    _log.warning(
        # Each kind has a limit of lines of its own.
        f"%s: held back, with %d rolled segments: {problem.kind.value}: %s: %s%s",
        where,
        problem.held_segments,
        problem.path,
        problem.message,
        f"; {hint}" if hint else "",
    )
