"""Publish gauges of partitions, topics and lanes, computed when Prometheus scrapes them."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.fair_queue import FairQueue
from services.rlm.metrics import (
    BROKER_RETENTION_SET,
    LOCAL_RETENTION_SIZE_PERCENT,
    MAX_TOPICS,
    PARTITIONS_BLOCKED,
    REMOTE_COPY_LAG_BYTES,
    REMOTE_COPY_LAG_SECONDS,
    REMOTE_COPY_LAG_SEGMENTS,
    REMOTE_DELETE_LAG_BYTES,
    REMOTE_DELETE_LAG_SEGMENTS,
    REMOTE_LOG_METADATA_COUNT,
    REMOTE_LOG_SIZE_BYTES,
    REMOTE_LOG_SIZE_COMPUTATION_SECONDS,
    REMOTE_READER_IDLE_RATIO,
    REMOTE_READER_QUEUE_SIZE,
    RETENTION_SIZE_PERCENT,
    SECONDS_SINCE_LAST_SUCCESS,
    SECONDS_UNTIL_LOCAL_DELETION,
    TASKS_IDLE_RATIO,
    TopicLabels,
    TopicMetric,
)
from services.rlm.partition import Finishing, Partition
from services.rlm.problem_log import blocks_copying
from services.rlm.scheduler import Lane

_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED

_COMBINED: Mapping[TopicMetric, Callable[[float, float], float]] = {
    REMOTE_COPY_LAG_SECONDS: max,
    SECONDS_UNTIL_LOCAL_DELETION: min,
    RETENTION_SIZE_PERCENT: max,
    LOCAL_RETENTION_SIZE_PERCENT: max,
}
"""How the values of several partitions under the same labels become one; others are added."""


def _family(gauge: TopicMetric, values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(gauge.name, gauge.meaning, labels=gauge.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


class LastSuccessCollector(Collector):
    """Publish the time since the last successful pass of each task.

    Of several tasks with the same labels, the longest time counts. A task that is of no partition
    has neither topic nor number.
    """

    def __init__(self, lanes: Sequence[Lane], max_topics: int = MAX_TOPICS) -> None:
        self._lanes = lanes
        self._max_topics = max_topics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        ages_s: dict[tuple[str, ...], float] = {}
        for lane in self._lanes:
            topics = TopicLabels(self._max_topics)
            for key, age_s in lane.seconds_since_last_success().items():
                name = key.topic_id_partition if isinstance(key, Finishing) else key
                of_task = ("", "")
                if isinstance(name, TopicIdPartition):
                    of_task = topics.of(name)
                labels = lane.name, *of_task
                ages_s[labels] = max(age_s, ages_s.get(labels, 0.0))
        yield _family(SECONDS_SINCE_LAST_SUCCESS, ages_s)


class PoolCollector(Collector):
    """Publish the idle ratios of the threads, and the queue of reads of the tier."""

    def __init__(self, lanes: Sequence[Lane], readers: FairQueue) -> None:
        self._lanes = lanes
        self._readers = readers

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield _family(TASKS_IDLE_RATIO, {(lane.name,): lane.idle_ratio for lane in self._lanes})
        yield _family(REMOTE_READER_IDLE_RATIO, {(): self._readers.idle_ratio})
        yield _family(REMOTE_READER_QUEUE_SIZE, {(): self._readers.waiting})


class TopicCollector(Collector):
    """Publish the figures of the led partitions, most of them for each topic.

    The figures are those of the latest passes: a scrape reads neither disk nor RLMM.

    Args:
        now_ms: the clock of this host, by which records' ages are measured.
        max_topics: that have labels of their own; the others share one.
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
        labels, now_ms = TopicLabels(self._max_topics), self._now_ms()
        found: defaultdict[TopicMetric, dict[tuple[str, ...], float]] = defaultdict(dict)
        for partition in self._led_partitions():
            of_partition = labels.of(partition.topic_id_partition)
            for gauge, value in _figures(partition, now_ms):
                key, values = of_partition[: len(gauge.labels)], found[gauge]
                combined = _COMBINED.get(gauge, float.__add__)
                values[key] = combined(values[key], float(value)) if key in values else float(value)
        yield from (_family(gauge, values) for gauge, values in found.items())


def _figures(partition: Partition, now_ms: int) -> Iterator[tuple[TopicMetric, float]]:
    lag = partition.copy.lag
    yield REMOTE_COPY_LAG_BYTES, lag.size_bytes
    yield REMOTE_COPY_LAG_SEGMENTS, lag.segments
    oldest_ms = lag.oldest_timestamp_ms
    yield REMOTE_COPY_LAG_SECONDS, 0 if oldest_ms is None else max(now_ms - oldest_ms, 0) / 1000
    if lag.deleted_at_ms is not None:
        yield SECONDS_UNTIL_LOCAL_DELETION, (lag.deleted_at_ms - now_ms) / 1000
    yield PARTITIONS_BLOCKED, any(map(blocks_copying, partition.copy.problems))
    if partition.trim.is_ours:
        yield BROKER_RETENTION_SET, partition.trim.broker_retention is not None
    tier = partition.tier.cached
    deleting = [segment for segment in tier.unfinished if segment.state is _DELETING]
    deleting_bytes = tier.deleting_bytes + sum(map(_size_bytes, deleting))
    yield REMOTE_DELETE_LAG_BYTES, deleting_bytes
    yield REMOTE_DELETE_LAG_SEGMENTS, tier.deleting_segments + len(deleting)
    segments = tier.segments + tier.deleting_segments + len(tier.unfinished)
    yield REMOTE_LOG_METADATA_COUNT, segments
    yield REMOTE_LOG_SIZE_BYTES, tier.size_bytes + deleting_bytes
    yield REMOTE_LOG_SIZE_COMPUTATION_SECONDS, partition.tier.listing_s
    topic_config, draft = partition.retention.topic_config, partition.report.draft
    if topic_config is None or draft is None:
        return
    limit_bytes = topic_config.config.retention_bytes
    if limit_bytes > 0:
        # The tier may have shrunk below the uncounted bytes since.
        tier_bytes = max(draft.tier.size_bytes - partition.retention.uncounted_bytes, 0)
        size_bytes = draft.report.only_local_bytes + tier_bytes
        yield RETENTION_SIZE_PERCENT, percent(size_bytes, limit_bytes)
    limit_bytes = topic_config.config.effective_local_retention_bytes
    if limit_bytes > 0:
        yield LOCAL_RETENTION_SIZE_PERCENT, percent(draft.log.size_bytes, limit_bytes)


def percent(size_bytes: int, limit_bytes: int) -> int:
    """Return the percentage without its fraction, as Kafka does."""
    return size_bytes * 100 // limit_bytes


def _size_bytes(segment: RemoteLogSegmentMetadata) -> int:
    """Return the segment's size in bytes; 0 if it is unknown."""
    return max(segment.segment_size_in_bytes, 0)
