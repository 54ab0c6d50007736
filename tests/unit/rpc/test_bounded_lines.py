import logging

import pytest

from services.common.log import BoundedLines

_log = logging.getLogger(__name__)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_of_one_text_there_are_few_lines_and_they_say_how_many_are_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    lines = BoundedLines(_log, clock)
    for number in range(30):
        lines.warning("%d is sick", number)
    lines.error("%s", "another", exc_info=ValueError("why"))
    clock.now_s = 5.0
    for number in range(30, 40):
        lines.warning("%d is sick", number)
    told = [record.getMessage() for record in caplog.records]
    assert told == [*(f"{n} is sick" for n in range(10)), "another", "30 is sick"]
    assert [getattr(r, "not_logged", None) for r in caplog.records] == [None] * 11 + [20]
    assert "ValueError: why" in caplog.text
