"""kcat and Kafka's console consumer read a tiered partition from an RLM process, with TLS."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from demos.kafka_broker import find_java
from demos.stage import link_log_dir, unlink_segments
from services.api.ids import TopicIdPartition
from services.local.data_directory import StackEndpoints
from services.local.stack import EmbeddedStack
from services.rlm.kafka_log.log_dir import find_partitions
from tests.data.kafka_log_content import PAYMENTS
from tests.harness.certificates import key_and_certificate
from tests.harness.eventually import eventually
from tests.harness.jars import ensure_kafka_jars, ensure_tools_jars
from tests.harness.sediment_command import sediment
from tests.kafka.tiered_broker import NO_END, TieredBroker

pytestmark = pytest.mark.kafka

READ_COMMITTED = "isolation.level=read_committed"


@dataclass(frozen=True)
class TieredPartition:
    """A partition of which only the tier has the rolled segments, and the stack that serves it."""

    name: TopicIdPartition
    endpoints: StackEndpoints


@pytest.fixture(scope="module")
def tiered(
    tier: TieredBroker, server_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TieredPartition]:
    name = min(tier.partitions(PAYMENTS), key=str)
    tier.wait_for_checkpoint(name)
    source = tier.partitions(PAYMENTS)[name].parent
    links = tmp_path_factory.mktemp("served") / source.name
    link_log_dir(source, links)
    data = server_directory / "consumers"
    with EmbeddedStack(data, log_dirs=[links], with_tls=True, with_listener=True) as stack:

        def is_shipped() -> bool:
            done = sediment("partitions", "-o", "json", "--data-dir", data)
            assert done.returncode == 0, done.stderr
            found = [json.loads(line) for line in done.stdout.splitlines()]
            mine = [
                p for p in found if (p["topic"], p["partition"]) == (name.topic, name.partition)
            ]
            return [(p["lag_segments"], p["remote_segments"] > 1) for p in mine] == [(0, True)]

        eventually(is_shipped, deadline_ms=60_000)
        unlink_segments(find_partitions([links]).partitions[name].path, NO_END)
        yield TieredPartition(name, stack.endpoints)


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kcat_with_a_certificate_reads_the_same(
    tier: TieredBroker, tiered: TieredPartition
) -> None:
    at, name = tiered.endpoints, tiered.name
    wanted = ["-t", name.topic, "-p", str(name.partition), "-o", "beginning", "-e", "-q"]
    wanted += ["-X", READ_COMMITTED, "-f", "%o %T %k %s %h\n"]
    files = {
        "security.protocol": "ssl",
        "ssl.ca.location": at.tls_ca,
        "ssl.certificate.location": at.tls_certificate,
        "ssl.key.location": at.tls_key,
        "ssl.endpoint.identification.algorithm": "https",
    }
    tls = [word for key, value in files.items() for word in ("-X", f"{key}={value}")]
    there = run(["kcat", "-C", "-b", tier.broker.bootstrap_servers, *wanted])
    assert run(["kcat", "-C", "-b", at.rlm_consumers, *tls, *wanted]) == there != ""


def test_the_console_consumer_with_a_certificate_reads_the_same(
    tier: TieredBroker, tiered: TieredPartition, tmp_path: Path
) -> None:
    at, name = tiered.endpoints, tiered.name
    keystore = key_and_certificate(
        Path(at.tls_key), Path(at.tls_certificate), tmp_path / "client.pem"
    )
    plain, tls = tmp_path / "plain.properties", tmp_path / "tls.properties"
    plain.write_text(f"{READ_COMMITTED}\n")
    tls.write_text(
        f"{READ_COMMITTED}\nsecurity.protocol=SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={at.tls_ca}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={keystore}\n"
    )
    consumer = [find_java(), "-Xmx256m", "-cp", f"{ensure_tools_jars()}/*:{ensure_kafka_jars()}/*"]
    consumer += ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", name.topic]
    consumer += ["--partition", str(name.partition), "--offset", "earliest"]
    consumer += ["--timeout-ms", "15000"]
    for shown in ("offset", "timestamp", "key", "headers"):
        consumer += ["--formatter-property", f"print.{shown}=true"]

    def read(address: str, properties: Path) -> str:
        return run([*consumer, "--bootstrap-server", address, "--command-config", str(properties)])

    there = read(tier.broker.bootstrap_servers, plain)
    assert read(at.rlm_consumers, tls) == there != ""
