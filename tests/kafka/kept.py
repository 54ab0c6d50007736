"""Topics that the broker keeps as a whole until a test lowers their retention."""

from dataclasses import replace

from tests.data.kafka_log_content import ROUNDS, RecordMaker
from tests.harness.kafka_client import NOW, Cluster, Topic, send_batch

BY_SIZE = Topic("kept-by-size", 1, 8192)
BY_TIME = Topic("kept-by-time", 1, 8192)
KEPT = (BY_SIZE, BY_TIME)
RECORDS_PER_ROUND = 150


def produce_kept(cluster: Cluster, topic: Topic, round_number: int) -> None:
    """Old records, and behind the last of them one of now, so that not all are too old."""
    make = RecordMaker(topic, round_number)
    with cluster.idempotent("lz4") as producer:
        for _ in range(RECORDS_PER_ROUND // 6):
            send_batch(producer, topic, 0, [make.json_record("key") for _ in range(6)])
        if round_number == ROUNDS - 1:
            send_batch(producer, topic, 0, [replace(make.json_record("key"), timestamp_ms=NOW)])
