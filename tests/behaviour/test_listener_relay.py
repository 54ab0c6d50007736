"""Test what RLM's listener sends to the broker beside it, and what it keeps to itself."""

import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import (
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from services.api.endpoints import RlmEndpoint
from services.api.roles import Role
from services.rlm.consumers import listener
from services.rlm.consumers.backing import BackingConnection, BrokerVersions, ReadableTopics
from services.rlm.consumers.cluster import Node, ReaderCluster
from services.rlm.consumers.relay import TIER_LOG_DIR, Broker, Relay
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.partition_readers import Readers
from services.rpc.server.sockets import SocketAccess
from tests.harness.clocks import Clock
from tests.harness.doors import (
    NODE_ID,
    answered,
    connected_socket,
    fetch_of,
    framed,
    serving_consumers,
)
from tests.harness.eventually import eventually
from tests.harness.published import growth
from tests.harness.scripted_broker import CLOSE, METADATA, ScriptedBroker
from tests.harness.secured import Secrets, make_secrets
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME, three_segments

FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LIST_GROUPS = 1, 10, 11, 12, 16
SASL_HANDSHAKE, DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS, SASL_AUTHENTICATE = 17, 32, 35, 36
CONSUMER_GROUP_HEARTBEAT = 68
COORDINATOR_NOT_AVAILABLE, GROUP_NOT_AUTHORIZED, TOPIC_NOT_AUTHORIZED = 15, 30, 29
UNSUPPORTED_MECHANISM, UNKNOWN_TOPIC_ID, TRANSACTIONAL_ID_NOT_AUTHORIZED = 33, 100, 53
LOGIN = {
    SASL_HANDSHAKE: lambda *_: SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]),
    SASL_AUTHENTICATE: lambda *_: SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=b""
    ),
}
REFUSED_BY_BROKER = 'sediment_rlm_consumer_refusals_total{reason="broker"}'


@pytest.fixture
def rlm(stack: Stack) -> BrokerRemoteLogManager:
    three_segments(stack.log_dir)
    stack.ship()
    return stack.tier_reader()


def ask(client: socket.socket, request: Any, response: Any, version: int) -> Any:
    client.sendall(framed(request, version))
    return response.decode(answered(client), version=version, header=True)


def find_coordinator(client: socket.socket, version: int = 4, key_type: int = 0) -> Any:
    request = FindCoordinatorRequest(key="group", key_type=key_type, coordinator_keys=["group"])
    answer = ask(client, request, FindCoordinatorResponse, version)
    return answer.coordinators[0] if version >= 4 else answer


def coordinator(node_id: int) -> Any:
    """Answer as the broker `node_id` at an address that no client may learn."""

    def found(version: int, _: bytes) -> Any:
        one = {"node_id": node_id, "host": "broker", "port": 9092, "error_code": 0}
        each = FindCoordinatorResponse.Coordinator(key="group", error_message=None, **one)
        return FindCoordinatorResponse(coordinators=[each], error_message=None, **one)

    return found


def endpoint(broker_id: int, listener: str | None) -> RlmEndpoint:
    return RlmEndpoint("cluster", "directory", broker_id, "rlm:50053", listener)


def join_group() -> Any:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0any\xff")
    return JoinGroupRequest(
        group_id="group",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[protocol],
        reason=None,
    )


def heartbeat(group: str = "group") -> Any:
    return HeartbeatRequest(group_id=group, generation_id=1, member_id="m", group_instance_id=None)


