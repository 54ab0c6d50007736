"""Test which broker gets which request, and the remains if no broker responds."""

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from services.api.ids import TopicIdPartition
from services.local.process import LOOPBACK
from services.rlm.kafka_admin import client
from services.rlm.kafka_admin.client import (
    MAX_PARTITIONS_A_REQUEST,
    MAX_TOPICS_A_REQUEST,
    KafkaAdmin,
)
from services.rlm.kafka_admin.cluster_view import (
    ClusterUnreachableError,
    ClusterView,
    LogOffsets,
    TopicView,
)
from services.rlm.kafka_admin.security import KafkaSecurity, SecurityProtocol
from tests.harness.metadata_broker import (
    Lists,
    MetadataBroker,
    described,
    metadata,
    partition,
    topic,
)

TIMEOUT_S = 30.0
IMPATIENT_S = 0.3
"""The timeout for brokers that never respond: tests wait it out."""
SOON_S = 20.0
A_FEW = 20
NAMES = [f"t-{number:04}" for number in range(2 * MAX_TOPICS_A_REQUEST + 1)]


TOPICS = [TopicIdPartition(uuid4(), topic, 0) for topic in ("audit", "clicks", "orders")]


def all_there(names: Sequence[str]) -> Any:
    return metadata([topic(name, uuid4(), partition(0, 1, 4, [1])) for name in names])


def admin(*servers: str) -> KafkaAdmin:
    return KafkaAdmin(servers, TIMEOUT_S)


def address(listener: socket.socket) -> str:
    return f"{LOOPBACK}:{listener.getsockname()[1]}"


def nobodys_address() -> str:
    with socket.create_server((LOOPBACK, 0)) as listener:
        return address(listener)


def held() -> tuple[frozenset[threading.Thread], int]:
    """Return the threads of this process, and its number of open files."""
    gc.collect()
    return frozenset(threading.enumerate()), len(os.listdir("/proc/self/fd"))


def assert_nothing_left(before: tuple[frozenset[threading.Thread], int]) -> None:
    """Assert no thread and no file more than `before`; those of earlier tests may have ended."""
    threads, files = held()
    assert threads <= before[0]
    assert files <= before[1]


def test_a_request_without_topics_returns_none() -> None:
    with MetadataBroker(all_there) as broker:
        assert admin(broker.address).view([]) == ClusterView("c", {})
    (asked,) = broker.requests
    assert asked.topics == []


def test_topics_are_asked_for_by_name_in_batches_and_asking_makes_none() -> None:
    with MetadataBroker(all_there) as broker:
        view = admin(broker.address).view({*NAMES})
    assert sorted(view.topics) == NAMES
    assert all(isinstance(found, TopicView) for found in view.topics.values())
    assert [len(asked.topics) for asked in broker.requests] == [
        MAX_TOPICS_A_REQUEST,
        MAX_TOPICS_A_REQUEST,
        1,
    ]
    assert [asked.allow_auto_topic_creation for asked in broker.requests] == [False] * 3


def test_policies_are_asked_for_with_metadata_in_batches_and_nothing_but_policies() -> None:
    def describes(names: Sequence[str]) -> Sequence[Any]:
        return [described(name, "compact" if name == NAMES[0] else "delete") for name in names]

    with MetadataBroker(all_there, describes) as broker:
        found = admin(broker.address).cleanup_policies({*NAMES})
    assert sorted(found.cluster.topics) == NAMES
    assert found.cleanup_policies == {**dict.fromkeys(NAMES, "delete"), NAMES[0]: "compact"}
    assert [len(asked.resources) for asked in broker.config_requests] == [
        MAX_TOPICS_A_REQUEST,
        MAX_TOPICS_A_REQUEST,
        1,
    ]
    keys = [each.configuration_keys for asked in broker.config_requests for each in asked.resources]
    assert keys == [["cleanup.policy"]] * len(NAMES)


