"""The contract of RLM, which ships a broker's segments and serves reads."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.validation import require, require_count, require_int32, require_int64

MAX_LEADERSHIP_CHANGES = 10_000
MAX_STOPS = 1_000


class PartitionRole(Enum):
    """What a broker is to a partition.

    LEADER: it copies, and keeps retention. FOLLOWER: it knows what is in the tier, and changes
    nothing there.
    """

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"


class StopReason(Enum):
    """Why a broker gives a partition up.

    REASSIGNED: the replica goes elsewhere; the tier stays as it is. TIERING_DISABLED: the topic is
    to be tiered no more; the leader deletes what is in the tier. TOPIC_DELETED: the partition is
    marked for deletion, and removed later.
    """

    REASSIGNED = "REASSIGNED"
    TIERING_DISABLED = "TIERING_DISABLED"
    TOPIC_DELETED = "TOPIC_DELETED"


@dataclass(frozen=True, slots=True)
class LeadershipChange:
    """A broker's role in a partition, from this leader epoch on.

    Attributes:
        leader_epoch: of the partition's present leader; None: the latest of the log's own leader
            epochs, each time it is asked for.
    """

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None
    role: PartitionRole

    def __post_init__(self) -> None:
        if self.leader_epoch is not None:
            require_int32(self.leader_epoch, "leader_epoch")


@dataclass(frozen=True, slots=True)
class LeadershipDelta:
    """What changed: each partition once."""

    changes: tuple[LeadershipChange, ...]

    def __post_init__(self) -> None:
        require_count(self.changes, "changes", MAX_LEADERSHIP_CHANGES)
        _require_distinct((c.topic_id_partition for c in self.changes), "changes")


@dataclass(frozen=True, slots=True)
class StopPartition:
    """A partition to give up (Kafka: StopPartition).

    Attributes:
        leader_epoch: of the partition when this was decided; None: not known, then nothing is
            stale.
    """

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None
    reason: StopReason

    def __post_init__(self) -> None:
        if self.leader_epoch is not None:
            require_int32(self.leader_epoch, "leader_epoch")


@dataclass(frozen=True, slots=True)
class PartitionStops:
    """What to give up: each partition once."""

    partitions: tuple[StopPartition, ...]

    def __post_init__(self) -> None:
        require_count(self.partitions, "partitions", MAX_STOPS)
        _require_distinct((p.topic_id_partition for p in self.partitions), "partitions")


LifecycleOutcome = RemoteStorageError | None
"""Of one partition. None: it is so now."""


class PartitionLifecycle(Protocol):
    """What a source of partitions tells; a part of RemoteLogManager, which says what holds."""

    def on_leadership_change(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        """Take on roles; an outcome for each change, in order. Idempotent: the role that a
        partition has already keeps its tasks, under the newer epoch.

        A leader has copy and expiration passes, a follower a pass that keeps what is known of the
        tier fresh. Of the tasks of another role a copy under way is finished (KIP-405), and begins
        no other segment; an expiration begins nothing more. RLMM need not be reached for it: the
        passes tell it.

        Raises:
            InvalidRequestError: a topic id under two names, or known here under another; nothing
                changed.
            NotServedError: the partitions come from another source.

        Outcomes:
            FencedLeaderEpochError: a later leader epoch is known; nothing of the partition changed.
            ConcurrentUpdateError: its tiering is being disabled; try again. Nothing of it changed.
        """
        ...

    def stop_partitions(self, stops: PartitionStops) -> list[LifecycleOutcome]:
        """Give partitions up; an outcome for each, in order, and none stops another. Idempotent;
        after an error the same call goes on from where it came to.

        REASSIGNED: the tasks end as for another role; nothing else.

        TIERING_DISABLED: where this broker leads, the tier's log start is raised to the local one
        and every segment is marked, DELETE_SEGMENT_STARTED: that is committed when this returns.
        Their objects go after it, in the background; what is left of that when the process dies,
        whoever finishes deletions finishes; this call again does, too, and no other call ends it.
        Whose retention it is (sediment.retention.owner) does not matter. A follower only ends its
        tasks.

        TOPIC_DELETED: the partition is DELETE_PARTITION_MARKED, whatever the role here. Whoever
        removes partitions does the rest.

        Raises:
            InvalidRequestError: a topic id under two names, or known here under another; nothing
                changed.
            NotServedError: the partitions come from another source.

        Outcomes:
            FencedLeaderEpochError: a later leader epoch is known, here or to RLMM.
            DeletionRefusedError: TIERING_DISABLED of a topic whose settings do not allow it:
                remote.log.delete.on.disable, sediment.hold, or sediment.sweep.paused where
                sediment.retention.owner is sweep; or while another broker copies a segment under a
                lease.
            InvalidStateTransitionError: TIERING_DISABLED of a partition that is not known here and
                has something in the tier, or whose log is not here.
            ConcurrentUpdateError: a copy has not ended yet, the log cannot be read now, the
                settings changed meanwhile (the tasks have ended), or another call disables the
                partition; try again.
            RetriableRemoteStorageError: RLMM cannot be reached; after three in a row it is not
                asked for the partitions that follow.
        """
        ...


def _require_distinct(partitions: Iterable[TopicIdPartition], field: str) -> None:
    seen: set[TopicIdPartition] = set()
    for tp in partitions:
        require(tp not in seen, field, f"names partition {tp} twice")
        seen.add(tp)


MAX_FETCH_BYTES = 256 * 1024 * 1024


class FetchError(Enum):
    """Errors of one partition of a fetch, by Kafka's names (kafka-clients: Errors)."""

    NONE = "NONE"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    UNKNOWN_TOPIC_ID = "UNKNOWN_TOPIC_ID"
    TIERED_STORAGE_NOT_AVAILABLE = "TIERED_STORAGE_NOT_AVAILABLE"
    CORRUPT_MESSAGE = "CORRUPT_MESSAGE"
    UNKNOWN_SERVER_ERROR = "UNKNOWN_SERVER_ERROR"
    NOT_LEADER_OR_FOLLOWER = "NOT_LEADER_OR_FOLLOWER"


