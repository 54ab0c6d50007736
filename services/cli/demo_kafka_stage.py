"""Where `sediment demo-kafka` plays: the embedded servers, and a broker with the plugin."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.cli.connections import connected_rlmm
from services.cli.demo_kafka_report import DemoKafkaReport
from services.cli.demo_kafka_tier import TieredPartition
from services.cli.demo_kafka_watch import Watch, folder_of
from services.cli.demo_stage import check_room, scratch_directory
from services.cli.output import Format, say
from services.local.kafka_broker import KafkaBroker
from services.local.kafka_client import Cluster, Topic
from services.local.kafka_plugin import plugin_settings
from services.local.stack import BUCKET, EmbeddedStack

SEGMENT_BYTES = 2 * 1024 * 1024
LOCAL_RETENTION_BYTES = 3 * SEGMENT_BYTES
TOPIC = Topic(
    "orders",
    partitions=1,
    segment_bytes=SEGMENT_BYTES,
    config={"remote.storage.enable": "true", "local.retention.bytes": str(LOCAL_RETENTION_BYTES)},
)
# The log, the tier, and Kafka's own topics.
NEEDED_BYTES = 256 * 1024 * 1024
IN_A_HURRY = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "0",
    "replica.high.watermark.checkpoint.interval.ms": "500",
}
"""The broker looks for something to do twice a second, not every half minute or more seldom."""


@dataclass(frozen=True)
class Stage:
    """What all acts play on."""

    broker: KafkaBroker
    cluster: Cluster
    partition: TieredPartition
    report: DemoKafkaReport
    output: Format

    @property
    def watch(self) -> Watch:
        return Watch(self.broker, self.partition)


@contextmanager
def running_stage(
    plugin: Path, kafka: Path, report: DemoKafkaReport, output: Format
) -> Iterator[Stage]:
    """Servers and broker in a scratch directory, with the topic TOPIC; gone at the end.

    Raises:
        CommandError: the disk has no room for it.
        ClusterError, ProcessError, KafkaBrokerError: a server did not start.
    """
    started = time.monotonic()
    with scratch_directory() as scratch:
        check_room(NEEDED_BYTES, shutil.disk_usage(scratch).free, scratch)
        say("starting PostgreSQL, an S3 server, RSM and RLMM ...")
        stack = EmbeddedStack(scratch / "data", with_rlm=False)
        with stack, connected_rlmm(stack.endpoints.rlmm, None) as rlmm:
            endpoints = stack.endpoints
            say(f"they run after {time.monotonic() - started:.0f} s; now Kafka with the plugin ...")
            settings = plugin_settings(plugin, endpoints.rsm, endpoints.rlmm)
            settings = {**settings, "remote.log.manager.task.interval.ms": "500"}
            with KafkaBroker(scratch / "kafka", kafka, {**settings, **IN_A_HURRY}) as broker:
                say(f"Kafka {report.kafka_version} runs after {time.monotonic() - started:.0f} s")
                cluster = Cluster(broker.bootstrap_servers)
                cluster.create(TOPIC)
                found = folder_of(broker, TOPIC.name)
                store = stack.s3.endpoint.client()
                partition = TieredPartition(
                    found.topic_id_partition, found.path, rlmm, store, BUCKET, endpoints.rsm_metrics
                )
                yield Stage(broker, cluster, partition, report, output)
