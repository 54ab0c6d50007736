"""Test RLM's listener for consumers with clients of Kafka, over a log of which half is local."""

import os
import resource
import select
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from struct import pack, unpack
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest

from demos.stage import link_log_dir
from services.api.ids import TopicIdPartition
from services.api.offset_queries import EpochQuery, SpecialTime
from services.api.remote_log_manager import MAX_FETCH_PARTITIONS, IsolationLevel
from services.api.roles import Role
from services.common.fair_queue import QuotaLimit
from services.records import decode
from services.rlm.consumers.answers import Answers
from services.rlm.consumers.catalog import Catalog
from services.rlm.consumers.cluster import Node, ReaderCluster
from services.rlm.fetch.chunk_cache import MIB
from services.rlm.fetch.reads import ReadLimits
from services.rlm.kafka_admin.client import connected
from services.rlm.kafka_admin.security import KafkaSecurity
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.partition_readers import Readers
from services.rpc.server.sockets import SocketAccess
from tests.harness.broker_answers import broker_answers
from tests.harness.committed_reads import batches_in, committed_in
from tests.harness.databases import Databases
from tests.harness.doors import (
    NODE_ID,
    answered,
    connected_socket,
    fetch_of,
    framed,
    serving_consumers,
    value_of,
)
from tests.harness.eventually import eventually
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, Cluster, headers_of
from tests.harness.published import growth
from tests.harness.secured import Secrets, make_secrets
from tests.harness.ship_stack import (
    BUNDLED,
    Stack,
    bundled_name,
    bytes_of,
    lose_rolled_segments,
    running_stack,
)
from tests.harness.wrapper import Counted, Wrapper
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments

TOPICS = ("payments", "mixed-codecs")
PAYMENTS, MIXED = map(bundled_name, TOPICS)
FETCH, METADATA, API_VERSIONS = 1, 3, 18
UNKNOWN_TOPIC_ID = 100


@pytest.fixture(scope="module")
def rlm(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerRemoteLogManager]:
    """An RLM whose log begins in the middle; the rest is in the tier."""
    directory = tmp_path_factory.mktemp("consumed")
    logs = directory / "logs"
    link_log_dir(BUNDLED, logs)
    for folder in logs.iterdir():
        if folder.is_dir() and folder.name not in {f"{topic}-0" for topic in TOPICS}:
            shutil.rmtree(folder)
    url = databases.take()
    with running_stack(url, directory / "objects") as stack:
        stack.ship(logs)
        for folder in logs.glob("*-0"):
            segments = sorted(folder.glob("*.log"))
            for log in segments[: len(segments) // 2]:
                for file in folder.glob(f"{log.stem}.*"):
                    file.unlink()
        yield stack.rlm(logs)
    databases.give_back(url)


@pytest.fixture(scope="module")
def address(rlm: BrokerRemoteLogManager) -> Iterator[str]:
    with serving_consumers(rlm) as served:
        yield served


def log_of(name: TopicIdPartition) -> bytes:
    return bytes_of(BUNDLED / f"{name.topic}-{name.partition}")


def records_of(name: TopicIdPartition, only: set[int] | None = None) -> list[tuple[Any, ...]]:
    """Return (offset, key, value, headers) of a log's records, without control records."""
    return [
        (each.offset, each.key, each.value, list(each.headers))
        for batch in batches_in(log_of(name))
        if not batch.is_control
        for each in decode.records_of(batch, 2**30)
        if only is None or each.offset in only
    ]


@pytest.mark.parametrize("name", [PAYMENTS, MIXED], ids=str)
def test_a_consumer_reads_what_the_tier_and_the_disk_have(
    address: str, name: TopicIdPartition
) -> None:
    read = [
        (m.offset(), m.key(), m.value(), headers_of(m))
        for m in Cluster(address).read(name.topic, name.partition)
    ]
    assert read == records_of(name)


def test_a_consumer_of_committed_records_skips_aborted_ones(address: str) -> None:
    committed, _ = committed_in(log_of(PAYMENTS))
    read = [m.offset() for m in Cluster(address).read("payments", 0, "read_committed")]
    assert read == sorted(committed)
    assert len(read) < len(records_of(PAYMENTS))


def test_offsets_epochs_and_bytes_are_those_of_rlm(
    address: str, rlm: BrokerRemoteLogManager
) -> None:
    with broker_answers(address) as asked:
        specials = {s: asked.offsets(PAYMENTS, [s])[0][1] for s in SpecialTime}
        assert specials[SpecialTime.EARLIEST] == 0
        assert 0 < specials[SpecialTime.EARLIEST_LOCAL] <= specials[SpecialTime.LATEST_TIERED]
        assert specials[SpecialTime.LATEST] > specials[SpecialTime.EARLIEST_PENDING_UPLOAD] - 1
        ends = asked.epoch_ends(PAYMENTS, range(6))
        known = rlm.offsets_for_leader_epochs(tuple(EpochQuery(PAYMENTS, e) for e in range(6)))
        assert ends == [
            (-1, -1) if each.end is None else (each.end.leader_epoch, each.end.end_offset)
            for each in known
        ]
        assert (ends[0][0], ends[-1]) == (0, (-1, -1))
        answer = asked.fetch(PAYMENTS, 0, 2**30, IsolationLevel.READ_COMMITTED)
        assert log_of(PAYMENTS).startswith(answer.records)
        assert len(answer.records) > 50_000
        assert answer.aborted
        assert asked.fetch(PAYMENTS, 10**9, 1, IsolationLevel.READ_UNCOMMITTED).error == 1
        assert asked.fetch(PAYMENTS, 5, 1, IsolationLevel.READ_COMMITTED, 0, 4).error == 0
        assert asked.fetch(PAYMENTS, 5, 1, IsolationLevel.READ_COMMITTED, 0, 9).error == 75
        assert asked.fetch(PAYMENTS, 5, 1, IsolationLevel.READ_COMMITTED, 0, 0).error == 74


def ask(address: str, request: Any) -> Any:
    with connected(address, KafkaSecurity().connection_options(), 30) as connection:
        return connection.call(request)


def test_one_node_leads_everything_that_it_lists(address: str) -> None:
    answer = ask(address, MetadataRequest(topics=None, allow_auto_topic_creation=True))
    host, _, port = address.rpartition(":")
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(NODE_ID, host, int(port))]
    assert {t.name: [p.leader_id for p in t.partitions] for t in answer.topics} == {
        topic: [NODE_ID] for topic in TOPICS
    }
    asked = MetadataRequest.MetadataRequestTopic
    named = MetadataRequest(topics=[asked(name="nothing")], allow_auto_topic_creation=True)
    (unknown,) = ask(address, named).topics
    assert (unknown.error_code, unknown.partitions) == (3, [])


