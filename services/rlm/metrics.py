"""RLM's metrics, in Prometheus' own registry."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import Counter, Histogram
from prometheus_client import Gauge as KeptGauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.api.ids import TopicIdPartition
from services.rlm.lifecycle.turns import Finishing

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
class Gauge:
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
SECONDS_SINCE_LAST_SUCCESS = Gauge(
    "sediment_rlm_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("copy pass"),
    ("topic", "partition"),
)
EXPIRATION_SECONDS_SINCE_LAST_SUCCESS = Gauge(
    "sediment_rlm_expiration_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("pass of retention"),
    ("topic", "partition"),
)
FOLLOWER_SECONDS_SINCE_LAST_SUCCESS = Gauge(
    "sediment_rlm_follower_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("look at the tier of a partition that is followed here"),
    ("topic", "partition"),
)
LOCAL_RETENTION_SECONDS_SINCE_LAST_SUCCESS = Gauge(
    "sediment_rlm_local_retention_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("pass of local retention"),
    ("topic", "partition"),
)
REMOVAL_SECONDS_SINCE_LAST_SUCCESS = Gauge(
    "sediment_rlm_removal_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("turn of a removal, while it is not removed,"),
    ("topic", "partition"),
)
POLL_SECONDS_SINCE_LAST_SUCCESS = Gauge(
    "sediment_rlm_poll_seconds_since_last_success",
    "Seconds since the cluster last told what this broker leads, and all of it was taken; since "
    "the start, where it never was. Only with RLM_PARTITION_SOURCE=poller.",
    (),
)


_OF_TOPIC = ("topic",)
REMOTE_COPY_LAG_BYTES = Gauge(
    "sediment_rlm_remote_copy_lag_bytes",
    "Bytes of rolled segments that are not in the tier yet (Kafka: RemoteCopyLagBytes).",
    _OF_TOPIC,
)
REMOTE_COPY_LAG_SEGMENTS = Gauge(
    "sediment_rlm_remote_copy_lag_segments",
    "Rolled segments that are not in the tier yet (Kafka: RemoteCopyLagSegments).",
    _OF_TOPIC,
)
REMOTE_COPY_LAG_SECONDS = Gauge(
    "sediment_rlm_remote_copy_lag_seconds",
    "How old the newest record of the first rolled segment is that is not in the tier yet; of the "
    "topic's partitions, the oldest. 0: all is in the tier.",
    _OF_TOPIC,
)
SECONDS_UNTIL_LOCAL_DELETION = Gauge(
    "sediment_rlm_seconds_until_local_deletion",
    "Until the broker's retention by time takes the first segment that is not in the tier yet; of "
    "the topic's partitions, the shortest. Only where local.retention.ms is set for the topic and "
    "such a segment is there; negative: it may be gone any moment.",
    _OF_TOPIC,
)
PARTITIONS_HELD_BACK = Gauge(
    "sediment_rlm_partitions_held_back",
    "Partitions of which rolled segments are not copied before something is mended: a file of the "
    "broker that is missing, damaged or unreadable, a copy that was refused. The log names it when "
    "it is found, DescribePartitions for as long as it lasts.",
    _OF_TOPIC,
)
REMOTE_DELETE_LAG_BYTES = Gauge(
    "sediment_rlm_remote_delete_lag_bytes",
    "Bytes of segments whose deletion from the tier has begun and not ended (Kafka: "
    "RemoteDeleteLagBytes).",
    _OF_TOPIC,
)
REMOTE_DELETE_LAG_SEGMENTS = Gauge(
    "sediment_rlm_remote_delete_lag_segments",
    "Segments whose deletion from the tier has begun and not ended (Kafka: "
    "RemoteDeleteLagSegments).",
    _OF_TOPIC,
)
REMOTE_LOG_METADATA_COUNT = Gauge(
    "sediment_rlm_remote_log_metadata_count",
    "Segments of which RLMM tells, in any state (Kafka: RemoteLogMetadataCount).",
    _OF_TOPIC,
)
REMOTE_LOG_SIZE_BYTES = Gauge(
    "sediment_rlm_remote_log_size_bytes",
    "Bytes of segments in the tier, those under deletion included (Kafka: RemoteLogSizeBytes).",
    _OF_TOPIC,
)

REMOTE_LOG_SIZE_COMPUTATION_SECONDS = Gauge(
    "sediment_rlm_remote_log_size_computation_seconds",
    "How long the latest listing of the segments took by which their size is told (Kafka: "
    "RemoteLogSizeComputationTime).",
    _OF_TOPIC,
)


class TellsAges(Protocol):
    """A Scheduler."""

    def seconds_since_last_success(self) -> Mapping[Hashable, float]: ...


class LastPollCollector(Collector):
    """How long ago the last good poll of the cluster was; nothing where it is not polled.

    Args:
        scheduler: of the poll alone.
    """

    def __init__(self, scheduler: TellsAges) -> None:
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

    def __init__(self, scheduler: TellsAges, gauge: Gauge = SECONDS_SINCE_LAST_SUCCESS) -> None:
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