def test_a_view_asks_for_no_policies() -> None:
    with MetadataBroker(all_there) as broker:
        admin(broker.address).view(NAMES[:1])
    assert broker.config_requests == []


@pytest.mark.deep
def test_an_answer_may_be_of_many_partitions() -> None:
    partitions = [partition(number, 1, 4, [1, 2, 3]) for number in range(60_000)]
    with MetadataBroker(lambda names: metadata([topic("wide", uuid4(), *partitions)])) as broker:
        view = admin(broker.address).view(["wide"])
    found = view.topics["wide"]
    assert isinstance(found, TopicView)
    assert len(found.partitions) == len(partitions)


def test_a_view_of_two_clusters_is_refused() -> None:
    def answer(names: Sequence[str]) -> Any:
        return metadata(cluster_id="c" if names[0] == NAMES[0] else "another")

    with (
        MetadataBroker(answer) as broker,
        pytest.raises(ClusterUnreachableError, match="brokers of two clusters answered"),
    ):
        admin(broker.address).view(NAMES)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (metadata(brokers=()), "the broker names no brokers, not even itself; it is starting"),
        (metadata(cluster_id=None), "the broker answered without a cluster id"),
    ],
)
def test_incomplete_metadata_response_is_an_error(answer: Any, reason: str) -> None:
    with (
        MetadataBroker(lambda names: answer) as broker,
        pytest.raises(ClusterUnreachableError, match=reason),
    ):
        admin(broker.address).view(["clicks"])


@contextmanager
def listing(lists: Lists) -> Iterator[tuple[MetadataBroker, KafkaAdmin]]:
    """Provide a cluster of one broker, number 0."""

    def answer(names: Sequence[str]) -> Any:
        return metadata(brokers=[broker.address])

    with MetadataBroker(answer, lists=lists) as broker:
        asking = admin(broker.address)
        asking.view([])
        yield broker, asking


def test_the_leader_is_asked_for_last_stable_offsets_under_its_epoch_in_batches() -> None:
    partitions = MAX_PARTITIONS_A_REQUEST // len(TOPICS) + 1
    names = {TopicIdPartition(t.topic_id, t.topic, n): n for t in TOPICS for n in range(partitions)}
    with listing(lambda topic, number: (0, 100 + number)) as (broker, asking):
        found = asking.stable_offsets(0, names)
    assert found == {name: 100 + epoch for name, epoch in names.items()}
    asked = broker.offset_requests
    counts = [sum(len(topic.partitions) for topic in request.topics) for request in asked]
    assert counts == [MAX_PARTITIONS_A_REQUEST, len(names) - MAX_PARTITIONS_A_REQUEST]
    for request in asked:
        assert (request.replica_id, request.isolation_level) == (-1, 1)
        for p in (p for each in request.topics for p in each.partitions):
            assert (p.current_leader_epoch, p.timestamp) == (p.partition_index, -1)


def test_broker_returns_offsets_only_for_partitions_led_in_that_epoch() -> None:
    answers = {"clicks": (0, 7), "orders": (74, -1), "audit": (0, -1)}
    with listing(lambda topic, number: answers[topic]) as (_, asking):
        found = asking.stable_offsets(0, dict.fromkeys(TOPICS, 4))
    assert {name.topic: offset for name, offset in found.items()} == {"clicks": 7}


def test_the_leader_is_asked_for_the_log_start_and_the_high_watermark_in_batches() -> None:
    partitions = MAX_PARTITIONS_A_REQUEST // len(TOPICS) + 1
    names = {TopicIdPartition(t.topic_id, t.topic, n): 4 for t in TOPICS for n in range(partitions)}
    with listing(lambda topic, number: (0, 100 + number)) as (broker, asking):
        found = asking.log_offsets(0, names)
    assert found == {n: LogOffsets(100 + n.partition, 100 + n.partition) for n in names}
    asked = broker.offset_requests
    kinds = [{p.timestamp for t in request.topics for p in t.partitions} for request in asked]
    assert kinds == [{-2}, {-2}, {-1}, {-1}]
    assert {request.isolation_level for request in asked} == {0}


