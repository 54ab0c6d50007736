"""Kafka's counters of each topic that is led here.

A topic has its counters, from 0 on, while this process leads a partition of it, and then no more:
what a process has ever led, or serves reads of, must not add up. What is counted of other topics
has one name for all of them, so that a sum over topics misses nothing.

Source: BrokerTopicMetrics; KIP-405, KIP-963.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.copying.pass_report import PassReport
from services.rlm.copying.segment_copy import RETRIABLE_ERRORS

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
