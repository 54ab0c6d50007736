"""RLM's metrics, in Prometheus' own registry."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client import Gauge as KeptGauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.api.ids import TopicIdPartition
from services.common.fair_queue import FairQueue
from services.rlm.partition import Partition
from services.rlm.roles.stopping import Finishing
from services.rlm.scheduler import Scheduler

COPIED_SEGMENTS = Counter("sediment_rlm_copied_segments", "Segments copied by this process.")
COPIED_BYTES = Counter("sediment_rlm_copied_bytes", "Bytes of logs copied by this process.")

LOST_RANGES = Counter(
    "sediment_rlm_lost_ranges",
    "Ranges of offsets that the broker deleted before they were copied, recorded by this process.",
)

DELETED_SEGMENTS = Counter(
    "sediment_rlm_deleted_segments", "Segments deleted from the tier by this process's retention."
)

DELETED_BYTES = Counter(
    "sediment_rlm_deleted_bytes", "Bytes of logs deleted from the tier by retention."
)

LOCALLY_DELETED_SEGMENTS = Counter(
    "sediment_rlm_locally_deleted_segments",
    "Segments deleted from the log directories by this process's local retention.",
)

LOCALLY_DELETED_BYTES = Counter(
    "sediment_rlm_locally_deleted_bytes",
    "Bytes of logs deleted from the log directories by local retention.",
)

LOCAL_RETENTION_FAILURES = Counter(
    "sediment_rlm_local_retention_failures",
    "Passes of local retention that did not delete all that was due; the log says why.",
)

COPY_THROTTLE_SECONDS = Histogram(
    "sediment_rlm_remote_copy_throttle_seconds",
    "How long copies that had to wait waited for the quota (Kafka: remote-copy-throttle-time).",
    buckets=(0.1, 1, 10, 60, 600, 3600),
)

COPIES_WAITING_FOR_RSM = KeptGauge(
    "sediment_rlm_copies_waiting_for_rsm",
    "Copies that RSM has refused a place and that wait to ask again; each keeps a copier thread.",
)


@dataclass(frozen=True, slots=True)
class TopicGauge:
    """A gauge that is asked for when it is scraped, so that what goes takes its labels along."""

    name: str
    meaning: str
    labels: tuple[str, ...]

    def family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.name, self.meaning, labels=self.labels)


_SINCE_LAST_SUCCESS = (
    "Seconds since a partition's last {} that did all that can be done; since it was found, where "
    "there was none."
)

SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("copy pass"),
    ("topic", "partition"),
)

EXPIRATION_SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_expiration_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("pass of retention"),
    ("topic", "partition"),
)

FOLLOWER_SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_follower_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("look at the tier of a partition that is followed here"),
    ("topic", "partition"),
)

LOCAL_RETENTION_SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_local_retention_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("pass of local retention"),
    ("topic", "partition"),
)

REMOVAL_SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_removal_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("turn of a removal, while it is not removed,"),
    ("topic", "partition"),
)

POLL_SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_poll_seconds_since_last_success",
    "Seconds since the cluster last told what this broker leads, and all of it was taken; since "
    "the start, where it never was. Only with RLM_PARTITION_SOURCE=poller.",
    (),
)

_OF_TOPIC = ("topic",)

REMOTE_COPY_LAG_BYTES = TopicGauge(
    "sediment_rlm_remote_copy_lag_bytes",
    "Bytes of rolled segments that are not in the tier yet (Kafka: RemoteCopyLagBytes).",
    _OF_TOPIC,
)

REMOTE_COPY_LAG_SEGMENTS = TopicGauge(
    "sediment_rlm_remote_copy_lag_segments",
    "Rolled segments that are not in the tier yet (Kafka: RemoteCopyLagSegments).",
    _OF_TOPIC,
)

REMOTE_COPY_LAG_SECONDS = TopicGauge(
    "sediment_rlm_remote_copy_lag_seconds",
    "How old the newest record of the first rolled segment is that is not in the tier yet; of the "
    "topic's partitions, the oldest. 0: all is in the tier.",
    _OF_TOPIC,
)

SECONDS_UNTIL_LOCAL_DELETION = TopicGauge(
    "sediment_rlm_seconds_until_local_deletion",
    "Until the broker's retention by time takes the first segment that is not in the tier yet; of "
    "the topic's partitions, the shortest. Only where local.retention.ms is set for the topic and "
    "such a segment is there; negative: it may be gone any moment.",
    _OF_TOPIC,
)

PARTITIONS_HELD_BACK = TopicGauge(
    "sediment_rlm_partitions_held_back",
    "Partitions of which rolled segments are not copied before something is mended: a file of the "
    "broker that is missing, damaged or unreadable, a copy that was refused. The log names it when "
    "it is found, DescribePartitions for as long as it lasts.",
    _OF_TOPIC,
)

REMOTE_DELETE_LAG_BYTES = TopicGauge(
    "sediment_rlm_remote_delete_lag_bytes",
    "Bytes of segments whose deletion from the tier has begun and not ended (Kafka: "
    "RemoteDeleteLagBytes).",
    _OF_TOPIC,
)

REMOTE_DELETE_LAG_SEGMENTS = TopicGauge(
    "sediment_rlm_remote_delete_lag_segments",
    "Segments whose deletion from the tier has begun and not ended (Kafka: "
    "RemoteDeleteLagSegments).",
    _OF_TOPIC,
)

REMOTE_LOG_METADATA_COUNT = TopicGauge(
    "sediment_rlm_remote_log_metadata_count",
    "Segments of which RLMM tells, in any state (Kafka: RemoteLogMetadataCount).",
    _OF_TOPIC,
)

REMOTE_LOG_SIZE_BYTES = TopicGauge(
    "sediment_rlm_remote_log_size_bytes",
    "Bytes of segments in the tier, those under deletion included (Kafka: RemoteLogSizeBytes).",
    _OF_TOPIC,
)

REMOTE_LOG_SIZE_COMPUTATION_SECONDS = TopicGauge(
    "sediment_rlm_remote_log_size_computation_seconds",
    "How long the latest listing of the segments took by which their size is told (Kafka: "
    "RemoteLogSizeComputationTime).",
    _OF_TOPIC,
)


class TaskAges(Protocol):
    """A Scheduler."""

    def seconds_since_last_success(self) -> Mapping[Hashable, float]: ...


class LastPollCollector(Collector):
    """How long ago the last good poll of the cluster was; nothing where it is not polled.

    Args:
        scheduler: of the poll alone.
    """

    def __init__(self, scheduler: TaskAges) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = POLL_SECONDS_SINCE_LAST_SUCCESS.family()
        for age_s in self._scheduler.seconds_since_last_success().values():
            family.add_metric((), age_s)
        yield family


class LastSuccessCollector(Collector):
    """Of each partition that has a task now, how long ago its last good pass was; where it has two,
    of the one whose was longer ago.

    Args:
        gauge: one for each scheduler.
    """

    def __init__(self, scheduler: TaskAges, gauge: TopicGauge = SECONDS_SINCE_LAST_SUCCESS) -> None:
        self._scheduler = scheduler
        self._gauge = gauge

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = self._gauge.family()
        ages_s: dict[tuple[str, str], float] = {}
        for key, age_s in self._scheduler.seconds_since_last_success().items():
            name = key.topic_id_partition if isinstance(key, Finishing) else key
            if isinstance(name, TopicIdPartition):
                labels = (name.topic, str(name.partition))
                ages_s[labels] = max(age_s, ages_s.get(labels, 0.0))
        for labels, age_s in ages_s.items():
            family.add_metric(labels, age_s)
        yield family


HITS = Counter(
    "sediment_rlm_index_cache_hits",
    "Indexes of remote segments found in the cache, by layer: memory, file.",
    ("layer",),
)

MISSES = Counter(
    "sediment_rlm_index_cache_misses",
    "Indexes of remote segments fetched from RSM, including failed fetches.",
)

EVICTIONS = Counter(
    "sediment_rlm_index_cache_evictions",
    "Index files that were removed, by reason: size (others needed the room), age "
    "(RLM_REMOTE_LOG_INDEX_FILE_CACHE_TTL_MS), deleted (the segment was), damaged.",
    ("reason",),
)

DAMAGED = Counter(
    "sediment_rlm_index_cache_damaged_files",
    "Index files that were damaged, cut off or of another release; they are fetched again.",
)

FAILURES = Counter(
    "sediment_rlm_index_cache_failures",
    "Failed operations on index files, by operation: scan, read, write, remove. Reads continue "
    "without the files.",
    ("operation",),
)

FILES = Gauge("sediment_rlm_index_cache_files", "Index files in the cache.")

FILE_BYTES = Gauge(
    "sediment_rlm_index_cache_file_bytes",
    "Bytes of index files, as counted for RLM_REMOTE_LOG_INDEX_FILE_CACHE_TOTAL_SIZE_BYTES.",
)

TASKS_IDLE_RATIO = TopicGauge(
    "sediment_rlm_tasks_idle_ratio",
    "Threads of a pool that run no task, 0 to 1 (Kafka: RemoteLogManagerTasksAvgIdlePercent). At 0 "
    "for long: tasks wait for threads.",
    ("pool",),
)

REMOTE_READER_IDLE_RATIO = TopicGauge(
    "sediment_rlm_remote_log_reader_idle_ratio",
    "Of RLM_REMOTE_LOG_READER_THREADS, those that read nothing from the tier, 0 to 1 (Kafka: "
    "RemoteLogReaderAvgIdlePercent).",
    (),
)

REMOTE_READER_QUEUE_SIZE = TopicGauge(
    "sediment_rlm_remote_log_reader_task_queue_size",
    "Reads of the tier that wait for a reader (Kafka: RemoteLogReaderTaskQueueSize).",
    (),
)


class PoolCollector(Collector):
    """
    Args:
        readers: of the tier.
    """

    def __init__(self, schedulers: Sequence[Scheduler], readers: FairQueue) -> None:
        self._schedulers = schedulers
        self._readers = readers

    def collect(self) -> Iterator[GaugeMetricFamily]:
        tasks = TASKS_IDLE_RATIO.family()
        for scheduler in self._schedulers:
            tasks.add_metric([scheduler.name], scheduler.idle_ratio)
        yield tasks
        for gauge, value in (
            (REMOTE_READER_IDLE_RATIO, self._readers.idle_ratio),
            (REMOTE_READER_QUEUE_SIZE, self._readers.waiting),
        ):
            family = gauge.family()
            family.add_metric((), value)
            yield family


_OF_PARTITION = ("topic", "partition")

RETENTION_SIZE_PERCENT = TopicGauge(
    "sediment_rlm_retention_size_percent",
    "What retention.bytes counts of a partition in the tier (each offset of its lineage once), and "
    "what is only here, in percent of it (Kafka: RetentionSizeInPercent). Only where that is set "
    "and above 0.",
    _OF_PARTITION,
)

LOCAL_RETENTION_SIZE_PERCENT = TopicGauge(
    "sediment_rlm_local_retention_size_percent",
    "The local log of a partition in percent of its local.retention.bytes, or of retention.bytes "
    "where that is not set (Kafka: LocalRetentionSizeInPercent). Only where one is above 0.",
    _OF_PARTITION,
)


class RetentionCollector(Collector):
    """Of each partition led here that has a limit, as its latest passes saw it: a scrape asks
    neither disk nor RLMM."""

    def __init__(self, led_partitions: Callable[[], Iterable[Partition]]) -> None:
        self._led_partitions = led_partitions

    def collect(self) -> Iterator[GaugeMetricFamily]:
        whole, local = RETENTION_SIZE_PERCENT.family(), LOCAL_RETENTION_SIZE_PERCENT.family()
        for partition in self._led_partitions():
            if partition.retention.topic_config is None or partition.report.draft is None:
                continue
            config, drafted = partition.retention.topic_config.config, partition.report.draft
            name = partition.topic_id_partition
            labels = (name.topic, str(name.partition))
            limit_bytes = config.retention_bytes
            if limit_bytes > 0:
                # Less may be there by now than was not counted.
                tier_bytes = max(drafted.tier.size_bytes - partition.retention.uncounted_bytes, 0)
                size_bytes = drafted.report.only_local_bytes + tier_bytes
                whole.add_metric(labels, percent(size_bytes, limit_bytes))
            limit_bytes = config.effective_local_retention_bytes
            if limit_bytes > 0:
                local.add_metric(labels, percent(drafted.log.size_bytes, limit_bytes))
        yield whole
        yield local


def percent(size_bytes: int, limit_bytes: int) -> int:
    """As Kafka's: without its fraction."""
    return size_bytes * 100 // limit_bytes
