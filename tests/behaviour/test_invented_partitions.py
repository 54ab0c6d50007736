"""Test that a caller who invents partitions, or lies about names, harms no other partition.

RLM is called over gRPC, with TLS and a policy. RSM is on files, RLMM on PostgreSQL.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pytest
from prometheus_client import CollectorRegistry

from services.api.errors import InvalidRequestError, PermissionDeniedError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    LeadershipChange,
    LeadershipDelta,
    LifecycleOutcome,
    PartitionRole,
    all_descriptions,
)
from services.api.remote_log_metadata_manager import all_partitions
from services.api.roles import Role
from services.rlm.collectors import LastSuccessCollector, TopicCollector
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.metrics import (
    OTHER_TOPICS,
    REMOTE_COPY_LAG_SEGMENTS,
    REMOTE_COPY_REQUESTS,
)
from services.rlm.servicer import RemoteLogManagerServicer
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.contract.rlmm.segments import FINISHED, add, segment
from tests.harness.callback_rlm import ALL_AT_ONCE, FOLLOWER, LEADER, callback_rlm, refused_as, turn
from tests.harness.retained_log import hourly_log, take_turns
from tests.harness.secured import Deployment, spiffe
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc

MAX_PARTITIONS = 20
MAX_TOPICS = 3
LIMITS = replace(ALL_AT_ONCE, max_partitions=MAX_PARTITIONS, metrics_max_topics=MAX_TOPICS)
PAYROLL = TopicIdPartition(UUID(int=5), "payroll", 0)
AS_ORDERS = replace(PAYROLL, topic="orders-9")
CLICKS = TopicIdPartition(UUID(int=6), "clicks", 0)

Client = Callable[[str], RemoteLogManagerClient]


def topics(name: str, count: int) -> list[TopicIdPartition]:
    return [TopicIdPartition(UUID(int=1000 + n), f"{name}-{n}", 0) for n in range(count)]


@pytest.fixture
def rlm(stack: Stack) -> Any:
    return callback_rlm(stack, limits=LIMITS)


@pytest.fixture
def client(rlm: BrokerRemoteLogManager, tmp_path: Path) -> Iterator[Client]:
    """Provide clients of this RLM: `narrow` may ship orders-*, `broker` every topic."""
    (tmp_path / "security").mkdir()
    deployment = Deployment(tmp_path / "security")
    deployment.grant(spiffe("narrow"), Role.SHIPPER, topics=["orders-*"])
    deployment.grant(spiffe("broker"), Role.SHIPPER)

    def add_to(server: grpc.Server) -> None:
        pb_grpc.add_RemoteLogManagerServicer_to_server(RemoteLogManagerServicer(rlm), server)

    with ExitStack() as stack:
        ports = stack.enter_context(deployment.served(add_to, "tieredstorage.v1.RemoteLogManager"))

        def made(name: str) -> RemoteLogManagerClient:
            channel = stack.enter_context(open_channel(ports.address, deployment.client(name)))
            return RemoteLogManagerClient(channel, ports.address)

        yield made


def send(
    client: RemoteLogManagerClient, names: Sequence[TopicIdPartition], role: PartitionRole = LEADER
) -> list[LifecycleOutcome]:
    changes = tuple(LeadershipChange(name, 3, role) for name in names)
    return client.on_leadership_change(LeadershipDelta(changes))


def series(rlm: BrokerRemoteLogManager) -> dict[tuple[str, str], float]:
    """Return the values of RLM's series by metric and topic."""
    registry = CollectorRegistry()
    registry.register(rlm.topic_counts)
    registry.register(TopicCollector(rlm.led_partitions, max_topics=MAX_TOPICS))
    lanes = (rlm.lanes.copies, rlm.lanes.expiration, rlm.lanes.followers)
    registry.register(LastSuccessCollector(lanes, MAX_TOPICS))
    families = registry.collect()
    return {(s.name, s.labels["topic"]): s.value for family in families for s in family.samples}


def run_all(rlm: Any) -> None:
    take_turns(rlm)
    for scheduler in (rlm.lanes.followers, rlm.lanes.reports, rlm.lanes.revisions):
        turn(scheduler)


def described(rlm: BrokerRemoteLogManager) -> set[TopicIdPartition]:
    return {found.topic_id_partition for found in all_descriptions(rlm)}


