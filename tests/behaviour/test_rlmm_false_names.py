"""An identity that may use some topics gets at no other topic by its id, whatever name it sends."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import grpc
import pytest
from google.protobuf.message import Message

from services.api.errors import PermissionDeniedError
from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events
from services.api.roles import RULES, Role, Topics
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.servicer import add_to_server
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.server.request_scope import places_of
from services.rpc.server.server import Ports
from tests.contract.rlmm.segments import FINISHED, add, segment
from tests.harness.databases import OwnRlmm
from tests.harness.eventually import eventually
from tests.harness.every_rpc import ID, RPCS, Rpc
from tests.harness.holds import hold
from tests.harness.secured import Deployment, spiffe

PAYROLL = TopicIdPartition(uuid_from_text(ID, "id"), "payroll", 1)
ORDERS = TopicIdPartition(UUID(int=77), "orders-1", 0)
SETTINGS = {"retention.ms": "1000"}
OF_RLMM = [rpc for rpc in RPCS if rpc.service == "RemoteLogMetadataManager"]
BY_NAME = [rpc for rpc in OF_RLMM if RULES[rpc.rule].topics is Topics.NAMED]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path)
    made.grant(spiffe("narrow"), *Role, topics=["orders-*"])
    made.grant(spiffe("operator"), *Role)
    made.grant(spiffe("setter"), Role.ADMIN)
    with made.policy.open("a") as policy:
        policy.write(f'\n[[grant]]\nidentities = ["{spiffe("setter")}"]\n')
        policy.write('roles = ["overrider"]\ntopics = ["orders-*"]\n')
    return made


@pytest.fixture
def ports(deployment: Deployment, rlmm: OwnRlmm) -> Iterator[Ports]:
    for tp in (PAYROLL, ORDERS):
        add(rlmm, segment(tp, 0, 9), FINISHED)
        rlmm.put_topic_config(tp.topic_id, SETTINGS)
        hold(rlmm, tp)

    with deployment.served(partial(add_to_server, rlmm)) as ports:
        yield ports


@pytest.fixture
def channel(deployment: Deployment, ports: Ports) -> Iterator[grpc.Channel]:
    with open_channel(ports.address, deployment.client("narrow")) as channel:
        yield channel


def everything(rlmm: SqlRemoteLogMetadataManager) -> object:
    """Return all that RLMM knows of the topic."""
    state = rlmm.partition_state(PAYROLL)
    return (
        list(all_events(rlmm, EventQuery(PAYROLL))),
        rlmm.list_remote_log_segments(PAYROLL),
        (state.value.log_start_offset, state.value.lineage, state.value.report, state.revision),
        rlmm.topic_config(PAYROLL.topic_id),
    )


def answer_to(rpc: Rpc, channel: grpc.Channel, request: Message) -> tuple[grpc.StatusCode, bytes]:
    answers: list[bytes] = []
    try:
        rpc.call(channel, request, read=answers.append)
    except grpc.RpcError as e:
        return e.code(), str(e.details()).encode()
    return grpc.StatusCode.OK, b"".join(answers)


def test_a_false_name_opens_no_topic(channel: grpc.Channel, rlmm: OwnRlmm) -> None:
    before = everything(rlmm)
    (stored,) = rlmm.list_remote_log_segments(PAYROLL).segments
    stored_id = uuid_to_text(stored.remote_log_segment_id.id).encode()
    for rpc in BY_NAME:
        rule = RULES[rpc.rule].by_value
        for value in ("",) if rule is None else rule.roles:
            code, answer = answer_to(rpc, channel, rpc.message("orders-9", value))
            assert code is not grpc.StatusCode.PERMISSION_DENIED, (rpc.name, answer)
            assert b"payroll" not in answer, rpc.name
            assert stored_id not in answer, rpc.name
            assert everything(rlmm) == before, rpc.name
            if code is grpc.StatusCode.OK:
                # Refused item by item; or there is nothing to be done.
                assert b"belongs to another topic" in answer or rpc.name == "OnStopPartitions", (
                    rpc.name
                )


def test_the_true_name_is_denied_by_the_policy(channel: grpc.Channel, rlmm: OwnRlmm) -> None:
    before = everything(rlmm)
    for rpc in BY_NAME:
        code, _ = answer_to(rpc, channel, rpc.message("payroll"))
        assert code is grpc.StatusCode.PERMISSION_DENIED, rpc.name
    assert everything(rlmm) == before


def test_one_forbidden_topic_of_a_batch_forbids_the_batch(
    channel: grpc.Channel, rlmm: OwnRlmm
) -> None:
    before = everything(rlmm)
    for rpc in BY_NAME:
        request = rpc.message("orders-1")
        for field, _ in places_of(request.DESCRIPTOR):
            if field.is_repeated:
                getattr(request, field.name).extend(getattr(rpc.message("payroll"), field.name))
                code, answer = answer_to(rpc, channel, request)
                assert code is grpc.StatusCode.PERMISSION_DENIED, rpc.name
                assert b"on topic 'payroll'" in answer
    assert everything(rlmm) == before


def test_a_request_without_a_topic_gets_nothing(channel: grpc.Channel, rlmm: OwnRlmm) -> None:
    before = everything(rlmm)
    for rpc in BY_NAME:
        code, answer = answer_to(rpc, channel, type(rpc.message(""))())
        assert code is grpc.StatusCode.INVALID_ARGUMENT or answer == b"", (rpc.name, code, answer)
    assert everything(rlmm) == before


def test_settings_are_those_of_the_stored_name(
    deployment: Deployment, ports: Ports, channel: grpc.Channel, rlmm: OwnRlmm
) -> None:
    client = RemoteLogMetadataManagerClient(channel, ports.address)
    assert client.topic_config(ORDERS.topic_id).entries == SETTINGS
    assert client.put_topic_config(ORDERS.topic_id, {}).entries == {}
    # The refusal does not tell the name to one who knows only the id.
    refusal = r"may not call .*/{}TopicConfig on the topic of this id: needs"
    with pytest.raises(PermissionDeniedError, match=refusal.format("Get")):
        client.topic_config(PAYROLL.topic_id)
    for entries in ({}, SETTINGS):
        with pytest.raises(PermissionDeniedError, match=refusal.format("Put")):
            client.put_topic_config(PAYROLL.topic_id, entries)
    assert rlmm.topic_config(PAYROLL.topic_id).entries == SETTINGS
    with open_channel(ports.address, deployment.client("operator")) as opened:
        operator = RemoteLogMetadataManagerClient(opened, ports.address)
        assert operator.put_topic_config(PAYROLL.topic_id, {}).entries == {}


def test_the_role_for_a_value_is_needed_on_the_stored_topic(
    deployment: Deployment, ports: Ports, rlmm: OwnRlmm
) -> None:
    with open_channel(ports.address, deployment.client("setter")) as opened:
        setter = RemoteLogMetadataManagerClient(opened, ports.address)
        assert setter.put_topic_config(ORDERS.topic_id, {}, now=True).entries == {}
        refusal = "on the topic of this id: needs one of the roles overrider"
        with pytest.raises(PermissionDeniedError, match=refusal):
            setter.put_topic_config(PAYROLL.topic_id, {}, now=True)
        assert rlmm.topic_config(PAYROLL.topic_id).entries == SETTINGS
        assert setter.put_topic_config(PAYROLL.topic_id, {}).entries == {}


def test_a_filtered_list_has_the_topic_of_the_filter_only(
    ports: Ports, channel: grpc.Channel
) -> None:
    client = RemoteLogMetadataManagerClient(channel, ports.address)
    found = client.list_partitions(topic="orders-1").partitions
    assert [each.topic_id_partition for each in found] == [ORDERS]
    for topic, where in (("", "on all topics"), ("payroll", "on topic 'payroll'")):
        with pytest.raises(PermissionDeniedError, match=where):
            client.list_partitions(topic=topic)


def test_the_audit_trail_names_the_identity(
    ports: Ports, channel: grpc.Channel, rlmm: OwnRlmm
) -> None:
    client = RemoteLogMetadataManagerClient(channel, ports.address)
    add(client, segment(ORDERS, 10, 19))
    last = list(all_events(rlmm, EventQuery(ORDERS)))[-1]
    assert last.actor == spiffe("narrow")


def test_a_policy_that_loses_its_last_line_while_a_service_runs_grants_no_more_topics(
    deployment: Deployment, channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    client = RemoteLogMetadataManagerClient(channel, "rlmm")

    def is_payroll_served() -> bool:
        try:
            client.partition_state(PAYROLL)
        except PermissionDeniedError:
            return False
        return True

    grant, _, _ = deployment.policy.read_text().partition("\n\n")
    assert grant.rstrip().endswith('\ntopics = ["orders-*"]')
    deployment.policy.write_text(grant.replace('topics = ["orders-*"]', ""))
    eventually(lambda: is_payroll_served() or "has no topics" in caplog.text)
    assert "the previous policy stays in force" in caplog.text
    deployment.policy.unlink()
    eventually(lambda: is_payroll_served() or "No such file" in caplog.text)
    assert not is_payroll_served()
    client.partition_state(ORDERS)
