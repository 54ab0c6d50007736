"""A way to the store is slow or stalls: consumers get records later, a broker still stops."""

from pathlib import Path

import pytest

from demos.kafka_broker import NODE_ID, KafkaBroker
from tests.harness.eventually import eventually
from tests.harness.faults import Direction, Stall, Throttle
from tests.harness.proxy import TcpProxy
from tests.harness.world import World
from tests.kafka.constant_consumer import ConstantConsumer
from tests.plugin.deployment import tiering_broker
from tests.plugin.jmx import read_jmx
from tests.plugin.tiered_partition import DEADLINE_MS

pytestmark = pytest.mark.plugin

SEGMENT_BYTES = 1 << 20
RECORDS, RECORD_BYTES = 12, 300_000
STALLED_AFTER_BYTES = SEGMENT_BYTES // 4
FETCHES = f"io.sediment.kafka:type=Calls,broker={NODE_ID},service=RSM,call=FetchLogSegment"
READER = "RemoteLogReader - Error occurred while reading the remote data"
LOOK_UPS = f"io.sediment.kafka:type=LookUps,broker={NODE_ID}"


def test_broker_stops_in_order_during_a_read_and_a_watch(
    jar: Path, services: World, tmp_path: Path
) -> None:
    with TcpProxy(services.rsm.address) as way:
        with tiering_broker(jar, services, tmp_path, rsm=way.address) as deployment:
            broker = deployment.broker
            partition = deployment.create_one("stopped", SEGMENT_BYTES, local_retention_bytes="1")
            partition.produce(RECORDS, RECORD_BYTES)
            partition.wait_until_moved()
            way.faults.add(Stall(STALLED_AFTER_BYTES, Direction.RESPONSE), times=None)
            way.cut_connections()
            with ConstantConsumer(deployment.cluster, partition.name, "read_uncommitted"):
                eventually(lambda: reads_and_watches(broker), DEADLINE_MS)
                # Fails unless the broker has shut down cleanly within a minute.
                broker.stop()
        assert failures_after_stop(deployment.broker_log()) == []


def reads_and_watches(broker: KafkaBroker) -> bool:
    """Return whether a read is under way, and the watch is live."""
    figures = read_jmx(broker)
    return figures.get((FETCHES, "Calls"), 0) > 0 and figures[LOOK_UPS, "Current"] == 1


def failures_after_stop(log: list[str]) -> list[str]:
    """Return the errors since SIGTERM, but Kafka's own for the reads that it ends."""
    (stop,) = (number for number, line in enumerate(log) if "signal SIGTERM" in line)
    errors = [line for line in log[stop:] if " ERROR " in line or " WARN io.sediment" in line]
    return [line for line in errors if " ERROR org.apache.kafka" not in line or READER not in line]


SLOW_SEGMENT_BYTES = 8 << 20
SLOW_RECORDS, SLOW_RECORD_BYTES = 16, 700_000  # one segment is rolled
BYTES_PER_S = 2 << 20
MAX_WAIT_MS = 100
CHUNKS = 2
DEADLINE_S = 180.0
REMOTE_FETCHES = "kafka.server:type=BrokerTopicMetrics,name=RemoteFetchRequestsPerSec"


def test_consumer_gets_its_records_from_a_store_slower_than_the_broker_waits(
    jar: Path, services: World, tmp_path: Path
) -> None:
    short = {"remote.fetch.max.wait.ms": str(MAX_WAIT_MS)}
    with (
        TcpProxy(services.rsm.address) as way,
        tiering_broker(jar, services, tmp_path, rsm=way.address, settings=short) as deployment,
    ):
        broker = deployment.broker
        partition = deployment.create_one("slow", SLOW_SEGMENT_BYTES, local_retention_bytes="1")
        values = partition.produce(SLOW_RECORDS, SLOW_RECORD_BYTES)
        (segment,) = partition.wait_until_moved()
        way.faults.add(Throttle(BYTES_PER_S), times=None)
        way.cut_connections()
        before = read_jmx(broker)
        streams = deployment.calls_of_rsm("FetchLogSegment")
        read = list(deployment.cluster.read_through_faults(partition.name.topic, 0, DEADLINE_S))
        after = read_jmx(broker)
        assert [message.value() for message in read] == values
        fetches = after[REMOTE_FETCHES, "Count"] - before.get((REMOTE_FETCHES, "Count"), 0)
        segment_ms = segment.segment_size_in_bytes * 1000 // BYTES_PER_S
        assert fetches > segment_ms / MAX_WAIT_MS / 4, "no fetch was given up"
        # A range for the first fetch, and perhaps for one that followed it; then the chunks.
        assert deployment.calls_of_rsm("FetchLogSegment") - streams <= CHUNKS + 2
        read_ahead = f"io.sediment.kafka:type=ReadAhead,broker={NODE_ID}"
        assert after[read_ahead, "Hits"] > CHUNKS
