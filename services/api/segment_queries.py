"""RLMM: which segments there are, by offset, by id, in lists and in bulk."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from services.api.calls import AtRevision
from services.api.ids import TopicIdPartition
from services.api.segment_batches import MAX_BATCH, LookupOutcome, SegmentLookup
from services.api.segment_scan import SegmentBatch, SegmentScan
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import RetentionOwner

DEFAULT_PAGE_SIZE = 500


MAX_PAGE_SIZE = 2000


@dataclass(frozen=True, slots=True)
class SegmentPage:
    """Some of a partition's segments.

    Attributes:
        next_page_token: opaque; hand it back with the same query for what follows. "": the end.
        revision: of the partition when this page was read.
        not_modified: the partition still has the revision the caller named; `segments` is empty.
        log_start_offset: of the tier, at that revision: what lies below is gone or going.
    """

    segments: tuple[RemoteLogSegmentMetadata, ...]
    next_page_token: str
    revision: int
    not_modified: bool = False
    log_start_offset: int = 0


class SegmentQueries(Protocol):
    """What reads segments; a part of RemoteLogMetadataManager, which says what holds for all."""

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

    def remote_log_segment_metadata_batch(
        self, lookups: Sequence[SegmentLookup]
    ) -> list[LookupOutcome]:
        """remote_log_segment_metadata of up to MAX_BATCH offsets; one outcome each, in order, all
        read at once. An error is that item's and stops no other.

        Raises:
            InvalidRequestError: the batch is empty or too large.

        Items' errors:
            ThrottledError: the segments before it fill the answer already; ask again for this one.
        """
        ...

    def remote_log_segment_metadata_by_id(
        self, topic_id_partition: TopicIdPartition, ids: Sequence[UUID]
    ) -> AtRevision[tuple[RemoteLogSegmentMetadata, ...]]:
        """Those of up to MAX_BATCH segments that are known, in any state, ascending by start
        offset. DELETE_SEGMENT_FINISHED is known until its tombstone is purged.

        An answer holds fewer where so many would not fit into a message, at least one:
        segments_by_id asks until it has all.

        Raises:
            InvalidRequestError: no ids, or too many.
        """
        ...

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        """The first segment from (epoch, offset) on, within the epoch, whose transaction index is
        not known to be empty; None at the first gap and at the epoch's end (KIP-1058)."""
        ...

    def earliest_log_offset(self, topic_id_partition: TopicIdPartition) -> AtRevision[int | None]:
        """The first offset that the tier has: the smallest of the finished segments, not below the
        tier's log start. None: no finished segment reaches the log start."""
        ...

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        """The highest offset (inclusive) ever finished in `leader_epoch`; never falls, not by
        deletion either. None: nothing has finished in it."""
        ...

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        """Bytes of the segments that list_remote_log_segments names for the epoch, in any state;
        one that spans epochs counts whole in each (KIP-852). An unknown epoch: 0."""
        ...

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
        """One page of the segments not yet DELETE_SEGMENT_FINISHED, ascending by start offset.

        Args:
            leader_epoch: only segments with records of this epoch; an unknown one: none.
            states: only these; empty: all.
            min_offset: only segments with end_offset >= min_offset.
            if_revision_not: answer `not_modified` where the partition has this revision still.
            deletes_for: for whom the caller is about to delete of what is listed; None: it only
                reads. Kafka raises its log start before it asks for the first deletion, so that a
                refusal of that comes too late.
            page_size: 0 means DEFAULT_PAGE_SIZE; above MAX_PAGE_SIZE means MAX_PAGE_SIZE. A page
                holds fewer where so many would not fit into a message.
            page_token: of the page before, from the same query.

        Raises:
            InvalidRequestError: a negative page size; a token of another query or of nobody.
            DeletionRefusedError: `deletes_for` may not delete a finished segment of the topic now.
        """
        ...

    def scan_remote_log_segments(self, scan: SegmentScan) -> Iterator[SegmentBatch]:
        """Stream the segments of one shard in columns: bulk reading, for sweeps.

        Each shard is whole partitions, the same in every scan of so many shards. A partition's
        rows come one after another, ascending by start offset, read by one statement with the
        partition's revision; across partitions the scan is fuzzy. Closing the iterator early ends
        the scan.
        """
        ...


def all_segments(
    manager: SegmentQueries,
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


def segments_by_id(
    manager: SegmentQueries, topic_id_partition: TopicIdPartition, ids: Sequence[UUID]
) -> Iterator[RemoteLogSegmentMetadata]:
    """Those of any number of segments that are known, in no order, one answer in memory at a time.

    Each as it was when it was read.
    """
    missing = list(dict.fromkeys(ids))
    while missing:
        asked = missing[:MAX_BATCH]
        found = manager.remote_log_segment_metadata_by_id(topic_id_partition, asked).value
        yield from found
        has = {segment.remote_log_segment_id.id for segment in found}
        # Where there is nothing of what is asked for, nothing of it is known.
        missing = missing[len(asked) :] + [id for id in asked if has and id not in has]
