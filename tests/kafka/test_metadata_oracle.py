"""Compare values, partitions and lines of Kafka's metadata topic with Kafka's own classes."""

import subprocess
from pathlib import Path
from random import Random

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from demos.kafka_broker import KafkaBroker, find_java
from services.api.partitions import RemotePartitionDeleteMetadata
from services.interop.metadata_topic import formatter_line, metadata_partition
from services.interop.metadata_values import (
    MetadataValue,
    SegmentSnapshot,
    decode_value,
    encode_value,
)
from tests.harness.jars import ensure_kafka_jars
from tests.harness.kafka_metadata import draw_value
from tests.harness.sediment_command import sediment

pytestmark = pytest.mark.kafka

RECORDS = 100_000
ORACLE = Path(__file__).with_name("MetadataOracle.java")


def partition_of(value: MetadataValue) -> int:
    metadata = value.metadata
    if isinstance(metadata, SegmentSnapshot):
        return -1
    if isinstance(metadata, RemotePartitionDeleteMetadata):
        return metadata_partition(metadata.topic_id_partition, 50)
    return metadata_partition(metadata.remote_log_segment_id.topic_id_partition, 50)


def test_kafkas_classes_write_the_same_bytes_and_lines() -> None:
    random = Random(20)
    values = [draw_value(random) for _ in range(RECORDS)]
    written = [encode_value(each) for each in values]
    done = subprocess.run(
        [find_java(), "-Xmx256m", "-cp", f"{ensure_kafka_jars()}/*", str(ORACLE)],
        input="".join(f"{each.hex()}\n" for each in written),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = done.stdout.splitlines()
    assert len(answers) == RECORDS
    for offset, (value, data, answer) in enumerate(zip(values, written, answers, strict=True)):
        theirs, partition, line = answer.split("\t")
        assert theirs == data.hex()
        assert decode_value(bytes.fromhex(theirs)) == value
        assert int(partition) == partition_of(value)
        assert line == formatter_line(3, offset, value.metadata)
    kinds = {type(each.metadata).__name__ for each in values}
    assert len(kinds) == 4, kinds


def test_a_topic_of_a_real_broker_is_printed(broker: KafkaBroker) -> None:
    random, topic = Random(21), "metadata-to-print"
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])
    admin.close()
    values = [draw_value(random) for _ in range(50)]
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for number, value in enumerate(values):
        producer.send(topic, encode_value(value), partition=number % 2)
    producer.close()
    expected = [
        formatter_line(partition, offset, value.metadata)
        for partition in range(2)
        for offset, value in enumerate(values[partition::2])
    ]
    place = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic)
    done = sediment("metadata", "print", *place)
    assert (done.returncode, done.stderr) == (0, "50 records\n")
    assert done.stdout.splitlines() == expected
    assert sediment("metadata", "print", *place[:2], "--topic", "none").returncode == 2
