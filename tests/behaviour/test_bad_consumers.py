"""Test bad clients of RLM's listener: those that leave, stop reading, or want to write."""

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from services.rlm.fetch.chunk_cache import MIB
from tests.harness.doors import (
    answered,
    connected_socket,
    fetch_of,
    framed,
    serving_consumers,
    value_of,
)
from tests.harness.eventually import eventually
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments

CONNECTIONS = "sediment_rlm_consumer_connections"
WAITING = "sediment_rlm_delayed_fetches"


def test_a_client_that_leaves_during_a_wait_gives_its_thread_back(stack: Stack) -> None:
    three_segments(stack.log_dir)
    with serving_consumers(stack.rlm()) as address:
        with connected_socket(address) as client:
            client.sendall(framed(fetch_of(NAME.topic_id, 25, max_wait_ms=60_000)))
            eventually(lambda: value_of(WAITING) == 1)
        eventually(lambda: (value_of(WAITING), value_of(CONNECTIONS)) == (0, 0))


@pytest.mark.deep
def test_a_client_that_stops_reading_gives_its_thread_back(stack: Stack) -> None:
    large = batch(0, payload=bytes(16 * MIB))  # More than the buffers of a connection hold.
    PartitionFiles(stack.log_dir).segment(0, [large])
    with (
        serving_consumers(stack.rlm(), stall_timeout_s=0.3) as address,
        connected_socket(address, receive_buffer_bytes=64 * 1024) as stalled,
    ):
        stalled.sendall(framed(fetch_of(NAME.topic_id, 0)))
        assert stalled.recv(4)  # The answer has begun.
        eventually(lambda: value_of(CONNECTIONS) == 0)
        with connected_socket(address) as other:
            other.sendall(framed(fetch_of(NAME.topic_id, 1)))
            assert answered(other)


def test_a_client_that_would_create_a_topic_learns_that_it_cannot(stack: Stack) -> None:
    three_segments(stack.log_dir)
    with serving_consumers(stack.rlm()) as address:
        admin = AdminClient({"bootstrap.servers": address})
        created = admin.create_topics([NewTopic("new", 1, 1)], request_timeout=30)["new"]
        with pytest.raises(KafkaException) as refusal:
            created.result(timeout=60)
        error = refusal.value.args[0]
        assert error.code() == KafkaError._UNSUPPORTED_FEATURE
        assert list(admin.list_topics(timeout=30).topics) == [NAME.topic]