def fetched(address: str, topic_id: UUID) -> Any:
    """Fetch offset 3 of a topic's partition 0, a batch at most."""
    return ask(address, fetch_of(topic_id, 3))


def test_a_fetch_by_topic_id(address: str) -> None:
    ((known,),) = (topic.partitions for topic in fetched(address, PAYMENTS.topic_id).responses)
    assert known.records
    assert log_of(PAYMENTS).find(bytes(known.records)) >= 0
    ((unknown,),) = (topic.partitions for topic in fetched(address, UUID(int=5)).responses)
    assert unknown.error_code == 100


def test_a_consumer_that_gets_nothing_for_the_quota_learns_how_long_to_wait(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    quota = QuotaLimit(max_bytes_per_second=1, windows=1)
    rlm = stack.rlm(limits=RlmLimits(read=ReadLimits(quota=quota)))
    with serving_consumers(rlm) as address:
        answers = [fetched(address, NAME.topic_id) for _ in range(4)]
    assert answers[-1].throttle_time_ms > 0
    assert [bool(t.partitions[0].records) for t in answers[-1].responses] == [False]
    assert [p.error_code for t in answers[-1].responses for p in t.partitions] == [0]


@pytest.mark.parametrize(
    ("settings", "code"),
    [({}, KafkaError.POLICY_VIOLATION), ({"acks": 1}, KafkaError.POLICY_VIOLATION)],
    ids=["acks all", "acks 1"],
)
def test_a_write_is_refused(address: str, settings: dict[str, Any], code: int) -> None:
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": address, "log_level": 2, **settings})

    def delivered(error: KafkaError | None, _: object) -> None:
        assert error is not None
        failures.append(error)

    producer.produce("payments", b"value", partition=0, on_delivery=delivered)
    producer.flush(CLIENT_TIMEOUT_S)
    assert [failure.code() for failure in failures] == [code]


def test_a_transactional_producer_is_refused(address: str) -> None:
    with pytest.raises(KafkaException):
        Cluster(address).transactional("t")


def refusals_of(settings: dict[str, Any], choose: Callable[[Consumer], object]) -> set[str]:
    """Return the errors of a consumer until the first record, or the first error."""
    consumer = Consumer({"group.id": "group", "auto.offset.reset": "earliest", **settings})
    with closing(consumer):
        choose(consumer)
        message = consumer.poll(CLIENT_TIMEOUT_S)
        assert message is not None
        error = message.error()
        return set() if error is None else {error.name()}


def test_a_group_is_refused_and_a_consumer_that_only_names_one_reads(address: str) -> None:
    settings = {"bootstrap.servers": address}
    refused = {"GROUP_AUTHORIZATION_FAILED"}
    assert refusals_of(settings, lambda consumer: consumer.subscribe(["payments"])) == refused
    # Without an offset the client asks for the one that the group committed.
    without = [TopicPartition("payments", 0)]
    assert refusals_of(settings, lambda consumer: consumer.assign(without)) == refused
    first = [TopicPartition("payments", 0, 0)]
    assert refusals_of(settings, lambda consumer: consumer.assign(first)) == set()


def test_offsets_are_not_committed(address: str) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "group"})
    with closing(consumer), pytest.raises(KafkaException, match="Group authorization failed"):
        consumer.commit(offsets=[TopicPartition("payments", 0, 1)], asynchronous=False)


