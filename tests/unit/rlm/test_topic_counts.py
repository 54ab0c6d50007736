"""Test which topics have counters, and for how long."""

from dataclasses import replace
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from services.rlm.collectors import percent
from services.rlm.metrics import OTHER_TOPICS, REMOTE_COPY_BYTES, TOPIC_COUNTERS, TopicCounts
from tests.unit.rlm.kafka_bytes import NAME

SECOND = replace(NAME, partition=1)
OTHER = replace(NAME, topic="other", topic_id=UUID(int=77))


def copied_bytes(counts: TopicCounts) -> dict[str, float]:
    return values(counts)[f"{REMOTE_COPY_BYTES.name}_total"]


def values(counts: TopicCounts) -> dict[str, dict[str, float]]:
    """Return the values by metric, then by topic."""
    registry = CollectorRegistry()
    registry.register(counts)
    found: dict[str, dict[str, float]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels["topic"]] = sample.value
    return found


def test_a_topic_that_is_led_has_every_counter_from_0_on() -> None:
    counts = TopicCounts()
    counts.led(NAME)
    assert values(counts) == {
        f"{counter.name}_total": {"t": 0, OTHER_TOPICS: 0} for counter in TOPIC_COUNTERS
    }


def test_partitions_of_a_topic_count_together() -> None:
    counts = TopicCounts()
    for name in (NAME, SECOND, OTHER):
        counts.led(name)
    counts.add(REMOTE_COPY_BYTES, "t", 3)
    counts.add(REMOTE_COPY_BYTES, "t", 4)
    counts.add(REMOTE_COPY_BYTES, "other", 1)
    assert copied_bytes(counts) == {"t": 7, "other": 1, OTHER_TOPICS: 0}


def test_a_topic_goes_with_its_last_partition_and_starts_again() -> None:
    counts = TopicCounts()
    for name in (NAME, NAME, SECOND):
        counts.led(name)
    counts.add(REMOTE_COPY_BYTES, "t", 3)
    counts.not_led(NAME)
    counts.not_led(NAME)
    assert copied_bytes(counts) == {"t": 3, OTHER_TOPICS: 0}
    counts.not_led(SECOND)
    assert copied_bytes(counts) == {OTHER_TOPICS: 0}
    counts.led(NAME)
    assert copied_bytes(counts) == {"t": 0, OTHER_TOPICS: 0}


def test_all_topics_that_are_not_led_are_one() -> None:
    """However many there are, and late: a copy may end when the topic has gone."""
    counts = TopicCounts()
    counts.led(NAME)
    counts.not_led(NAME)
    for topic in ("t", *(f"topic-{number}" for number in range(1000))):
        counts.add(REMOTE_COPY_BYTES, topic, 2)
    counts.not_led(OTHER)
    assert copied_bytes(counts) == {OTHER_TOPICS: 2002}


@pytest.mark.parametrize(
    ("size_bytes", "limit_bytes", "expected"),
    [(849, 1000, 84), (1070, 1000, 107), (1000, 1000, 100), (19, 1000, 1), (0, 1000, 0)],
)
def test_percents_are_whole_as_in_kafka(size_bytes: int, limit_bytes: int, expected: int) -> None:
    assert percent(size_bytes, limit_bytes) == expected
