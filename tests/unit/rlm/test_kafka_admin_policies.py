"""Test the known cleanup policies of topics, and when the cluster is queried."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest

from services.api.ids import TopicIdPartition
from services.rlm.cleanup_policies import (
    MAX_AGE_S,
    RETRY_AFTER_S,
    UNUSED_AFTER_S,
    CleanupPolicies,
    is_awaited,
    is_compacted,
)
from services.rlm.kafka_admin.cluster_view import (
    ClusterUnreachableError,
    ClusterView,
    LogOffsets,
    NoPolicy,
    NoTopic,
    PolicyView,
    TopicView,
)
from services.rlm.scheduler import PassFailedError

OURS = "cluster"
CLICKS = TopicIdPartition(uuid4(), "clicks", 0)
CLICKS_1 = TopicIdPartition(CLICKS.topic_id, "clicks", 1)
ORDERS = TopicIdPartition(uuid4(), "orders", 0)
REFUSED = NoPolicy("not yours", is_refused=True)
FAILED = NoPolicy("not now")


@dataclass
class Cluster:
    """A cluster with the test's responses and a record of the requests; a clock beside it."""

    cluster_id: str = OURS
    is_away: bool = False
    now_s: float = 0.0
    ids: dict[str, UUID] = field(
        default_factory=lambda: {name.topic: name.topic_id for name in (CLICKS, ORDERS)}
    )
    policies: dict[str, str | NoPolicy] = field(
        default_factory=lambda: {"clicks": "delete", "orders": "compact"}
    )
    asked: list[set[str]] = field(default_factory=list)

    def view(self, topics: Collection[str]) -> ClusterView:
        found = {name: TopicView(self.ids[name], {}) for name in topics if name in self.ids}
        return ClusterView(self.cluster_id, {**dict.fromkeys(topics, NoTopic.UNKNOWN), **found})

    def cleanup_policies(self, topics: Collection[str]) -> PolicyView:
        self.asked.append(set(topics))
        if self.is_away:
            raise ClusterUnreachableError("timed out")
        return PolicyView(self.view(topics), self.policies)

    def stable_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, int]:
        return {}

    def log_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, LogOffsets]:
        return {}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def policies(cluster: Cluster) -> CleanupPolicies:
    return CleanupPolicies(cluster, OURS, clock=lambda: cluster.now_s)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("delete", False),
        ("", False),
        ("compact", True),
        ("compact,delete", True),
        ("delete, compact", True),
        ("compactor", False),
        (REFUSED, False),
        (FAILED, False),
    ],
)
def test_policy_that_contains_compact_is_compacted(policy: str | NoPolicy, expected: bool) -> None:
    assert is_compacted(policy) is expected


def test_only_obtainable_policies_are_awaited() -> None:
    assert [is_awaited(each) for each in ("", "compact", REFUSED, FAILED)] == [
        False,
        False,
        False,
        True,
    ]


def test_cluster_is_not_queried_without_requested_topics(
    cluster: Cluster, policies: CleanupPolicies
) -> None:
    policies.refresh()
    assert cluster.asked == []


def test_requested_policies_are_read_in_one_request(
    cluster: Cluster, policies: CleanupPolicies
) -> None:
    assert [is_awaited(policies.of(name)) for name in (CLICKS, CLICKS_1, ORDERS)] == [True] * 3
    policies.refresh()
    assert cluster.asked == [{"clicks", "orders"}]
    assert [policies.of(name) for name in (CLICKS, CLICKS_1, ORDERS)] == [
        "delete",
        "delete",
        "compact",
    ]


def test_only_new_or_outdated_policies_are_requested(
    cluster: Cluster, policies: CleanupPolicies
) -> None:
    policies.of(CLICKS)
    policies.refresh()
    cluster.now_s += MAX_AGE_S - 1
    policies.of(ORDERS)
    policies.refresh()
    policies.refresh()
    cluster.policies["clicks"] = "compact"
    cluster.now_s += 1
    assert policies.of(CLICKS) == "delete"
    policies.refresh()
    assert policies.of(CLICKS) == "compact"
    assert cluster.asked == [{"clicks"}, {"orders"}, {"clicks"}]


