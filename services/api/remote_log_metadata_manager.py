"""The contract of RLMM, which knows every copied segment (KIP-405: RemoteLogMetadataManager).

The in-process manager (services/rlmm) and the gRPC client (services/rpc) both satisfy it; one
suite, tests/contract, runs over both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.validation import require_int32

DEFAULT_PAGE_SIZE = 500
MAX_PAGE_SIZE = 2000


@dataclass(frozen=True, slots=True)
class PartitionLeadership:
    """A partition and the leader epoch of its present leader; None where the caller has none."""

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.leader_epoch is not None:
            require_int32(self.leader_epoch, "leader_epoch")


@dataclass(frozen=True, slots=True)
class SegmentPage:
    """Some of a partition's segments.

    Attributes:
        next_page_token: opaque; hand it back with the same query for what follows. "": the end.
        revision: of the partition when this page was read.
        not_modified: the partition still has the revision the caller named; `segments` is empty.
    """

    segments: tuple[RemoteLogSegmentMetadata, ...]
    next_page_token: str
    revision: int
    not_modified: bool = False


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """A known partition: its deletion state (None: not being deleted) and its revision."""

    topic_id_partition: TopicIdPartition
    delete_state: RemotePartitionDeleteState | None
    revision: int


@dataclass(frozen=True, slots=True)
class PartitionPage:
    partitions: tuple[PartitionSummary, ...]
    next_page_token: str


class RemoteLogMetadataManager(Protocol):
    """Knows which segments exist. Thread-safe and strongly consistent: a mutation's return means
    committed, and every later read by anyone sees it.

    Which query sees which state (Kafka: RemoteLogMetadataCache):

        state                    by epoch and offset   highest offset   lists, size
        COPY_SEGMENT_STARTED     no                    no               yes
        COPY_SEGMENT_FINISHED    yes                   yes              yes
        DELETE_SEGMENT_STARTED   no                    stays            yes
        DELETE_SEGMENT_FINISHED  no                    stays            no

    A partition is known from on_partition_leadership_changes, add or DELETE_PARTITION_MARKED on,
    until DELETE_PARTITION_FINISHED. Every read of one that is not known raises
    RemoteResourceNotFoundError. Every method raises RetriableRemoteStorageError where the database
    cannot be reached.

    A topic id has one name for ever: another name under the same id is an InvalidRequestError.
    """

    def add_remote_log_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        """Register a copy that begins; `metadata.state` must be COPY_SEGMENT_STARTED.

        Idempotent: the same metadata again is a repeat. Raises the partition's highest broker
        leader epoch to the call's: `context.broker_leader_epoch`, or the metadata's where that is
        None.

        Raises:
            InvalidRequestError: another state; a topic id under another name.
            SegmentAlreadyExistsError: the id is there with other content.
            InvalidStateTransitionError: the id is in a later state; the partition is being deleted.
            FencedLeaderEpochError: the broker leader epoch is below the partition's highest.
        """
        ...

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        """Move a segment to its next state. Idempotent: the state it is in, with the same custom
        metadata or with none, is a repeat.

        Absent custom metadata keeps the stored one. COPY_SEGMENT_FINISHED makes the segment
        visible to look-ups and displaces older ones as Kafka does (kafka-storage
        RemoteLogLeaderEpochState).

        Raises:
            RemoteResourceNotFoundError: the segment id or its partition is not known.
            InvalidStateTransitionError: the state machine does not allow it.
            SegmentAlreadyExistsError: the same state with other custom metadata.
            FencedLeaderEpochError: COPY_SEGMENT_FINISHED to DELETE_SEGMENT_STARTED under an epoch
                below the partition's highest. Finishing a copy and cleaning up one's own (same
                broker id) are allowed at any epoch.
        """
        ...

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        """The finished segment that holds `offset` in the lineage of `epoch_for_offset`, or None.

        Kafka's choice, the referenced segment with the greatest start at or below `offset`, where
        it contains the offset; otherwise any finished segment of the epoch that does (a declared
        difference): of the higher broker leader epoch where both have one, else the one that
        finished later.
        """
        ...

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        """The highest offset (inclusive) ever finished in `leader_epoch`; never falls, not by
        deletion either. None: nothing has finished in it."""
        ...

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        """Move a partition's deletion to its next state: MARKED, STARTED, FINISHED, in this order.

        A state again, and MARKED in any later state, is a repeat. From MARKED on no segment may be
        added; a copy under way may finish. After FINISHED the partition is not known.

        Raises:
            RemoteResourceNotFoundError: the partition is not known (STARTED, FINISHED).
            InvalidStateTransitionError: out of order; FINISHED while segments remain.
            FencedLeaderEpochError: MARKED under an epoch below the partition's highest.
        """
        ...

    def list_remote_log_segments(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None = None,
        *,
        states: Sequence[RemoteLogSegmentState] = (),
        min_offset: int | None = None,
        if_revision_not: int | None = None,
        page_size: int = 0,
        page_token: str = "",
    ) -> SegmentPage:
        """One page of the segments not yet DELETE_SEGMENT_FINISHED, ascending by start offset.

        Args:
            leader_epoch: only segments with records of this epoch; an unknown one: none.
            states: only these; empty: all.
            min_offset: only segments with end_offset >= min_offset.
            if_revision_not: answer `not_modified` where the partition has this revision still.
            page_size: 0 means DEFAULT_PAGE_SIZE; above MAX_PAGE_SIZE means MAX_PAGE_SIZE. A page
                holds fewer where so many would not fit into a message.
            page_token: of the page before, from the same query.

        Raises:
            InvalidRequestError: a negative page size; a token of another query or of nobody.
        """
        ...

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        """Bytes of the segments that list_remote_log_segments names for the epoch, in any state;
        one that spans epochs counts whole in each (KIP-852). An unknown epoch: 0."""
        ...

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        """The first segment from (epoch, offset) on, within the epoch, whose transaction index is
        not known to be empty; None at the first gap and at the epoch's end (KIP-1058)."""
        ...

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        """The database is reachable and has the schema of this release; for any partition
        (KIP-1105). Never raises for these."""
        ...

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
    ) -> None:
        """Tell of leadership; idempotent. Makes partitions known and raises the highest broker
        leader epoch of each where one is given; a lower one changes nothing."""
        ...

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        """The broker no longer has these replicas. Idempotent; touches no metadata."""
        ...

    def list_partitions(self, *, page_size: int = 0, page_token: str = "") -> PartitionPage:
        """One page of the known partitions, by topic id and partition."""
        ...


def all_segments(
    manager: RemoteLogMetadataManager,
    topic_id_partition: TopicIdPartition,
    leader_epoch: int | None = None,
    *,
    states: Sequence[RemoteLogSegmentState] = (),
    min_offset: int | None = None,
) -> Iterator[RemoteLogSegmentMetadata]:
    """Every page of list_remote_log_segments, one page in memory at a time.

    Segments added or removed meanwhile may or may not be seen; none is seen twice.
    """
    token = ""
    while True:
        page = manager.list_remote_log_segments(
            topic_id_partition,
            leader_epoch,
            states=states,
            min_offset=min_offset,
            page_token=token,
        )
        yield from page.segments
        token = page.next_page_token
        if not token:
            return


def all_partitions(manager: RemoteLogMetadataManager) -> Iterator[PartitionSummary]:
    """Every page of list_partitions, one page in memory at a time."""
    token = ""
    while True:
        page = manager.list_partitions(page_token=token)
        yield from page.partitions
        token = page.next_page_token
        if not token:
            return
