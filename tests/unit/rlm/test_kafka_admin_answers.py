"""What the client library's answers say of a topic."""

from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException, Node, TopicPartitionInfo, Uuid
from confluent_kafka.admin._topic import TopicDescription

from services.rlm.kafka_admin.admin_client import no_topic, topic_view
from services.rlm.kafka_admin.cluster_view import NoTopic, PartitionView, TopicView

ONE, TWO = Node(1, "one", 9092), Node(2, "two", 9092)


def described(topic_id: Uuid, *partitions: TopicPartitionInfo) -> TopicView | NoTopic:
    return topic_view(TopicDescription("clicks", topic_id, False, list(partitions)))


@pytest.mark.parametrize(("high", "low"), [(1, 2), (-1, -5), (-(2**63), 2**63 - 1)])
def test_a_topic_has_its_id_whatever_its_bits(high: int, low: int) -> None:
    expected = UUID(int=(high % 2**64) << 64 | low % 2**64)
    assert described(Uuid(high, low)) == TopicView(expected, {})


def test_no_id_is_not_another_id() -> None:
    assert described(Uuid(0, 0)) is NoTopic.FAILED


def test_a_partition_has_a_leader_or_none() -> None:
    led = TopicPartitionInfo(0, ONE, [ONE, TWO], [ONE])
    not_led = TopicPartitionInfo(1, None, [TWO], [])  # type: ignore[arg-type]  # as it comes
    nobodys = TopicPartitionInfo(2, Node(-1, "", -1), [TWO], [])
    found = described(Uuid(1, 2), led, not_led, nobodys)
    assert isinstance(found, TopicView)
    assert found.partitions == {
        0: PartitionView(1, None, frozenset({1, 2})),
        1: PartitionView(None, None, frozenset({2})),
        2: PartitionView(None, None, frozenset({2})),
    }


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NoTopic.UNKNOWN),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NoTopic.NOT_AUTHORIZED),
        (KafkaError.LEADER_NOT_AVAILABLE, NoTopic.FAILED),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, NoTopic.FAILED),
    ],
)
def test_only_one_error_says_that_there_is_no_topic(code: int, expected: NoTopic) -> None:
    assert no_topic(KafkaException(KafkaError(code))) is expected


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._UNKNOWN_TOPIC])
def test_an_error_of_the_client_says_nothing_of_the_topic(code: int) -> None:
    with pytest.raises(KafkaException):
        no_topic(KafkaException(KafkaError(code)))