class RecordSource(Enum):
    """Where record batches were read."""

    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """What to read of one partition: up to `max_bytes` from `fetch_offset` (inclusive) on."""

    topic_id_partition: TopicIdPartition
    fetch_offset: int
    max_bytes: int

    def __post_init__(self) -> None:
        require_int64(self.fetch_offset, "fetch_offset")
        require(
            0 < self.max_bytes <= MAX_FETCH_BYTES, "max_bytes", f"must be 1 to {MAX_FETCH_BYTES}"
        )


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A read of several partitions, of up to `max_bytes` together, as a consumer, uncommitted."""

    partitions: tuple[FetchPartition, ...]
    max_bytes: int

    def __post_init__(self) -> None:
        require(len(self.partitions) > 0, "partitions", "must not be empty")
        require(
            0 < self.max_bytes <= MAX_FETCH_BYTES, "max_bytes", f"must be 1 to {MAX_FETCH_BYTES}"
        )
        asked = [p.topic_id_partition for p in self.partitions]
        require(len(set(asked)) == len(asked), "partitions", "names one partition twice")


@dataclass(frozen=True, slots=True)
class FetchPart:
    """The next piece of a fetch's answer for one partition.

    Attributes:
        error: NONE, or why the partition's read ended here; then there are no record batches.
        error_message: for people; empty where error is NONE.
        high_watermark: the offset after the last one that may be read; -1 where unknown.
        last_stable_offset: the offset of the first open transaction, else the high watermark.
        log_start_offset: the first offset that is readable, in the tier or here; -1 where unknown,
            as long as a local read was all that was asked and the tier was never looked at.
        record_batches: bytes as Kafka wrote them. Over a partition's parts, joined, these are
            whole batches; the first may begin before the fetch offset.
        source: None where there are no record batches.
    """

    topic_id_partition: TopicIdPartition
    error: FetchError = FetchError.NONE
    error_message: str = ""
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    record_batches: bytes = b""
    source: RecordSource | None = None


class ProblemKind(Enum):
    """Why something is not shipped."""

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


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should know of.

    Attributes:
        path: the file or folder at fault.
        offset: the record offset it begins at, where that is known.
        held_segments: rolled segments that are not copied because of it, itself included; 0 where
            it was mended (INDEX_REBUILT) or where there is nothing left to copy
            (LOST_BEFORE_COPY).
    """

    kind: ProblemKind
    path: str
    message: str
    offset: int | None = None
    held_segments: int = 0


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition as its RLM sees it.

    Attributes:
        leader_epoch: the broker leader epoch that RLM copies under.
        log_start_offset: the first readable offset, in the tier or here.
        local_log_start_offset: the first offset that is here; log_end_offset where nothing is.
        log_end_offset: the offset that the next record will get.
        copied_through_offset: the last offset of the copied prefix, which is contiguous but for
            recorded gaps; a range that is lost and not recorded ends it. -1: none.
        local_segments, local_size_bytes: what is here, the active segment included.
        pending_segments, pending_size_bytes: rolled segments that are not copied yet.
        remote_segments, remote_size_bytes: finished segments in the tier.
        problems: what keeps the partition from being shipped, was lost before, or was mended on the
            way; the first twenty, and one more that counts the rest.
        role: what this broker is to it; None: nothing, only the tier has it.
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
    pending_segments: int
    pending_size_bytes: int
    remote_segments: int
    remote_size_bytes: int
    problems: tuple[Problem, ...] = ()
    role: PartitionRole | None = None


@dataclass(frozen=True, slots=True)
class DescribePage:
    """Some of an RLM's partitions.

    Attributes:
        log_dir_problems: folders and files that belong to no partition that can be shipped, the
            same on every page; as many as of a partition.
    """

    partitions: tuple[PartitionDescription, ...]
    next_page_token: str
    log_dir_problems: tuple[Problem, ...] = ()


class RemoteLogManager(PartitionLifecycle, Protocol):
    """Ships the partitions of one broker and serves their records, local or remote. Thread-safe."""

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        """Read record batches: of each partition, in the order of the request, its parts.

        Errors are per partition, inside the parts; a partition with nothing to read gets one part
        without batches. Of each partition whole batches are returned, up to its own limit and to
        what is left of the request's; the first non-empty partition gets its first batch whatever
        the size. Local segments are read first; below them the tier is.
        """
        ...

    def describe_partitions(
        self,
        topics: Sequence[str] = (),
        *,
        page_size: int = 0,
        page_token: str = "",
    ) -> DescribePage:
        """One page of this RLM's partitions by topic and partition; of `topics`, or of all.

        A page may hold fewer than `page_size` though others follow: a message is at most 4 MiB.
        While RLMM is away, figures of the tier are the last that were seen, and partitions that
        only the tier has are left out; problems say so.

        Raises:
            InvalidRequestError: a negative page_size; a page_token that this call did not give.
        """
        ...


def all_descriptions(
    manager: RemoteLogManager, topics: Sequence[str] = ()
) -> Iterator[PartitionDescription]:
    """Every page of describe_partitions."""
    token = ""
    while True:
        page = manager.describe_partitions(topics, page_token=token)
        yield from page.partitions
        token = page.next_page_token
        if not token:
            return


UNKNOWN_LEADER = -1