def test_an_unknown_version_is_answered_with_the_known_ones(address: str) -> None:
    with connected_socket(address) as client:
        client.sendall(pack(">ihhih", 10, API_VERSIONS, 99, 5, -1))
        answer = answered(client)
    found = ApiVersionsResponse.decode(answer[4:], version=0)
    assert (unpack(">i", answer[:4])[0], found.error_code) == (5, 35)
    assert {key.api_key for key in found.api_keys} == {0, 1, 2, 3, 8, 9, 10, 11, 18, 22, 23}


@pytest.mark.parametrize(
    "request_bytes",
    [
        pack(">ihhih", 10, FETCH, 99, 5, -1),
        pack(">ihhih", 10, 9, 0, 5, -1),
        pack(">ihhih", 10, FETCH, 12, 5, -1),
        pack(">i", 2**31 - 1),
        pack(">i", -1),
        pack(">ihhihii", 18, METADATA, 4, 5, -1, 2**31 - 1, 7),
        pack(">ihhihi", 300_000, METADATA, 4, 5, -1, 0) + bytes(300_000 - 14),
    ],
    ids=["version", "API", "cut off", "too large", "negative", "count", "costly"],
)
def test_what_is_no_served_request_ends_the_connection(address: str, request_bytes: bytes) -> None:
    grown = growth('sediment_rlm_consumer_refusals_total{reason="request"}')
    with connected_socket(address) as client:
        client.sendall(request_bytes)
        assert client.recv(1) == b""
    eventually(lambda: grown() == [1])


def test_topics_are_listed_once_for_many_invented_ids(rlm: BrokerRemoteLogManager) -> None:
    listed: Any = Counted(rlm)
    catalog = Catalog(listed)
    assert {catalog.name_of(UUID(int=number)) for number in range(1, 100)} == {None}
    assert listed.calls["served_partitions"] == 1


class Fetched(Wrapper[BrokerRemoteLogManager]):
    """The real RLM, which finds no records, and records the partitions of each fetch."""

    def __init__(self, rlm: BrokerRemoteLogManager) -> None:
        super().__init__(rlm)
        self.partitions: list[set[int]] = []

    def fetch(self, request: Any) -> Iterator[Any]:
        self.partitions.append({p.topic_id_partition.partition for p in request.partitions})
        return iter(())


def test_a_partition_that_is_named_twice_has_its_records_once(rlm: BrokerRemoteLogManager) -> None:
    answers = Answers(rlm, ReaderCluster(Node(NODE_ID, "host", 1), Readers()), lambda *_: True, 1)
    data = framed(fetch_of(PAYMENTS.topic_id, 0, (0, 0, 0)))[4:]
    answer = b"".join(answers.answer(FETCH, 13, data))
    (topic,) = FetchResponse.decode(answer[4:], version=13, header=True).responses
    first, *others = topic.partitions
    assert first.records
    assert [(each.error_code, each.records) for each in others] == [(0, b"")] * 2


