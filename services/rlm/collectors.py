"""Publish gauges of partitions, topics and pools, computed when Prometheus scrapes them."""

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.fair_queue import FairQueue
from services.rlm.metrics import MAX_TOPICS, TopicLabels
from services.rlm.partition import Finishing, Partition
from services.rlm.problem_log import holds_back
from services.rlm.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class TopicGauge:
    """The description of a gauge whose values are computed at each scrape.

    The labels of a partition or topic disappear with it.
    """

    name: str
    meaning: str
    labels: tuple[str, ...]

    def family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.name, self.meaning, labels=self.labels)

    def family_of(self, values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
        """Make a family of these values, by the values of the labels."""
        family = self.family()
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family


_SINCE_LAST_SUCCESS = (
    "Time since a partition's last {} that did everything due; since the partition was found, if "
    "there was none."
)

SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("copy pass"),
    ("topic", "partition"),
)

EXPIRATION_SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_expiration_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("retention pass"),
    ("topic", "partition"),
)

FOLLOWER_SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_follower_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("refresh of a followed partition's tier state"),
    ("topic", "partition"),
)

REMOVAL_SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_removal_seconds_since_last_success",
    _SINCE_LAST_SUCCESS.format("removal step"),
    ("topic", "partition"),
)

POLL_SECONDS_SINCE_LAST_SUCCESS = TopicGauge(
    "sediment_rlm_poll_seconds_since_last_success",
    "Time since the poller last read the cluster's leaders and applied all of them; since the "
    "start, if it never did. Only with RLM_PARTITION_SOURCE=poller.",
    (),
)

_OF_TOPIC = ("topic",)

REMOTE_COPY_LAG_BYTES = TopicGauge(
    "sediment_rlm_remote_copy_lag_bytes",
    "Size of the rolled segments that are not in the tier yet (Kafka: RemoteCopyLagBytes).",
    _OF_TOPIC,
)

REMOTE_COPY_LAG_SEGMENTS = TopicGauge(
    "sediment_rlm_remote_copy_lag_segments",
    "Rolled segments that are not in the tier yet (Kafka: RemoteCopyLagSegments).",
    _OF_TOPIC,
)

REMOTE_COPY_LAG_SECONDS = TopicGauge(
    "sediment_rlm_remote_copy_lag_seconds",
    "Age of the newest record in the first rolled segment that is not in the tier yet; the "
    "highest of the topic's partitions. 0: everything is in the tier.",
    _OF_TOPIC,
)

SECONDS_UNTIL_LOCAL_DELETION = TopicGauge(
    "sediment_rlm_seconds_until_local_deletion",
    "Time until the broker's time-based retention deletes the first segment that is not in the "
    "tier yet; the lowest of the topic's partitions. Only if local.retention.ms is set for the "
    "topic and there is such a segment. Negative: the broker may delete it any moment.",
    _OF_TOPIC,
)

PARTITIONS_HELD_BACK = TopicGauge(
    "sediment_rlm_partitions_held_back",
    "Partitions whose rolled segments are not copied until an operator repairs something: a file "
    "of the broker is missing, damaged or unreadable, or a copy was refused. The log names the "
    "problem when it is found; DescribePartitions shows it while it lasts.",
    _OF_TOPIC,
)

REMOTE_DELETE_LAG_BYTES = TopicGauge(
    "sediment_rlm_remote_delete_lag_bytes",
    "Size of the segments whose deletion from the tier has begun but not finished (Kafka: "
    "RemoteDeleteLagBytes).",
    _OF_TOPIC,
)

REMOTE_DELETE_LAG_SEGMENTS = TopicGauge(
    "sediment_rlm_remote_delete_lag_segments",
    "Segments whose deletion from the tier has begun but not finished (Kafka: "
    "RemoteDeleteLagSegments).",
    _OF_TOPIC,
)

REMOTE_LOG_METADATA_COUNT = TopicGauge(
    "sediment_rlm_remote_log_metadata_count",
    "Segments in RLMM, in any state (Kafka: RemoteLogMetadataCount).",
    _OF_TOPIC,
)

REMOTE_LOG_SIZE_BYTES = TopicGauge(
    "sediment_rlm_remote_log_size_bytes",
    "Size of the segments in the tier, including those being deleted (Kafka: RemoteLogSizeBytes).",
    _OF_TOPIC,
)

REMOTE_LOG_SIZE_COMPUTATION_SECONDS = TopicGauge(
    "sediment_rlm_remote_log_size_computation_seconds",
    "Duration of the latest listing of segments, from which their size is computed (Kafka: "
    "RemoteLogSizeComputationTime).",
    _OF_TOPIC,
)


class TaskAges(Protocol):
    """The part of Scheduler that collectors use."""

    def seconds_since_last_success(self) -> Mapping[Hashable, float]: ...


