"""Kafka's counters and gauges of each topic that is led here."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.copy.report import PassReport
from services.rlm.metrics import (
    PARTITIONS_HELD_BACK,
    REMOTE_COPY_LAG_BYTES,
    REMOTE_COPY_LAG_SECONDS,
    REMOTE_COPY_LAG_SEGMENTS,
    REMOTE_DELETE_LAG_BYTES,
    REMOTE_DELETE_LAG_SEGMENTS,
    REMOTE_LOG_METADATA_COUNT,
    REMOTE_LOG_SIZE_BYTES,
    REMOTE_LOG_SIZE_COMPUTATION_SECONDS,
    SECONDS_UNTIL_LOCAL_DELETION,
    TopicGauge,
)
from services.rlm.partition import Partition
from services.rlm.problem_log import holds_back

OTHER_TOPICS = "(other)"
"""No topic can have this name."""


@dataclass(frozen=True, slots=True)
class TopicCounter:
    name: str
    meaning: str
    labels: tuple[str, ...] = ("topic",)


REMOTE_COPY_REQUESTS = TopicCounter(
    "sediment_rlm_remote_copy_requests",
    "Copies of segments that were begun (Kafka: RemoteCopyRequestsPerSec).",
)

REMOTE_COPY_BYTES = TopicCounter(
    "sediment_rlm_remote_copy_bytes",
    "Bytes of logs that were copied, of finished copies (Kafka: RemoteCopyBytesPerSec).",
)

REMOTE_COPY_ERRORS = TopicCounter(
    "sediment_rlm_remote_copy_errors",
    "Copies that failed for a reason that does not pass by itself (Kafka: RemoteCopyErrorsPerSec).",
)

REMOTE_COPY_RETRIABLE_ERRORS = TopicCounter(
    "sediment_rlm_remote_copy_retriable_errors",
    "Copies that failed and may work the next time, as while RSM or RLMM is away. Kafka does not "
    "count these.",
)

REMOTE_DELETE_REQUESTS = TopicCounter(
    "sediment_rlm_remote_delete_requests",
    "Deletions of segments that were asked of RSM: by retention, of what failed copies left, and "
    "where tiering is disabled (Kafka: RemoteDeleteRequestsPerSec).",
)

REMOTE_DELETE_ERRORS = TopicCounter(
    "sediment_rlm_remote_delete_errors",
    "Deletions that RSM refused for a reason that does not pass by itself (Kafka: "
    "RemoteDeleteErrorsPerSec).",
)

REMOTE_DELETE_RETRIABLE_ERRORS = TopicCounter(
    "sediment_rlm_remote_delete_retriable_errors",
    "Deletions that failed and may work the next time, as while RSM is away. Kafka does not count "
    "these.",
)

REMOTE_FETCH_REQUESTS = TopicCounter(
    "sediment_rlm_remote_fetch_requests",
    "Fetches of a partition that read from the tier, or failed to (Kafka: "
    "RemoteFetchRequestsPerSec).",
)

REMOTE_FETCH_BYTES = TopicCounter(
    "sediment_rlm_remote_fetch_bytes",
    "Bytes of record batches from the tier that were served (Kafka: RemoteFetchBytesPerSec).",
)

REMOTE_FETCH_ERRORS = TopicCounter(
    "sediment_rlm_remote_fetch_errors",
    "Fetches of a partition that the tier failed: RSM or RLMM away, no reader free in time, an "
    "object lost or damaged (Kafka: RemoteFetchErrorsPerSec).",
)

TOPIC_COUNTERS = (
    REMOTE_COPY_REQUESTS,
    REMOTE_COPY_BYTES,
    REMOTE_COPY_ERRORS,
    REMOTE_COPY_RETRIABLE_ERRORS,
    REMOTE_DELETE_REQUESTS,
    REMOTE_DELETE_ERRORS,
    REMOTE_DELETE_RETRIABLE_ERRORS,
    REMOTE_FETCH_REQUESTS,
    REMOTE_FETCH_BYTES,
    REMOTE_FETCH_ERRORS,
)

_Counts = defaultdict[TopicCounter, int]


class TopicCounts(Collector):
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._led: dict[str, set[TopicIdPartition]] = {}
        self._counts: dict[str, _Counts] = {OTHER_TOPICS: defaultdict(int)}

    def led(self, name: TopicIdPartition) -> None:
        """From now on; again is once."""
        with self._lock:
            self._led.setdefault(name.topic, set()).add(name)
            self._counts.setdefault(name.topic, defaultdict(int))

    def not_led(self, name: TopicIdPartition) -> None:
        """Any more; nothing where it was not."""
        with self._lock:
            partitions = self._led.get(name.topic, set())
            partitions.discard(name)
            if not partitions:
                self._led.pop(name.topic, None)
                self._counts.pop(name.topic, None)

    def add(self, counter: TopicCounter, topic: str, more: int = 1) -> None:
        with self._lock:
            counts = self._counts.get(topic)
            if counts is None:
                counts = self._counts[OTHER_TOPICS]
            counts[counter] += more

    def add_copies(self, topic: str, report: PassReport) -> None:
        """What a copy pass did."""
        if not report.copy_requests:
            return
        self.add(REMOTE_COPY_REQUESTS, topic, report.copy_requests)
        self.add(REMOTE_COPY_BYTES, topic, report.copied_bytes)
        self.add(REMOTE_COPY_ERRORS, topic, report.copy_errors)
        self.add(REMOTE_COPY_RETRIABLE_ERRORS, topic, report.copy_retriable_errors)

    def add_deletion(
        self, segment: RemoteLogSegmentMetadata, error: RemoteStorageError | None
    ) -> None:
        """What RSM was asked and answered; None: it is deleted."""
        topic = segment.remote_log_segment_id.topic_id_partition.topic
        self.add(REMOTE_DELETE_REQUESTS, topic)
        if isinstance(error, RETRIABLE_ERRORS):
            self.add(REMOTE_DELETE_RETRIABLE_ERRORS, topic)
        elif error is not None:
            self.add(REMOTE_DELETE_ERRORS, topic)

    def collect(self) -> Iterator[CounterMetricFamily]:
        with self._lock:
            counts = {topic: dict(counts) for topic, counts in self._counts.items()}
        for counter in TOPIC_COUNTERS:
            family = CounterMetricFamily(counter.name, counter.meaning, labels=counter.labels)
            for topic, of_topic in counts.items():
                family.add_metric([topic], of_topic.get(counter, 0))
            yield family


_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@dataclass
class _Figures:
    """Sums over the partitions of a topic, but for the two times."""

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
    """Of each topic that has partitions led here, as their latest passes saw them: a scrape asks
    neither disk nor RLMM.

    Args:
        now_ms: the clock of this host, by which records' ages are told.
    """

    def __init__(
        self,
        led_partitions: Callable[[], Iterable[Partition]],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._led_partitions = led_partitions
        self._now_ms = now_ms

    def collect(self) -> Iterator[GaugeMetricFamily]:
        topics: defaultdict[str, _Figures] = defaultdict(_Figures)
        now_ms = self._now_ms()
        for partition in self._led_partitions():
            topics[partition.topic_id_partition.topic].add(partition, now_ms)
        families: dict[str, GaugeMetricFamily] = {}
        for topic, figures in topics.items():
            for gauge, value in figures.values():
                families.setdefault(gauge.name, gauge.family()).add_metric([topic], value)
        yield from families.values()


def _size_bytes(segment: RemoteLogSegmentMetadata) -> int:
    """0 where it is unknown."""
    return max(segment.segment_size_in_bytes, 0)
