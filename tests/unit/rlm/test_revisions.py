"""Test cached revisions: watched or polled in bulk, except for partitions that RLMM refuses."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from queue import Queue
from typing import Any
from uuid import uuid4

import pytest

from services.api.errors import (
    InvalidRequestError,
    NotServedError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.watches import PartitionUpdate, WatchedPartition, WatchUpdate
from services.rlm import revisions as module
from services.rlm.revisions import STALLED_S, Revisions
from tests.harness.eventually import eventually
from tests.harness.published import published

NAMES = [TopicIdPartition(uuid4(), "t", number) for number in range(5)]


Sent = WatchUpdate | RemoteStorageError


class Rlmm:
    """Returns the partition's number as its revision; a watch has what the test puts into it."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.watches: list[tuple[list[TopicIdPartition], Queue[Sent]]] = []
        self.serves_watches = True
        self.refused: set[TopicIdPartition] = set()
        self.is_away = False

    def partition_revisions(self, names: Sequence[TopicIdPartition]) -> list[int]:
        self.asked.append(len(names))
        if self.is_away:
            raise RetriableRemoteStorageError("away")
        if self.refused & set(names):
            raise InvalidRequestError("partitions[0].topic: the topic id has another name")
        return [name.partition for name in names]

    def watch_partitions(
        self, partitions: Sequence[WatchedPartition]
    ) -> Generator[WatchUpdate, None, None]:
        if not self.serves_watches:
            raise NotServedError("an older release")
        sent: Queue[Sent] = Queue()
        self.watches.append(([each.topic_id_partition for each in partitions], sent))
        while True:
            update = sent.get()
            if isinstance(update, RemoteStorageError):
                raise update
            yield update


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


def test_outdated_revision_is_not_returned(rlmm: Rlmm) -> None:
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


def test_revision_no_longer_requested_is_dropped(rlmm: Rlmm) -> None:
    revisions = told_by(rlmm)
    revisions.poll(NAMES)
    revisions.poll(NAMES[2:])
    assert [revisions.of(name) for name in NAMES] == [None, None, 2, 3, 4]


def test_one_that_is_refused_keeps_no_other_from_being_announced(rlmm: Rlmm) -> None:
    rlmm.refused = {NAMES[3]}
    revisions = told_by(rlmm)
    revisions.poll(NAMES)
    assert [revisions.of(name) for name in NAMES] == [0, 1, 2, None, 4]


@pytest.fixture
def watching(rlmm: Rlmm) -> Iterator[Revisions]:
    """Watch all partitions at second 0 of a clock that stands still."""
    revisions = told_by(rlmm)
    revisions.start()
    revisions.follow(NAMES)
    eventually(lambda: len(rlmm.watches) == 1)
    yield revisions
    revisions.stop()
    for _, sent in rlmm.watches:
        sent.put(RetriableRemoteStorageError("the test has ended"))


def test_a_watch_replaces_the_poll(rlmm: Rlmm, watching: Revisions) -> None:
    assert [watching.of(name) for name in NAMES] == [0, 1, 2, 3, 4]
    ((watched, sent),) = rlmm.watches
    assert watched == NAMES
    sent.put(WatchUpdate((PartitionUpdate(3, 30),), 100))
    eventually(lambda: watching.of(NAMES[3]) == 30)
    for _ in range(3):
        watching.follow(NAMES)
    assert (rlmm.asked, len(rlmm.watches)) == ([5], 1)


def test_the_partitions_of_a_watch_are_counted_until_it_ends(
    rlmm: Rlmm, watching: Revisions
) -> None:
    ((_, sent),) = rlmm.watches
    before = published("sediment_rlm_revisions_watched")
    sent.put(WatchUpdate((), 100))
    eventually(lambda: published("sediment_rlm_revisions_watched") == before + len(NAMES))
    sent.put(RetriableRemoteStorageError("away"))
    eventually(lambda: published("sediment_rlm_revisions_watched") == before)


