"""Test that repeated events do not fill the log."""

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from services.common.log import LINES_PER_WINDOW, JsonFormatter, RepeatFilter, configure_logging
from tests.harness.clocks import Clock


class Captured:
    """A logger whose handler has the filter and the format of the services."""

    def __init__(self, repeat_filter: RepeatFilter) -> None:
        self._text = io.StringIO()
        handler = logging.StreamHandler(self._text)
        handler.setFormatter(JsonFormatter())
        handler.addFilter(repeat_filter)
        self.log = logging.getLogger("captured")
        self.log.handlers, self.log.propagate = [handler], False
        self.log.setLevel(logging.DEBUG)

    def take(self) -> list[tuple[str, int | None]]:
        """Return the lines since the last call: message and `not_logged`."""
        lines = [json.loads(line) for line in self._text.getvalue().splitlines()]
        self._text.seek(0)
        self._text.truncate()
        return [(line["message"], line.get("not_logged")) for line in lines]


@pytest.fixture
def captured(clock: Clock) -> Captured:
    return Captured(RepeatFilter(lines_per_window=3, window_s=10.0, max_keys=4, now=clock))


def test_the_next_window_begins_with_the_number_of_suppressed_lines(
    captured: Captured, clock: Clock
) -> None:
    for number in range(8):
        captured.log.warning("%d is sick", number)
    clock.now_s = 9.9
    captured.log.warning("%d is sick", 8)
    assert captured.take() == [("0 is sick", None), ("1 is sick", None), ("2 is sick", None)]
    clock.now_s = 10.0
    for number in range(9, 14):
        captured.log.warning("%d is sick", number)
    assert captured.take() == [("9 is sick", 6), ("10 is sick", None), ("11 is sick", None)]


def test_a_quiet_window_reports_nothing_suppressed(captured: Captured, clock: Clock) -> None:
    for _ in range(3):
        captured.log.warning("sick")
        clock.now_s += 10.0
    assert captured.take() == [("sick", None)] * 3


def test_each_logger_level_and_format_has_its_own_limit(captured: Captured) -> None:
    child = captured.log.getChild("child")
    for _ in range(4):
        captured.log.warning("a")
        captured.log.error("a")
        captured.log.warning("b")
        child.warning("a")
    assert len(captured.take()) == 4 * 3


def test_debug_lines_always_pass(captured: Captured) -> None:
    for _ in range(30):
        captured.log.debug("asked")
    assert len(captured.take()) == 30


def test_the_oldest_window_is_forgotten_when_there_are_too_many_keys(
    captured: Captured, clock: Clock
) -> None:
    for number in range(5):
        for _ in range(4):
            captured.log.warning(f"kind {number}")
    captured.take()
    captured.log.warning("kind 1")
    assert captured.take() == []
    captured.log.warning("kind 0")
    assert captured.take() == [("kind 0", None)]


def test_no_line_is_lost_or_counted_twice_by_threads(captured: Captured, clock: Clock) -> None:
    def flood() -> None:
        for _ in range(500):
            captured.log.warning("sick")

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(captured.take()) == 3
    clock.now_s = 10.0
    captured.log.warning("sick")
    assert captured.take() == [("sick", 1997)]


@pytest.fixture
def root_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    yield
    root.setLevel(before)


@pytest.mark.usefixtures("root_as_before")
def test_the_log_of_a_process_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO")
    for number in range(1000):
        logging.getLogger("flooded").error("item %d", number)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == LINES_PER_WINDOW
