"""Define the contract of RLM, which copies a broker's segments and serves reads."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from services.api.endpoints import RlmEndpoint
from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.lineage import EpochEnd
from services.api.pages import every_item
from services.api.validation import (
    require,
    require_between,
    require_count,
    require_int32,
    require_int64,
)

MAX_LEADERSHIP_CHANGES = 10_000
MAX_STOPS = 1_000

MAX_FETCH_BYTES = 256 * 1024 * 1024
MAX_FETCH_PARTITIONS = 1_000
MAX_FETCH_WAIT_MS = 60_000


class PartitionRole(Enum):
    """The role of a broker for a partition.

    LEADER: copies and applies retention. FOLLOWER: follows the tier and changes nothing.
    """

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"


class StopReason(Enum):
    """The reason why a broker stops a partition.

    REASSIGNED: the replica moves; the tier stays. TIERING_DISABLED: the topic is no longer tiered;
    the leader deletes the partition from the tier. TOPIC_DELETED: the partition is marked for
    deletion and removed later.
    """

    REASSIGNED = "REASSIGNED"
    TIERING_DISABLED = "TIERING_DISABLED"
    TOPIC_DELETED = "TOPIC_DELETED"


@dataclass(frozen=True, slots=True)
class LeadershipChange:
    """The role of a broker in a partition, from this leader epoch on.

    Attributes:
        leader_epoch: of the partition's present leader; None for the latest leader epoch of the
            log, read each time it is needed.
    """

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None
    role: PartitionRole

    def __post_init__(self) -> None:
        if self.leader_epoch is not None:
            require_int32(self.leader_epoch, "leader_epoch")


@dataclass(frozen=True, slots=True)
class LeadershipDelta:
    """The changes of roles, each partition once."""

    changes: tuple[LeadershipChange, ...]

    def __post_init__(self) -> None:
        require_count(self.changes, "changes", MAX_LEADERSHIP_CHANGES)
        require_distinct((c.topic_id_partition for c in self.changes), "changes")


@dataclass(frozen=True, slots=True)
class StopPartition:
    """The partition to stop, and the reason (Kafka: StopPartition).

    Attributes:
        leader_epoch: of the partition when the stop was decided; None if unknown: such a stop is
            never stale.
    """

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None
    reason: StopReason

    def __post_init__(self) -> None:
        if self.leader_epoch is not None:
            require_int32(self.leader_epoch, "leader_epoch")


@dataclass(frozen=True, slots=True)
class PartitionStops:
    """The partitions to stop, each once."""

    partitions: tuple[StopPartition, ...]

    def __post_init__(self) -> None:
        require_count(self.partitions, "partitions", MAX_STOPS)
        require_distinct((p.topic_id_partition for p in self.partitions), "partitions")


LifecycleOutcome = RemoteStorageError | None
"""The result for one partition; None if it succeeded."""


class PartitionLifecycle(Protocol):
    """The part of RemoteLogManager that a source of partitions calls."""

    def on_leadership_change(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        """Apply changes of roles; return one outcome per change, in order.

        Idempotent: a partition that already has the role keeps its tasks, under the newer epoch.
        A leader runs copy and expiration passes, a follower a pass that refreshes the tier state.
        When a role ends, a running copy is finished (KIP-405) and nothing new begins. RLMM is not
        needed: the passes announce the role. A partition without a folder here has no passes
        until its folder is found or RLMM lists it; if its topic id then has another name, the role
        is dropped.

        Raises:
            NotServedError: if the partitions come from another source.

        Outcomes:
            InvalidRequestError: the topic id has another name here, or in this call; the partition
                did not change.
            ThrottledError: too many partitions have a role, and this one's log is not here; retry.
            FencedLeaderEpochError: a later leader epoch is known; the partition did not change.
            ConcurrentUpdateError: the partition's tiering is being disabled; it did not change;
                retry.
        """

    def stop_partitions(self, stops: PartitionStops) -> list[LifecycleOutcome]:
        """Stop partitions; return one outcome per partition, in order.

        A failure does not affect the other partitions. Idempotent; after an error the same call
        continues.

        REASSIGNED: the tasks end as after a change of role; nothing else happens.

        TIERING_DISABLED: if this broker leads, the tier's log start is raised to the local one and
        every segment is marked DELETE_SEGMENT_STARTED; both are committed before the call returns.
        The objects are deleted afterwards, in the background; if the process dies meanwhile, any
        later deletion or a repeated call finishes the work. The retention owner
        (sediment.retention.owner) does not matter. A follower only ends its tasks.

        TOPIC_DELETED: the partition becomes DELETE_PARTITION_MARKED, whatever the role here. A
        remover deletes the partition.

        Raises:
            NotServedError: if the partitions come from another source.

        Outcomes:
            InvalidRequestError: the topic id has another name here, or in this call; the partition
                did not change.
            FencedLeaderEpochError: a later leader epoch is known, here or to RLMM.
            DeletionRefusedError: TIERING_DISABLED, but the topic's settings do not allow it
                (remote.log.delete.on.disable), a hold keeps some of it, or another broker copies a
                segment under a lease.
            InvalidStateTransitionError: TIERING_DISABLED of a partition that is unknown here and
                has segments in the tier, or whose log is not here.
            ConcurrentUpdateError: a copy is still running, the log cannot be read, the settings
                changed meanwhile (the tasks have ended), or another call is disabling the
                partition; retry.
            RetriableRemoteStorageError: RLMM is unreachable; after three such outcomes in a row,
                RLMM is not called for the rest.
        """


def require_distinct(partitions: Iterable[TopicIdPartition], field: str) -> None:
    """Raise InvalidRequestError if a partition is there twice."""
    seen: set[TopicIdPartition] = set()
    for tp in partitions:
        require(tp not in seen, field, f"names partition {tp} twice")
        seen.add(tp)


class IsolationLevel(Enum):
    """The records of transactions that a reader wants, by Kafka's names.

    READ_UNCOMMITTED: all, up to the high watermark. READ_COMMITTED: up to the last stable offset,
    with the aborted transactions named, so that the reader can skip their records.
    """

    READ_UNCOMMITTED = "READ_UNCOMMITTED"
    READ_COMMITTED = "READ_COMMITTED"


class FetchRole(Enum):
    """The kind of reader.

    CONSUMER: gets what is settled, from here and from the tier. FOLLOWER: a replica on another
    broker; the leader's RLM serves it its own log only, up to the log's end.
    """

    CONSUMER = "CONSUMER"
    FOLLOWER = "FOLLOWER"


class FetchError(Enum):
    """The error of one partition of a request, by Kafka's names (kafka-clients: Errors)."""

    NONE = "NONE"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    UNKNOWN_TOPIC_ID = "UNKNOWN_TOPIC_ID"
    TIERED_STORAGE_NOT_AVAILABLE = "TIERED_STORAGE_NOT_AVAILABLE"
    CORRUPT_MESSAGE = "CORRUPT_MESSAGE"
    UNKNOWN_SERVER_ERROR = "UNKNOWN_SERVER_ERROR"
    NOT_LEADER_OR_FOLLOWER = "NOT_LEADER_OR_FOLLOWER"
    FENCED_LEADER_EPOCH = "FENCED_LEADER_EPOCH"
    UNKNOWN_LEADER_EPOCH = "UNKNOWN_LEADER_EPOCH"
    REQUEST_TIMED_OUT = "REQUEST_TIMED_OUT"
    POLICY_VIOLATION = "POLICY_VIOLATION"
    OFFSET_MOVED_TO_TIERED_STORAGE = "OFFSET_MOVED_TO_TIERED_STORAGE"


