"""Segments that a sweep or another broker deletes: the broker gives no bytes of them from memory.

The tests delete as a sweep does, without a word to the broker.
"""

import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from tests.harness.eventually import eventually
from tests.plugin.deployment import Deployment, Partition
from tests.plugin.jmx import read_jmx
from tests.plugin.tiered_partition import DEADLINE_MS

pytestmark = pytest.mark.plugin

MIB = 1024 * 1024
SEGMENT_BYTES = 6 * MIB
RECORDS, RECORD_BYTES = 24, 700_000
BOUND_S = 3.0
"""For so long the broker may still answer by what it knew."""

PLUGIN = "io.sediment.kafka:type={},broker=1".format
OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET  # what the client says if it may not reset
SWEEP = 4711
TIMEOUT_S = 30.0


@pytest.fixture
def held(deployment: Deployment) -> tuple[Partition, list[bytes]]:
    """A tiered partition and its values, when the broker answers look-ups of it from memory."""
    partition = deployment.create_one("held", SEGMENT_BYTES, local_retention_bytes="1")
    values = partition.produce(RECORDS, RECORD_BYTES)
    partition.wait_until_moved()
    partition.wait_until_read_from_memory(values)
    return partition, values


def test_nothing_is_read_from_memory_after_another_has_deleted_it(
    held: tuple[Partition, list[bytes]],
) -> None:
    partition, values = held
    first, second, *_ = partition.finished()
    begins_s = []
    with closing(strict_consumer(partition)) as consumer:
        assert value_at(consumer, partition, 0) == values[0]
        figures = read_jmx(partition.deployment.broker)
        assert figures[PLUGIN("ReadAhead"), "CachedBytes"] >= first.segment_size_in_bytes
        assert figures[PLUGIN("LookUps"), "Current"] == 1
        move(partition, first, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        marked_s = time.monotonic()

        def is_out_of_range() -> bool:
            begins_s.append(time.monotonic())
            value = value_at(consumer, partition, 0)
            assert value in (None, values[0])
            return value is None

        eventually(is_out_of_range, DEADLINE_MS, poll_ms=1)
        # A slow machine cannot break this: the broker counts from the time to which it is sure.
        assert all(begin_s - marked_s < BOUND_S for begin_s in begins_s[:-1])
        delete(partition, first)
        assert value_at(consumer, partition, first.end_offset) is None
        assert value_at(consumer, partition, second.start_offset) == values[second.start_offset]


def test_segment_that_is_deleted_while_it_is_read_ends_the_read_with_kafkas_error(
    held: tuple[Partition, list[bytes]],
) -> None:
    partition, values = held
    second = partition.finished()[1]
    little = {"fetch.message.max.bytes": 65_536, "queued.min.messages": 1}
    read: list[bytes | None] = []
    with closing(strict_consumer(partition, **little)) as consumer:
        consumer.assign([TopicPartition(partition.name.topic, 0, second.start_offset)])
        error = None
        while error is None:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            error = message.error()
            if error is None:
                read.append(message.value())
            if len(read) == 1 and error is None:
                move(partition, second, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
                delete(partition, second)
                eventually(partial(is_gone, partition, second), DEADLINE_MS)
    assert error.code() == OUT_OF_RANGE, error
    begin = second.start_offset
    assert read == values[begin : begin + len(read)]
    assert begin + len(read) <= second.end_offset, "the segment's end was read after its deletion"


def strict_consumer(partition: Partition, **settings: object) -> Consumer:
    strict = {"auto.offset.reset": "error", "enable.partition.eof": False, **settings}
    return partition.deployment.cluster.consumer("read_uncommitted", **strict)


def value_at(consumer: Consumer, partition: Partition, offset: int) -> bytes | None:
    """Return the value at an offset; None if the broker says that it is out of range."""
    consumer.assign([TopicPartition(partition.name.topic, 0, offset)])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    error = message.error()
    if error is not None:
        assert error.code() == OUT_OF_RANGE, error
        return None
    assert message.offset() == offset
    return message.value()


def is_gone(partition: Partition, segment: RemoteLogSegmentMetadata) -> bool:
    """Return whether a new consumer gets nothing of the segment's end."""
    with closing(strict_consumer(partition)) as consumer:
        return value_at(consumer, partition, segment.end_offset) is None


def delete(partition: Partition, marked: RemoteLogSegmentMetadata) -> None:
    """Delete a segment's objects, and record it."""
    with partition.world.storage() as rsm:
        rsm.delete_log_segment_data(
            replace(marked, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        )
    move(partition, marked, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)


def move(
    partition: Partition, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
) -> None:
    update = RemoteLogSegmentMetadataUpdate(
        segment.remote_log_segment_id, time.time_ns() // 1_000_000, state, SWEEP
    )
    with partition.world.metadata() as rlmm:
        rlmm.update_remote_log_segment_metadata(update)
