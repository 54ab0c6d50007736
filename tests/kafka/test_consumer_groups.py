"""Unchanged consumers read in groups from RLM's listener, as users of the broker beside it."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kafka.protocol.metadata import FindCoordinatorRequest

from demos.kafka_broker import KafkaBroker
from services.api.endpoints import RlmEndpoint
from services.local.process import LOOPBACK
from services.rlm.consumers.listener import ConsumerListener
from services.rlm.consumers.relay import TIER_LOG_DIR
from services.rlm.kafka_admin.beside import BrokerBeside
from services.rlm.kafka_admin.client import KafkaAdmin, connected
from services.rlm.kafka_admin.security import KafkaSecurity
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.partition_readers import Readers
from tests.data.kafka_log_content import PAYMENTS
from tests.harness.databases import Databases
from tests.harness.eventually import eventually
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, Cluster
from tests.harness.kafka_cluster import ClusterAdmin, KafkaCluster
from tests.harness.published import growth
from tests.harness.secured import Secrets, make_secrets
from tests.harness.ship_stack import running_stack
from tests.harness.variants import first_of
from tests.kafka.grouped import (
    CLIENTS,
    SECURITIES,
    STRANGER,
    TOPIC,
    Door,
    Read,
    Reading,
    at_the_broker,
    broker_with_users,
    by_kafka_python,
    committed,
    confluent_consumer,
    java_tool,
    opened_door,
    record_of,
    tiered_rlm,
)

pytestmark = pytest.mark.kafka

UNCOMMITTED = "read_uncommitted"
PARTITIONS = list(range(PAYMENTS.partitions))
MATRIX = [
    pytest.param(client, security, isolation, id=f"{client}, {security}, {isolation}")
    for security in SECURITIES
    for isolation in (UNCOMMITTED, "read_committed")
    for client in CLIENTS
    # librdkafka 2.0, which kcat has, does not log in by SCRAM at the broker of Kafka 4 either.
    if (client, security) != ("kcat", "SCRAM")
]
FIRST = [
    ("kcat", "PLAINTEXT"),
    ("console consumer, KIP-848", "PLAINTEXT"),
    ("kafka-python", "TLS"),
    ("kcat", "PLAIN"),
    ("console consumer", "PLAIN"),
    ("confluent-kafka, KIP-848", "SCRAM"),
    ("confluent-kafka", "OAUTHBEARER"),
]
"""Each client and each way to connect once, in every run; the others in the long one."""


def ordered(matrix: list[Any]) -> list[Any]:
    return sorted(matrix, key=lambda p: (p.values[:2] not in FIRST) or (p.values[2] == UNCOMMITTED))


@pytest.fixture(scope="module")
def served(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[KafkaBroker, Secrets, BrokerRemoteLogManager]]:
    """The broker, and an RLM beside it whose rolled segments are in the tier only."""
    directory = tmp_path_factory.mktemp("grouped")
    url = databases.take()
    with (
        broker_with_users(directory) as (broker, secrets),
        running_stack(url, directory / "objects") as stack,
    ):
        yield broker, secrets, tiered_rlm(broker, stack, directory / "links")
    databases.give_back(url)


Served = tuple[KafkaBroker, Secrets, BrokerRemoteLogManager]


@pytest.fixture(scope="module")
def records(served: Served) -> dict[str, Read]:
    broker, _, _ = served
    return {each: at_the_broker(broker, each) for each in (UNCOMMITTED, "read_committed")}


@pytest.fixture
def broker(served: Served) -> KafkaBroker:
    return served[0]


@pytest.fixture
def door(served: Served, request: pytest.FixtureRequest) -> Iterator[Door]:
    """In plaintext, unless the test says otherwise."""
    broker, secrets, rlm = served
    with opened_door(getattr(request, "param", "PLAINTEXT"), rlm, broker, secrets) as door:
        yield door


@pytest.mark.parametrize(("client", "security", "isolation"), first_of(ordered(MATRIX), len(FIRST)))
def test_a_group_reads_every_record_and_commits_at_the_broker(
    served: Served, records: dict[str, Read], client: str, security: str, isolation: str
) -> None:
    broker, secrets, rlm = served
    read, protocol = CLIENTS[client]
    wanted = records[isolation]
    group = f"{client}-{security}-{isolation}".replace(", ", "-").replace(" ", "-")
    with opened_door(security, rlm, broker, secrets) as door:
        found = read(door, Reading(group, isolation, len(wanted), protocol))
    assert found == wanted
    behind_last = {p: 1 + max(r[1] for r in found if r[0] == p) for p in PARTITIONS}
    # A marker of a transaction may follow the last record.
    ends = eventually(lambda: committed(broker, group))
    assert all(ends[p] >= behind_last[p] for p in PARTITIONS), (ends, behind_last)


def test_a_group_goes_on_from_an_offset_that_the_broker_has_no_more(
    broker: KafkaBroker, door: Door, records: dict[str, Read]
) -> None:
    """This changes the broker's log for the tests that follow: they read from RLM."""
    reading = Reading("below", UNCOMMITTED, 10)
    with closing(confluent_consumer(door, reading)) as consumer:
        offsets = [TopicPartition(TOPIC, number, 5) for number in PARTITIONS]
        consumer.commit(offsets=offsets, asynchronous=False)
    cluster = Cluster(broker.bootstrap_servers)
    for number in PARTITIONS:
        cluster.delete_records(TOPIC, number, 20)
        assert cluster.offsets(TOPIC, number).log_start_offset == 20
    wanted = {record for record in records[UNCOMMITTED] if record[1] >= 5}
    with closing(confluent_consumer(door, reading)) as consumer:
        assert read_from(consumer, len(wanted)) == wanted


