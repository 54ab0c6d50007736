"""Define the part of RLM's contract that answers for offsets and deletes records."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from services.api.ids import TopicIdPartition
from services.api.lineage import EpochEnd
from services.api.local_retention import BrokerRetention, LocalRetentionChange
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchRequest,
    IsolationLevel,
    RemoteLogManager,
)
from services.api.validation import require_count, require_int32, require_int64

MAX_OFFSET_QUERIES = 1_000

NO_OFFSET = -1


class SpecialTime(IntEnum):
    """The values in place of a time that ListOffsets knows, by Kafka's names.

    LATEST: the end of what a reader gets. EARLIEST: the log start, in the tier or here.
    MAX_TIMESTAMP: the local record with the greatest time. EARLIEST_LOCAL: the local log's start.
    LATEST_TIERED: the last offset in the tier. EARLIEST_PENDING_UPLOAD: the offset after it.
    """

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


@dataclass(frozen=True, slots=True)
class OffsetQuery:
    """The offset to find: of the first record at or after a time, or of a SpecialTime.

    Attributes:
        current_leader_epoch: the partition's, as the reader knows it; None if it does not.
    """

    topic_id_partition: TopicIdPartition
    timestamp_ms: int
    current_leader_epoch: int | None = None

    def __post_init__(self) -> None:
        require_int64(self.timestamp_ms, "timestamp_ms", at_least=min(SpecialTime))
        if self.current_leader_epoch is not None:
            require_int32(self.current_leader_epoch, "current_leader_epoch")


@dataclass(frozen=True, slots=True)
class OffsetQueries:
    """The offsets to find.

    Attributes:
        isolation_level: READ_COMMITTED: no offset at or behind the last stable one.
        timeout_ms: 0 for the server's own.
    """

    queries: tuple[OffsetQuery, ...]
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    timeout_ms: int = 0

    def __post_init__(self) -> None:
        require_count(self.queries, "queries", MAX_OFFSET_QUERIES)
        require_int32(self.timeout_ms, "timeout_ms")


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """The answer to one query.

    Attributes:
        timestamp_ms: of the record; -1 for a SpecialTime other than MAX_TIMESTAMP.
        offset: NO_OFFSET if no record matches.
        leader_epoch: of the offset; None if it is unknown here.
    """

    topic_id_partition: TopicIdPartition
    error: FetchError = FetchError.NONE
    error_message: str = ""
    timestamp_ms: int = -1
    offset: int = NO_OFFSET
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class EpochQuery:
    """The leader epoch whose end is to be found.

    Attributes:
        current_leader_epoch: the partition's, as the reader knows it; None if it does not.
    """

    topic_id_partition: TopicIdPartition
    leader_epoch: int
    current_leader_epoch: int | None = None

    def __post_init__(self) -> None:
        require_int32(self.leader_epoch, "leader_epoch")
        if self.current_leader_epoch is not None:
            require_int32(self.current_leader_epoch, "current_leader_epoch")


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    """The answer to one query.

    Attributes:
        end: of the greatest epoch that is not above the query's; None if all are below it.
    """

    topic_id_partition: TopicIdPartition
    error: FetchError = FetchError.NONE
    error_message: str = ""
    end: EpochEnd | None = None


HIGH_WATERMARK = -1
"""As the offset of a DeleteRecords: the high watermark."""


@dataclass(frozen=True, slots=True)
class RecordsToDelete:
    """The records to delete: all of a partition below `before_offset`, or HIGH_WATERMARK."""

    topic_id_partition: TopicIdPartition
    before_offset: int

    def __post_init__(self) -> None:
        require_int64(self.before_offset, "before_offset", at_least=HIGH_WATERMARK)


@dataclass(frozen=True, slots=True)
class RaisedLogStart:
    """The outcome for one partition.

    Attributes:
        log_start_offset: the tier's, which is now at or above the wanted one; -1 after an
            error.
        local_error: why the broker still has the records, if it was to delete them too.
    """

    topic_id_partition: TopicIdPartition
    error: FetchError = FetchError.NONE
    error_message: str = ""
    log_start_offset: int = -1
    local_error: str = ""


class Fetches(Protocol):
    """What a reader of records needs of RemoteLogManager."""

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]: ...


class PartitionReads(Fetches, Protocol):
    """What a reader that looks for its place needs, too."""

    def list_offsets(self, queries: OffsetQueries) -> list[OffsetAnswer]: ...


class OffsetService(RemoteLogManager, Protocol):
    """Answer for offsets beside copying and reading. Thread-safe.

    Errors are per partition, by Kafka's names; the answers are in the order of the request.
    """

    def list_offsets(self, queries: OffsetQueries) -> list[OffsetAnswer]:
        """Find offsets by time or by a SpecialTime (Kafka: ListOffsets).

        By time the tier is searched first, from the log start on, then the local log. What is not
        answered in time is REQUEST_TIMED_OUT.
        """

    def offsets_for_leader_epochs(self, queries: tuple[EpochQuery, ...]) -> list[EpochAnswer]:
        """Find where leader epochs end (Kafka: OffsetForLeaderEpoch).

        As in Kafka only the leader answers: the end of a follower's log is not the partition's.
        While the leader's RLM is dead, that of the follower that stands in for it answers.

        Errors: NOT_LEADER_OR_FOLLOWER: this broker follows.

        Raises:
            InvalidRequestError: no query, or too many.
        """

    def delete_records(
        self, requests: tuple[RecordsToDelete, ...], *, brokers_too: bool = False
    ) -> list[RaisedLogStart]:
        """Raise the tier's log start, to the high watermark at most (Kafka: DeleteRecords).

        Readers of this RLM get nothing below it from then on, those of another RLM after its next
        pass; retention deletes the segments below it later.
        The broker's own log start stays as it is. Idempotent: it never falls.

        Args:
            brokers_too: delete the records from this broker's log as well, afterwards.

        Errors: NOT_LEADER_OR_FOLLOWER: this broker does not lead the partition.
        OFFSET_OUT_OF_RANGE: above the high watermark. POLICY_VIOLATION: the topic is on
        hold, or an export has yet to read records below the offset.

        Raises:
            InvalidRequestError: nothing to delete, too much, or a partition twice.
        """

    def set_local_retention_owner(self, change: LocalRetentionChange) -> BrokerRetention:
        """Give a topic's local retention to RLM, or back to the brokers.

        Without `apply` all is checked and nothing changes. With it, the topic's retention at the
        brokers becomes -1, or what the topic's settings remember. The caller puts these settings:
        before, for RLM; afterwards, for the brokers. Idempotent.

        Raises:
            RemoteResourceNotFoundError: the topic is unknown. NotServedError: no cluster is polled.
            DeletionRefusedError: brokers tier or compact the topic, a right is missing, or the
                brokers would delete what only they have.
            ConcurrentUpdateError: the settings do not remember the brokers' retention.
            RetriableRemoteStorageError: a broker did not answer; repeat the call.
        """
