"""The way to the store is slower than Kafka waits for a read: consumers get their records at a
later fetch, by bytes that went on arriving meanwhile."""

from pathlib import Path

import pytest

from demos.kafka_broker import NODE_ID, plugin_settings
from tests.harness.faults import Throttle
from tests.harness.kafka_broker import kafka_broker
from tests.harness.proxy import TcpProxy
from tests.harness.world import World
from tests.plugin.deployment import IMPATIENT, Deployment
from tests.plugin.jmx import read_jmx

pytestmark = pytest.mark.plugin

MIB = 1024 * 1024
SEGMENT_BYTES = 8 * MIB
RECORDS, RECORD_BYTES = 16, 700_000  # one segment is rolled
BYTES_PER_S = 2 * MIB
MAX_WAIT_MS = 100
CHUNKS = 2
DEADLINE_S = 180.0
FETCHES = "kafka.server:type=BrokerTopicMetrics,name=RemoteFetchRequestsPerSec"


def test_consumer_gets_its_records_from_a_store_slower_than_the_broker_waits(
    jar: Path, services: World, tmp_path: Path
) -> None:
    with TcpProxy(services.rsm.address) as way:
        settings = plugin_settings(jar, way.address, services.rlmm.address)
        settings["remote.fetch.max.wait.ms"] = str(MAX_WAIT_MS)
        with kafka_broker(tmp_path, {**IMPATIENT, **settings}) as broker:
            deployment = Deployment(broker, services)
            partition = deployment.create_one("slow", SEGMENT_BYTES, local_retention_bytes="1")
            values = partition.produce(RECORDS, RECORD_BYTES)
            (segment,) = partition.wait_until_tiered()
            partition.wait_until_only_active_is_local()
            way.faults.add(Throttle(BYTES_PER_S), times=None)
            way.cut_connections()
            before = read_jmx(broker)
            streams = deployment.calls_of_rsm("FetchLogSegment")
            read = list(deployment.cluster.read_through_faults(partition.name.topic, 0, DEADLINE_S))
            after = read_jmx(broker)
            assert [message.value() for message in read] == values
            fetches = after[FETCHES, "Count"] - before.get((FETCHES, "Count"), 0)
            segment_ms = segment.segment_size_in_bytes * 1000 // BYTES_PER_S
            assert fetches > segment_ms / MAX_WAIT_MS / 4, "no fetch was given up"
            # A range for the first fetch, and perhaps for one that followed it; then the chunks.
            assert deployment.calls_of_rsm("FetchLogSegment") - streams <= CHUNKS + 2
            read_ahead = f"io.sediment.kafka:type=ReadAhead,broker={NODE_ID}"
            assert after[read_ahead, "Hits"] > CHUNKS
