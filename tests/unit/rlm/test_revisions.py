"""Test cached revisions: read in bulk, for a while, except for partitions that RLMM refuses."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.rlm import tier_state as module
from services.rlm.tier_state import Revisions

NAMES = [TopicIdPartition(uuid4(), "t", number) for number in range(5)]


class Rlmm:
    """Returns the partition's number as its revision."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.refused: set[TopicIdPartition] = set()
        self.is_away = False

    def partition_revisions(self, names: Sequence[TopicIdPartition]) -> list[int]:
        self.asked.append(len(names))
        if self.is_away:
            raise RetriableRemoteStorageError("away")
        if self.refused & set(names):
            raise InvalidRequestError("partitions[0].topic: the topic id has another name")
        return [name.partition for name in names]


@pytest.fixture
def rlmm() -> Rlmm:
    return Rlmm()


def told_by(rlmm: Any, now_s: Sequence[float] = (0.0,)) -> Revisions:
    return Revisions(rlmm, 60.0, lambda: now_s[0])


def test_many_are_asked_for_at_once(rlmm: Rlmm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REVISIONS", 2)
    revisions = told_by(rlmm)
    assert revisions.of(NAMES[1]) is None
    revisions.poll(NAMES)
    assert rlmm.asked == [2, 2, 1]
    assert [revisions.of(name) for name in NAMES] == [0, 1, 2, 3, 4]


def test_what_is_old_is_not_announced(rlmm: Rlmm) -> None:
    now_s = [0.0]
    revisions = told_by(rlmm, now_s)
    revisions.poll(NAMES)
    now_s[0] = 60.0
    assert revisions.of(NAMES[1]) == 1
    now_s[0] = 60.1
    assert revisions.of(NAMES[1]) is None


def test_the_last_answer_stays_while_rlmm_is_away(rlmm: Rlmm) -> None:
    revisions = told_by(rlmm)
    revisions.poll(NAMES)
    rlmm.is_away = True
    with pytest.raises(RetriableRemoteStorageError):
        revisions.poll(NAMES)
    assert revisions.of(NAMES[1]) == 1


def test_what_is_no_longer_requested_is_forgotten(rlmm: Rlmm) -> None:
    revisions = told_by(rlmm)
    revisions.poll(NAMES)
    revisions.poll(NAMES[2:])
    assert [revisions.of(name) for name in NAMES] == [None, None, 2, 3, 4]


def test_one_that_is_refused_keeps_no_other_from_being_announced(rlmm: Rlmm) -> None:
    rlmm.refused = {NAMES[3]}
    revisions = told_by(rlmm)
    revisions.poll(NAMES)
    assert [revisions.of(name) for name in NAMES] == [0, 1, 2, None, 4]