class RecordSource(Enum):
    """The place that record batches were read from."""

    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """The read of one partition: up to `max_bytes`, from `fetch_offset` (inclusive) on.

    Attributes:
        current_leader_epoch: the partition's, as the reader knows it; None if it does not.
        last_fetched_epoch: of the reader's last record; None if the reader's log is not compared.
    """

    topic_id_partition: TopicIdPartition
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int | None = None
    last_fetched_epoch: int | None = None

    def __post_init__(self) -> None:
        require_int64(self.fetch_offset, "fetch_offset")
        for field in ("current_leader_epoch", "last_fetched_epoch"):
            epoch = getattr(self, field)
            if epoch is not None:
                require_int32(epoch, field)
        require_between(self.max_bytes, "max_bytes", 1, MAX_FETCH_BYTES)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """The read of several partitions, up to `max_bytes` in total.

    Attributes:
        max_wait_ms: how long to wait while fewer than `min_bytes` can be read; 0: not at all.
        timeout_ms: how long to wait for the tier; 0: as long as the server waits by itself.
    """

    partitions: tuple[FetchPartition, ...]
    max_bytes: int
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    max_wait_ms: int = 0
    min_bytes: int = 0
    role: FetchRole = FetchRole.CONSUMER
    timeout_ms: int = 0

    def __post_init__(self) -> None:
        require_between(self.max_wait_ms, "max_wait_ms", 0, MAX_FETCH_WAIT_MS)
        require_between(self.timeout_ms, "timeout_ms", 0, MAX_FETCH_WAIT_MS)
        require_int32(self.min_bytes, "min_bytes")
        require_count(self.partitions, "partitions", MAX_FETCH_PARTITIONS)
        require_between(self.max_bytes, "max_bytes", 1, MAX_FETCH_BYTES)
        require_distinct((p.topic_id_partition for p in self.partitions), "partitions")


