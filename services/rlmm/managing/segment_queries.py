"""RLMM on SQL: which segments there are, by offset, by id, in lists and in bulk."""

from collections.abc import Iterator, Sequence
from uuid import UUID

from services.api.calls import AtRevision
from services.api.ids import TopicIdPartition
from services.api.segment_batches import MAX_BATCH, LookupOutcome, SegmentLookup
from services.api.segment_queries import SegmentPage
from services.api.segment_scan import SegmentBatch, SegmentScan
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import RetentionOwner
from services.api.validation import require_count, require_int32, require_int64
from services.rlmm import batch_lookups, listings, lookups, page_tokens, segment_reads
from services.rlmm.guards import require_owner_may_delete
from services.rlmm.limits import check_text
from services.rlmm.managing.database import OnDatabase
from services.rlmm.segment_page_statement import SegmentQuery


class SqlSegmentQueries(OnDatabase):
    """Satisfies services.api.segment_queries.SegmentQueries."""

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch_for_offset, "epoch_for_offset")
        require_int64(offset, "offset")
        return lookups.find_segment(
            self._transactions,
            lookups.SEGMENT_FOR_OFFSET,
            topic_id_partition,
            epoch_for_offset,
            offset,
        )

    def remote_log_segment_metadata_batch(
        self, lookups: Sequence[SegmentLookup]
    ) -> list[LookupOutcome]:
        require_count(lookups, "lookups", MAX_BATCH)
        return self._transactions.read(
            lambda connection: batch_lookups.find_segments(connection, lookups)
        )

    def remote_log_segment_metadata_by_id(
        self, topic_id_partition: TopicIdPartition, ids: Sequence[UUID]
    ) -> AtRevision[tuple[RemoteLogSegmentMetadata, ...]]:
        require_count(ids, "ids", MAX_BATCH)
        return self._transactions.read(
            lambda connection: segment_reads.segments_by_id(connection, topic_id_partition, ids)
        )

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch, "epoch")
        require_int64(offset, "offset")
        return lookups.find_segment(
            self._transactions, lookups.NEXT_WITH_TXN_INDEX, topic_id_partition, epoch, offset
        )

    def earliest_log_offset(self, topic_id_partition: TopicIdPartition) -> AtRevision[int | None]:
        return self._transactions.read(
            lambda connection: segment_reads.earliest_offset(connection, topic_id_partition)
        )

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        require_int32(leader_epoch, "leader_epoch")
        return lookups.highest_offset(self._transactions, topic_id_partition, leader_epoch)

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        require_int32(leader_epoch, "leader_epoch")
        return lookups.log_size(self._transactions, topic_id_partition, leader_epoch)

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
        query = SegmentQuery(topic_id_partition, leader_epoch, states, min_offset)
        if if_revision_not is not None:
            require_int64(if_revision_not, "if_revision_not")
        limit = page_tokens.page_limit(page_size)
        after = page_tokens.decode(query.fingerprint(), page_token)
        if deletes_for is not None:
            self._transactions.read(
                lambda connection: require_owner_may_delete(
                    connection, topic_id_partition, deletes_for
                )
            )
        return self._transactions.read(
            lambda connection: listings.list_segments(
                connection, query, if_revision_not=if_revision_not, limit=limit, after=after
            )
        )

    def scan_remote_log_segments(self, scan: SegmentScan) -> Iterator[SegmentBatch]:
        # Arrow, of which nothing else here knows, takes some 36 MiB: only where somebody scans.
        from services.rlmm import scans  # noqa: PLC0415

        check_text(scan.topic, "topic")
        return scans.scan_segments(self._transactions, scan)
