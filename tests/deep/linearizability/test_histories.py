"""Histories are recorded as they happen, and kept without loss."""

from itertools import count
from pathlib import Path

import pytest

from tests.deep.linearizability.checker import check
from tests.deep.linearizability.history import History, Recorder
from tests.deep.linearizability.operations import Answered, HighestOffset, Lost, Reply
from tests.deep.linearizability.search import NotLinearizableError
from tests.deep.linearizability.simulation import simulated
from tests.deep.linearizability.stories import LOST, Story
from tests.deep.linearizability.violations import stale_read


def test_history_is_equal_after_saving_and_loading(tmp_path: Path) -> None:
    for seed in range(3):
        history = simulated(seed, count=300, share_lost=0.1)
        history.save(tmp_path / "history.jsonl")
        assert History.load(tmp_path / "history.jsonl") == history


def test_a_saved_violation_is_a_violation_still(tmp_path: Path) -> None:
    story = Story()
    culprit = stale_read(story)
    story.history_with_trail().save(tmp_path / "history.jsonl")
    with pytest.raises(NotLinearizableError) as caught:
        check(History.load(tmp_path / "history.jsonl"))
    assert culprit in caught.value.unexplained


def test_a_partition_without_any_event_keeps_its_empty_trail(tmp_path: Path) -> None:
    history = History([], {"p": []})
    history.save(tmp_path / "history.jsonl")
    assert History.load(tmp_path / "history.jsonl").trails == {"p": []}


def test_an_operation_is_recorded_between_the_times_round_its_call() -> None:
    recorder, seen = Recorder(clock_ns=count(1).__next__), list[int]()

    def call() -> Reply:
        seen.append(len(recorder.records()))
        return Answered(7, 1)

    assert recorder.perform("a", "p", HighestOffset(0), call) == Answered(7, 1)
    assert recorder.perform("a", "p", HighestOffset(0), lambda: LOST) == LOST
    first, second = recorder.records()
    assert (first.number, first.invoked_ns, first.completed_ns) == (1, 1, 2)
    assert (second.number, second.invoked_ns, second.completed_ns) == (2, 3, 4)
    assert isinstance(second.reply, Lost)
    assert (seen, recorder.completed) == ([0], 1)
