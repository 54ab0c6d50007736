"""Test that outdated plans are made again, a bounded number of times."""

import pytest

from services.api.errors import ConcurrentUpdateError, RetriableRemoteStorageError
from services.common.retry import REPLANS, replan


class State:
    """A revision that others raise whenever somebody acts, a number of times."""

    def __init__(self, changes: int) -> None:
        self.revision = 0
        self.changes = changes
        self.tried: list[int] = []

    def read(self) -> int:
        return self.revision

    def act(self, revision: int) -> str:
        self.tried.append(revision)
        if self.changes:
            self.changes -= 1
            self.revision += 1
        if revision != self.revision:
            raise ConcurrentUpdateError(f"is at {self.revision}")
        return "done"


def test_an_outdated_plan_is_made_again() -> None:
    state = State(changes=2)
    assert replan(state.act, state.read) == "done"
    assert state.tried == [0, 1, 2]


def test_a_first_plan_is_used_once() -> None:
    state = State(changes=0)
    assert replan(state.act, state.read, first=-1) == "done"
    assert state.tried == [-1, 0]


def test_plans_that_stay_outdated_end_with_their_error() -> None:
    state = State(changes=100)
    with pytest.raises(ConcurrentUpdateError, match=f"is at {REPLANS + 1}"):
        replan(state.act, state.read)
    assert len(state.tried) == REPLANS + 1


def test_another_error_is_not_an_outdated_plan() -> None:
    tried: list[int] = []

    def fail(revision: int) -> None:
        tried.append(revision)
        raise RetriableRemoteStorageError("away")

    with pytest.raises(RetriableRemoteStorageError):
        replan(fail, lambda: 1)
    assert tried == [1]