class LastPollCollector(Collector):
    """Publish the time since the last successful poll of the cluster; nothing without polling.

    Args:
        scheduler: runs only the poll.
    """

    def __init__(self, scheduler: TaskAges) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = POLL_SECONDS_SINCE_LAST_SUCCESS.family()
        for age_s in self._scheduler.seconds_since_last_success().values():
            family.add_metric((), age_s)
        yield family


class LastSuccessCollector(Collector):
    """Publish, for each partition that has a task, the time since its last successful pass.

    Of several tasks with the same labels, the longest time counts.

    Args:
        gauge: one for each scheduler.
        max_topics: that have labels of their own.
    """

    def __init__(
        self,
        scheduler: TaskAges,
        gauge: TopicGauge = SECONDS_SINCE_LAST_SUCCESS,
        max_topics: int = MAX_TOPICS,
    ) -> None:
        self._scheduler = scheduler
        self._gauge = gauge
        self._max_topics = max_topics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        ages_s: dict[tuple[str, ...], float] = {}
        topics = TopicLabels(self._max_topics)
        for key, age_s in self._scheduler.seconds_since_last_success().items():
            name = key.topic_id_partition if isinstance(key, Finishing) else key
            if isinstance(name, TopicIdPartition):
                labels = topics.of_partition(name)
                ages_s[labels] = max(age_s, ages_s.get(labels, 0.0))
        yield self._gauge.family_of(ages_s)


TASKS_IDLE_RATIO = TopicGauge(
    "sediment_rlm_tasks_idle_ratio",
    "Share of a pool's threads that run no task, 0 to 1 (Kafka: "
    "RemoteLogManagerTasksAvgIdlePercent). If it stays at 0, tasks wait for threads.",
    ("pool",),
)

REMOTE_READER_IDLE_RATIO = TopicGauge(
    "sediment_rlm_remote_log_reader_idle_ratio",
    "Share of RLM_REMOTE_LOG_READER_THREADS that read nothing from the tier, 0 to 1 (Kafka: "
    "RemoteLogReaderAvgIdlePercent).",
    (),
)

REMOTE_READER_QUEUE_SIZE = TopicGauge(
    "sediment_rlm_remote_log_reader_task_queue_size",
    "Reads of the tier that wait for a reader thread (Kafka: RemoteLogReaderTaskQueueSize).",
    (),
)


class PoolCollector(Collector):
    """Publish the idle ratios of the thread pools, and the queue of reads of the tier.

    Args:
        readers: of the tier.
    """

    def __init__(self, schedulers: Sequence[Scheduler], readers: FairQueue) -> None:
        self._schedulers = schedulers
        self._readers = readers

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield TASKS_IDLE_RATIO.family_of({(s.name,): s.idle_ratio for s in self._schedulers})
        yield REMOTE_READER_IDLE_RATIO.family_of({(): self._readers.idle_ratio})
        yield REMOTE_READER_QUEUE_SIZE.family_of({(): self._readers.waiting})


_OF_PARTITION = ("topic", "partition")

RETENTION_SIZE_PERCENT = TopicGauge(
    "sediment_rlm_retention_size_percent",
    "Size of a partition in percent of its retention.bytes: its data in the tier (each offset of "
    "its lineage once) and data that is only local (Kafka: RetentionSizeInPercent). Only if "
    "retention.bytes is above 0.",
    _OF_PARTITION,
)

LOCAL_RETENTION_SIZE_PERCENT = TopicGauge(
    "sediment_rlm_local_retention_size_percent",
    "Size of a partition's local log in percent of its local.retention.bytes, or of "
    "retention.bytes if that is not set (Kafka: LocalRetentionSizeInPercent). Only if one of them "
    "is above 0.",
    _OF_PARTITION,
)


class RetentionCollector(Collector):
    """Publish the size of each led partition in percent of its limits.

    The figures are those of the latest passes: a scrape reads neither disk nor RLMM. Of the topics
    beyond `max_topics`, which have no labels of their own, the highest percentage counts.
    """

    def __init__(
        self, led_partitions: Callable[[], Iterable[Partition]], max_topics: int = MAX_TOPICS
    ) -> None:
        self._led_partitions = led_partitions
        self._max_topics = max_topics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        topics = TopicLabels(self._max_topics)
        whole: defaultdict[tuple[str, ...], float] = defaultdict(float)
        local: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for partition in self._led_partitions():
            if partition.retention.topic_config is None or partition.report.draft is None:
                continue
            config, draft = partition.retention.topic_config.config, partition.report.draft
            labels = topics.of_partition(partition.topic_id_partition)
            limit_bytes = config.retention_bytes
            if limit_bytes > 0:
                # The tier may have shrunk below the uncounted bytes since.
                tier_bytes = max(draft.tier.size_bytes - partition.retention.uncounted_bytes, 0)
                size_bytes = draft.report.only_local_bytes + tier_bytes
                whole[labels] = max(whole[labels], percent(size_bytes, limit_bytes))
            limit_bytes = config.effective_local_retention_bytes
            if limit_bytes > 0:
                local[labels] = max(local[labels], percent(draft.log.size_bytes, limit_bytes))
        yield RETENTION_SIZE_PERCENT.family_of(whole)
        yield LOCAL_RETENTION_SIZE_PERCENT.family_of(local)


