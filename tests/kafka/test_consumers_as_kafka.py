"""Kafka's own clients read from RLM's listener what they read from the broker."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demos.kafka_broker import find_java
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.offset_queries import SpecialTime
from services.api.remote_log_manager import IsolationLevel
from services.local.stack import own_environment
from services.rlm.manager import BrokerRemoteLogManager
from tests.data.kafka_log_content import AUDIT, PAYMENTS
from tests.harness.broker_answers import broker_answers
from tests.harness.doors import serving_consumers
from tests.harness.jars import ensure_kafka_jars, ensure_tools_jars
from tests.harness.kafka_client import Cluster, headers_of
from tests.harness.served import served_rlm
from tests.kafka.tiered_broker import TieredBroker

pytestmark = pytest.mark.kafka

TOPICS = (PAYMENTS, AUDIT)
EXAMPLES = Path(__file__).parents[2] / "docs" / "clients"


@pytest.fixture(scope="module")
def names(tier: TieredBroker) -> list[TopicIdPartition]:
    tier.ship(*TOPICS)
    return sorted(tier.partitions(*TOPICS), key=str)


@pytest.fixture(scope="module")
def rlm(
    tier: TieredBroker, names: list[TopicIdPartition], tmp_path_factory: pytest.TempPathFactory
) -> BrokerRemoteLogManager:
    """RLM over the broker's log, of which only the tier has the rolled segments."""
    return tier.without_rolled_segments(tmp_path_factory.mktemp("links"))


@pytest.fixture(scope="module")
def listener(rlm: BrokerRemoteLogManager) -> Iterator[str]:
    with serving_consumers(rlm) as address:
        yield address


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_librdkafka_reads_the_same(
    tier: TieredBroker, listener: str, names: list[TopicIdPartition], isolation: str
) -> None:
    def read(address: str, name: TopicIdPartition) -> list[object]:
        found = Cluster(address).read(name.topic, name.partition, isolation)
        return [(m.offset(), m.timestamp(), m.key(), m.value(), headers_of(m)) for m in found]

    for name in names:
        there = read(tier.broker.bootstrap_servers, name)
        assert read(listener, name) == there
        assert there


KCAT_FORMAT = "%o %T %K %k %S %s %h\n"


