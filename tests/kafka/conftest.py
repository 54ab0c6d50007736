"""One real broker with a past, and one tier, for all tests here; each test has topics of its own.

Every test under this folder bears the marker `kafka`.
"""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from demos.kafka_broker import KafkaBroker
from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from tests.data.kafka_log_content import ROUNDS, TOPICS, produce_round
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
    broker: KafkaBroker,
    tmp_path_factory: pytest.TempPathFactory,
    postgres: EmbeddedPostgres,
    migrated_database: str,
    s3: S3Endpoint,
) -> Iterator[TieredBroker]:
    """The running broker with an RSM and an RLMM of its own."""
    store = f"kafka-{uuid4()}"
    s3.ensure_bucket(store)
    url = postgres.create_database(store, template=migrated_database)
    directory = tmp_path_factory.mktemp("services")
    with (
        running_world(directory, url, s3, store, broker.log_dir) as world,
        tiered(broker, world) as made,
    ):
        yield made
    postgres.drop_database(store)
    s3.remove_bucket(store)