def read_from(consumer: Consumer, count: int) -> Read:
    consumer.subscribe([TOPIC])
    found: Read = set()
    while len(found) < count:
        message = consumer.poll(CLIENT_TIMEOUT_S)
        assert message is not None
        assert message.error() is None, message.error()
        found.add(record_of(message))
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_share_the_partitions_and_take_over(door: Door, protocol: str) -> None:
    reading = Reading(f"shared-{protocol}", UNCOMMITTED, 0, protocol)
    with closing(confluent_consumer(door, reading)) as first:
        first.subscribe([TOPIC])
        eventually(lambda: assigned(first) == PARTITIONS, 60_000)
        with closing(confluent_consumer(door, reading)) as second:
            second.subscribe([TOPIC])
            eventually(
                lambda: sorted([assigned(first), assigned(second)]) == [[p] for p in PARTITIONS],
                60_000,
            )
        eventually(lambda: assigned(first) == PARTITIONS, 60_000)


def assigned(consumer: Consumer) -> list[int]:
    consumer.poll(0.05)
    return sorted(each.partition for each in consumer.assignment())


@contextmanager
def listening(
    rlm: BrokerRemoteLogManager, broker: KafkaBroker, port: int, readers: Readers | None = None
) -> Iterator[ConsumerListener]:
    admin = KafkaAdmin([broker.bootstrap_servers])
    beside = BrokerBeside(admin, broker.node_id, KafkaSecurity(), may_send_plaintext=False)
    made = ConsumerListener(
        rlm, (LOOPBACK, port), None, broker.node_id, readers=readers, beside=beside
    )
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_outlives_its_rlm_and_its_broker(served: Served, protocol: str) -> None:
    broker, secrets, rlm = served
    reading = Reading(f"outlives-{protocol}", UNCOMMITTED, 0, protocol)
    with listening(rlm, broker, 0) as first:
        port = int(first.address.rpartition(":")[2])
        door = Door(first.address, "PLAINTEXT", secrets)
        consumer = confluent_consumer(door, reading, **{"reconnect.backoff.max.ms": 200})
        consumer.subscribe([TOPIC])
        eventually(lambda: assigned(consumer) == PARTITIONS, 60_000)
    with closing(consumer), listening(rlm, broker, port):
        eventually(lambda: commits(consumer, 7), 60_000)
        broker.restart()
        eventually(lambda: commits(consumer, 8), 60_000)
    assert committed(broker, reading.group)[0] == 8


def commits(consumer: Consumer, offset: int) -> bool:
    consumer.poll(0.05)
    try:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    except KafkaException:
        return False
    return True


@pytest.mark.parametrize("door", ["PLAIN"], indirect=True)
def test_a_user_without_read_gets_nothing(door: Door) -> None:
    stranger = Door(door.address, door.security, door.secrets, STRANGER)
    reading = Reading("stranger", UNCOMMITTED, 0)
    with closing(confluent_consumer(stranger, reading)) as consumer:
        found = consumer.list_topics(TOPIC, CLIENT_TIMEOUT_S).topics[TOPIC]
        assert found.error is not None
        assert found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert TOPIC not in consumer.list_topics(timeout=CLIENT_TIMEOUT_S).topics
        consumer.subscribe([TOPIC])
        codes: set[int] = set()

        def is_refused() -> bool:
            message = consumer.poll(0.1)
            if message is not None and (error := message.error()) is not None:
                codes.add(error.code())
            return KafkaError.GROUP_AUTHORIZATION_FAILED in codes

        eventually(is_refused, 60_000)