def test_partitions_beyond_the_most_of_one_fetch_get_their_turn(
    rlm: BrokerRemoteLogManager,
) -> None:
    asked: Any = Fetched(rlm)
    answers = Answers(asked, ReaderCluster(Node(NODE_ID, "host", 1), Readers()), lambda *_: True, 1)
    everything = set(range(MAX_FETCH_PARTITIONS + 1))
    data = framed(fetch_of(PAYMENTS.topic_id, 0, everything))[4:]
    for _ in range(2):
        assert answers.answer(FETCH, 13, data)
    assert [len(each) for each in asked.partitions] == [MAX_FETCH_PARTITIONS] * 2
    assert set.union(*asked.partitions) == everything


def test_a_consumer_waits_for_records_without_a_thread_of_the_server(stack: Stack) -> None:
    """If all such threads wait, it must not be answered at once: it would fetch without a pause."""
    three_segments(stack.log_dir)
    rlm = stack.rlm(limits=RlmLimits(read=ReadLimits(max_delayed_fetches=0)))
    with serving_consumers(rlm) as address, connected_socket(address) as client:
        client.sendall(framed(fetch_of(NAME.topic_id, 25, max_wait_ms=60_000)))
        eventually(lambda: value_of("sediment_rlm_delayed_fetches") == 1)
    eventually(lambda: value_of("sediment_rlm_delayed_fetches") == 0)


