"""Test which of RLMM's topics are watched because the cluster no longer has them."""

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import PartitionPage, PartitionSummary
from services.rlm.kafka_admin.cluster_view import ClusterView, NoTopic, TopicView
from services.rlm.kafka_admin.deleted_topics import RecalledTopics, TopicName

OURS = "cluster"
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
OLDEST, OLD, NEW = (TopicName(UUID(int=n), name) for n, name in enumerate(["o", "p", "q"], 1))
KNOWN_SINCE_MS = {OLDEST: 1_000, OLD: 2_000, NEW: 3_000}
MADE_AGAIN = TopicView(UUID(int=99), {})

Answers = dict[TopicName, TopicView | NoTopic]


def alive(topic: TopicName) -> TopicView:
    return TopicView(topic.topic_id, {})


def summary(topic: TopicName, partition: int = 0, **changes: Any) -> PartitionSummary:
    known: dict[str, Any] = {"cluster_id": OURS, "known_since_ms": KNOWN_SINCE_MS[topic]}
    name = TopicIdPartition(topic.topic_id, topic.name, partition)
    return PartitionSummary(name, **{"delete_state": None, "revision": 1, **known, **changes})


class Rlmm:
    """An RLMM that lists the test's partitions, one on each page."""

    def __init__(self, *listed: PartitionSummary) -> None:
        self.listed: Sequence[PartitionSummary] = listed
        self.is_away = False
        self.calls: list[str] = []

    def list_partitions(self, *, page_token: str, **query: Any) -> PartitionPage:
        self.calls.append(query["cluster_id"])
        if self.is_away:
            raise RetriableRemoteStorageError("RLMM is away")
        at = int(page_token or 0)
        token = str(at + 1) if at + 1 < len(self.listed) else ""
        return PartitionPage(tuple(self.listed[at : at + 1]), token)


def recalled(*listed: PartitionSummary, max_topics: int = 10) -> RecalledTopics:
    rlmm: Any = Rlmm(*listed)
    topics = RecalledTopics(rlmm, OURS, max_topics)
    topics.read()
    return topics


def view(answers: Answers) -> ClusterView:
    return ClusterView(OURS, {topic.name: answer for topic, answer in answers.items()})


def all_three() -> RecalledTopics:
    return recalled(summary(OLDEST), summary(OLD), summary(NEW))


@pytest.mark.parametrize("answer", [NoTopic.UNKNOWN, MADE_AGAIN])
def test_topic_missing_in_the_cluster_is_watched_once(answer: TopicView | NoTopic) -> None:
    topics = all_three()
    answers: Answers = {OLDEST: alive(OLDEST), OLD: answer, NEW: alive(NEW)}
    assert topics.names == {"o", "p", "q"}
    assert topics.missing(view(answers)) == {OLD}
    assert topics.names == set()
    assert topics.missing(view(answers)) == set()


def test_topic_without_an_answer_is_watched_until_there_is_one() -> None:
    answers: Answers = {OLDEST: alive(OLDEST), OLD: NoTopic.NOT_AUTHORIZED, NEW: NoTopic.FAILED}
    assert all_three().missing(view(answers)) == {OLD, NEW}


@pytest.mark.parametrize("still_there", [(), (NEW,), (OLD,)])
def test_topics_older_than_all_existing_ones_are_not_reported_missing(
    still_there: tuple[TopicName, ...], caplog: pytest.LogCaptureFixture
) -> None:
    topics = all_three()
    answers: Answers = dict.fromkeys(KNOWN_SINCE_MS, NoTopic.UNKNOWN)
    answers |= {topic: alive(topic) for topic in still_there}
    watched = {NEW} if OLD in still_there else set()
    assert topics.missing(view(answers)) == watched
    left = 3 - len(still_there) - len(watched)
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert line.startswith(f"RLMM knows {left} topics of cluster {OURS} that do not exist")
    assert "AAAAAAAAAAAAAAAAAAAAAQ:o" in line
    # Later it makes no difference what is there.
    answers[OLDEST] = alive(OLDEST)
    assert (topics.missing(view(answers)), topics.names) == (set(), set())