@pytest.mark.parametrize("change", [{"is_away": True}, {"cluster_id": "another"}])
def test_without_an_answer_of_its_cluster_the_last_one_holds(
    cluster: Cluster, policies: CleanupPolicies, change: dict[str, object]
) -> None:
    policies.of(ORDERS)
    policies.refresh()
    for name, value in change.items():
        setattr(cluster, name, value)
    cluster.policies["orders"] = "delete"
    cluster.now_s += MAX_AGE_S + UNUSED_AFTER_S + 1
    policies.of(CLICKS)
    with pytest.raises(PassFailedError, match=r"timed out|is of cluster another"):
        policies.refresh()
    assert policies.of(ORDERS) == "compact"
    assert is_awaited(policies.of(CLICKS))


@pytest.mark.parametrize("answer", [REFUSED, FAILED])
def test_without_further_answers_the_last_one_holds(
    cluster: Cluster, policies: CleanupPolicies, answer: NoPolicy
) -> None:
    policies.of(ORDERS)
    policies.refresh()
    cluster.policies["orders"] = answer
    cluster.now_s += MAX_AGE_S
    policies.refresh()
    assert policies.of(ORDERS) == "compact"


def test_a_refusal_is_logged_once_and_holds_until_a_broker_answers(
    cluster: Cluster, policies: CleanupPolicies, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.policies = {"clicks": REFUSED, "orders": REFUSED}
    with caplog.at_level(logging.WARNING, logger="services.rlm"):
        for name in (CLICKS, ORDERS):
            policies.of(name)
            policies.refresh()
            cluster.now_s += MAX_AGE_S
        policies.refresh()
    (said,) = caplog.messages
    assert "not authorized to read the cleanup.policy of topic clicks" in said
    assert "DESCRIBE_CONFIGS" in said
    cluster.policies["clicks"] = FAILED
    cluster.now_s += MAX_AGE_S
    policies.refresh()
    assert policies.of(CLICKS) == REFUSED
    cluster.policies["clicks"] = "compact"
    cluster.now_s += MAX_AGE_S
    policies.refresh()
    assert policies.of(CLICKS) == "compact"


def test_unanswered_policy_is_logged_and_soon_requested_again(
    cluster: Cluster, policies: CleanupPolicies
) -> None:
    cluster.policies["clicks"] = FAILED
    policies.of(CLICKS)
    with pytest.raises(PassFailedError, match=r"copies of 1 topic wait .*: clicks: not now"):
        policies.refresh()
    policies.refresh()
    cluster.now_s += RETRY_AFTER_S
    cluster.policies["clicks"] = "delete"
    policies.refresh()
    assert policies.of(CLICKS) == "delete"
    assert len(cluster.asked) == 2


def test_of_a_topic_that_has_its_name_now_nothing_is_believed(
    cluster: Cluster, policies: CleanupPolicies
) -> None:
    cluster.ids["clicks"] = uuid4()
    policies.of(CLICKS)
    with pytest.raises(PassFailedError, match="clicks: another topic has its name"):
        policies.refresh()
    del cluster.ids["clicks"]
    cluster.now_s += RETRY_AFTER_S
    with pytest.raises(PassFailedError, match="clicks: the cluster does not show the topic"):
        policies.refresh()
    assert is_awaited(policies.of(CLICKS))


def test_unused_policy_is_no_longer_requested(cluster: Cluster, policies: CleanupPolicies) -> None:
    policies.of(CLICKS)
    policies.refresh()
    cluster.now_s += UNUSED_AFTER_S + 1
    policies.of(ORDERS)
    policies.refresh()
    cluster.now_s += MAX_AGE_S
    policies.refresh()
    assert cluster.asked == [{"clicks"}, {"clicks", "orders"}, {"orders"}]
