"""Test the meaning of a broker's responses for a topic."""

from uuid import UUID, uuid4

import pytest
from kafka import errors

from services.rlm.kafka_admin.client import cleanup_policy, topic_view
from services.rlm.kafka_admin.cluster_view import NoPolicy, NoTopic, PartitionView, TopicView
from tests.harness.metadata_broker import described, partition, topic

CLICKS_ID = uuid4()
LEADER_NOT_AVAILABLE = errors.LeaderNotAvailableError.errno


def test_a_topic_has_its_id() -> None:
    assert topic_view(topic("clicks", CLICKS_ID)) == TopicView(CLICKS_ID, {})


@pytest.mark.parametrize("no_id", [None, UUID(int=0)])
def test_no_id_is_not_another_id(no_id: UUID | None) -> None:
    assert topic_view(topic("clicks", no_id)) is NoTopic.FAILED


def test_a_partition_has_a_leader_and_the_epoch_of_that_leader() -> None:
    found = topic_view(
        topic(
            "clicks",
            CLICKS_ID,
            partition(0, leader=1, leader_epoch=4, replicas=[1, 2]),
            partition(1, leader=2, leader_epoch=0, replicas=[2]),
            partition(2, leader=1, leader_epoch=-1, replicas=[1]),
        )
    )
    assert isinstance(found, TopicView)
    assert found.partitions == {
        0: PartitionView(1, 4, frozenset({1, 2})),
        1: PartitionView(2, 0, frozenset({2})),
        2: PartitionView(1, None, frozenset({1})),
    }


@pytest.mark.parametrize("error_code", [0, LEADER_NOT_AVAILABLE])
def test_without_a_leader_there_is_no_epoch_of_it(error_code: int) -> None:
    nobodys = partition(0, leader=-1, leader_epoch=4, replicas=[2], error_code=error_code)
    found = topic_view(topic("clicks", CLICKS_ID, nobodys))
    assert found == TopicView(CLICKS_ID, {0: PartitionView(None, None, frozenset({2}))})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.UnknownTopicOrPartitionError, NoTopic.UNKNOWN),
        (errors.TopicAuthorizationFailedError, NoTopic.NOT_AUTHORIZED),
        (errors.LeaderNotAvailableError, NoTopic.FAILED),
        (errors.ClusterAuthorizationFailedError, NoTopic.FAILED),
        (errors.UnknownTopicIdError, NoTopic.FAILED),
        (errors.UnknownError, NoTopic.FAILED),
    ],
)
@pytest.mark.parametrize("topic_id", [None, CLICKS_ID])
def test_only_one_error_says_that_there_is_no_topic(
    error: type[errors.BrokerResponseError], expected: NoTopic, topic_id: UUID | None
) -> None:
    assert topic_view(topic("clicks", topic_id, error_code=error.errno)) is expected


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete", ""])
def test_a_policy_is_returned_as_kafka_writes_it(policy: str) -> None:
    assert cleanup_policy(described("clicks", policy)) == policy


def test_only_a_missing_authorization_counts_as_a_refusal() -> None:
    code = errors.TopicAuthorizationFailedError.errno
    refused = cleanup_policy(described("clicks", None, code, "not yours"))
    assert refused == NoPolicy("TopicAuthorizationFailedError: not yours", is_refused=True)
    code = errors.UnknownTopicOrPartitionError.errno
    failed = cleanup_policy(described("clicks", None, code))
    assert failed == NoPolicy("UnknownTopicOrPartitionError: no reason")
    left_out = cleanup_policy(described("clicks", None))
    assert left_out == NoPolicy("the broker's answer has no cleanup.policy")
