from pathlib import Path

import pytest

from services.local.process import ProcessError
from services.local.stack import MAX_RESTARTS, RESTARTS_WITHIN_S, EmbeddedStack, is_too_often
from tests.harness.small_limits import small_disk

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("seconds_between", "ends", "expected"),
    [
        (1.0, MAX_RESTARTS, False),
        (1.0, MAX_RESTARTS + 1, True),
        (RESTARTS_WITHIN_S / MAX_RESTARTS, MAX_RESTARTS + 1, True),
        (RESTARTS_WITHIN_S / MAX_RESTARTS + 1, 100, False),
    ],
)
def test_restarts_count_within_a_time(seconds_between: float, ends: int, expected: bool) -> None:
    assert is_too_often([1_000.0 + seconds_between * end for end in range(ends)]) is expected


def test_a_disk_that_fills_is_named_before_what_failed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 200 * MIB) as disk:
        stack = EmbeddedStack(disk.path)
        with pytest.raises(ProcessError, match=r"^EmbeddedPostgres was never started"):
            list(stack.watch())
        disk.fill()
        watched = stack.watch()
        assert next(watched) == f"{disk.path} has only 0 MiB left; free some"
        full = rf"^no space left on {disk.path} .*: EmbeddedPostgres was never started"
        with pytest.raises(ProcessError, match=full):
            next(watched)