def kcat(address: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["kcat", "-b", address, "-X", "socket.timeout.ms=30000", *arguments],
        input=b"key:value\n",
        capture_output=True,
        timeout=120,
    )


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_kcat_reads_the_same(
    tier: TieredBroker, listener: str, names: list[TopicIdPartition], isolation: str
) -> None:
    """kcat of the distribution has an old librdkafka, which asks for records by topic name."""

    def read(address: str, name: TopicIdPartition, offset: str) -> bytes:
        arguments = ["-C", "-q", "-e", "-t", name.topic, "-p", str(name.partition), "-o", offset]
        options = ["-X", f"isolation.level={isolation}", "-f", KCAT_FORMAT]
        done = kcat(address, *arguments, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for name in names:
        first = read(tier.broker.bootstrap_servers, name, "beginning")
        assert read(listener, name, "beginning") == first
        assert first
        for offset in ("-7", "11"):
            assert read(listener, name, offset) == read(tier.broker.bootstrap_servers, name, offset)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_sediment_fetch_prints_by_a_format_what_kcat_does(
    tier: TieredBroker, rlm: BrokerRemoteLogManager, names: list[TopicIdPartition], isolation: str
) -> None:
    """%R is the length of the value as four bytes: the output is no text."""
    form = r"%t %p %o %T %K %k %S %R%s %h\x2c\n"

    def read_by_kcat(name: TopicIdPartition) -> bytes:
        arguments = ["-C", "-q", "-e", "-t", name.topic, "-p", str(name.partition), "-f", form]
        options = ["-o", "beginning", "-X", f"isolation.level={isolation}"]
        return kcat(tier.broker.bootstrap_servers, *arguments, *options).stdout

    with served_rlm(rlm) as (_, address):
        for name in names:
            asked = f"{uuid_to_text(name.topic_id)}:{name.topic}-{name.partition}"
            command = [sys.executable, "-m", "services.cli", "fetch", asked]
            command += ["--rlm", address, "--rlmm", address, "--isolation", isolation]
            done = subprocess.run(
                [*command, "--from", "beginning", "--to", "end", "-f", form],
                env=own_environment({}),
                capture_output=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout == read_by_kcat(name) != b"", name


def test_kcat_lists_and_asks_for_times_and_writes_nothing(
    tier: TieredBroker, listener: str, names: list[TopicIdPartition]
) -> None:
    (name, *_) = (name for name in names if name.topic == PAYMENTS.name)
    listed = json.loads(kcat(listener, "-L", "-J").stdout)
    assert {n.topic for n in names} <= {each["topic"] for each in listed["topics"]}
    asked = ["-Q", "-t", f"{name.topic}:{name.partition}:1"]
    there = kcat(tier.broker.bootstrap_servers, *asked)
    assert kcat(listener, *asked).stdout == there.stdout != b""
    written = kcat(listener, "-P", "-t", name.topic, "-p", str(name.partition), "-K", ":")
    assert written.returncode != 0
    assert b"Policy" in written.stderr


def test_the_java_example_reads_the_same(
    tier: TieredBroker, listener: str, names: list[TopicIdPartition]
) -> None:
    command = [find_java(), "-Xmx256m", "-cp", f"{ensure_kafka_jars()}/*"]
    example = [*command, str(EXAMPLES / "Read.java")]
    reads_committed_records(example, tier, listener, names)


@pytest.mark.parametrize(
    ("protocol", "error"),
    [("classic", "GroupAuthorizationException"), ("consumer", "UnsupportedVersionException")],
)
def test_the_console_consumer_with_a_group_stops_and_says_why(
    listener: str, protocol: str, error: str
) -> None:
    command = [find_java(), "-Xmx256m", "-cp", f"{ensure_tools_jars()}/*:{ensure_kafka_jars()}/*"]
    command += ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", PAYMENTS.name]
    command += ["--bootstrap-server", listener, "--group", "group-1"]
    command += ["--command-property", f"group.protocol={protocol}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    # It ends with 0 all the same.
    assert error in done.stderr + done.stdout


def test_kcat_with_a_group_stops_and_says_why(listener: str) -> None:
    done = kcat(listener, "-G", "group-1", PAYMENTS.name)
    assert done.returncode != 0
    assert b"Group authorization failed" in done.stderr


@pytest.mark.long  # It downloads modules, and compiles them.
def test_the_go_example_reads_the_same(
    tier: TieredBroker, listener: str, names: list[TopicIdPartition], tmp_path: Path
) -> None:
    program = tmp_path / "read"
    build = ["go", "build", "-o", str(program), "."]
    subprocess.run(build, cwd=EXAMPLES / "go", check=True, timeout=240)
    reads_committed_records([str(program)], tier, listener, names)


def reads_committed_records(
    example: list[str], tier: TieredBroker, listener: str, names: list[TopicIdPartition]
) -> None:
    """Check that a program prints the same from RLM and from the broker: committed records."""
    name = next(name for name in names if name.topic == PAYMENTS.name)

    def printed(address: str) -> list[str]:
        command = [*example, address, name.topic, str(name.partition)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    here = printed(listener)
    assert here == printed(tier.broker.bootstrap_servers)
    committed = Cluster(listener).read(name.topic, name.partition, "read_committed")
    assert [int(line.split(" ")[0]) for line in here] == [m.offset() for m in committed]


def test_special_offsets_and_epochs_are_the_brokers(
    tier: TieredBroker, listener: str, names: list[TopicIdPartition]
) -> None:
    asked = [SpecialTime.LATEST, SpecialTime.EARLIEST]
    with (
        broker_answers(tier.broker.bootstrap_servers) as there,
        broker_answers(listener) as here,
    ):
        for name in names:
            for isolation in IsolationLevel:
                assert here.offsets(name, asked, isolation) == there.offsets(name, asked, isolation)
            epochs = range(8)
            assert here.epoch_ends(name, epochs) == there.epoch_ends(name, epochs)