def test_a_leader_that_no_view_has_named_is_not_asked() -> None:
    with listing(lambda topic, number: (0, 7)) as (broker, asking):
        with pytest.raises(ClusterUnreachableError, match="names no broker 1"):
            asking.stable_offsets(1, {TOPICS[0]: 4})
        with pytest.raises(ClusterUnreachableError, match="names no broker 0"):
            admin(broker.address).stable_offsets(0, {TOPICS[0]: 4})
    assert broker.offset_requests == []


def test_a_leader_that_does_not_answer_is_named() -> None:
    with listing(lambda topic, number: (0, 7)) as (broker, asking):
        pass
    with pytest.raises(ClusterUnreachableError, match=broker.address):
        asking.stable_offsets(0, {TOPICS[0]: 4})


def test_any_of_the_bootstrap_servers_will_do() -> None:
    with MetadataBroker(all_there) as broker:
        asking = admin(nobodys_address(), broker.address, nobodys_address())
        for _ in range(A_FEW):
            assert asking.view([]).cluster_id == "c"


def test_when_they_are_away_the_brokers_of_their_last_answer_are_polled() -> None:
    with MetadataBroker(lambda names: metadata(cluster_id="other's")) as other:
        named = metadata(brokers=[other.address, "nobody:1"])
        with MetadataBroker(lambda names: named) as bootstrap:
            asking = admin(bootstrap.address)
            assert asking.view([]).cluster_id == "c"
        assert asking.view([]).cluster_id == "other's"


def test_an_unreachable_service_is_named_with_the_reason() -> None:
    nobody = nobodys_address()
    with pytest.raises(ClusterUnreachableError, match=f"{nobody}: .*Connection refused"):
        admin(nobody).view([])
    with pytest.raises(ClusterUnreachableError, match=r"nowhere\.invalid:9092: "):
        admin("nowhere.invalid:9092").view([])


def test_a_silent_broker_is_abandoned_in_time() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        before_s = time.monotonic()
        with pytest.raises(ClusterUnreachableError, match="timed out after"):
            KafkaAdmin([address(silent)], IMPATIENT_S).view([])
        assert IMPATIENT_S <= time.monotonic() - before_s < SOON_S


@pytest.mark.deep
def test_a_listener_that_answers_no_tls_handshake_is_abandoned_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end comes long before that of a request."""
    monkeypatch.setattr(client, "CONNECT_TIMEOUT_S", IMPATIENT_S)
    with socket.create_server((LOOPBACK, 0)) as silent:
        asking = KafkaAdmin([address(silent)], TIMEOUT_S, KafkaSecurity(SecurityProtocol.SSL))
        before, before_s = held(), time.monotonic()
        with pytest.raises(ClusterUnreachableError, match="handshake operation timed out"):
            asking.view([])
        assert IMPATIENT_S <= time.monotonic() - before_s < SOON_S
        assert_nothing_left(before)


def test_a_broker_that_hangs_up_has_not_answered() -> None:
    def hang_up(names: Sequence[str]) -> Any:
        raise ConnectionAbortedError

    with (
        MetadataBroker(hang_up) as broker,
        pytest.raises(ClusterUnreachableError, match="disconnected"),
    ):
        admin(broker.address).view([])


@pytest.mark.deep
def test_nothing_is_left_of_views_that_fail_and_of_views_that_do_not() -> None:
    nobody = nobodys_address()
    with socket.create_server((LOOPBACK, 0)) as silent, MetadataBroker(all_there) as broker:
        silent.settimeout(SOON_S)
        nowhere = KafkaAdmin([nobody, address(silent)], IMPATIENT_S)
        somewhere = admin(nobody, broker.address)
        before = held()
        for _ in range(A_FEW // 4):
            with pytest.raises(ClusterUnreachableError):
                nowhere.view(NAMES)
            somewhere.view(NAMES)
            silent.accept()[0].close()
        assert_nothing_left(before)
