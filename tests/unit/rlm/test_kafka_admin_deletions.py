"""Test when a topic counts as deleted, and every way in which it is only missing."""

from uuid import uuid4

import pytest

from services.rlm.kafka_admin.cluster_view import ClusterView, NoTopic, PartitionView, TopicView
from services.rlm.kafka_admin.deleted_topics import (
    MIN_POLLS,
    Doubt,
    TopicName,
    Watched,
    confirmed,
    watched_after,
)

OURS = "cluster"
CONFIRM_S = 3600.0
STEP_S = CONFIRM_S / (2 * MIN_POLLS)
CLICKS = TopicName(uuid4(), "clicks")
PARTITIONS = {0: PartitionView(leader=1, leader_epoch=4, replicas=frozenset({1}))}
ALIVE = TopicView(CLICKS.topic_id, PARTITIONS)
MADE_AGAIN = TopicView(uuid4(), PARTITIONS)

Answer = TopicView | NoTopic | None


class Polls:
    """Polls a topic that was seen alive once and whose log is gone since."""

    def __init__(self, seen_alive: bool = True) -> None:
        self.now_s = 1000.0
        self.watched: Watched = {}
        if seen_alive:
            self.poll(ALIVE, is_here=True)

    def poll(self, answer: Answer, cluster_id: str = OURS, is_here: bool = False) -> None:
        """
        Args:
            answer: None: the topic is not among the answers.
        """
        topics = {} if answer is None else {CLICKS.name: answer}
        self._poll(ClusterView(cluster_id, topics), is_here)

    def fail(self) -> None:
        self._poll(None, is_here=False)

    def _poll(self, view: ClusterView | None, is_here: bool) -> None:
        self.now_s += STEP_S
        here = {CLICKS} if is_here else set[TopicName]()
        self.watched = watched_after(self.watched, here, view, OURS, self.now_s)

    def gone(self, answer: Answer = NoTopic.UNKNOWN) -> None:
        """Poll until the topic counts as deleted."""
        for _ in range(2 * MIN_POLLS + 1):
            self.poll(answer)

    @property
    def confirmed(self) -> list[TopicName]:
        return confirmed(self.watched, CONFIRM_S, self.now_s)


@pytest.mark.parametrize("answer", [NoTopic.UNKNOWN, MADE_AGAIN])
def test_a_topic_is_deleted_when_the_cluster_has_said_so_for_as_long_as_it_must(
    answer: Answer,
) -> None:
    polls = Polls()
    for _ in range(2 * MIN_POLLS):
        polls.poll(answer)
        assert polls.confirmed == []
    polls.poll(answer)
    assert polls.confirmed == [CLICKS]


def test_the_name_may_be_given_to_another_topic_meanwhile() -> None:
    polls = Polls()
    for answer in [NoTopic.UNKNOWN] * MIN_POLLS + [MADE_AGAIN] * (MIN_POLLS + 1):
        polls.poll(answer)
    assert polls.confirmed == [CLICKS]


@pytest.mark.parametrize("answer", [None, NoTopic.NOT_AUTHORIZED, NoTopic.FAILED])
def test_a_topic_that_is_not_seen_is_never_a_deleted_one(answer: Answer) -> None:
    polls = Polls()
    polls.gone(answer)
    assert polls.confirmed == []


@pytest.mark.parametrize("answer", [None, NoTopic.NOT_AUTHORIZED, NoTopic.FAILED, ALIVE])
def test_one_other_answer_starts_the_count_again(answer: Answer) -> None:
    polls = Polls()
    polls.gone()
    polls.poll(answer, is_here=answer is ALIVE)
    assert polls.confirmed == []
    polls.poll(NoTopic.UNKNOWN)
    assert polls.watched == {CLICKS: Doubt(polls.now_s, 1)}
    polls.gone()
    assert polls.confirmed == [CLICKS]


def test_a_poll_that_fails_starts_the_count_again() -> None:
    polls = Polls()
    polls.gone()
    polls.fail()
    polls.poll(NoTopic.UNKNOWN)
    assert polls.confirmed == []
    polls.gone()
    assert polls.confirmed == [CLICKS]


def test_another_cluster_behind_the_address_confirms_nothing() -> None:
    polls = Polls()
    polls.gone()
    for _ in range(3 * MIN_POLLS):
        polls.poll(NoTopic.UNKNOWN, cluster_id="another")
    polls.poll(NoTopic.UNKNOWN)
    assert polls.confirmed == []


def test_topics_of_another_cluster_are_not_watched() -> None:
    polls = Polls(seen_alive=False)
    polls.poll(ALIVE, cluster_id="another", is_here=True)
    assert polls.watched == {}


@pytest.mark.parametrize("answer", [NoTopic.UNKNOWN, MADE_AGAIN])
def test_a_topic_that_was_never_seen_alive_here_may_be_another_clusters(answer: Answer) -> None:
    polls = Polls(seen_alive=False)
    polls.gone(answer)
    assert polls.confirmed == []
    assert polls.watched == {}


@pytest.mark.parametrize("answer", [None, *NoTopic, MADE_AGAIN])
def test_a_log_that_lay_here_is_not_enough_to_be_seen_alive(answer: Answer) -> None:
    polls = Polls(seen_alive=False)
    polls.poll(answer, is_here=True)
    polls.gone()
    assert polls.confirmed == []


def test_a_restart_counts_again_from_when_the_topic_is_seen_alive() -> None:
    before = Polls()
    before.gone()
    after = Polls(seen_alive=False)
    after.gone()
    assert (before.confirmed, after.confirmed) == ([CLICKS], [])


@pytest.mark.parametrize("answer", [NoTopic.UNKNOWN, MADE_AGAIN])
def test_topic_with_a_local_log_counts_as_existing(answer: Answer) -> None:
    polls = Polls()
    for _ in range(3 * MIN_POLLS):
        polls.poll(answer, is_here=True)
    assert polls.confirmed == []
    polls.poll(answer)
    assert polls.watched == {CLICKS: Doubt(polls.now_s, 1)}


def test_a_pause_between_two_answers_is_not_an_hour_of_answers() -> None:
    polls = Polls()
    polls.poll(NoTopic.UNKNOWN)
    polls.now_s += 10 * CONFIRM_S
    for _ in range(MIN_POLLS - 2):
        polls.poll(NoTopic.UNKNOWN)
        assert polls.confirmed == []
    polls.poll(NoTopic.UNKNOWN)
    assert polls.confirmed == [CLICKS]


def test_a_topic_that_lives_on_other_brokers_is_theirs_to_watch() -> None:
    polls = Polls()
    polls.poll(ALIVE)
    assert polls.watched == {}
