"""Test which problems are logged, and when."""

import pytest

from services.api.remote_log_manager import Problem, ProblemKind
from services.rlm.problem_log import ProblemLog
from tests.unit.rlm.kafka_bytes import NAME

UNLISTED = Problem(ProblemKind.HIGH_WATERMARK_UNKNOWN, "/logs/f", "does not list t-0", None, 2)
NAMELESS = Problem(ProblemKind.PARTITION_METADATA_MISSING, "/logs/t-0", "missing", None, 0)
DAMAGED = Problem(ProblemKind.CORRUPT_BATCH, "/logs/t-0/0.log", "bad CRC", 5, 1)


@pytest.mark.parametrize(
    ("problem", "lines"),
    [(DAMAGED, [1, 1, 1, 1, 2]), (UNLISTED, [0, 1, 1, 1, 1]), (NAMELESS, [0, 1, 1, 1, 1])],
)
def test_temporary_problem_is_logged_once_if_it_lasts(
    caplog: pytest.LogCaptureFixture, problem: Problem, lines: list[int]
) -> None:
    reported = ProblemLog()
    counted = []
    for problems in ([problem], [problem], [problem], [], [problem]):
        reported.log(NAME, problems)
        counted.append(len(caplog.records))
    assert counted == lines
