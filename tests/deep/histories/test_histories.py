"""Histories are recorded as they happen, and saved without loss."""

from itertools import count
from pathlib import Path

import pytest

from services.api.calls import AtRevision
from tests.deep.histories.checker import check
from tests.deep.histories.history import History, Recorder
from tests.deep.histories.operations import HighestOffset
from tests.deep.histories.search import NotLinearizableError
from tests.deep.histories.simulation import simulated
from tests.deep.histories.stories import LOST, Story
from tests.deep.histories.violations import stale_read


def test_history_is_equal_after_saving_and_loading(tmp_path: Path) -> None:
    for seed in range(3):
        history = simulated(seed, count=300, share_lost=0.1)
        history.save(tmp_path / "history")
        assert History.load(tmp_path / "history") == history


def test_a_saved_violation_is_a_violation_still(tmp_path: Path) -> None:
    story = Story()
    culprit = stale_read(story)
    story.history_with_trail().save(tmp_path / "history")
    with pytest.raises(NotLinearizableError) as caught:
        check(History.load(tmp_path / "history"))
    assert culprit in caught.value.unexplained


def test_an_operation_is_recorded_between_the_times_round_its_call() -> None:
    recorder, recorded = Recorder(clock_ns=count(1).__next__), list[int]()

    def call() -> object:
        recorded.append(len(recorder.records()))
        return AtRevision(7, 1)

    assert recorder.perform("a", HighestOffset(0, 0), call) == AtRevision(7, 1)
    assert recorder.perform("a", HighestOffset(0, 0), lambda: LOST) == LOST
    first, second = recorder.records()
    assert (first.number, first.invoked_ns, first.completed_ns) == (1, 1, 2)
    assert (second.number, second.invoked_ns, second.completed_ns) == (2, 3, 4)
    assert second.is_lost
    assert (recorded, recorder.completed) == ([0], 1)
