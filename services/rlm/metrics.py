"""Name the metrics of RLM, and count the work for each topic that is led here."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.common.retry import RETRIABLE_ERRORS

COPIED_SEGMENTS = Counter("sediment_rlm_copied_segments", "Segments copied by this process.")
COPIED_BYTES = Counter("sediment_rlm_copied_bytes", "Bytes of logs copied by this process.")

LOST_RANGES = Counter(
    "sediment_rlm_lost_ranges",
    "Offset ranges that the broker deleted before they were copied, recorded by this process.",
)

DELETED_SEGMENTS = Counter(
    "sediment_rlm_deleted_segments", "Segments deleted from the tier by this process's retention."
)

DELETED_BYTES = Counter(
    "sediment_rlm_deleted_bytes", "Bytes of logs deleted from the tier by this process's retention."
)

COPY_THROTTLE_SECONDS = Histogram(
    "sediment_rlm_remote_copy_throttle_seconds",
    "Time that delayed copies waited for the copy quota (Kafka: remote-copy-throttle-time).",
    buckets=(0.1, 1, 10, 60, 600, 3600),
)

FETCH_THROTTLE_SECONDS = Histogram(
    "sediment_rlm_remote_fetch_throttle_seconds",
    "Time for which reads of the tier were refused by the fetch quota (Kafka: "
    "remote-fetch-throttle-time).",
    buckets=(0.1, 1, 10, 60, 600, 3600),
)

READ_SECONDS = Histogram(
    "sediment_rlm_remote_read_seconds",
    "Time of a read of the tier in the reader pool, its waits for slots, RLMM and RSM included "
    "(Kafka: RemoteLogReaderFetchRateAndTimeMs).",
    buckets=(0.001, 0.01, 0.1, 0.5, 1, 10, 60),
)

EXPIRED_FETCHES = Counter(
    "sediment_rlm_expired_fetches",
    "Partitions of fetches that the tier did not answer in time: the client asks again (Kafka: "
    "DelayedRemoteFetchMetrics ExpiresPerSec).",
)

EXPIRED_LIST_OFFSETS = Counter(
    "sediment_rlm_expired_list_offsets",
    "Queries of ListOffsets and OffsetForLeaderEpoch that were not answered in time (Kafka: "
    "DelayedRemoteListOffsetsMetrics ExpiresPerSec).",
)

COPIES_WAITING_FOR_RSM = Gauge(
    "sediment_rlm_copies_waiting_for_rsm",
    "Copies that RSM refused as too many and that wait to retry; each occupies a copier thread.",
)

HITS = Counter(
    "sediment_rlm_index_cache_hits",
    "Lookups of remote segments' indexes answered by the cache, by layer: memory, file.",
    ("layer",),
)

MISSES = Counter(
    "sediment_rlm_index_cache_misses",
    "Indexes of remote segments fetched from RSM, including failed fetches.",
)

EVICTIONS = Counter(
    "sediment_rlm_index_cache_evictions",
    "Index files removed, by reason: size (the space was needed), age "
    "(RLM_REMOTE_LOG_INDEX_FILE_CACHE_TTL_MS), deleted (the segment was deleted), damaged.",
    ("reason",),
)

DAMAGED = Counter(
    "sediment_rlm_index_cache_damaged_files",
    "Index files found damaged, truncated or written by another release; they are fetched again.",
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
    "Size of the index files, as counted for RLM_REMOTE_LOG_INDEX_FILE_CACHE_TOTAL_SIZE_BYTES.",
)

CHUNK_HITS = Counter(
    "sediment_rlm_chunk_cache_hits", "Reads of remote segments' bytes that found them in memory."
)

CHUNK_MISSES = Counter(
    "sediment_rlm_chunk_cache_misses",
    "Reads of remote segments' bytes that had to request them from RSM.",
)

CHUNK_EVICTIONS = Counter(
    "sediment_rlm_chunk_cache_evictions", "Chunks of remote segments evicted for others."
)

CHUNKS_BYTES = Gauge(
    "sediment_rlm_chunk_cache_bytes",
    "Bytes of remote segments in memory or about to arrive, as counted for "
    "RLM_REMOTE_LOG_CHUNK_CACHE_MEMORY_BYTES.",
)

CHUNK_READ_AHEAD_BYTES = Counter(
    "sediment_rlm_read_ahead_bytes",
    "Bytes of remote segments requested before a reader needed them.",
)

CHUNK_UNUSED_BYTES = Counter(
    "sediment_rlm_read_ahead_unused_bytes", "Of these, bytes that were evicted unread."
)

DIRECT_READ_BYTES = Counter(
    "sediment_rlm_direct_read_bytes",
    "Bytes of logs that were read from the store itself and verified (RLM_DIRECT_READS).",
)

DIRECT_READ_FAILURES = Counter(
    "sediment_rlm_direct_read_failures",
    "Reads of logs from the store itself that failed; RSM streamed the rest. The log names the "
    "first of several.",
)

CONSUMER_CONNECTIONS = Gauge(
    "sediment_rlm_consumer_connections",
    "Connections of Kafka's consumers to RLM_CONSUMER_LISTEN_ADDRESS.",
)

CONSUMER_REFUSALS = Counter(
    "sediment_rlm_consumer_refusals",
    "Connections of Kafka's consumers that were closed, by reason: connections (all are taken; an "
    "idle one ends), unauthenticated (no valid client certificate), no_grant (the identity "
    "may read no topic), request (not served, or too large, or before a login), broker (the one "
    "beside RLM does not answer).",
    ("reason",),
)

REVISIONS_WATCHED = Gauge(
    "sediment_rlm_revisions_watched",
    "Partitions whose changes RLMM reports as they happen; the others are polled.",
)

LOCAL_TRIMMED_BYTES = Counter(
    "sediment_rlm_local_trimmed_bytes",
    "Bytes of the broker's logs that RLM let it delete, because the tier has them "
    "(sediment.local.retention.owner=rlm). The broker removes their files at its next check.",
)

LOG_DIRS_FREE_BYTES = Gauge(
    "sediment_rlm_log_dirs_free_bytes",
    "Free bytes of the fullest disk of RLM_LOG_DIRS, by the broker's id.",
    ["broker_id"],
)

DELAYED_FETCHES = Gauge(
    "sediment_rlm_delayed_fetches",
    "Fetches that wait for min_bytes (Kafka: size of the purgatory Fetch).",
)

OTHER_TOPICS = "(other)"
"""No topic can have this name."""

MAX_TOPICS = 1_000
"""The most topics with labels of their own, about 20 series each; the others share one."""

_OF_TOPIC = ("topic",)
_OF_PARTITION = ("topic", "partition")


class TopicMetric(NamedTuple):
    """A gauge or a counter that is collected at each scrape: its labels end with their topic."""

    name: str
    meaning: str
    labels: tuple[str, ...] = _OF_TOPIC


SECONDS_SINCE_LAST_SUCCESS = TopicMetric(
    "sediment_rlm_seconds_since_last_success",
    "Time since the last pass of a task that did everything due; since the task was found, if "
    "there was none. By pool: copier, expiration, follower and remover have a task for each "
    "partition, poller has one for the cluster.",
    ("pool", *_OF_PARTITION),
)

REMOTE_COPY_LAG_BYTES = TopicMetric(
    "sediment_rlm_remote_copy_lag_bytes",
    "Size of the rolled segments that are not in the tier yet (Kafka: RemoteCopyLagBytes).",
)

REMOTE_COPY_LAG_SEGMENTS = TopicMetric(
    "sediment_rlm_remote_copy_lag_segments",
    "Rolled segments that are not in the tier yet (Kafka: RemoteCopyLagSegments).",
)

REMOTE_COPY_LAG_SECONDS = TopicMetric(
    "sediment_rlm_remote_copy_lag_seconds",
    "Age of the newest record in the first rolled segment that is not in the tier yet; the "
    "highest of the topic's partitions. 0: everything is in the tier.",
)

SECONDS_UNTIL_LOCAL_DELETION = TopicMetric(
    "sediment_rlm_seconds_until_local_deletion",
    "Time until the broker's time-based retention deletes the first segment that is not in the "
    "tier yet; the lowest of the topic's partitions. Only if local.retention.ms is set for the "
    "topic and there is such a segment. Negative: the broker may delete it any moment.",
)

PARTITIONS_BLOCKED = TopicMetric(
    "sediment_rlm_partitions_blocked",
    "Partitions whose rolled segments are not copied until an operator repairs something: a file "
    "of the broker is missing, damaged or unreadable, or a copy was refused. The log names the "
    "problem when it is found; DescribePartitions shows it while it lasts.",
)

BROKER_RETENTION_SET = TopicMetric(
    "sediment_rlm_broker_retention_set",
    "Partitions whose local records are RLM's to delete (sediment.local.retention.owner=rlm), and "
    "whose broker has a retention of its own that may delete what is not in the tier.",
)

REMOTE_DELETE_LAG_BYTES = TopicMetric(
    "sediment_rlm_remote_delete_lag_bytes",
    "Size of the segments whose deletion from the tier has begun but not finished (Kafka: "
    "RemoteDeleteLagBytes).",
)

REMOTE_DELETE_LAG_SEGMENTS = TopicMetric(
    "sediment_rlm_remote_delete_lag_segments",
    "Segments whose deletion from the tier has begun but not finished (Kafka: "
    "RemoteDeleteLagSegments).",
)

REMOTE_LOG_METADATA_COUNT = TopicMetric(
    "sediment_rlm_remote_log_metadata_count",
    "Segments in RLMM, in any state (Kafka: RemoteLogMetadataCount).",
)

REMOTE_LOG_SIZE_BYTES = TopicMetric(
    "sediment_rlm_remote_log_size_bytes",
    "Size of the segments in the tier, including those being deleted (Kafka: RemoteLogSizeBytes).",
)

REMOTE_LOG_SIZE_COMPUTATION_SECONDS = TopicMetric(
    "sediment_rlm_remote_log_size_computation_seconds",
    "Duration of the latest listing of segments, from which their size is computed (Kafka: "
    "RemoteLogSizeComputationTime).",
)

TASKS_IDLE_RATIO = TopicMetric(
    "sediment_rlm_tasks_idle_ratio",
    "Share of a pool's threads that run no task, 0 to 1 (Kafka: "
    "RemoteLogManagerTasksAvgIdlePercent). If it stays at 0, tasks wait for threads.",
    ("pool",),
)

REMOTE_READER_IDLE_RATIO = TopicMetric(
    "sediment_rlm_remote_log_reader_idle_ratio",
    "Share of RLM_REMOTE_LOG_READER_THREADS that read nothing from the tier, 0 to 1 (Kafka: "
    "RemoteLogReaderAvgIdlePercent).",
    (),
)

REMOTE_READER_QUEUE_SIZE = TopicMetric(
    "sediment_rlm_remote_log_reader_task_queue_size",
    "Reads of the tier that wait for a reader thread (Kafka: RemoteLogReaderTaskQueueSize).",
    (),
)

RETENTION_SIZE_PERCENT = TopicMetric(
    "sediment_rlm_retention_size_percent",
    "Size of a partition in percent of its retention.bytes: its data in the tier (each offset of "
    "its lineage once) and data that is only local (Kafka: RetentionSizeInPercent). Only if "
    "retention.bytes is above 0.",
    _OF_PARTITION,
)

LOCAL_RETENTION_SIZE_PERCENT = TopicMetric(
    "sediment_rlm_local_retention_size_percent",
    "Size of a partition's local log in percent of its local.retention.bytes, or of "
    "retention.bytes if that is not set (Kafka: LocalRetentionSizeInPercent). Only if one of them "
    "is above 0.",
    _OF_PARTITION,
)


REMOTE_COPY_REQUESTS = TopicMetric(
    "sediment_rlm_remote_copy_requests",
    "Copies of segments that were started (Kafka: RemoteCopyRequestsPerSec).",
)

REMOTE_COPY_BYTES = TopicMetric(
    "sediment_rlm_remote_copy_bytes",
    "Bytes of logs in finished copies (Kafka: RemoteCopyBytesPerSec).",
)

REMOTE_COPY_ERRORS = TopicMetric(
    "sediment_rlm_remote_copy_errors",
    "Copies that failed with an error that a retry does not solve (Kafka: RemoteCopyErrorsPerSec).",
)

REMOTE_COPY_RETRIABLE_ERRORS = TopicMetric(
    "sediment_rlm_remote_copy_retriable_errors",
    "Copies that failed with a retriable error, for example while RSM or RLMM is away. Kafka "
    "does not count these.",
)

REMOTE_DELETE_REQUESTS = TopicMetric(
    "sediment_rlm_remote_delete_requests",
    "Deletions of segments requested from RSM: by retention, after failed copies, and when "
    "tiering is disabled (Kafka: RemoteDeleteRequestsPerSec).",
)

REMOTE_DELETE_ERRORS = TopicMetric(
    "sediment_rlm_remote_delete_errors",
    "Deletions that RSM refused with an error that a retry does not solve (Kafka: "
    "RemoteDeleteErrorsPerSec).",
)

REMOTE_DELETE_RETRIABLE_ERRORS = TopicMetric(
    "sediment_rlm_remote_delete_retriable_errors",
    "Deletions that failed with a retriable error, for example while RSM is away. Kafka does not "
    "count these.",
)

REMOTE_FETCH_REQUESTS = TopicMetric(
    "sediment_rlm_remote_fetch_requests",
    "Fetches of a partition that read from the tier, or failed to (Kafka: "
    "RemoteFetchRequestsPerSec).",
)

REMOTE_FETCH_BYTES = TopicMetric(
    "sediment_rlm_remote_fetch_bytes",
    "Bytes of record batches served from the tier (Kafka: RemoteFetchBytesPerSec).",
)

REMOTE_FETCH_ERRORS = TopicMetric(
    "sediment_rlm_remote_fetch_errors",
    "Fetches of a partition that failed in the tier: RSM or RLMM was away, or an object was "
    "lost or damaged (Kafka: RemoteFetchErrorsPerSec). Not those that ran out of their wait.",
)

AUX_STATE_REQUESTS = TopicMetric(
    "sediment_rlm_build_remote_log_aux_state_requests",
    "States built for replicas, or tried (Kafka: BuildRemoteLogAuxStateRequestsPerSec).",
)

AUX_STATE_ERRORS = TopicMetric(
    "sediment_rlm_build_remote_log_aux_state_errors",
    "States for replicas that were not built: the segment was not in the tier yet, RSM or RLMM was "
    "away, or an index was lost or damaged (Kafka: BuildRemoteLogAuxStateErrorsPerSec).",
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
    AUX_STATE_REQUESTS,
    AUX_STATE_ERRORS,
)


class TopicLabels:
    """Choose the labels of one scrape: `max_topics` topics have their own, the rest share one."""

    def __init__(self, max_topics: int) -> None:
        self._max_topics = max_topics
        self._own: set[str] = set()

    def of(self, name: TopicIdPartition) -> tuple[str, str]:
        """Return topic and number; OTHER_TOPICS without number after too many other topics."""
        if name.topic not in self._own and len(self._own) >= self._max_topics:
            return OTHER_TOPICS, ""
        self._own.add(name.topic)
        return name.topic, str(name.partition)


_Counts = defaultdict[TopicMetric, int]


class TopicCounts(Collector):
    """Count per topic that is led here, and together for all others. Thread-safe.

    Args:
        max_topics: that have counters of their own. A topic beyond gets them when another topic is
            no longer led, and begins at 0.
    """

    def __init__(self, max_topics: int = MAX_TOPICS) -> None:
        self._max_topics = max_topics
        self._lock = threading.Lock()
        self._led: dict[str, set[TopicIdPartition]] = {}
        self._counts: dict[str, _Counts] = {OTHER_TOPICS: defaultdict(int)}

    def led(self, name: TopicIdPartition) -> None:
        """Count the topic of a led partition from now on. Idempotent."""
        with self._lock:
            self._led.setdefault(name.topic, set()).add(name)
            self._count_apart(name.topic)

    def not_led(self, name: TopicIdPartition) -> None:
        """Drop the topic's counters after its last led partition. Idempotent."""
        with self._lock:
            partitions = self._led.get(name.topic, set())
            partitions.discard(name)
            if not partitions:
                self._led.pop(name.topic, None)
                if self._counts.pop(name.topic, None) is not None:
                    for topic in [each for each in self._led if each not in self._counts][:1]:
                        self._count_apart(topic)

    def _count_apart(self, topic: str) -> None:
        # OTHER_TOPICS is one of the counts.
        if len(self._counts) <= self._max_topics:
            self._counts.setdefault(topic, defaultdict(int))

    def add(self, counter: TopicMetric, topic: str, more: int = 1) -> None:
        with self._lock:
            self._counts.get(topic, self._counts[OTHER_TOPICS])[counter] += more

    def add_deletion(
        self, segment: RemoteLogSegmentMetadata, error: RemoteStorageError | None
    ) -> None:
        """Count a deletion by RSM and its error; None if it succeeded."""
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