def test_topics_of_one_moment_vouch_for_each_other() -> None:
    topics = recalled(summary(OLD), summary(NEW, known_since_ms=KNOWN_SINCE_MS[OLD]))
    assert topics.missing(view({OLD: NoTopic.UNKNOWN, NEW: alive(NEW)})) == {OLD}


def test_topic_without_an_answer_counts_as_existing_and_older() -> None:
    topics = all_three()
    answers: Answers = {OLDEST: NoTopic.FAILED, OLD: NoTopic.UNKNOWN}
    assert topics.missing(view({**answers, NEW: alive(NEW)})) == set()
    assert topics.names == {"o", "p"}
    answers[OLDEST] = alive(OLDEST)
    assert topics.missing(view(answers)) == {OLD}


def test_a_topic_is_as_old_as_the_oldest_of_its_partitions() -> None:
    grown = [summary(OLDEST, 0, known_since_ms=9_000), summary(OLDEST, 1)]
    answers: Answers = {OLDEST: alive(OLDEST), OLD: NoTopic.UNKNOWN}
    assert recalled(*grown, summary(OLD)).missing(view(answers)) == {OLD}


def test_topics_being_deleted_are_not_requested() -> None:
    topics = recalled(summary(OLDEST), summary(OLD, delete_state=MARKED))
    assert topics.names == {"o"}
    answers: Answers = {OLDEST: alive(OLDEST), OLD: NoTopic.UNKNOWN}
    assert topics.missing(view(answers)) == set()


def test_partly_marked_topic_is_watched() -> None:
    topics = recalled(summary(OLDEST), summary(OLD, 0, delete_state=MARKED), summary(OLD, 1))
    assert topics.missing(view({OLDEST: alive(OLDEST), OLD: NoTopic.UNKNOWN})) == {OLD}


def test_requests_are_bounded_and_more_topics_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    topics = recalled(summary(OLDEST), summary(OLDEST, 1), summary(OLD), summary(NEW), max_topics=2)
    assert topics.names == {"o", "p"}
    assert "more than 2 topics of cluster cluster" in caplog.text


def test_rlmm_is_asked_until_it_has_answered_once() -> None:
    rlmm: Any = Rlmm(summary(OLDEST), summary(OLD))
    topics = RecalledTopics(rlmm, OURS)
    rlmm.is_away = True
    with pytest.raises(RetriableRemoteStorageError):
        topics.read()
    assert topics.names == set()
    rlmm.is_away = False
    for _ in range(2):
        topics.read()
    assert topics.names == {"o", "p"}
    assert rlmm.calls == [OURS] * 3


def test_without_log_directories_rlmm_is_asked_again_for_topics_that_are_new() -> None:
    rlmm: Any = Rlmm(summary(OLDEST), summary(OLD))
    topics = RecalledTopics(rlmm, OURS, every_polls=2)
    topics.read()
    answers: Answers = {OLDEST: alive(OLDEST), OLD: alive(OLD)}
    assert topics.existing(view(answers)) == {OLDEST, OLD}
    assert topics.missing(view(answers)) == set()
    rlmm.listed = [summary(OLDEST), summary(OLD), summary(NEW)]
    for names in (set(), set(), {"q"}):
        topics.read()
        assert topics.names == names


def test_topics_perhaps_older_than_the_cluster_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rlmm: Any = Rlmm(summary(OLDEST), summary(NEW))
    topics = RecalledTopics(rlmm, OURS, every_polls=0)
    for _ in range(3):
        topics.read()
        assert topics.missing(view({OLDEST: NoTopic.UNKNOWN, NEW: alive(NEW)})) == set()
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
