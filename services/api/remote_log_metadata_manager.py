"""The contract of RLMM, which keeps the metadata of all segments (KIP-405)."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias
from uuid import UUID

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.endpoints import RlmEndpoint
from services.api.errors import RemoteStorageError
from services.api.holds import Hold, HoldPage
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.operations import (
    ALL_ANOMALIES,
    Anomaly,
    AnomalyPage,
    AnomalyQuery,
    ObjectDeletion,
    RunCounts,
    RunPage,
    ToolRun,
)
from services.api.pages import every_item
from services.api.partitions import (
    NO_SEGMENTS,
    EventPage,
    EventQuery,
    OffsetGap,
    PartitionEvent,
    PartitionReport,
    PartitionState,
    PolledLog,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    SegmentTotals,
)
from services.api.segment_batches import (
    MAX_BATCH,
    AddOutcome,
    BinnedSegments,
    BinQuery,
    ImportedSegments,
    LookupOutcome,
    SegmentAddition,
    SegmentBatch,
    SegmentImport,
    SegmentLookup,
    SegmentScan,
    SourcePosition,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.topic_config import RetentionOwner, StoredTopicConfig
from services.api.validation import require_int32
from services.api.watches import WatchedPartition, WatchUpdate

MAX_UPDATE_BATCH = MAX_BATCH

DEFAULT_PAGE_SIZE = 500
MAX_PAGE_SIZE = 2000
MAX_REPORTS = 100
MAX_REPORTED_EPOCHS = 50_000
"""Leader epochs of all reports of one call: both messages stay well below 4 MiB."""


@dataclass(frozen=True, slots=True)
class SegmentUpdate:
    """One item of a batch: the arguments of update_remote_log_segment_metadata."""

    update: RemoteLogSegmentMetadataUpdate
    context: MutationContext = NO_CONTEXT


UpdateOutcome = MutationOutcome | RemoteStorageError

RenewOutcome: TypeAlias = RemoteStorageError | None
"""None: the lease was renewed."""


@dataclass(frozen=True, slots=True)
class SegmentPage:
    """Some of a partition's segments.

    Attributes:
        next_page_token: opaque; pass it with the same query for the next page. "": the end.
        revision: of the partition when this page was read.
        not_modified: the partition still has the revision of the query; `segments` is empty.
        log_start_offset: of the tier, at that revision: offsets below are deleted or being deleted.
    """

    segments: tuple[RemoteLogSegmentMetadata, ...]
    next_page_token: str
    revision: int
    not_modified: bool = False
    log_start_offset: int = 0


@dataclass(frozen=True, slots=True)
class KeptPage:
    """Some of the kept segments.

    Attributes:
        next_page_token: opaque; pass it with the same query for the next page. "": the end.
    """

    segments: tuple[RemoteLogSegmentMetadata, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class PartitionLeadership:
    """A partition and the leader epoch of its leader; None if the client knows none."""

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.leader_epoch is not None:
            require_int32(self.leader_epoch, "leader_epoch")


ReportOutcome = AtRevision[PartitionState] | RemoteStorageError

_LATEST_EVENTS = 1_000


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """A known partition.

    Attributes:
        delete_state: None: it is not being deleted.
        marked_at_ms: when it was marked for deletion, by the database's clock; None: it was not.
        read_at_ms: the present time, by the database's clock.
        cluster_id: of the topic's cluster, as on_partition_leadership_changes first sent it; None:
            it was never sent, or an undeletion deleted it.
        known_since_ms: when the partition became known, by the database's clock.
        totals: of its segments, at `revision`.
        is_on_hold: a hold of any kind but EXPORT keeps some of its offsets.
        awaits_confirmation: today a deletion of the topic passed the bound of a day.
    """

    topic_id_partition: TopicIdPartition
    delete_state: RemotePartitionDeleteState | None
    revision: int
    marked_at_ms: int | None = None
    read_at_ms: int = 0
    cluster_id: str | None = None
    known_since_ms: int = 0
    totals: SegmentTotals = NO_SEGMENTS
    is_on_hold: bool = False
    awaits_confirmation: bool = False


@dataclass(frozen=True, slots=True)
class PartitionPage:
    partitions: tuple[PartitionSummary, ...]
    next_page_token: str


class RemoteLogMetadataManager(Protocol):
    """Keep the metadata of all segments.

    Thread-safe and strongly consistent: when a mutation returns, it is committed, and every later
    read by any client sees it.

    Which query sees which state (Kafka: RemoteLogMetadataCache):

        state                    by epoch and offset   highest offset   lists, size
        COPY_SEGMENT_STARTED     no                    no               yes
        COPY_SEGMENT_FINISHED    yes                   yes              yes
        DELETE_SEGMENT_STARTED   no                    stays            yes
        DELETE_SEGMENT_FINISHED  no                    stays            no

    A partition is known from on_partition_leadership_changes, add or DELETE_PARTITION_MARKED on,
    until DELETE_PARTITION_FINISHED. Every read of one that is not known raises
    RemoteResourceNotFoundError. Every method raises RetriableRemoteStorageError if the database
    cannot be reached, and every change if its schema is older than this release's.

    A topic id has one name forever: another name under the same id is an InvalidRequestError.

    What begins a deletion raises DeletionRefusedError if a hold keeps what would be deleted
    (set_hold); the message names the hold.
    """

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        """Register a copy that begins; `metadata.state` must be COPY_SEGMENT_STARTED.

        Idempotent: the same metadata again is a repeat, whatever its lease, and does not change the
        lease. Raises the partition's highest broker leader epoch to the call's:
        `context.broker_leader_epoch`, or the metadata's if that is None.

        Args:
            lease_ms: how long from now, by the database's clock, only this broker may give up the
                copy, MIN_LEASE_MS to MAX_LEASE_MS; None: any client may at once.

        Raises:
            InvalidRequestError: another state; a topic id under another name; a lease out of
                bounds, or of a broker that is not known.
            SegmentAlreadyExistsError: the id is there with other content.
            InvalidStateTransitionError: the id is in a later state; the partition is being deleted;
                the context's retention owner is the broker, and RLM looks after the topic
                (sediment.local.retention.owner).
            FencedLeaderEpochError: the broker leader epoch is below the partition's highest.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
        """

    def add_remote_log_segment_metadata_batch(
        self, additions: Sequence[SegmentAddition]
    ) -> list[AddOutcome]:
        """Register up to MAX_BATCH copies that begin; return one outcome for each, in order.

        Outcomes are those of update_remote_log_segment_metadata_batch.

        Raises:
            InvalidRequestError: the batch is empty or too large; a segment comes twice.
        """

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        """Move a segment to its next state.

        Idempotent: the state it has, and DELETE_SEGMENT_STARTED of one in DELETE_SEGMENT_FINISHED,
        with the same custom metadata or with none, is a repeat.

        The outcome of DELETE_SEGMENT_STARTED has the segment's custom metadata: delete the objects
        by it, not by what was read before, because replace_segment_data may have come between.

        Absent custom metadata keeps the stored one. COPY_SEGMENT_FINISHED makes the segment
        visible to look-ups and displaces older ones as Kafka does (kafka-storage
        RemoteLogLeaderEpochState).

        If the context's retention owner is the broker, the objects of a segment that leaves
        COPY_SEGMENT_FINISHED are kept for the topic's delete_grace_ms: outcome and segment have
        kept_until_ms, in DELETE_SEGMENT_FINISHED too. After that time DELETE_SEGMENT_FINISHED once
        more, with the retention owner RLM or SWEEP, records that they are deleted and clears it.

        Raises:
            RemoteResourceNotFoundError: the segment id or its partition is not known.
            InvalidStateTransitionError: the state machine does not allow it.
            SegmentAlreadyExistsError: the same state with other custom metadata.
            FencedLeaderEpochError: COPY_SEGMENT_FINISHED to DELETE_SEGMENT_STARTED under an epoch
                below the partition's highest. Finishing a copy and cleaning up one's own (same
                broker id) are allowed at any epoch.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
            DeletionRefusedError: COPY_SEGMENT_FINISHED to DELETE_SEGMENT_STARTED of a topic on
                hold; or, unless the partition is in DELETE_PARTITION_STARTED, by another than the
                topic's retention owner, or by a sweep that is paused. COPY_SEGMENT_STARTED to
                DELETE_SEGMENT_STARTED by another broker than the one that added it, before its
                lease has ended; the message says when that is. The objects of a kept segment are
                not due yet.
        """

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        """Move up to MAX_UPDATE_BATCH segments to their next states; return one outcome for each,
        in order. An error is that item's and stops no other.

        The items of one partition are applied in their order, in one transaction, unless the
        database refuses that: then each by itself. `expected_revision` is that of the partition
        before the batch. If the call itself fails, some partitions may be changed and others not.

        Raises:
            InvalidRequestError: the batch is empty or too large; a segment comes twice.
        """

    def renew_copy_leases(
        self, segment_ids: Sequence[RemoteLogSegmentId], lease_ms: int, broker_id: int
    ) -> list[RenewOutcome]:
        """Extend the leases of up to MAX_BATCH copies to at least `lease_ms` from now; return one
        outcome for each, in order.

        A lease is never shortened. One that has ended, and a copy without a lease, is leased again.
        Until the lease ends, by the database's clock, only the copy's own broker may give the copy
        up; others get DeletionRefusedError. A renewal is not an event and neither is a lease's end:
        the partition's revision stays.

        Args:
            broker_id: which makes the copies.

        Raises:
            InvalidRequestError: there are none or too many, or a segment comes twice; `lease_ms` or
                `broker_id` is out of bounds.
            RetriableRemoteStorageError: the database cannot be reached; some may be renewed.

        Items' errors:
            RetriableRemoteStorageError: others hold the partition up; call again. It is not waited
                for so long that the other leases could end.
            RemoteResourceNotFoundError: the segment id or its partition is not known.
            InvalidStateTransitionError: it is no longer COPY_SEGMENT_STARTED, or another broker
                added it: the copy is given up and has to stop.
        """

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        """Return the finished segment that holds `offset` in `epoch_for_offset`, or None.

        Kafka's choice is the segment in its map with the greatest start at or below `offset`. If
        that does not hold the offset, any finished segment of the epoch that does (a declared
        difference): the one of the higher broker leader epoch if both have one, else the one that
        finished later.
        """

    def remote_log_segment_metadata_batch(
        self, lookups: Sequence[SegmentLookup]
    ) -> Iterable[LookupOutcome]:
        """Look up at most MAX_BATCH offsets at once; return one outcome for each, in order.

        An error is that item's and stops no other. The call may fail while outcomes are read.

        Raises:
            InvalidRequestError: the batch is empty or too large.

        Items' errors:
            ThrottledError: the segments before it fill the answer already; call again for this one.
        """

    def remote_log_segment_metadata_by_id(
        self, topic_id_partition: TopicIdPartition, ids: Sequence[UUID]
    ) -> AtRevision[tuple[RemoteLogSegmentMetadata, ...]]:
        """Return those of up to MAX_BATCH segments that are known, ascending by start offset.

        They may have any state; a segment in DELETE_SEGMENT_FINISHED is known until its tombstone
        is purged, and a kept one (list_kept_segments) also if its partition was removed. The answer
        has fewer if so many would not fit into a message, at least one: segments_by_id calls until
        it has all.

        Raises:
            InvalidRequestError: no ids, or too many.
        """

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        """Return the finished segment with records of `epoch` and a transaction index that ends at
        or after `offset` and starts first; None if there is none up to the epoch's end (KIP-1058).

        A declared difference: Kafka stops at the first gap. A reader that continues after the end
        of each answer gets all segments that it would get from Kafka, and perhaps more.
        """

    def earliest_log_offset(self, topic_id_partition: TopicIdPartition) -> AtRevision[int | None]:
        """Return the first offset at or above the tier's log start that a finished segment holds,
        or None."""

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        """Return the highest offset (inclusive) ever finished in `leader_epoch`; None if there is
        none. It does not fall by deletions, but a rebuild knows only the segments in the bucket."""

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        """Return the bytes of the segments that list_remote_log_segments lists for the epoch.

        A segment of several epochs counts whole in each (KIP-852). An unknown epoch: 0.
        """

    def list_remote_log_segments(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None = None,
        *,
        states: Sequence[RemoteLogSegmentState] = (),
        min_offset: int | None = None,
        if_revision_not: int | None = None,
        deletes_for: RetentionOwner | None = None,
        page_size: int = 0,
        page_token: str = "",
    ) -> SegmentPage:
        """Return one page of segments not in DELETE_SEGMENT_FINISHED, ascending by start offset.

        Args:
            leader_epoch: only segments with records of this epoch; an unknown one: none.
            states: only these; empty: all.
            min_offset: only segments with end_offset >= min_offset.
            if_revision_not: answer `not_modified` if the partition still has this revision.
            deletes_for: the retention owner for which the client will delete listed segments; None:
                it only reads. Kafka raises its log start before its first deletion, so that a
                refusal of the deletion comes too late.
            page_size: 0 means DEFAULT_PAGE_SIZE; above MAX_PAGE_SIZE means MAX_PAGE_SIZE. A page
                has fewer if so many would not fit into a message.
            page_token: of the page before, from the same query.

        Raises:
            InvalidRequestError: a negative page size; not a token of this query.
            DeletionRefusedError: `deletes_for` may not delete a finished segment of the topic now.
        """

    def list_kept_segments(
        self,
        *,
        topic: str = "",
        due_only: bool = False,
        page_size: int = 0,
        page_token: str = "",
    ) -> KeptPage:
        """Return one page of the kept segments, by kept_until_ms, those of removed partitions too.

        A kept segment is in DELETE_SEGMENT_FINISHED because a broker deleted it, and its objects
        are still in the store.

        Args:
            topic: only of topics with this name; "": of all.
            due_only: only those whose objects may be deleted now: kept_until_ms has passed, the
                topic is not on hold, and no rebuild has frozen deletions.
        """

    def scan_remote_log_segments(self, scan: SegmentScan) -> Iterator[SegmentBatch]:
        """Stream the segments of one shard in columns, for sweeps.

        Each shard is whole partitions, the same in every scan of so many shards. The rows of a
        partition are consecutive, ascending by start offset, and read by one statement with the
        partition's revision. Different partitions may be read at different times. Closing the
        iterator ends the scan.
        """

    def bin_remote_log_segments(self, query: BinQuery) -> AtRevision[BinnedSegments]:
        """Join the segments of a partition into few bins, for charts.

        Segments that change meanwhile may be seen as they are later than the revision.

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
        """

    def import_remote_log_segments(self, imports: Iterable[SegmentImport]) -> ImportedSegments:
        """Import segments in any state, with their original times, for administrators.

        Each item is one transaction, with one event for each new or moved segment; `imports` is
        read item by item. Adds partitions, raises the highest broker leader epoch of each to that
        of its segments, and is not fenced by it. An equal segment is a repeat, within an item too,
        also if it is in a later state by now: an import that broke off can be repeated, whatever
        retention did meanwhile. One that is stored in an earlier state moves to that of the item,
        past the states between, whatever holds and retention owner it has: its source has moved it.

        The position of the item's source moves with it, if the stored one is `previous_position`.
        If it is `position` already, the item was imported before, and all of it is a repeat. With a
        position a partition may be in removal; one that was removed takes nothing, which is
        counted. The deletions of partitions come last, and only forward; one that is to be finished
        while segments are left is imported as DELETE_PARTITION_STARTED, so that removal deletes
        them.

        All answers are then as if the segments had been added, and had reached their states, in
        this order. The earlier states of a segment are not known: only one in
        COPY_SEGMENT_FINISHED counts as finished, for the highest offsets of its epochs too, and
        one in DELETE_SEGMENT_STARTED counts as a copy that failed. One in
        DELETE_SEGMENT_FINISHED is a tombstone, stored as long as any other.

        One in COPY_SEGMENT_FINISHED that ends below the tier's log start is imported as
        DELETE_SEGMENT_STARTED: retention has deleted it before, or was about to. On a topic on hold
        it is imported as it is. One in COPY_SEGMENT_STARTED has no lease.

        Raises; earlier items are committed and the item itself is rolled back; the message ends
        with the number of the item, from 1 on:
            InvalidRequestError: an item without segments and position, with too many, with more
                than MAX_IMPORTED_EPOCHS, or without a position and of several partitions; another
                field of the context; a topic id under another name.
            SegmentAlreadyExistsError: the id is there with other content.
            InvalidStateTransitionError: without a position: the partition is being deleted or was
                deleted.
            ConcurrentUpdateError: the stored position is another one.
        """

    def list_source_positions(self, cluster_id: str = "") -> list[SourcePosition]:
        """Return how far metadata topics have been imported, by cluster and partition.

        Args:
            cluster_id: only those of this cluster; "" for all.
        """

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
        cluster_id: str | None = None,
    ) -> None:
        """Register which partitions a broker leads and follows; idempotent.

        Adds the partitions and raises the highest broker leader epoch of each if one is given; a
        lower one changes nothing.

        Args:
            cluster_id: Kafka's, of the broker's cluster; None: unknown. Recorded for topics that
                have none; it does not replace another one.

        Raises:
            InvalidRequestError: a topic id under another name; cluster_id is empty, or longer than
                MAX_CLUSTER_ID_LENGTH.
        """

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        """Register that the broker no longer has these replicas. Changes no metadata."""

    def announce_endpoint(
        self, endpoint: RlmEndpoint, instance_id: UUID, lease_ms: int
    ) -> list[RlmEndpoint]:
        """Announce where an RLM is reached; return the live ones of its cluster, by broker id.

        One of each broker: the one that was announced last.

        Args:
            instance_id: of the process.
            lease_ms: it lives from now on so long, by the database's clock, if it is not announced
                again; 0: it stops.

        Raises:
            ConcurrentUpdateError: another process has announced an RLM of this log directory, and
                its lease lasts; names its address.
            InvalidRequestError: a field is out of bounds.
        """

    def report_partition_state(
        self, reports: Sequence[PartitionReport], polled_logs: Sequence[PolledLog] = ()
    ) -> list[ReportOutcome]:
        """Store up to MAX_REPORTS reports of leaders, with MAX_REPORTED_EPOCHS in all; return the
        state of each partition after it, in order. An error is that item's and stops no other.

        Adds partitions. A report joins the broker's leader epochs to the stored lineage
        (Lineage.merged_with_report, then from_offset of the log start), and raises the highest
        broker leader epoch. The partition's revision rises only if one of these changes, or if the
        partition is new: figures are not events. Idempotent: the same report again only renews its
        time. If the call itself fails, some reports may be stored and others not.

        Args:
            polled_logs: up to MAX_REPORTS. They change nothing but the state's polled_log, and have
                no outcome. One of a partition that is not known, or of a lower leader epoch than
                the stored one, is ignored.

        Raises:
            InvalidRequestError: neither reports nor polled logs, or too many.

        Items' errors:
            InvalidRequestError: a topic id under another name; too many leader epochs.
            FencedLeaderEpochError: its leader epoch is below the partition's highest.
            ConcurrentUpdateError: the stored report of that leader epoch has a larger number, or
                this number with another content; the message names the number.
            InvalidStateTransitionError: the partition was deleted.
        """

    def raise_log_start_offset(
        self,
        topic_id_partition: TopicIdPartition,
        log_start_offset: int,
        context: MutationContext = NO_CONTEXT,
        *,
        restores: bool = False,
    ) -> MutationOutcome:
        """Raise the tier's log start to at least `log_start_offset`.

        Never lowers it: an offset at or below it is a repeat. Cuts the lineage to it
        (Lineage.from_offset).

        Args:
            restores: it was raised before the database was lost or set back: raise it again,
                whatever holds and retention owner it has, and up to the end of the partition if it
                is above that. Only while a REBUILD hold lasts.

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
            InvalidRangeError: above both the reported high watermark and the end of what has
                finished.
            FencedLeaderEpochError: an epoch below the partition's highest.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
            DeletionRefusedError: a hold keeps an offset below the new log start; or the context's
                retention owner is not the topic's; or it `restores`, and no REBUILD hold lasts.
        """

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        """Move a partition's deletion to its next state: MARKED, STARTED, FINISHED, in this order.

        The same state again, and MARKED in any later state, is a repeat. From MARKED on no segment
        may be added; a copy that has begun may finish. After FINISHED the partition is not known.

        Raises:
            RemoteResourceNotFoundError: the partition is not known (STARTED, FINISHED).
            InvalidStateTransitionError: out of order; FINISHED while segments remain.
            FencedLeaderEpochError: MARKED under an epoch below the partition's highest.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
            DeletionRefusedError: STARTED of a partition on hold; MARKED during a rebuild.
        """

    def partition_state(self, topic_id_partition: TopicIdPartition) -> AtRevision[PartitionState]:
        """Return the tier's log start and lineage and the leader's latest report, of one moment."""

    def list_partitions(
        self,
        *,
        topic: str = "",
        delete_states: Sequence[RemotePartitionDeleteState] = (),
        cluster_id: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> PartitionPage:
        """Return one page of the known partitions, by topic id and partition.

        Args:
            topic: only of topics with this name; "": of all.
            delete_states: only those in one of these, those in DELETE_PARTITION_FINISHED until
                their topic is purged; empty: all that are not removed.
            cluster_id: only of topics recorded with this cluster; "": of all.
        """

    def partition_revisions(self, partitions: Sequence[TopicIdPartition]) -> list[int]:
        """Return the revisions of up to MAX_REVISIONS partitions, in their order; 0: not known.

        Raises:
            InvalidRequestError: no partitions, or too many; a topic id under another name.
        """

    def watch_partitions(
        self, partitions: Sequence[WatchedPartition]
    ) -> Generator[WatchUpdate, None, None]:
        """Yield the changes of up to MAX_WATCHED partitions, whichever process makes them.

        The first update has every partition, with what has changed since the revision that the
        client knows; each later one what was committed since. There is an update at least every
        HEARTBEAT_S. Lasts until it is closed or fails: then watch again from the revisions that
        have arrived.

        Raises:
            InvalidRequestError: no partitions, too many, or one twice; a topic id under another
                name.
            ThrottledError: too many watches; or the client is too slow to read the changes.
            RetriableRemoteStorageError: the changes cannot be read, or the service stops.
        """

    def list_events(
        self, query: EventQuery, *, page_size: int = 0, page_token: str = ""
    ) -> EventPage:
        """Return one page of a partition's audit trail, ascending by revision, without gaps from
        the oldest event that is stored. Also of a partition that was deleted.

        A page may have fewer events than requested, even none, though others follow: it is one
        message, and reads a bounded number of events.

        Args:
            page_size: 0 means DEFAULT_PAGE_SIZE; above MAX_PAGE_SIZE means MAX_PAGE_SIZE.
            page_token: of the page before, from the same query.

        Raises:
            RemoteResourceNotFoundError: there never was such a partition.
            InvalidRequestError: a negative page size; not a token of this query.
        """

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        """Return whether the database can be reached and has a schema that this release works on
        (KIP-1105). The same for every partition; never raises for these."""

    def record_gap(
        self,
        topic_id_partition: TopicIdPartition,
        gap: OffsetGap,
        broker_id: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        """Record offsets that the tier will never have, of one of GAP_KINDS.

        A range within a recorded one is a repeat, and so is one below the log start, or below
        MAX_GAPS recorded gaps; a repeat is neither fenced nor checked for expectations. Ranges that
        overlap or touch become one; of more than MAX_GAPS the lowest are deleted.

        A gap has the leader epoch that it was recorded under: the context's, or the partition's
        highest; of joined ranges the earliest. When a report has later epochs, their offsets are
        removed from the gap: they hold other records now.

        A copy may still finish in a gap, for example when a lost disk returns. Reads find what is
        finished, whatever is recorded.

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
            FencedLeaderEpochError: an epoch below the partition's highest.
            InvalidStateTransitionError: a finished segment, of whatever leader epochs, holds one
                of the offsets.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
        """

    def set_hold(self, hold: Hold, lease_ms: int | None = None) -> Hold:
        """Keep offsets from deletion; return the hold as it is stored.

        When it returns, nothing that the hold keeps begins to be deleted, by whichever service
        (services.api.holds); what began before continues. A name that lasts in the same scope is
        replaced: an export's first offset never falls, a legal hold only grows, a rebuild's stays
        as it is. No event: revisions stay.

        Args:
            lease_ms: it lasts from now on so long, by the database's clock; None: by its until_ms.

        Raises:
            RemoteResourceNotFoundError: its topic or partition is not known.
            InvalidRequestError: a field is out of bounds or does not suit its kind; until_ms is
                past; the name is of another kind of hold; MAX_HOLDS others last in its scope.
        """

    def end_hold(self, hold: Hold, context: MutationContext = NO_CONTEXT) -> Hold | None:
        """End a hold; return what it was, or None if there was none.

        Args:
            hold: of which the name, the kind and the scope count.
            context: only its `reason` may be set.

        Raises:
            RemoteResourceNotFoundError: its topic is not known.
            InvalidRequestError: the name is of another kind of hold.
        """

    def list_holds(self, topic: str = "", *, page_size: int = 0, page_token: str = "") -> HoldPage:
        """Return one page of the holds that last, in an order of RLMM's own.

        Args:
            topic: only of topics with this name, and of all topics; "" for every hold.

        Raises:
            InvalidRequestError: a negative page size; not a token of this query.
        """

    def replace_segment_data(
        self,
        segment_id: RemoteLogSegmentId,
        expected_custom_metadata: bytes,
        new_custom_metadata: bytes,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        """Let a finished segment be read from another copy, that RSM returned the new bytes for.

        It stays in COPY_SEGMENT_FINISHED, where look-ups prefer it as before. The event has this
        state before and after. New custom metadata that the segment has is a repeat. Neither fenced
        nor stopped by a hold: the segment's records are the same.

        Raises:
            RemoteResourceNotFoundError: the segment id or its partition is not known.
            InvalidStateTransitionError: it is in another state.
            ConcurrentUpdateError: it has neither of the two; or not the context's
                expected_revision or expected_config_revision.
            CustomMetadataTooLargeError: the new custom metadata is too long.
        """

    def undelete_partition(
        self, topic_id_partition: TopicIdPartition, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        """Undo DELETE_PARTITION_MARKED; one that is not being deleted is a repeat.

        Segments that finished or were deleted meanwhile stay so. The topic's recorded cluster is
        deleted, so that no RLM that starts later marks the partition again because that cluster no
        longer has the topic.

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
            InvalidStateTransitionError: it is in DELETE_PARTITION_STARTED.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
        """

    def reset_leader_epoch(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        """Set the partition's highest broker leader epoch, also to a lower one; None: unknown.

        The epoch that it has is a repeat. The context's own broker_leader_epoch is ignored.

        A stored report of a leader epoch above the new one is overruled for good: reads do not
        return it, whatever the epoch becomes later, and the next report replaces it, whatever its
        epoch and number. The lineage stays until then.

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
        """

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        """Return a topic's settings; revision 0 if none were ever put.

        Raises:
            RemoteResourceNotFoundError: the topic id is not known.
        """

    def put_topic_config(
        self,
        topic_id: UUID,
        entries: Mapping[str, str],
        expected_revision: int | None = None,
        context: MutationContext = NO_CONTEXT,
        *,
        now: bool = False,
    ) -> StoredTopicConfig:
        """Replace all settings of a topic; return what is stored then.

        When it returns, nothing that the new settings forbid begins any more. What only the new
        settings delete waits for sediment.retention.change.delay.ms, unless they are put with
        `now`. Idempotent: entries that are stored already change nothing.

        Args:
            entries: Kafka's names and texts, services.api.topic_config.
            expected_revision: of the topic's settings before; None: any.
            context: only its `reason` may be set.
            now: they count as if they had always been in force; also if they are stored already,
                and wait.

        Raises:
            RemoteResourceNotFoundError: the topic id is not known.
            InvalidRequestError: an unknown name, a bad value, a contradiction, a delay that is
                lowered without `now`; names the setting.
            ConcurrentUpdateError: the settings have another revision.
        """

    def confirm_deletions(
        self,
        topic_id: UUID,
        expected_config_revision: int,
        context: MutationContext = NO_CONTEXT,
    ) -> StoredTopicConfig:
        """Let deletions of a topic pass the bound of a day until its settings change.

        RLMM refuses marks, and log starts that delete segments, once more than
        DAILY_DELETION_PERCENT of the tier and more than DAILY_DELETION_BYTES would be marked on one
        day (UTC); marks of confirmed topics do not count. Idempotent.

        Args:
            expected_config_revision: of the settings by which the deletions were checked.
            context: only its `reason` may be set.

        Raises:
            RemoteResourceNotFoundError: the topic id is not known.
            ConcurrentUpdateError: the settings have another revision.
        """

    def report_anomalies(self, anomalies: Sequence[Anomaly], run_id: str) -> None:
        """Store up to MAX_ANOMALIES anomalies that one run found, all or none.

        A known anomaly is counted again and gets the new detail. Idempotent by run: the same
        anomaly of the same run, in this call or in another, counts once. RLMM remembers the last
        ten runs that saw an anomaly.

        Raises:
            InvalidRequestError: none or too many; an anomaly that cannot be stored; a run id that
                is empty or longer than MAX_TEXT_LENGTH characters.
        """

    def list_anomalies(
        self, query: AnomalyQuery = ALL_ANOMALIES, *, page_size: int = 0, page_token: str = ""
    ) -> AnomalyPage:
        """Return one page of the anomalies, without those of kinds that only a later release knows.

        It may have fewer than requested, at least one, though others follow: it is one message.

        Raises:
            InvalidRequestError: a negative page size; not a token of this query.
        """

    def report_tool_run(self, run: ToolRun, counts: Sequence[RunCounts]) -> None:
        """Record that a run has ended, with up to MAX_RUN_COUNTS counts, all or none.

        Each replaces what an earlier run recorded of the same kind, part and number of parts, for
        its topic, or for the run's topics if it has no topic. Of these without a topic the latest
        100 of a kind are stored. Omits topics that are not known. Idempotent.

        Raises:
            InvalidRequestError: none or too many; a text that cannot be stored.
        """

    def list_tool_runs(
        self, topic: str = "", *, page_size: int = 0, page_token: str = ""
    ) -> RunPage:
        """Return one page of the last runs of each kind and topic, or topics of a run.

        Kinds and outcomes that only a later release knows are omitted.

        Args:
            topic: only what was recorded for topics of this name; "" for everything, of topics that
                have a known partition.

        Raises:
            InvalidRequestError: a negative page size; not a token of this query.
        """

    def record_object_deletions(
        self,
        topic_id_partition: TopicIdPartition,
        deletions: Sequence[ObjectDeletion],
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        """Record up to MAX_OBJECT_DELETIONS objects before they are deleted, an event for each.

        Segments need not be known. The outcome has the revision of the last event.

        Raises:
            InvalidRequestError: none or too many; a key that cannot be stored.
            RemoteResourceNotFoundError: the partition is not known, and has no audit trail.
            ConcurrentUpdateError: not the context's expected_revision or expected_config_revision.
        """


# Each yields the items of all pages of the list that it is made of.
all_segments = every_item(
    RemoteLogMetadataManager.list_remote_log_segments, lambda page: page.segments
)
"""Yield the segments of a partition; those added or removed meanwhile may be missing, none comes
twice.
"""

all_kept_segments = every_item(
    RemoteLogMetadataManager.list_kept_segments, lambda page: page.segments
)
all_partitions = every_item(RemoteLogMetadataManager.list_partitions, lambda page: page.partitions)
all_events = every_item(RemoteLogMetadataManager.list_events, lambda page: page.events)
all_anomalies = every_item(RemoteLogMetadataManager.list_anomalies, lambda page: page.anomalies)
all_tool_runs = every_item(RemoteLogMetadataManager.list_tool_runs, lambda page: page.runs)
all_holds = every_item(RemoteLogMetadataManager.list_holds, lambda page: page.holds)


def segments_by_id(
    manager: RemoteLogMetadataManager, topic_id_partition: TopicIdPartition, ids: Sequence[UUID]
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield those of any number of segments that are known, one answer in memory at a time.

    In no order, each as it was when it was read.
    """
    missing = list(dict.fromkeys(ids))
    while missing:
        asked = missing[:MAX_BATCH]
        found = manager.remote_log_segment_metadata_by_id(topic_id_partition, asked).value
        yield from found
        has = {segment.remote_log_segment_id.id for segment in found}
        # An empty answer: none of the requested ones is known.
        missing = missing[len(asked) :] + [id for id in asked if has and id not in has]


def latest_event(
    manager: RemoteLogMetadataManager,
    query: EventQuery,
    revision: int,
    is_wanted: Callable[[PartitionEvent], bool],
) -> PartitionEvent | None:
    """Return the last wanted event of the query up to a revision, or None if none is stored.

    Searches the latest ones first, because an audit trail is long.
    """
    count = _LATEST_EVENTS
    while True:
        after_revision = max(query.after_revision, revision - count)
        last = None
        for event in all_events(manager, replace(query, after_revision=after_revision)):
            if event.revision > revision:
                break
            last = event if is_wanted(event) else last
        if last is not None or after_revision == query.after_revision:
            return last
        count *= 10
