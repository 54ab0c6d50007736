"""One pass trims 1,000 logs of a real broker, and a pass without anything to do costs little."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.api.remote_log_metadata_manager import all_partitions
from services.rlm.copy.ship import ShipOutcome, ship
from services.rlm.kafka_admin.client import KafkaAdmin
from services.rlm.kafka_admin.local_records import LocalRecordsAdmin
from services.rlm.kafka_admin.poller import PolledCluster
from services.rlm.kafka_log.log_dir import read_cluster_id
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.roles.partition_roles import PartitionSource
from services.rlm.scheduler import Lane
from tests.harness.clocks import Clock
from tests.harness.databases import Store
from tests.harness.eventually import eventually
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import Cluster, Topic
from tests.harness.world import running_world
from tests.kafka.sidecar import BROKER_SETTINGS, DEADLINE_MS

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(1800)]

MANY = Topic("many", 1_000, 8192)
VALUE = b"v" * 5_000
"""Of which two do not fit into a segment."""
RECORDS = 3
LONGEST_S = 20.0  # ten times what a quiet machine needs at most
OWNED = {"remote.storage.enable": "true", "sediment.local.retention.owner": "rlm"}
A_DAY, AT_ONCE = {"local.retention.ms": "86400000"}, {"local.retention.ms": "0"}


def produce(cluster: Cluster) -> None:
    with cluster.idempotent("none") as producer:
        for _ in range(RECORDS):
            for number in range(MANY.partitions):
                producer.produce(MANY.name, VALUE, b"key", number)
            assert producer.flush(600) == 0


def pass_s(lane: Lane) -> float:
    """Run the lane's task; return what it took."""
    began_s = time.monotonic()
    lane.tick()
    assert lane.wait_idle(600)
    return time.monotonic() - began_s


def test_a_pass_over_1_000_logs(
    store: Store, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    clock = Clock(1_000.0)
    with (
        kafka_broker(tmp_path / "kafka", BROKER_SETTINGS) as broker,
        running_world(tmp_path / "services", *store, broker.log_dir) as world,
        world.storage() as rsm,
        world.metadata() as rlmm,
    ):
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create(MANY)
        produce(cluster)

        def is_shipped() -> bool:
            assert ship(broker.log_dirs, rsm, rlmm).outcome is ShipOutcome.DONE
            found = list(all_partitions(rlmm, topic=MANY.name))
            return [each.totals.finished_segments for each in found] == [
                RECORDS - 1
            ] * MANY.partitions

        eventually(is_shipped, DEADLINE_MS)
        topic_id = next(iter(all_partitions(rlmm))).topic_id_partition.topic_id
        admin, cluster_id = KafkaAdmin([broker.bootstrap_servers]), read_cluster_id(broker.log_dirs)
        rlm = BrokerRemoteLogManager(
            broker.log_dirs,
            rsm,
            rlmm,
            clock=clock,
            source=PartitionSource.POLLER,
            cluster=PolledCluster(admin, cluster_id, 1.0, LocalRecordsAdmin(admin, cluster_id)),
        )

        def trims(local_retention: dict[str, str]) -> float:
            rlmm.put_topic_config(topic_id, {**OWNED, **local_retention}, now=True)
            clock.move(31.0)  # one interval
            pass_s(rlm.lanes.poll)
            pass_s(rlm.lanes.revisions)
            return pass_s(rlm.lanes.trims)

        seconds = {
            "the first pass": trims(A_DAY),
            "nothing is due": trims(A_DAY),
            "two segments each are due": trims(AT_ONCE),
        }
        record_property("counts", {f"{name}, s": round(s, 2) for name, s in seconds.items()})
        logs = [partition.role.local for partition in rlm.led_partitions()]
        assert [log and log.trimmed_before_offset for log in logs] == [
            RECORDS - 1
        ] * MANY.partitions
        assert max(list(seconds.values())[1:]) < LONGEST_S
        rlm.stop(1.0)