def test_revisions_are_as_old_as_the_last_update(rlmm: Rlmm) -> None:
    now_s = [0.0]
    revisions = told_by(rlmm, now_s)
    revisions.start()
    revisions.follow(NAMES)
    eventually(lambda: len(rlmm.watches) == 1)
    now_s[0] = 70.0
    assert revisions.of(NAMES[1]) is None
    _, sent = rlmm.watches[0]
    sent.put(WatchUpdate((), 10_000))
    eventually(lambda: revisions.of(NAMES[1]) == 1)
    now_s[0] = 70.1
    assert revisions.of(NAMES[1]) is None
    sent.put(RetriableRemoteStorageError("the test has ended"))


def has_revision(revisions: Revisions, name: TopicIdPartition, revision: int) -> bool:
    return revisions.of(name) == revision


def test_a_watch_that_is_not_complete_for_10_s_is_replaced(rlmm: Rlmm) -> None:
    now_s = [0.0]
    revisions = told_by(rlmm, now_s)
    revisions.start()
    revisions.follow(NAMES)
    eventually(lambda: len(rlmm.watches) == 1)
    _, sent = rlmm.watches[0]
    for number in range(10, 13):  # Progress each 10 s, and a heartbeat without any between.
        sent.put(WatchUpdate((PartitionUpdate(0, number),), number))
        eventually(partial(has_revision, revisions, NAMES[0], number))
        now_s[0] += STALLED_S
        sent.put(WatchUpdate((PartitionUpdate(1, number),), number))
        eventually(partial(has_revision, revisions, NAMES[1], number))
    assert revisions.is_watching
    now_s[0] += 0.1
    sent.put(WatchUpdate((), 12))
    eventually(lambda: not revisions.is_watching)
    revisions.follow(NAMES)
    eventually(lambda: len(rlmm.watches) == 2)
    rlmm.watches[1][1].put(RetriableRemoteStorageError("the test has ended"))


def test_without_a_watch_it_polls_until_there_is_one(rlmm: Rlmm) -> None:
    revisions = told_by(rlmm)
    revisions.start()
    rlmm.serves_watches = False
    for count in range(1, 4):
        revisions.follow(NAMES)
        assert rlmm.asked == [5] * count
        eventually(lambda: not revisions.is_watching)
    rlmm.serves_watches = True
    revisions.follow(NAMES)
    eventually(lambda: len(rlmm.watches) == 1)
    revisions.follow(NAMES)
    assert rlmm.asked == [5] * 4
    rlmm.watches[0][1].put(RetriableRemoteStorageError("cut"))
    eventually(lambda: not revisions.is_watching)
    revisions.follow(NAMES)
    assert rlmm.asked == [5] * 5
    eventually(lambda: len(rlmm.watches) == 2)
    rlmm.watches[1][1].put(RetriableRemoteStorageError("the test has ended"))


def test_other_partitions_begin_another_watch(rlmm: Rlmm, watching: Revisions) -> None:
    rlmm.refused = {NAMES[3]}
    watching.follow(NAMES[2:])
    eventually(lambda: len(rlmm.watches) == 2)
    (_, earlier), (watched, later) = rlmm.watches
    assert watched == [NAMES[2], NAMES[4]]
    earlier.put(WatchUpdate((PartitionUpdate(2, 20),), 100))
    later.put(WatchUpdate((PartitionUpdate(1, 40),), 100))
    eventually(lambda: watching.of(NAMES[4]) == 40)
    assert [watching.of(name) for name in NAMES] == [None, None, 2, None, 40]
    asked = len(rlmm.asked)
    watching.follow(NAMES[2:])
    assert len(rlmm.asked) == asked


def test_too_many_for_a_watch_are_polled(rlmm: Rlmm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WATCHED", 4)
    revisions = told_by(rlmm)
    revisions.start()
    for _ in range(2):
        revisions.follow(NAMES)
    assert (rlmm.asked, rlmm.watches) == ([5, 5], [])


def test_it_only_polls_until_it_is_started_and_after_it_is_stopped(rlmm: Rlmm) -> None:
    revisions = told_by(rlmm)
    revisions.follow(NAMES)
    revisions.start()
    revisions.stop()
    revisions.follow(NAMES)
    assert (rlmm.asked, rlmm.watches) == ([5, 5], [])
