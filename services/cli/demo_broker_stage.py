"""Where `sediment demo-broker` plays: a stock broker, and the embedded servers beside it."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.api.ids import TopicIdPartition
from services.api.partition_queries import all_partitions
from services.api.remote_log_manager import RemoteLogManager
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.cli.connections import connected_rlm, connected_rlmm
from services.cli.demo_broker_report import DemoBrokerReport
from services.cli.demo_kafka_stage import IN_A_HURRY, NEEDED_BYTES
from services.cli.demo_kafka_tier import TieredPartition
from services.cli.demo_kafka_watch import Watch, folder_of
from services.cli.demo_stage import check_room, scratch_directory
from services.cli.output import Format, say
from services.local.kafka_broker import KafkaBroker
from services.local.kafka_client import Cluster, Topic
from services.local.service import ServiceProcess
from services.local.stack import BUCKET, EmbeddedStack

SEGMENT_BYTES = 1024 * 1024
LOCAL_RETENTION_BYTES = 6 * SEGMENT_BYTES
TOPIC = Topic(
    "orders",
    partitions=1,
    segment_bytes=SEGMENT_BYTES,
    # A stock broker's retention is what its disk keeps; that of the tier is set in Sediment.
    config={"retention.bytes": str(LOCAL_RETENTION_BYTES)},
)
_RLM = {
    "RLM_PARTITION_SOURCE": "poller",
    "RLM_PARTITION_POLL_INTERVAL_MS": "500",
    "RLM_COPY_LEASE_MS": "1000",
}
_TIERED = {"remote.storage.enable": "true"}


@dataclass(frozen=True)
class Stage:
    """What all acts play on."""

    broker: KafkaBroker
    cluster: Cluster
    partition: TieredPartition
    rlm: RemoteLogManager
    rlm_process: ServiceProcess
    report: DemoBrokerReport
    output: Format

    @property
    def watch(self) -> Watch:
        return Watch(self.broker, self.partition)


@contextmanager
def running_stage(kafka: Path, report: DemoBrokerReport, output: Format) -> Iterator[Stage]:
    """Broker and servers in a scratch directory, with the topic TOPIC, tiered; gone at the end.

    Raises:
        CommandError: the disk has no room for it.
        ClusterError, ProcessError, KafkaBrokerError: a server did not start.
    """
    started = time.monotonic()
    with scratch_directory() as scratch:
        check_room(NEEDED_BYTES, shutil.disk_usage(scratch).free, scratch)
        say(f"starting Kafka {report.kafka_version}, without tiered storage ...")
        with KafkaBroker(scratch / "kafka", kafka, IN_A_HURRY) as broker:
            say(f"it runs after {time.monotonic() - started:.0f} s; now Sediment beside it ...")
            settings = {**_RLM, "RLM_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
            stack = EmbeddedStack(
                scratch / "data",
                log_dirs=broker.log_dirs,
                task_interval_ms=200,
                settings=settings,
            )
            with (
                stack,
                connected_rlm(stack.endpoints.rlm, None) as rlm,
                connected_rlmm(stack.endpoints.rlmm, None) as rlmm,
            ):
                say(f"all of it runs after {time.monotonic() - started:.0f} s")
                cluster = Cluster(broker.bootstrap_servers)
                cluster.create(TOPIC)
                found = folder_of(broker, TOPIC.name)
                partition = TieredPartition(
                    found.topic_id_partition,
                    found.path,
                    rlmm,
                    stack.s3.endpoint.client(),
                    BUCKET,
                    stack.endpoints.rsm_metrics,
                )
                process = stack.services["rlm"]
                stage = Stage(broker, cluster, partition, rlm, process, report, output)
                stage.watch.until(
                    lambda: partition.name in _known(rlmm), "RLM does not find the topic"
                )
                rlmm.put_topic_config(partition.name.topic_id, _TIERED)
                say(f"   sediment topics set {TOPIC.name} remote.storage.enable=true")
                yield stage


def _known(rlmm: RemoteLogMetadataManager) -> Sequence[TopicIdPartition]:
    return [summary.topic_id_partition for summary in all_partitions(rlmm, topic=TOPIC.name)]