class TestGroups:
    """Without a login: in plaintext, or with certificates."""

    @pytest.mark.parametrize("version", [0, 3, 4, 5])
    def test_the_coordinator_is_the_rlm_beside_its_broker(
        self, rlm: BrokerRemoteLogManager, version: int
    ) -> None:
        with (
            ScriptedBroker({FIND_COORDINATOR: coordinator(NODE_ID)}) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            found = find_coordinator(client, version)
            assert f"{found.host}:{found.port}" == address
            assert (found.error_code, found.node_id) == (0, NODE_ID)

    def test_a_coordinator_without_an_rlm_is_not_available(
        self, rlm: BrokerRemoteLogManager
    ) -> None:
        with (
            ScriptedBroker({FIND_COORDINATOR: coordinator(NODE_ID + 1)}) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            found = find_coordinator(client)
            assert (found.error_code, found.host) == (COORDINATOR_NOT_AVAILABLE, "")
            of_transactions = find_coordinator(client, key_type=1)
            assert of_transactions.error_code == TRANSACTIONAL_ID_NOT_AUTHORIZED

    def test_a_coordinator_that_moves_is_found_again(self, rlm: BrokerRemoteLogManager) -> None:
        readers = Readers()
        readers.live = (endpoint(8, "rlm-8:9192"), endpoint(9, "rlm-9:9192"), endpoint(10, None))
        cluster = ReaderCluster(Node(8, "rlm-8", 9192), readers)
        request = FindCoordinatorRequest(key="group", key_type=0, coordinator_keys=["group"])
        at = [8]
        answers = {FIND_COORDINATOR: lambda *_: coordinator(at[0])(4, b"")}
        with ScriptedBroker(answers) as scripted:
            connection = BackingConnection(scripted)
            relay = Relay(Broker(scripted), connection, rlm, cluster, bool, None)

            def found(node_id: int) -> tuple[int, int, str]:
                at[0] = node_id
                answer = relay.answer(FIND_COORDINATOR, 4, framed(request, 4)[4:])
                data = b"".join(answer or ())[4:]
                (one,) = FindCoordinatorResponse.decode(data, version=4, header=True).coordinators
                return one.error_code, one.node_id, one.host

            assert found(8) == (0, 8, "rlm-8")
            assert found(9) == (0, 9, "rlm-9")
            # One RLM has no listener, and beside the other broker lives none.
            assert found(10) == found(11) == (COORDINATOR_NOT_AVAILABLE, -1, "")
            connection.close()

    def test_while_the_broker_is_away_records_are_read_and_groups_wait(
        self, rlm: BrokerRemoteLogManager
    ) -> None:
        with ScriptedBroker({}) as broker, serving_consumers(rlm, beside=broker) as address:
            broker.stop()
            with connected_socket(address) as client:
                assert find_coordinator(client, 3).error_code == COORDINATOR_NOT_AVAILABLE
                answer = ask(client, fetch_of(NAME.topic_id, 3), FetchResponse, 13)
                assert answer.responses[0].partitions[0].records

    def test_a_request_of_a_group_is_sent_as_it_is(self, rlm: BrokerRemoteLogManager) -> None:
        """Also one of a version that RLM does not know."""
        unknown = b"\x00\x0b\x00\x63\x00\x00\x00\x05\xff\xff anything \x00\xff"
        with (
            ScriptedBroker({JOIN_GROUP: lambda *_: b"\0\0\0\5 an answer \xff"}) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            client.sendall(len(unknown).to_bytes(4, "big") + unknown)
            assert answered(client) == b"\0\0\0\5 an answer \xff"
            assert broker.asked(JOIN_GROUP) == [unknown]

    def test_the_versions_are_those_of_the_broker(self, rlm: BrokerRemoteLogManager) -> None:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")

        def offered(address: str) -> dict[int, tuple[int, int]]:
            with connected_socket(address) as client:
                answer = ask(client, request, ApiVersionsResponse, 3)
            return {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}

        nothing = {HEARTBEAT: lambda *_: None, FIND_COORDINATOR: lambda *_: None}
        with (
            ScriptedBroker(nothing) as broker,
            serving_consumers(rlm, beside=broker) as address,
        ):
            found = offered(address)
            assert (found[HEARTBEAT], found[FIND_COORDINATOR]) == ((0, 9), (0, 5))
            assert not found.keys() & {JOIN_GROUP, SASL_HANDSHAKE, SASL_AUTHENTICATE}

    def test_a_member_that_leaves_while_it_waits_for_others_is_noticed(
        self, rlm: BrokerRemoteLogManager
    ) -> None:
        with (
            ScriptedBroker({JOIN_GROUP: lambda *_: None}) as broker,
            serving_consumers(rlm, beside=broker) as address,
        ):
            with connected_socket(address) as client:
                client.sendall(framed(join_group(), 9))
                eventually(lambda: len(broker.asked(JOIN_GROUP)) == 1)
                assert broker.open_connections == 1
            eventually(lambda: broker.open_connections == 0)

    def test_stopping_ends_the_wait_for_others(self, rlm: BrokerRemoteLogManager) -> None:
        with ScriptedBroker({JOIN_GROUP: lambda *_: None}) as broker:
            with serving_consumers(rlm, beside=broker) as address:
                client = connected_socket(address)
                client.sendall(framed(join_group(), 9))
                eventually(lambda: len(broker.asked(JOIN_GROUP)) == 1)
            with client:
                assert client.recv(1) == b""
            eventually(lambda: broker.open_connections == 0)

    @pytest.mark.parametrize("answer", [CLOSE, b"\0\0\0\6"], ids=["closed", "of another"])
    def test_a_broker_that_fails_ends_the_connection(
        self, rlm: BrokerRemoteLogManager, answer: bytes
    ) -> None:
        grown = growth(REFUSED_BY_BROKER)
        with (
            ScriptedBroker({HEARTBEAT: lambda *_: answer}) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            client.sendall(framed(heartbeat(), 4))
            assert client.recv(1) == b""
            eventually(lambda: grown() == [1])

    def test_the_cluster_is_the_rlms(self, rlm: BrokerRemoteLogManager) -> None:
        with (
            ScriptedBroker({}) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            request = DescribeClusterRequest(include_cluster_authorized_operations=False)
            answer = ask(client, request, DescribeClusterResponse, 0)
        assert [(b.broker_id, f"{b.host}:{b.port}") for b in answer.brokers] == [(NODE_ID, address)]

    def test_the_tier_is_a_log_directory_of_its_own(self, rlm: BrokerRemoteLogManager) -> None:
        directory = DescribeLogDirsResponse.DescribeLogDirsResult
        there = directory(error_code=0, log_dir="/kafka", topics=[])
        answers = {DESCRIBE_LOG_DIRS: lambda *_: DescribeLogDirsResponse(results=[there])}
        with (
            ScriptedBroker(answers) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            answer = ask(client, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
        assert [each.log_dir for each in answer.results] == ["/kafka", TIER_LOG_DIR]
        (topic,) = answer.results[1].topics
        (partition,) = topic.partitions
        (served,) = rlm.served_partitions()
        assert (topic.name, partition.partition_index) == (NAME.topic, NAME.partition)
        assert partition.partition_size == served.remote_size_bytes > 0


class TestCertificates:
    """The broker sees RLM's identity, so the policy decides."""

    @pytest.fixture
    def secrets(self, tmp_path: Path) -> Secrets:
        secrets = make_secrets(tmp_path / "tls")
        secrets.policy.write_text(
            '[[grant]]\nidentities = ["spiffe://sediment.test/operator"]\n'
            f'roles = ["{Role.READER}"]\ntopics = ["{NAME.topic}"]\ngroups = ["own-*"]\n'
        )
        return secrets

    @pytest.fixture
    def broker(self) -> Iterator[ScriptedBroker]:
        listed = [
            ListGroupsResponse.ListedGroup(group_id=name, protocol_type="consumer")
            for name in ("own-1", "other")
        ]
        answers = {
            FIND_COORDINATOR: coordinator(NODE_ID),
            HEARTBEAT: lambda *_: HeartbeatResponse(error_code=0),
            JOIN_GROUP: lambda *_: None,
            LIST_GROUPS: lambda *_: ListGroupsResponse(error_code=0, groups=listed),
            DESCRIBE_CONFIGS: lambda *_: DescribeConfigsResponse(results=[]),
            CONSUMER_GROUP_HEARTBEAT: lambda *_: b"\0\0\0\5 answer",
        }
        with ScriptedBroker(answers) as broker:
            yield broker

    @pytest.fixture
    def client(
        self, rlm: BrokerRemoteLogManager, secrets: Secrets, broker: ScriptedBroker
    ) -> Iterator[ssl.SSLSocket]:
        context = ssl.create_default_context(cafile=secrets.authority.certificate)
        context.check_hostname = False
        context.load_cert_chain(secrets.operator.certificate, secrets.operator.key)
        access = SocketAccess(secrets.settings(), "RemoteLogManager")
        with (
            serving_consumers(rlm, access, broker) as address,
            connected_socket(address) as plain,
            context.wrap_socket(plain) as client,
        ):
            yield client

    def test_only_groups_of_the_grant_may_be_used(
        self, client: ssl.SSLSocket, broker: ScriptedBroker
    ) -> None:
        codes = [
            ask(client, heartbeat(group), HeartbeatResponse, 4).error_code
            for group in ("other", "own-1", "own-\n2", "not-own-1")
        ]
        assert codes == [GROUP_NOT_AUTHORIZED, 0, 0, GROUP_NOT_AUTHORIZED]
        assert len(broker.asked(HEARTBEAT)) == 2
        refused = ask(client, join_group(), JoinGroupResponse, 9)
        assert (refused.error_code, broker.asked(JOIN_GROUP)) == (GROUP_NOT_AUTHORIZED, [])
        request = ListGroupsRequest(states_filter=[], types_filter=[])
        listed = ask(client, request, ListGroupsResponse, 5)
        assert [each.group_id for each in listed.groups] == ["own-1"]

    @pytest.mark.parametrize(("group", "is_relayed"), [("own-1", True), ("other", False)])
    def test_a_heartbeat_of_kip_848_is_checked_too(
        self, client: ssl.SSLSocket, broker: ScriptedBroker, group: str, is_relayed: bool
    ) -> None:
        name = group.encode()
        data = b"\0\x44\0\1\0\0\0\5\0\1c\0" + bytes([len(name) + 1]) + name + b"\0rest"
        client.sendall(len(data).to_bytes(4, "big") + data)
        answer = answered(client)
        assert broker.asked(CONSUMER_GROUP_HEARTBEAT) == ([data] if is_relayed else [])
        if not is_relayed:
            assert answer[5:11] == b"\0\0\0\0\0\x1e"  # throttle time, error code

    def test_a_group_that_may_not_be_used_has_a_coordinator_all_the_same(
        self, client: ssl.SSLSocket
    ) -> None:
        """librdkafka asks for it also if the program only assigns partitions."""
        found = find_coordinator(client)
        assert (found.error_code, found.node_id) == (0, NODE_ID)

    @pytest.mark.parametrize(
        ("kind", "name", "code"),
        [(2, NAME.topic, None), (2, "secret", TOPIC_NOT_AUTHORIZED), (4, "1", 31)],
        ids=["readable", "other topic", "broker"],
    )
    def test_settings_are_shown_of_readable_topics(
        self,
        client: ssl.SSLSocket,
        broker: ScriptedBroker,
        kind: int,
        name: str,
        code: int | None,
    ) -> None:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=False, include_documentation=False
        )
        answer = ask(client, request, DescribeConfigsResponse, 4)
        assert [each.error_code for each in answer.results] == ([] if code is None else [code])
        assert len(broker.asked(DESCRIBE_CONFIGS)) == (code is None)


def log_in(client: socket.socket) -> None:
    shaken = ask(client, SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    assert shaken.error_code == 0
    request = SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret")
    assert ask(client, request, SaslAuthenticateResponse, 2).error_code == 0


def metadata_of(client: socket.socket, *topics: str) -> dict[str, int]:
    asked = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(
        topics=[asked(name=name) for name in topics] or None,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    answer = ask(client, request, MetadataResponse, 12)
    return {topic.name: topic.error_code for topic in answer.topics}


class TestLogins:
    """The broker's listener speaks SASL: its users log in through RLM, and its ACLs decide."""

    def test_a_user_who_logged_in_reads_what_the_broker_allows(
        self, rlm: BrokerRemoteLogManager
    ) -> None:
        with (
            ScriptedBroker(LOGIN, needs_login=True, readable=(NAME.topic,)) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            log_in(client)
            assert metadata_of(client) == {NAME.topic: 0}
            answer = ask(client, fetch_of(NAME.topic_id, 3), FetchResponse, 13)
            assert answer.responses[0].partitions[0].records
            assert b"secret" in broker.asked(SASL_AUTHENTICATE)[0]

    def test_a_user_without_read_is_refused_by_name(self, rlm: BrokerRemoteLogManager) -> None:
        with (
            ScriptedBroker(LOGIN, needs_login=True) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            log_in(client)
            assert metadata_of(client) == {}
            assert metadata_of(client, NAME.topic) == {NAME.topic: TOPIC_NOT_AUTHORIZED}
            answer = ask(client, fetch_of(NAME.topic_id, 3), FetchResponse, 13)
            assert answer.responses[0].partitions[0].error_code == UNKNOWN_TOPIC_ID

    @pytest.mark.parametrize("shakes_hands", [False, True])
    @pytest.mark.parametrize("asks_topics", [False, True])
    def test_nothing_is_served_to_a_client_whom_the_broker_does_not_know(
        self, rlm: BrokerRemoteLogManager, shakes_hands: bool, asks_topics: bool
    ) -> None:
        """A broker closes the connection of such a client at any other request."""
        with (
            ScriptedBroker(LOGIN, needs_login=True, readable=(NAME.topic,)) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            broker.refuses_metadata = True
            if shakes_hands:
                log_in(client)
            # The second is about no topic, so that no missing READ refuses it.
            cluster = DescribeClusterRequest(include_cluster_authorized_operations=False)
            request = fetch_of(NAME.topic_id, 3) if asks_topics else cluster
            client.sendall(framed(request, 13 if asks_topics else 0))
            assert client.recv(1) == b""

    def test_gssapi_is_refused(self, rlm: BrokerRemoteLogManager) -> None:
        with (
            ScriptedBroker(LOGIN, needs_login=True) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            request = SaslHandshakeRequest(mechanism="GSSAPI")
            answer = ask(client, request, SaslHandshakeResponse, 1)
            assert answer.error_code == UNSUPPORTED_MECHANISM
            assert broker.asked(SASL_HANDSHAKE) == []

    def test_a_client_that_does_not_log_in_is_not_held(
        self, rlm: BrokerRemoteLogManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "LOGIN_TIMEOUT_S", 0.2)
        with (
            ScriptedBroker(LOGIN, needs_login=True) as broker,
            serving_consumers(rlm, beside=broker) as address,
            connected_socket(address) as client,
        ):
            request = ApiVersionsRequest(client_software_name="t", client_software_version="1")

            def keep_asking() -> None:
                while True:
                    ask(client, request, ApiVersionsResponse, 3)

            # On a slow machine it ends in the wait for a request, which is no refusal.
            with pytest.raises((OSError, struct.error)):
                keep_asking()

    def test_the_broker_is_asked_again_who_may_read(self, rlm: BrokerRemoteLogManager) -> None:
        clock = Clock()
        with ScriptedBroker(LOGIN, needs_login=True, readable=("a", "b")) as broker:
            connection = BackingConnection(broker)
            readable = ReadableTopics(connection, BrokerVersions(broker), clock)
            readable.expect(["a", "b", "c"])
            assert [readable.may_read(each) for each in "abc"] == [True, True, False]
            assert len(broker.asked(METADATA)) == 1
            broker.readable = ("b",)
            assert readable.may_read("a")
            clock.move(30)
            assert [readable.may_read(each) for each in "ab"] == [False, True]
            assert len(broker.asked(METADATA)) == 2
            connection.close()