@dataclass(frozen=True, slots=True, order=True)
class AbortedTransaction:
    """A transaction that was aborted: the producer's records from its first offset on.

    They end at the producer's next control batch that aborts.
    """

    first_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class FetchPart:
    """The next piece of a fetch's answer for one partition.

    Attributes:
        error: NONE, or why the partition's read ended here; then there are no record batches.
        error_message: for people; empty if error is NONE.
        high_watermark: the offset after the last one that may be read; -1: unknown.
        last_stable_offset: the offset of the first open transaction, else the high watermark.
        log_start_offset: the first readable offset, in the tier or here; -1 if unknown, because
            only local offsets were read and the tier never was.
        pieces: of the record batches, as Kafka wrote them; views of memory that several parts may
            share. The joined parts of a partition are whole batches; the first may begin before the
            fetch offset.
        source: None if there are no record batches.
        aborted_transactions: with READ_COMMITTED those with records in this part; one with records
            in several parts is in the first of them, and perhaps in more.
        diverging_epoch: the reader's log differs from this one behind the end of this epoch; then
            there are no record batches.
        throttle_time_ms: how long to wait before the next read of this partition, because the fetch
            quota is used up, the store is slow, or too many reads wait; 0: not at all. Above 0 a
            part without records and error is not the end of the log.
        metadata_age_ms: the age of what is known of the tier, if RLMM cannot be reached; else None.
    """

    topic_id_partition: TopicIdPartition
    error: FetchError = FetchError.NONE
    error_message: str = ""
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    pieces: tuple[bytes | memoryview, ...] = ()
    source: RecordSource | None = None
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    diverging_epoch: EpochEnd | None = None
    throttle_time_ms: int = 0
    metadata_age_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        """Return the size of the record batches."""
        return sum(map(len, self.pieces))

    @property
    def record_batches(self) -> bytes:
        """Return the record batches in one piece: a copy."""
        return b"".join(self.pieces)


class ProblemKind(Enum):
    """The reason why something is not copied."""

    UNREADABLE = "UNREADABLE"
    PARTITION_METADATA_MISSING = "PARTITION_METADATA_MISSING"
    PARTITION_METADATA_INVALID = "PARTITION_METADATA_INVALID"
    LEADER_EPOCHS_MISSING = "LEADER_EPOCHS_MISSING"
    TRUNCATED_BATCH = "TRUNCATED_BATCH"
    CORRUPT_BATCH = "CORRUPT_BATCH"
    OLD_MESSAGE_FORMAT = "OLD_MESSAGE_FORMAT"
    PRODUCER_SNAPSHOT_MISSING = "PRODUCER_SNAPSHOT_MISSING"
    INDEX_REBUILT = "INDEX_REBUILT"
    COPY_FAILED = "COPY_FAILED"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    LOST_BEFORE_COPY = "LOST_BEFORE_COPY"
    LOG_END_BELOW_LOG_START = "LOG_END_BELOW_LOG_START"
    PARTITION_DELETED = "PARTITION_DELETED"
    HIGH_WATERMARK_UNKNOWN = "HIGH_WATERMARK_UNKNOWN"
    TOPIC_COMPACTED = "TOPIC_COMPACTED"
    EARLIER_HISTORY = "EARLIER_HISTORY"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    DELETED_AT_BROKER = "DELETED_AT_BROKER"
    BROKER_RETENTION_SET = "BROKER_RETENTION_SET"