def percent(size_bytes: int, limit_bytes: int) -> int:
    """Return the percentage without its fraction, as Kafka does."""
    return size_bytes * 100 // limit_bytes


_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@dataclass
class _Figures:
    """The sums over the partitions of a topic; a maximum and a minimum for the two times."""

    copy_lag_bytes: int = 0
    copy_lag_segments: int = 0
    copy_lag_ms: int = 0
    until_local_deletion_ms: int | None = None
    held_back: int = 0
    delete_lag_bytes: int = 0
    delete_lag_segments: int = 0
    segments: int = 0
    size_bytes: int = 0
    listing_s: float = 0.0

    def add(self, partition: Partition, now_ms: int) -> None:
        self._add_uncopied(partition, now_ms)
        self.held_back += any(map(holds_back, partition.copy.problems))
        self._add_tier(partition)

    def _add_uncopied(self, partition: Partition, now_ms: int) -> None:
        uncopied = partition.copy.uncopied
        self.copy_lag_bytes += uncopied.size_bytes
        self.copy_lag_segments += uncopied.segments
        if uncopied.oldest_timestamp_ms is not None:
            self.copy_lag_ms = max(self.copy_lag_ms, now_ms - uncopied.oldest_timestamp_ms)
        if uncopied.deleted_at_ms is not None:
            left_ms, before = uncopied.deleted_at_ms - now_ms, self.until_local_deletion_ms
            self.until_local_deletion_ms = left_ms if before is None else min(before, left_ms)

    def _add_tier(self, partition: Partition) -> None:
        tier = partition.tier.last_seen
        deleting = [segment for segment in tier.unfinished if segment.state is _DELETING]
        deleting_bytes = tier.deleting_bytes + sum(map(_size_bytes, deleting))
        self.delete_lag_bytes += deleting_bytes
        self.delete_lag_segments += tier.deleting_segments + len(deleting)
        self.segments += tier.segments + tier.deleting_segments + len(tier.unfinished)
        self.size_bytes += tier.size_bytes + deleting_bytes
        self.listing_s += partition.tier.listing_s

    def values(self) -> Iterator[tuple[TopicGauge, float]]:
        yield REMOTE_COPY_LAG_BYTES, self.copy_lag_bytes
        yield REMOTE_COPY_LAG_SEGMENTS, self.copy_lag_segments
        yield REMOTE_COPY_LAG_SECONDS, self.copy_lag_ms / 1000
        if self.until_local_deletion_ms is not None:
            yield SECONDS_UNTIL_LOCAL_DELETION, self.until_local_deletion_ms / 1000
        yield PARTITIONS_HELD_BACK, self.held_back
        yield REMOTE_DELETE_LAG_BYTES, self.delete_lag_bytes
        yield REMOTE_DELETE_LAG_SEGMENTS, self.delete_lag_segments
        yield REMOTE_LOG_METADATA_COUNT, self.segments
        yield REMOTE_LOG_SIZE_BYTES, self.size_bytes
        yield REMOTE_LOG_SIZE_COMPUTATION_SECONDS, self.listing_s


class TopicCollector(Collector):
    """Publish the figures of each topic that has partitions led here.

    The figures are those of the latest passes: a scrape reads neither disk nor RLMM.

    Args:
        now_ms: the clock of this host, by which records' ages are measured.
        max_topics: that have labels of their own; the others are one.
    """

    def __init__(
        self,
        led_partitions: Callable[[], Iterable[Partition]],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        max_topics: int = MAX_TOPICS,
    ) -> None:
        self._led_partitions = led_partitions
        self._now_ms = now_ms
        self._max_topics = max_topics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        topics: defaultdict[str, _Figures] = defaultdict(_Figures)
        labels = TopicLabels(self._max_topics)
        now_ms = self._now_ms()
        for partition in self._led_partitions():
            topics[labels.of(partition.topic_id_partition.topic)].add(partition, now_ms)
        values: defaultdict[TopicGauge, dict[tuple[str, ...], float]] = defaultdict(dict)
        for topic, figures in topics.items():
            for gauge, value in figures.values():
                values[gauge][topic,] = value
        yield from (gauge.family_of(of_gauge) for gauge, of_gauge in values.items())


def _size_bytes(segment: RemoteLogSegmentMetadata) -> int:
    """Return the segment's size in bytes; 0 if it is unknown."""
    return max(segment.segment_size_in_bytes, 0)