@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
def test_invented_topics_are_bounded_and_make_neither_tasks_nor_series(
    stack: Stack, rlm: Any, client: Client, role: PartitionRole
) -> None:
    before = series(rlm)
    invented = topics("invented", 3 * MAX_PARTITIONS)
    outcomes = send(client("broker"), invented, role)
    assert outcomes[:MAX_PARTITIONS] == [None] * MAX_PARTITIONS
    assert {refused_as(outcome) for outcome in outcomes[MAX_PARTITIONS:]} == {ThrottledError}
    assert f"(limit {MAX_PARTITIONS})" in str(outcomes[-1])
    run_all(rlm)
    assert described(rlm) == set(invented[:MAX_PARTITIONS])
    assert series(rlm).keys() == before.keys()
    assert rlm.led_partitions() == list(all_partitions(stack.rlmm)) == []
    # A partition whose log is here is led beyond the limit.
    hourly_log(stack.log_dir)
    assert send(client("broker"), [NAME]) == [None]
    run_all(rlm)
    assert len(stack.ranges()) == 6


def test_a_partition_that_rlmm_knows_is_followed_without_a_folder(
    stack: Stack, rlm: Any, client: Client
) -> None:
    add(stack.rlmm, segment(PAYROLL, 0, 9), FINISHED)
    assert send(client("broker"), [PAYROLL, CLICKS], FOLLOWER) == [None, None]
    run_all(rlm)
    turn(rlm.lanes.followers)
    seen = [rlm._roles.partition(name).tier.cached.segments for name in (PAYROLL, CLICKS)]
    assert seen == [1, 0]
    assert [s.topic_id_partition for s in all_partitions(stack.rlmm)] == [PAYROLL]


@pytest.mark.deep
def test_topics_beyond_the_limit_share_one_label(rlm: Any, client: Client, log_dir: Path) -> None:
    real = topics("real", 5)
    for name in real:
        hourly_log(log_dir, name, rolled=2)
    assert send(client("broker"), real) == [None] * 5
    rlm.lanes.copies.tick()
    run_all(rlm)
    found = series(rlm)
    own = {name.topic for name in real[:MAX_TOPICS]}
    assert {topic for _, topic in found} == own | {OTHER_TOPICS}
    requests = f"{REMOTE_COPY_REQUESTS.name}_total"
    assert [found[requests, topic] for topic in (*sorted(own), OTHER_TOPICS)] == [2, 2, 2, 4]
    assert found[REMOTE_COPY_LAG_SEGMENTS.name, OTHER_TOPICS] == 0


def test_a_false_name_of_a_narrow_shipper_does_not_block_the_topic(
    stack: Stack, rlm: Any, client: Client
) -> None:
    narrow, broker = client("narrow"), client("broker")
    with pytest.raises(PermissionDeniedError):
        send(narrow, [PAYROLL])
    assert send(narrow, [AS_ORDERS]) == [None]
    for name in (PAYROLL, CLICKS):
        hourly_log(stack.log_dir, name, rolled=1)
    assert send(broker, [CLICKS, PAYROLL]) == [None, None]
    assert described(rlm) == {CLICKS, PAYROLL}
    run_all(rlm)
    assert stack.ranges(PAYROLL) == stack.ranges(CLICKS) == [(0, 9)]
    hourly_log(stack.log_dir, replace(AS_ORDERS, topic_id=UUID(int=7), topic="orders-1"), rolled=1)
    orders = TopicIdPartition(UUID(int=7), "orders-1", 0)
    refused, taken = send(narrow, [AS_ORDERS, orders])
    assert isinstance(refused, InvalidRequestError)
    assert "payroll" not in str(refused)
    assert taken is None
    assert described(rlm) == {CLICKS, PAYROLL, orders}


def test_before_a_name_is_proven_both_wait_and_rlmm_decides(
    stack: Stack, rlm: Any, client: Client
) -> None:
    assert send(client("narrow"), [AS_ORDERS], FOLLOWER) == [None]
    assert send(client("broker"), [CLICKS, PAYROLL], FOLLOWER) == [None, None]
    run_all(rlm)
    assert described(rlm) == {AS_ORDERS, CLICKS, PAYROLL}
    add(stack.rlmm, segment(PAYROLL, 0, 9), FINISHED)
    run_all(rlm)
    assert described(rlm) == {CLICKS, PAYROLL}
    (refused,) = send(client("narrow"), [AS_ORDERS], FOLLOWER)
    assert isinstance(refused, InvalidRequestError)


def test_a_log_that_is_found_by_a_scan_drops_the_false_name(
    rlm: Any, client: Client, log_dir: Path
) -> None:
    assert send(client("narrow"), [AS_ORDERS]) == [None]
    hourly_log(log_dir, PAYROLL, rolled=1)
    turn(rlm.lanes.scan)
    assert described(rlm) == set()