@pytest.mark.parametrize("door", ["PLAIN", "SCRAM"], indirect=True)
def test_a_wrong_password_is_refused(door: Door) -> None:
    wrong = Door(door.address, door.security, door.secrets, password="hunter3")
    errors: list[KafkaError] = []
    settings = {"error_cb": errors.append}
    with closing(confluent_consumer(wrong, Reading("w", UNCOMMITTED, 0), **settings)) as consumer:

        def is_refused() -> bool:
            consumer.poll(0.1)
            return any(each.code() == KafkaError._AUTHENTICATION for each in errors)

        eventually(is_refused, 30_000)


@pytest.mark.parametrize("door", ["PLAIN"], indirect=True)
def test_a_login_is_renewed_on_the_same_connections(door: Door, records: dict[str, Read]) -> None:
    """Logins of this broker last 3 s; it closes a connection that sends anything else later."""
    grown = growth('sediment_rlm_consumer_refusals_total{reason="broker"}')
    wanted = records["read_committed"]
    reading = Reading("renewed", "read_committed", len(wanted))
    started_s = time.monotonic()
    while time.monotonic() < started_s + 8:
        assert by_kafka_python(door, reading) <= wanted
        reading = Reading(f"{reading.group}+", "read_committed", len(wanted))
    assert grown() == [0]


def tool(door: Door, name: str, *arguments: str) -> str:
    file = door.secrets.policy.with_name("tool.properties")
    file.write_text("".join(f"{key}={value}\n" for key, value in door.java().items()))
    command = [*java_tool(name, door, file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafkas_tools_show_groups_and_the_tier(broker: KafkaBroker, door: Door) -> None:
    with closing(confluent_consumer(door, Reading("shown", UNCOMMITTED, 0))) as consumer:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 9)], asynchronous=False)
    groups = "consumer.group.ConsumerGroupCommand"
    assert "shown" in tool(door, groups, "--list").split()
    (line,) = (
        line
        for line in tool(door, groups, "--describe", "--group", "shown").splitlines()
        if TOPIC in line
    )
    end = Cluster(broker.bootstrap_servers).offsets(TOPIC, 0).log_end_offset
    assert line.split()[1:6] == [TOPIC, "0", "9", str(end), str(end - 9)]
    shown = tool(door, "LogDirsCommand", "--describe", "--topic-list", TOPIC)
    assert TIER_LOG_DIR in shown
    assert str(broker.log_dir) in shown
    assert broker.bootstrap_servers not in shown


@pytest.mark.long  # Two brokers and a controller.
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_follows_its_coordinator_to_another_rlm(
    databases: Databases, tmp_path: Path, protocol: str
) -> None:
    settings = {
        "default.replication.factor": "2",
        "min.insync.replicas": "1",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "2",
    }
    url = databases.take()
    with (
        KafkaCluster(tmp_path / "cluster", [settings, settings]) as cluster,
        running_stack(url, tmp_path / "objects") as stack,
        ExitStack() as opened,
    ):
        admin = ClusterAdmin(cluster.bootstrap_servers)
        admin.create(TOPIC, [[1, 2], [1, 2]], {})
        readers, listeners = Readers(), {}
        for broker in cluster.brokers:
            rlm = stack.rlm(broker.log_dir)
            listener = opened.enter_context(listening(rlm, broker, 0, readers))
            listeners[broker.node_id] = listener.address
        readers.live = tuple(
            RlmEndpoint("c", "d", node_id, "rlm:1", address)
            for node_id, address in listeners.items()
        )
        secrets = make_secrets(tmp_path / "tls")
        door = Door(listeners[1], "PLAINTEXT", secrets)
        reading = Reading("follows", UNCOMMITTED, 0, protocol)
        with closing(confluent_consumer(door, reading)) as consumer:
            consumer.subscribe([TOPIC])
            eventually(lambda: assigned(consumer) == PARTITIONS, 60_000)
            for offset, node_id in enumerate((2, 1)):
                admin.lead("__consumer_offsets", 0, node_id)
                eventually(partial(commits, consumer, offset), 60_000)
                found = node_id, listeners[node_id]
                asked = partial(coordinator_of, reading.group, listeners[1])
                eventually(lambda: asked() == found, 60_000)  # noqa: B023 - called at once
                eventually(lambda: assigned(consumer) == PARTITIONS, 60_000)
    databases.give_back(url)


def coordinator_of(group: str, address: str) -> tuple[int, str]:
    request = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group], max_version=3)
    with connected(address, KafkaSecurity().connection_options(), CLIENT_TIMEOUT_S) as connection:
        found = connection.call(request)
    return found.node_id, f"{found.host}:{found.port}"