def test_a_failed_accept_does_not_end_the_listener(
    rlm: BrokerRemoteLogManager, caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving_consumers(rlm) as address, socket.socket() as first:
        host, _, port = address.rpartition(":")
        with open(os.devnull) as unused:
            lowest_unused = unused.fileno()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_unused, limits[1]))
            # An accept that waits already has its descriptor; the one after it gets none.
            first.connect((host, int(port)))
            eventually(lambda: "accepting again" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        with connected_socket(address) as second:
            second.sendall(pack(">ihhih", 10, API_VERSIONS, 0, 5, -1))
            assert answered(second)


def test_a_slow_client_gets_an_answer_that_takes_longer_than_a_stall_may(stack: Stack) -> None:
    large = batch(0, payload=bytes(16 * MIB))  # More than the buffers of a connection hold.
    PartitionFiles(stack.log_dir).segment(0, [large])
    stall_s, pieces = 1.0, 64
    with serving_consumers(stack.rlm(), stall_timeout_s=stall_s) as address:
        client = connected_socket(address, receive_buffer_bytes=64 * 1024)
        with client, client.makefile("rb") as stream:
            client.sendall(framed(fetch_of(NAME.topic_id, 0)))
            (size,) = unpack(">i", stream.read(4))
            assert size > len(large)
            received, until_s = 0, time.monotonic() + 2 * stall_s
            for left in range(pieces, 0, -1):
                received += len(stream.read(size // pieces))
                select.select([], [], [], max(until_s - time.monotonic(), 0) / left)
            assert received + len(stream.read(size % pieces)) == size


ASKED = pack(">ihhih", 10, API_VERSIONS, 0, 5, -1)
REFUSED = 'sediment_rlm_consumer_refusals_total{reason="connections"}'
OTHER_ADDRESS = "127.0.0.2"


def waiting_fetch() -> bytes:
    """Return a request that is answered when a record comes after the last one."""
    return framed(fetch_of(PAYMENTS.topic_id, records_end(), max_wait_ms=60_000))


def records_end() -> int:
    return max(each.last_offset for each in batches_in(log_of(PAYMENTS))) + 1


def is_open(client: socket.socket) -> bool:
    readable, _, _ = select.select([client], [], [], 0)
    return not readable


def test_the_oldest_idle_connection_makes_room(rlm: BrokerRemoteLogManager) -> None:
    grown = growth(REFUSED)
    with (
        serving_consumers(rlm, max_connections=2) as address,
        connected_socket(address) as first,
        connected_socket(address) as second,
    ):
        for client in (first, second):
            client.sendall(ASKED)
            assert answered(client)
        with connected_socket(address) as third:
            assert first.recv(1) == b""
            third.sendall(ASKED)
            assert answered(third)
        assert is_open(second)
        assert grown() == [1]


def test_a_request_is_not_cut_off_for_another_one_of_its_address(
    rlm: BrokerRemoteLogManager,
) -> None:
    grown = growth(REFUSED)
    with (
        serving_consumers(rlm, max_connections=1) as address,
        connected_socket(address) as waiting,
    ):
        waiting.sendall(waiting_fetch())
        eventually(lambda: value_of("sediment_rlm_delayed_fetches") == 1)
        with connected_socket(address) as second:
            assert second.recv(1) == b""
        assert is_open(waiting)
        assert grown() == [1]


@pytest.mark.parametrize("sent", ["nothing", "a request", "a fetch that waits"])
def test_the_connections_of_one_address_keep_no_other_out(
    rlm: BrokerRemoteLogManager, sent: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = {"nothing": b"", "a request": ASKED, "a fetch that waits": waiting_fetch()}[sent]
    with serving_consumers(rlm, max_connections=8) as address, ExitStack() as opened:
        for _ in range(8):
            client = opened.enter_context(connected_socket(address, source=OTHER_ADDRESS))
            client.sendall(data)
            if data == ASKED:
                assert answered(client)
        if data and data != ASKED:
            eventually(lambda: value_of("sediment_rlm_delayed_fetches") == 8)
        read = Cluster(address).read(PAYMENTS.topic, PAYMENTS.partition)
        assert len(list(read)) == len(records_of(PAYMENTS))
    (line,) = [r.getMessage() for r in caplog.records if "closing one of" in r.getMessage()]
    assert OTHER_ADDRESS in line


def test_connections_that_send_nothing_end_none_that_has_sent_a_request(
    rlm: BrokerRemoteLogManager,
) -> None:
    with serving_consumers(rlm, max_connections=8) as address, ExitStack() as opened:
        quiet = opened.enter_context(connected_socket(address))
        quiet.sendall(ASKED)
        assert answered(quiet)
        silent = [opened.enter_context(connected_socket(address)) for _ in range(20)]
        assert [each.recv(1) for each in silent[:13]] == [b""] * 13
        assert all(map(is_open, [quiet, *silent[13:]]))


def test_bytes_of_a_fetch_are_bounded_and_idle_connections_end(rlm: BrokerRemoteLogManager) -> None:
    with serving_consumers(rlm, fetch_max_bytes=2_000, idle_timeout_s=0.3) as address:
        with broker_answers(address) as asked:
            answer = asked.fetch(PAYMENTS, 0, 2**30, IsolationLevel.READ_UNCOMMITTED)
            assert 0 < len(answer.records) <= 4_000
        with connected_socket(address) as client:
            assert client.recv(1) == b""


@pytest.mark.parametrize("sent", [b"\0\0", pack(">ihhi", 100, FETCH, 13, 5)], ids=["size", "body"])
def test_half_a_request_ends_the_connection(rlm: BrokerRemoteLogManager, sent: bytes) -> None:
    with (
        serving_consumers(rlm, stall_timeout_s=0.3) as address,
        connected_socket(address) as client,
    ):
        client.sendall(sent)
        assert client.recv(1) == b""
        eventually(lambda: value_of("sediment_rlm_consumer_connections") == 0)


def test_stopping_ends_open_connections(rlm: BrokerRemoteLogManager) -> None:
    with serving_consumers(rlm) as address:
        client = connected_socket(address)
        client.sendall(pack(">ihhih", 10, API_VERSIONS, 0, 5, -1))
        assert answered(client)
    with client:
        assert client.recv(1) == b""


class TestTls:
    """Certificates and the policy hold as over gRPC."""

    @pytest.fixture
    def secrets(self, tmp_path: Path) -> Secrets:
        return make_secrets(tmp_path / "tls")

    @pytest.fixture
    def secured(self, rlm: BrokerRemoteLogManager, secrets: Secrets) -> Iterator[str]:
        secrets.policy.write_text(
            '[[grant]]\nidentities = ["spiffe://sediment.test/operator"]\n'
            f'roles = ["{Role.READER}"]\ntopics = ["pay*"]\n'
        )
        access = SocketAccess(secrets.settings(), "RemoteLogManager")
        with serving_consumers(rlm, access) as address:
            yield address

    def test_a_consumer_gets_the_topics_of_its_grant(self, secured: str, secrets: Secrets) -> None:
        tls = {
            "security.protocol": "ssl",
            "ssl.ca.location": str(secrets.authority.certificate),
            "ssl.certificate.location": str(secrets.operator.certificate),
            "ssl.key.location": str(secrets.operator.key),
        }
        with closing(Cluster(secured).consumer("read_uncommitted", **tls)) as consumer:
            assert set(consumer.list_topics(timeout=CLIENT_TIMEOUT_S).topics) == {"payments"}
            denied = consumer.list_topics("mixed-codecs", CLIENT_TIMEOUT_S).topics["mixed-codecs"]
            assert denied.error is not None
            assert denied.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            consumer.assign([TopicPartition("payments", 0, 3)])
            message = consumer.poll(CLIENT_TIMEOUT_S)
            assert message is not None
            assert (message.error(), message.offset()) == (None, 3)

    def test_a_client_without_a_certificate_is_refused(
        self, secured: str, secrets: Secrets
    ) -> None:
        context = ssl.create_default_context(cafile=secrets.authority.certificate)
        host, _, port = secured.rpartition(":")
        grown = growth('sediment_rlm_consumer_refusals_total{reason="unauthenticated"}')
        with (
            socket.create_connection((host, int(port)), 10) as plain,
            pytest.raises(ssl.SSLError, match="certificate required"),
            context.wrap_socket(plain, server_hostname=host) as client,
        ):
            client.recv(1)
        eventually(lambda: grown() == [1])

    def test_a_client_without_a_grant_is_refused(self, secured: str, secrets: Secrets) -> None:
        stranger = secrets.authority.issue("stranger")
        context = ssl.create_default_context(cafile=secrets.authority.certificate)
        context.check_hostname = False
        context.load_cert_chain(stranger.certificate, stranger.key)
        grown = growth('sediment_rlm_consumer_refusals_total{reason="no_grant"}')
        with connected_socket(secured) as plain, context.wrap_socket(plain) as client:
            assert client.recv(1) == b""
        assert grown() == [1]

    def test_handshakes_that_stall_keep_no_consumer_out(
        self, rlm: BrokerRemoteLogManager, secrets: Secrets
    ) -> None:
        access = SocketAccess(secrets.settings(), "RemoteLogManager")
        context = ssl.create_default_context(cafile=secrets.authority.certificate)
        context.check_hostname = False
        context.load_cert_chain(secrets.operator.certificate, secrets.operator.key)
        with serving_consumers(rlm, access, max_connections=4) as address, ExitStack() as opened:
            for _ in range(4):
                opened.enter_context(connected_socket(address)).sendall(b"\x16\x03\x01")
            with connected_socket(address) as plain, context.wrap_socket(plain) as client:
                client.sendall(ASKED)
                assert answered(client)

    def test_a_grant_that_is_removed_ends_reads_on_an_open_connection(
        self, secured: str, secrets: Secrets
    ) -> None:
        context = ssl.create_default_context(cafile=secrets.authority.certificate)
        context.check_hostname = False
        context.load_cert_chain(secrets.operator.certificate, secrets.operator.key)

        def error_of(client: ssl.SSLSocket) -> int:
            client.sendall(framed(fetch_of(PAYMENTS.topic_id, 3)))
            answer = FetchResponse.decode(answered(client), version=13, header=True)
            code: int = answer.responses[0].partitions[0].error_code
            return code

        with connected_socket(secured) as plain, context.wrap_socket(plain) as client:
            assert error_of(client) == 0
            policy = secrets.policy.read_text()
            secrets.policy.write_text(policy.replace('"pay*"', '"other*"'))
            eventually(lambda: error_of(client) == UNKNOWN_TOPIC_ID)

    def test_new_connections_get_a_renewed_certificate_and_open_ones_go_on(
        self, secured: str, secrets: Secrets
    ) -> None:
        context = ssl.create_default_context(cafile=secrets.authority.certificate)
        context.check_hostname = False
        context.load_cert_chain(secrets.operator.certificate, secrets.operator.key)

        def shown() -> bytes | None:
            with connected_socket(secured) as plain, context.wrap_socket(plain) as client:
                return client.getpeercert(binary_form=True)

        with connected_socket(secured) as plain, context.wrap_socket(plain) as client:
            before = client.getpeercert(binary_form=True)
            assert shown() == before
            renewed = secrets.authority.issue("renewed")
            renewed.certificate.replace(secrets.server.certificate)
            renewed.key.replace(secrets.server.key)
            eventually(lambda: shown() != before)
            client.sendall(framed(fetch_of(PAYMENTS.topic_id, 3)))
            assert answered(client)

    def test_a_handshake_that_stalls_ends_the_connection(
        self, rlm: BrokerRemoteLogManager, secrets: Secrets
    ) -> None:
        access = SocketAccess(secrets.settings(), "RemoteLogManager")
        with (
            serving_consumers(rlm, access, stall_timeout_s=0.3) as address,
            connected_socket(address) as client,
        ):
            client.sendall(b"\x16\x03\x01")  # The first bytes of a record of TLS.
            assert client.recv(1) == b""
            eventually(lambda: value_of("sediment_rlm_consumer_connections") == 0)
