"""Run the leadership suite over the gRPC client, and test what only gRPC can cause."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType

import grpc
import pytest

from services.api.errors import FencedLeaderEpochError, InvalidRequestError, NotServedError
from services.api.ids import uuid_to_text
from services.api.remote_log_manager import (
    MAX_LEADERSHIP_CHANGES,
    LeadershipChange,
    LeadershipDelta,
    PartitionStops,
    StopPartition,
    StopReason,
    all_descriptions,
)
from services.api.replicas import ReplicaService
from services.rlm.servicer import RemoteLogManagerServicer
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.statuses import outcome_of
from tests.contract import wire_cases
from tests.contract.rlm_lifecycle_contract import LEADER, RlmLifecycleContract
from tests.harness.callback_rlm import callback_rlm
from tests.harness.served import served
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME, TOPIC_ID
from tieredstorage.v1 import remote_log_manager_pb2 as pb
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

TP = segment_pb.TopicIdPartition(topic_id=uuid_to_text(TOPIC_ID), topic="t", partition=0)
LEADS = pb.LeadershipChange(topic_id_partition=TP, leader_epoch=1, role=pb.PARTITION_ROLE_LEADER)
STOPS = pb.StopPartition(topic_id_partition=TP, leader_epoch=1, reason=pb.STOP_REASON_TOPIC_DELETED)


@contextmanager
def served_rlm(rlm: ReplicaService) -> Iterator[tuple[grpc.Channel, str]]:
    def add_to(server: grpc.Server) -> None:
        pb_grpc.add_RemoteLogManagerServicer_to_server(RemoteLogManagerServicer(rlm), server)

    with served(add_to, "tieredstorage.v1.RemoteLogManager") as (channel, address):
        yield channel, address


class TestOverGrpc(RlmLifecycleContract):
    wire_cases = wire_cases.RLM_LIFECYCLE

    @pytest.fixture
    def rlm(self, stack: Stack) -> Iterator[RemoteLogManagerClient]:
        with served_rlm(callback_rlm(stack)) as (channel, address):
            yield RemoteLogManagerClient(channel, address)


@pytest.fixture
def channel(stack: Stack) -> Iterator[grpc.Channel]:
    with served_rlm(callback_rlm(stack)) as (channel, _):
        yield channel


def changed(change: pb.LeadershipChange, **fields: object) -> pb.LeadershipChange:
    made = pb.LeadershipChange()
    made.CopyFrom(change)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def stopped(stop: pb.StopPartition, **fields: object) -> pb.StopPartition:
    made = pb.StopPartition()
    made.CopyFrom(stop)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


NO_PARTITION = segment_pb.TopicIdPartition(topic_id=uuid_to_text(TOPIC_ID), topic="t", partition=-1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "changes: must be 1 to 10000, are 0"),
        ([LEADS, LEADS], "changes: names partition"),
        ([LEADS, changed(LEADS, leader_epoch=-1)], r"changes\[1\].leader_epoch: must be 0"),
        ([LEADS, changed(LEADS, role=0)], r"changes\[1\].role: must be set to a known value"),
        ([LEADS, changed(LEADS, role=77)], r"changes\[1\].role: must be set to a known value"),
        (
            [pb.LeadershipChange(role=pb.PARTITION_ROLE_LEADER)],
            r"changes\[0\].topic_id_partition: must be set",
        ),
        (
            [pb.LeadershipChange(topic_id_partition=NO_PARTITION, role=pb.PARTITION_ROLE_LEADER)],
            r"changes\[0\].topic_id_partition.partition: must be 0",
        ),
        ([LEADS] * (MAX_LEADERSHIP_CHANGES + 1), "changes: must be 1 to 10000, are 10001"),
    ],
)
def test_a_malformed_change_changes_nothing_and_names_the_field(
    channel: grpc.Channel, changes: list[pb.LeadershipChange], message: str
) -> None:
    stub = pb_grpc.RemoteLogManagerStub(channel)
    with pytest.raises(grpc.RpcError, match=message) as refusal:
        stub.OnLeadershipChange(pb.OnLeadershipChangeRequest(changes=changes), timeout=30)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert list(all_descriptions(RemoteLogManagerClient(channel, "test"))) == []


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ([], "partitions: must be 1 to 1000, are 0"),
        ([STOPS, STOPS], "partitions: names partition"),
        ([STOPS, stopped(STOPS, leader_epoch=-2)], r"partitions\[1\].leader_epoch: must be 0"),
        ([STOPS, stopped(STOPS, reason=0)], r"partitions\[1\].reason: must be set to a known"),
        ([STOPS, stopped(STOPS, reason=9)], r"partitions\[1\].reason: must be set to a known"),
        (
            [pb.StopPartition(reason=pb.STOP_REASON_REASSIGNED)],
            r"partitions\[0\].topic_id_partition: must be set",
        ),
        ([STOPS] * 1001, "partitions: must be 1 to 1000, are 1001"),
    ],
)
def test_a_malformed_stop_changes_nothing_and_names_the_field(
    channel: grpc.Channel, stops: list[pb.StopPartition], message: str
) -> None:
    stub = pb_grpc.RemoteLogManagerStub(channel)
    with pytest.raises(grpc.RpcError, match=message) as refusal:
        stub.StopPartitions(pb.StopPartitionsRequest(partitions=stops), timeout=30)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert list(all_descriptions(RemoteLogManagerClient(channel, "test"))) == []


def test_an_rlm_that_finds_its_partitions_answers_unimplemented(
    stack: Stack, log_dir: Path
) -> None:
    with served_rlm(stack.rlm(log_dir)) as (channel, address):
        client = RemoteLogManagerClient(channel, address)
        with pytest.raises(NotServedError, match="RLM_PARTITION_SOURCE=callbacks"):
            client.on_leadership_change(LeadershipDelta((LeadershipChange(NAME, 1, LEADER),)))
        with pytest.raises(NotServedError, match="RLM_PARTITION_SOURCE=callbacks"):
            client.stop_partitions(PartitionStops((StopPartition(NAME, 1, StopReason.REASSIGNED),)))


def test_a_change_without_an_epoch_is_one_of_epoch_0(channel: grpc.Channel) -> None:
    stub = pb_grpc.RemoteLogManagerStub(channel)
    without = pb.LeadershipChange(topic_id_partition=TP, role=pb.PARTITION_ROLE_LEADER)
    outcomes = [
        stub.OnLeadershipChange(pb.OnLeadershipChangeRequest(changes=[c]), timeout=30).outcomes[0]
        for c in (without, LEADS, without)
    ]
    assert [type(outcome_of(status)) for status in outcomes] == [
        NoneType,
        NoneType,
        FencedLeaderEpochError,
    ]


def test_a_change_without_an_epoch_does_not_cross_the_wire(channel: grpc.Channel) -> None:
    client = RemoteLogManagerClient(channel, "test")
    with pytest.raises(InvalidRequestError, match=r"changes.leader_epoch"):
        client.on_leadership_change(LeadershipDelta((LeadershipChange(NAME, None, LEADER),)))
