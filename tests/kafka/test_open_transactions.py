"""An open transaction delays what is behind its first offset, and RLM sees it as Kafka does."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from services.api.ids import TopicIdPartition
from tests.harness.eventually import eventually
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, NOW, Record, Topic, send_batch
from tests.kafka.records import consumed, fetched
from tests.kafka.tiered_broker import (
    TieredBroker,
    produce_segments,
    ranges_in_tier,
    ranges_on_disk,
)

pytestmark = pytest.mark.kafka

ENDINGS = {"committed": Producer.commit_transaction, "aborted": Producer.abort_transaction}


@dataclass
class OpenTransaction:
    """A transaction that has written once, with rolled segments before and behind it."""

    tier: TieredBroker
    name: TopicIdPartition
    folder: Path
    producer: Producer
    first_offset: int

    def end(self, ending: str) -> None:
        """End it, and wait until its marker is in the log."""
        ENDINGS[ending](self.producer, CLIENT_TIMEOUT_S)
        eventually(self.is_stable)

    def is_stable(self) -> bool:
        reported = self.tier.cluster.offsets(self.name.topic, self.name.partition)
        return reported.last_stable_offset == reported.log_end_offset


@pytest.fixture
def transaction(tier: TieredBroker) -> Iterator[OpenTransaction]:
    topic = Topic(f"transaction-{uuid4()}", 1, 8192)
    name, folder = tier.create(topic)
    produce_segments(tier.cluster, topic)
    first_offset = tier.cluster.offsets(topic.name, 0).log_end_offset
    with tier.cluster.transactional(topic.name) as producer:
        producer.begin_transaction()
        send_batch(producer, topic, 0, [Record(b"key", b"in a transaction", NOW)])
        produce_segments(tier.cluster, topic)
        tier.ship(topic)
        yield OpenTransaction(tier, name, folder, producer, first_offset)


def test_only_segments_below_the_open_transaction_are_shipped(
    transaction: OpenTransaction,
) -> None:
    expected = ranges_on_disk(transaction.folder, below_offset=transaction.first_offset)
    assert ranges_in_tier(transaction.tier.finished(transaction.name)) == expected
    assert 0 < len(expected) < len(ranges_on_disk(transaction.folder))


def test_rlm_sees_the_last_stable_offset_of_the_broker_while_it_is_open(
    transaction: OpenTransaction,
) -> None:
    name = transaction.name
    reported = transaction.tier.cluster.offsets(name.topic, name.partition)
    assert transaction.tier.bounds(name) == reported
    assert reported.last_stable_offset == transaction.first_offset < reported.log_end_offset


@pytest.mark.parametrize("ending", ENDINGS)
def test_rlm_sees_the_last_stable_offset_of_the_broker_when_it_has_ended(
    transaction: OpenTransaction, ending: str
) -> None:
    transaction.end(ending)
    name = transaction.name
    reported = transaction.tier.cluster.offsets(name.topic, name.partition)
    assert transaction.tier.bounds(name) == reported


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_rest_is_shipped_and_read_back_when_it_has_ended(
    transaction: OpenTransaction, ending: str, tmp_path: Path
) -> None:
    transaction.end(ending)
    tier, name = transaction.tier, transaction.name
    tier.ship(Topic(name.topic, 1, 8192))
    assert ranges_in_tier(tier.finished(name)) == ranges_on_disk(transaction.folder)
    rlm = tier.without_rolled_segments(tmp_path)
    assert fetched(rlm, name, 0) == consumed(tier.cluster, name)