@dataclass(frozen=True, slots=True)
class Problem:
    """The description of a problem for the operator.

    Attributes:
        path: the file or folder at fault.
        offset: the record offset at which the problem begins; None if unknown.
        blocked_segments: rolled segments that the problem keeps from being copied, the segment at
            fault included; 0 if RLM repaired it (INDEX_REBUILT) or nothing is left to copy
            (LOST_BEFORE_COPY).
    """

    kind: ProblemKind
    path: str
    message: str
    offset: int | None = None
    blocked_segments: int = 0


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The state of a partition as its RLM knows it.

    Attributes:
        leader_epoch: the broker leader epoch that RLM copies under.
        log_start_offset: the first readable offset, in the tier or here.
        local_log_start_offset: the first local offset; log_end_offset if there is none.
        log_end_offset: the offset that the next record will get.
        copied_through_offset: the last offset of the copied prefix, which may have recorded gaps;
            a lost range that is not recorded ends the prefix. -1 if nothing is copied.
        local_segments, local_size_bytes: of the local log, the active segment included.
        lag_segments, lag_bytes: rolled segments that are not in the tier, for any reason.
        remote_segments, remote_size_bytes: finished segments in the tier.
        problems: causes that stop copying, losses, and repairs; the first twenty, and one that
            counts the others.
        role: of this broker; None if it has none.
        reader_id: the broker whose RLM readers should call; None if it may be any.
    """

    topic_id_partition: TopicIdPartition
    leader_id: int
    leader_epoch: int
    log_start_offset: int
    local_log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    copied_through_offset: int
    local_segments: int
    local_size_bytes: int
    lag_segments: int
    lag_bytes: int
    remote_segments: int
    remote_size_bytes: int
    problems: tuple[Problem, ...] = ()
    role: PartitionRole | None = None
    reader_id: int | None = None


@dataclass(frozen=True, slots=True)
class DescribePage:
    """The partitions on one page of describe_partitions.

    Attributes:
        log_dir_problems: folders and files that belong to no partition that can be copied, the
            same on every page; bounded like a partition's. None with a filter by topic, because
            their paths name folders of any topic.
        rlms: the live ones of the broker's cluster.
    """

    partitions: tuple[PartitionDescription, ...]
    next_page_token: str
    log_dir_problems: tuple[Problem, ...] = ()
    rlms: tuple[RlmEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyLag:
    """How far the copies of the partitions that a broker leads are behind; see the proto.

    Attributes:
        drained: RLM starts no copy and no deletion; see RemoteLogManager.drain.
    """

    broker_id: int
    partitions: int
    lagging_partitions: int = 0
    blocked_partitions: int = 0
    lag_segments: int = 0
    lag_bytes: int = 0
    oldest_timestamp_ms: int | None = None
    local_retention_used: float | None = None
    drained: bool = False
    unchecked_partitions: int = 0
    lost_partitions: int = 0
    earlier_histories: int = 0
    broker_retention_set: int = 0
    deleted_at_broker: int = 0


@dataclass(frozen=True, slots=True)
class ActivePasses:
    """The passes that still run in an RLM that starts no others: of copying, and of deleting."""

    active_copies: int
    active_deletions: int


class RemoteLogManager(PartitionLifecycle, Protocol):
    """Copy the partitions of one broker and serve their records, local or remote. Thread-safe."""

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        """Read record batches; yield the parts of each partition, in the order of the request.

        Errors are per partition, inside the parts; a partition with nothing to read gets one part
        without batches. A partition gets whole batches, up to its own limit and the rest of the
        request's; the first non-empty partition gets its first batch whatever its size. Offsets
        below the local log are read from the tier; for a FOLLOWER they are
        OFFSET_MOVED_TO_TIERED_STORAGE.
        """

    def describe_partitions(
        self,
        topics: Sequence[str] = (),
        *,
        page_size: int = 0,
        page_token: str = "",
    ) -> DescribePage:
        """Describe one page of this RLM's partitions, of `topics` or of all, by topic and number.

        A page may have fewer than `page_size` although others follow: a message has at most 4 MiB.
        While RLMM is down, figures of the tier are the last known ones, partitions that only the
        tier has are left out, and problems say so.

        Raises:
            InvalidRequestError: if page_size is negative, or page_token is invalid.
        """

    def copy_lag(self) -> CopyLag:
        """Return how far copies are behind, as the latest passes found it."""

    def drain(self, *, cancel: bool = False) -> ActivePasses:
        """Start no copy and no deletion from now on, or start them again; return what still runs.

        Idempotent, so that a client polls with it. A copy or deletion that has begun is finished;
        reads are served all along. It lasts until it is cancelled or the process ends.
        """


all_descriptions = every_item(RemoteLogManager.describe_partitions, lambda page: page.partitions)

UNKNOWN_LEADER = -1
