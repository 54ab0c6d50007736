"""A broker moves a partition between its two log directories, there and back, beside a running RLM:
it is copied without a hole and read without an error all the while."""

from pathlib import Path

import pytest

from services.api.ids import TopicIdPartition
from tests.harness.databases import Store
from tests.harness.eventually import eventually
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import Topic
from tests.harness.kafka_cluster import ClusterAdmin
from tests.harness.world import running_world
from tests.kafka.constant_reader import ConstantReader
from tests.kafka.read_log import content_of, fetch_all
from tests.kafka.sidecar import BROKER_SETTINGS, DEADLINE_MS, Sidecar, running_sidecar
from tests.kafka.traffic import Traffic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

SEED = 405
MOVES = 2
LEAST_READS = 20
MOVED = Topic("moved", 1, 24_576, {"segment.ms": "1000"})


def test_a_partition_moves_to_another_log_directory_and_back(store: Store, tmp_path: Path) -> None:
    with (
        kafka_broker(tmp_path / "kafka", BROKER_SETTINGS, log_dirs=2) as broker,
        running_world(tmp_path / "services", *store, broker.log_dir) as world,
        running_sidecar(broker, world, tmp_path / "rlm", broker.log_dirs) as sidecar,
    ):
        (name,) = sidecar.create_tiered(MOVED)
        traffic = Traffic(sidecar.cluster, MOVED, SEED)
        with traffic:
            eventually(lambda: len(sidecar.rows(name)) > 2, DEADLINE_MS)
            with ConstantReader(sidecar.rlm, {name: traffic.some}, SEED) as reader:
                for _ in range(MOVES):
                    move(sidecar, name)
                eventually(lambda: reader.served.total() > LEAST_READS, DEADLINE_MS)
        assert reader.failures == []
        eventually(lambda: sidecar.describe(name).lag_segments == 0, DEADLINE_MS)
        assert_is_whole(sidecar, name, traffic)


def move(sidecar: Sidecar, name: TopicIdPartition) -> None:
    """Move the partition to the other log directory, and wait until more of it is copied."""
    broker, folder = sidecar.broker, sidecar.folder(name)
    had = len(sidecar.rows(name))
    (target,) = {*broker.log_dirs} - {folder.parent}
    admin = ClusterAdmin(broker.bootstrap_servers)
    admin.move_log_dir(name.topic, name.partition, broker.node_id, str(target))
    eventually(lambda: sidecar.folder(name) == target / folder.name, DEADLINE_MS)
    eventually(lambda: len(sidecar.rows(name)) > had + 3, DEADLINE_MS)


def assert_is_whole(sidecar: Sidecar, name: TopicIdPartition, traffic: Traffic) -> None:
    sent = traffic.acknowledged.records

    def all_are_read() -> bool:
        """RLM finds the end of the log by its next pass."""
        content = content_of(fetch_all(sidecar.rlm, name).data)
        return {offset: content.records.get(offset) for offset in sent} == sent

    eventually(all_are_read, DEADLINE_MS)
    rows = sidecar.rows(name)
    assert [row.start_offset for row in rows] == [0, *(row.end_offset + 1 for row in rows[:-1])]
    assert sidecar.describe(name).problems == ()
    assert len(sidecar.objects(name)) == 3 * len(rows)
