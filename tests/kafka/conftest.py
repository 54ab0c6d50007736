"""One real broker with a past, and one tier, for all tests here; each test has topics of its own.

Every test under this folder bears the marker `kafka`.
"""

from collections.abc import Iterator

import pytest

from demos.kafka_broker import KafkaBroker
from tests.data.kafka_log_content import ROUNDS, TOPICS, produce_round
from tests.harness.databases import Stores
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import Cluster
from tests.harness.world import running_world
from tests.kafka.kept import KEPT, produce_kept
from tests.kafka.tiered_broker import IMPATIENT, TieredBroker, tiered


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Running, with two log directories and all topics written in leader epochs 0, 2 and 4. Its
    topics keep everything unless a test tells it otherwise."""
    directory = tmp_path_factory.mktemp("broker")
    with kafka_broker(directory, IMPATIENT, log_dirs=2) as broker:
        Cluster(broker.bootstrap_servers).create(*TOPICS, *KEPT)
        for round_number in range(ROUNDS):
            if round_number > 0:
                broker.restart()
            cluster = Cluster(broker.bootstrap_servers)
            produce_round(cluster, round_number)
            for topic in KEPT:
                produce_kept(cluster, topic, round_number)
        yield broker


@pytest.fixture(scope="session")
def tier(
    broker: KafkaBroker, stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TieredBroker]:
    """The running broker with an RSM and an RLMM of its own."""
    directory = tmp_path_factory.mktemp("services")
    with (
        stores.new("kafka") as store,
        running_world(directory, *store, broker.log_dir) as world,
        tiered(broker, world) as made,
    ):
        yield made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts that tests have recorded, also those of other processes."""
    for report in terminalreporter.stats.get("passed", []):
        for name, counts in report.user_properties:
            if name == "counts":
                terminalreporter.section(report.nodeid)
                for what, count in counts.items():
                    terminalreporter.write_line(f"{what}: {count}")
