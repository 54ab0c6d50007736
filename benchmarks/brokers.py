"""Run a broker for each way to keep a log, and write alike records into them.

The ways are the broker's own disk, Kafka's LocalTieredStorage with its topic of metadata, and the
plugin with streamed and with direct reads. Needs `make plugin`, Java and Maven.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from benchmarks.local_tiered_storage import local_tiered_storage_settings
from benchmarks.measure import MIB, QUICK
from benchmarks.store import s3_server
from demos.kafka_broker import KafkaBroker, plugin_settings
from demos.kafka_client import Cluster, Topic
from services.local.stack import EmbeddedStack
from tests.harness.jars import ensure_kafka_jars
from tests.harness.kafka_broker import plugin_jar

SEGMENT_BYTES = 16 * MIB if QUICK else 64 * MIB
LEAVING_TIMEOUT_S = 600.0
WRITING_TIMEOUT_S = 300.0
# As for a real broker, except for the small heap.
JVM_OPTIONS = ("-Xms768m", "-Xmx768m", "-XX:+UseG1GC")
DEFAULT_INTERVAL = {"log.retention.check.interval.ms": "500"}
BROKER = {**DEFAULT_INTERVAL, "remote.log.manager.task.interval.ms": "500"}
"""So that copies begin soon; with many partitions the tasks themselves then take much CPU time."""
STACK = {"RSM_DIRECT_READS": "true"}
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
LOCAL, LTS, STREAMED, DIRECT = "disk", "LocalTieredStorage", "streamed", "direct"
TIERS = (LTS, STREAMED, DIRECT)
SIDES = (LOCAL, *TIERS)
BROKER_PROCESS = "broker"
PROCESSES = {"rsm": "RSM", "rlmm": "RLMM", "postgres": "PostgreSQL", "s3": "store"}
"""The processes behind a broker with the plugin: the stack's names, and those in tables."""


@dataclass(frozen=True)
class Case:
    """What is written and read: batches of so many records, in so many partitions.

    Attributes:
        data: the part of a topic's name; cases with the same one read the same topics.
        segments: in each partition.
    """

    name: str
    data: str
    partitions: int
    segments: int
    record_bytes: int
    records_in_batch: int
    isolation: str = "read_uncommitted"
    segment_bytes: int = SEGMENT_BYTES

    def topic(self, side: str) -> Topic:
        name = f"{self.data}-{'local' if side == LOCAL else 'tiered'}"
        config = {"index.interval.bytes": "4096", **({} if side == LOCAL else TIERED)}
        return Topic(name, self.partitions, self.segment_bytes, config)


class Brokers:
    """A broker for each side, and the services behind those with the plugin.

    Attributes:
        brokers: the broker of the disk is that of LTS.
    """

    def __init__(
        self, directory: Path, stack: EmbeddedStack, tiers: Sequence[str], cleanup: ExitStack
    ) -> None:
        """Describe a broker for each tier; nothing runs yet."""
        plugin = plugin_settings(plugin_jar(), stack.endpoints.rsm, stack.endpoints.rlmm)
        own = {
            LTS: local_tiered_storage_settings(directory / "lts"),
            STREAMED: plugin,
            DIRECT: {**plugin, "rsm.config.direct.reads": "true"},
        }
        self.stack = stack
        self.brokers: dict[str, KafkaBroker] = {}
        self._directory = directory
        self._settings = {tier: own[tier] for tier in tiers}
        self._cleanup = cleanup

    def start(self, settings: Mapping[str, str]) -> None:
        """Start all brokers, with these settings beside those of their tiers.

        Brokers that run are stopped first, and keep their data.
        """
        for tier, own in self._settings.items():
            if tier in self.brokers:
                self.brokers[tier].stop()
            self.brokers[tier] = self._cleanup.enter_context(
                KafkaBroker(
                    self._directory / tier,
                    ensure_kafka_jars(),
                    {**settings, **own},
                    jvm_options=JVM_OPTIONS,
                )
            )
        if LTS in self.brokers:
            self.brokers[LOCAL] = self.brokers[LTS]

    def pids(self, side: str) -> dict[str, int]:
        """Return the processes of a side by the names that tables have."""
        services = self.stack.endpoints.pids
        behind = {name: services[key] for key, name in PROCESSES.items()}
        broker = {BROKER_PROCESS: self.brokers[side].pid}
        return {**broker, **(behind if side in (STREAMED, DIRECT) else {})}


@contextmanager
def running_brokers(
    tiers: Sequence[str] = TIERS, settings: Mapping[str, str] = BROKER
) -> Iterator[Brokers]:
    """Start the services and a broker for each tier, on a directory removed at the end."""
    with ExitStack() as opened:
        directory = opened.enter_context(bench_directory())
        stack = opened.enter_context(running_stack(directory))
        brokers = Brokers(directory, stack, tiers, opened)
        brokers.start(settings)
        yield brokers


@contextmanager
def bench_directory() -> Iterator[Path]:
    """Make a directory in which the embedded servers can keep their data; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        yield directory


def running_stack(directory: Path) -> EmbeddedStack:
    """Describe the services behind brokers with the plugin; direct reads are allowed."""
    s3 = s3_server(directory / "s3")
    return EmbeddedStack(directory / "stack", with_rlm=False, s3=s3, settings=STACK)


def produce(case: Case, brokers: Mapping[str, KafkaBroker]) -> None:
    """Create the case's topic of each side and write the same records into it."""
    value = os.urandom(case.record_bytes)
    for side, broker in brokers.items():
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create(case.topic(side))
        write(cluster, case, case.topic(side).name, value)


def write(cluster: Cluster, case: Case, topic: str, value: bytes) -> None:
    """Write the case's records into a topic.

    A broker rolls an active segment that local retention has expired, so that in the end all but
    the last leave the disk.
    """
    count = case.segments * case.segment_bytes // case.record_bytes
    settings: dict[str, Any] = {
        "batch.num.messages": case.records_in_batch,
        "batch.size": 2 * MIB,
        "message.max.bytes": 2 * MIB,
        "linger.ms": 1_000,
        "queue.buffering.max.messages": 100_000,
    }
    producer = cluster.producer(**settings)
    for number in range(count * case.partitions):
        while True:
            try:
                producer.produce(topic, value, partition=number % case.partitions)
                break
            except BufferError:
                producer.poll(0.1)
    if left := producer.flush(WRITING_TIMEOUT_S):
        raise RuntimeError(f"{topic}: {left} records were not written in {WRITING_TIMEOUT_S:.0f} s")


def wait_until_gone(broker: KafkaBroker, topic: Topic) -> list[int]:
    """Wait until all but the active segments have left the disk; return their first offsets."""
    deadline = time.monotonic() + LEAVING_TIMEOUT_S
    ends = []
    for partition in range(topic.partitions):
        folder = broker.log_dir / f"{topic.name}-{partition}"
        while len(local := sorted(folder.glob("*.log"))) > 1:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(local)} segments are still in {folder}")
            Event().wait(0.2)
        ends.append(int(local[0].stem))
    return ends
