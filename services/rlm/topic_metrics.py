"""Kafka's figures of each topic: what is still to be copied, to be deleted, and in the tier."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
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
    Gauge,
)
from services.rlm.partition import Partition
from services.rlm.problem_lines import holds_back

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
        self.held_back += any(map(holds_back, partition.problems))
        self._add_tier(partition)

    def _add_uncopied(self, partition: Partition, now_ms: int) -> None:
        uncopied = partition.uncopied
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

    def values(self) -> Iterator[tuple[Gauge, float]]:
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
