"""Kafka's cleaner compacts a topic of keyed metadata, and what is left says what RLMM has."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from demos.kafka_broker import KafkaBroker
from services.api.ids import TopicIdPartition
from tests.harness.databases import OwnRlmm
from tests.harness.eventually import eventually
from tests.harness.keyed_scenarios import five_scenarios, present_of
from tests.harness.sediment_command import sediment
from tests.harness.served import served_manager

pytestmark = pytest.mark.kafka

CLEANED_AT_ONCE = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    # Each batch rolls a segment; the cleaner takes all but the last one.
    "segment.ms": "1",
}


@pytest.fixture
def address(rlmm: OwnRlmm) -> Iterator[str]:
    with served_manager(rlmm) as (_, address):
        yield address


def read(server: str, name: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offset, key and value of every record that is left."""
    tp = TopicPartition(name, 0)
    consumer = KafkaConsumer(bootstrap_servers=server, group_id=None, auto_offset_reset="earliest")
    try:
        consumer.assign([tp])
        end, found = consumer.end_offsets([tp])[tp], []
        while consumer.position(tp) < end:
            polled = consumer.poll(timeout_ms=500).get(tp, ())
            found += [(each.offset, each.key, each.value) for each in polled]
        return found
    finally:
        consumer.close()


def test_what_the_cleaner_leaves_says_what_rlmm_has(
    broker: KafkaBroker, rlmm: OwnRlmm, address: str
) -> None:
    server, name = broker.bootstrap_servers, f"keyed-{uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=server)
    admin.create_topics([NewTopic(name, 1, 1, topic_configs=CLEANED_AT_ONCE)])
    admin.close()
    tp = TopicIdPartition(uuid4(), "orders", 0)
    written: list[int] = []
    for expected in five_scenarios(rlmm, tp):
        done = sediment(
            *("--rlmm", address, "metadata", "export", "--keyed"),
            *("--bootstrap-server", server, "--topic-name", name),
        )
        assert done.returncode == 0, done.stderr
        left = read(server, name)
        assert present_of(tp, ((key, value) for _, key, value in left)) == expected
        written.append(left[-1][0] + 1)
    last_batch = written[-2]  # of the active segment, which Kafka does not clean

    def is_cleaned() -> bool:
        keys = [key for offset, key, _ in read(server, name) if offset < last_batch]
        return len(keys) == len(set(keys)) < last_batch // 2

    eventually(is_cleaned)
    assert present_of(tp, ((key, value) for _, key, value in read(server, name))) == expected
