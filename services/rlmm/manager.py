"""RLMM in process, on PostgreSQL: satisfies services.api's RemoteLogMetadataManager."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partition_events import EventPage, EventQuery
from services.api.partition_state import PartitionReport, PartitionState
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    MAX_REPORTED_EPOCHS,
    MAX_REPORTS,
    PartitionLeadership,
    PartitionPage,
    RemoteLogMetadataManager,
    ReportOutcome,
    SegmentPage,
    SegmentUpdate,
    UpdateOutcome,
)
from services.api.segment_batches import (
    AddOutcome,
    LookupOutcome,
    SegmentAddition,
    SegmentLookup,
)
from services.api.segment_scan import SegmentBatch, SegmentScan
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.topic_config import RetentionOwner, StoredTopicConfig, topic_config
from services.api.validation import require, require_int32, require_int64
from services.rlmm import (
    batch_lookups,
    event_listings,
    listings,
    log_starts,
    lookups,
    page_tokens,
    partition_states,
    partitions,
    scans,
    segment_additions,
    segment_batches,
    segment_reads,
    segments,
    topic_configs,
)
from services.rlmm.guards import require_owner_may_delete
from services.rlmm.limits import Limits, check_storable
from services.rlmm.outcomes import applied_once
from services.rlmm.schema import is_usable, known_revision, revision_in
from services.rlmm.transactions import Transactions

MAX_LEADERSHIP_CHANGES = 20_000
"""Partitions in one call of on_partition_leadership_changes, which is one transaction."""


class SqlRemoteLogMetadataManager:
    """The contract is the Protocol's. Stateless over the database: any number may run beside
    each other. The schema is made by services.rlmm.schema.upgrade, never here."""

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        self._transactions = Transactions(engine)
        self._limits = limits or Limits()
        self._database = f"{engine.url.host}:{engine.url.port}/{engine.url.database}"

    def add_remote_log_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        self._limits.check_addition(metadata)
        check_storable(context)

        def work(session: Session) -> MutationOutcome:
            partition = partitions.lock_or_create(session, metadata.topic_id_partition)
            return applied_once(
                session,
                partition,
                metadata,
                context,
                lambda: segments.add(session, partition, metadata, context),
            )

        return self._transactions.change(work)

    def add_remote_log_segment_metadata_batch(
        self, additions: Sequence[SegmentAddition]
    ) -> list[AddOutcome]:
        return segment_additions.add_all(self._transactions, self._limits, additions)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        self._limits.check_update(update)
        check_storable(context)
        tp = update.remote_log_segment_id.topic_id_partition

        def work(session: Session) -> MutationOutcome:
            partition = partitions.lock_known(session, tp)
            return applied_once(
                session,
                partition,
                update,
                context,
                lambda: segments.move(session, partition, update, context),
            )

        return self._transactions.change(work)

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        return segment_batches.update_all(self._transactions, self._limits, updates)

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        check_storable(context)
        tp = metadata.topic_id_partition
        is_first = metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        lock = partitions.lock_or_create if is_first else partitions.lock_known

        def work(session: Session) -> MutationOutcome:
            partition = lock(session, tp)
            return applied_once(
                session,
                partition,
                metadata,
                context,
                lambda: partitions.move_deletion(session, partition, metadata, context),
            )

        return self._transactions.change(work)

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
    ) -> None:
        """All or nothing; locks topics, then partitions in the order of (topic id, partition)."""
        require_int32(broker_id, "broker_id", at_least=-1)
        count, most = len(leaders) + len(followers), MAX_LEADERSHIP_CHANGES
        require(count <= most, "leaders, followers", f"at most {most} partitions, has {count}")
        changes = sorted({*leaders, *followers}, key=_highest_epoch_of_each_partition_first)

        def work(session: Session) -> None:
            partitions.lock_topics(session, [change.topic_id_partition for change in changes])
            for change in changes:
                partitions.announce(session, change, broker_id)

        self._transactions.change(work)

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        """RLMM keeps nothing for a broker's replica that would have to end with it."""
        require_int32(broker_id, "broker_id", at_least=-1)

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch_for_offset, "epoch_for_offset")
        require_int64(offset, "offset")
        return self._transactions.read(
            lambda connection: lookups.find_segment(
                connection,
                lookups.SEGMENT_FOR_OFFSET,
                topic_id_partition,
                epoch_for_offset,
                offset,
            )
        )

    def remote_log_segment_metadata_batch(
        self, lookups: Sequence[SegmentLookup]
    ) -> list[LookupOutcome]:
        batch_lookups.check_lookups(lookups)
        return self._transactions.read(
            lambda connection: batch_lookups.find_segments(connection, lookups)
        )

    def remote_log_segment_metadata_by_id(
        self, topic_id_partition: TopicIdPartition, ids: Sequence[UUID]
    ) -> AtRevision[tuple[RemoteLogSegmentMetadata, ...]]:
        segment_reads.check_ids(ids)
        return self._transactions.read(
            lambda connection: segment_reads.segments_by_id(connection, topic_id_partition, ids)
        )

    def earliest_log_offset(self, topic_id_partition: TopicIdPartition) -> AtRevision[int | None]:
        return self._transactions.read(
            lambda connection: segment_reads.earliest_offset(connection, topic_id_partition)
        )

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch, "epoch")
        require_int64(offset, "offset")
        return self._transactions.read(
            lambda connection: lookups.find_segment(
                connection, lookups.NEXT_WITH_TXN_INDEX, topic_id_partition, epoch, offset
            )
        )

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        require_int32(leader_epoch, "leader_epoch")
        return self._transactions.read(
            lambda connection: lookups.highest_offset(connection, topic_id_partition, leader_epoch)
        )

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        require_int32(leader_epoch, "leader_epoch")
        return self._transactions.read(
            lambda connection: lookups.log_size(connection, topic_id_partition, leader_epoch)
        )

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
        query = listings.SegmentQuery(topic_id_partition, leader_epoch, states, min_offset)
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

    def list_partitions(
        self,
        *,
        topic: str = "",
        delete_states: Sequence[RemotePartitionDeleteState] = (),
        page_size: int = 0,
        page_token: str = "",
    ) -> PartitionPage:
        query = listings.PartitionQuery(topic, delete_states)
        limit = page_tokens.page_limit(page_size)
        after = page_tokens.decode(query.fingerprint(), page_token)
        return self._transactions.read(
            lambda connection: listings.list_partitions(connection, query, limit=limit, after=after)
        )

    def partition_revisions(self, partitions: Sequence[TopicIdPartition]) -> list[int]:
        segment_reads.check_partitions(partitions)
        return self._transactions.read(
            lambda connection: segment_reads.revisions(connection, partitions)
        )

    def list_events(
        self, query: EventQuery, *, page_size: int = 0, page_token: str = ""
    ) -> EventPage:
        event_listings.check_query(query)
        limit = page_tokens.page_limit(page_size)
        after = page_tokens.decode(event_listings.fingerprint(query), page_token)
        return self._transactions.read(
            lambda connection: event_listings.list_events(
                connection, query, limit=limit, after=after
            )
        )

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        return self._transactions.read(lambda connection: topic_configs.read(connection, topic_id))

    def put_topic_config(
        self,
        topic_id: UUID,
        entries: Mapping[str, str],
        expected_revision: int | None = None,
        context: MutationContext = NO_CONTEXT,
    ) -> StoredTopicConfig:
        topic_config(entries)  # refuses what cannot be stored, NUL and long texts among it
        check_storable(context)
        only_reason = context == MutationContext(reason=context.reason)
        require(only_reason, "context", "of its fields only reason may be set here")
        if expected_revision is not None:
            require_int64(expected_revision, "expected_revision")
        return self._transactions.change(
            lambda session: topic_configs.put(
                session, topic_id, entries, expected_revision, context
            )
        )

    def report_partition_state(self, reports: Sequence[PartitionReport]) -> list[ReportOutcome]:
        """Each report is a transaction of its own: one partition's lock at a time."""
        count = len(reports)
        require(1 <= count <= MAX_REPORTS, "reports", f"must be 1 to {MAX_REPORTS}, are {count}")
        epochs, most = sum(len(r.lineage.entries) for r in reports), MAX_REPORTED_EPOCHS
        require(epochs <= most, "reports", f"at most {most} leader epochs together, are {epochs}")
        return [self._take_report(report) for report in reports]

    def _take_report(self, report: PartitionReport) -> ReportOutcome:
        try:
            self._limits.check_report(report)
            return self._transactions.change(
                lambda session: partition_states.take_report(session, report)
            )
        except RetriableRemoteStorageError:
            raise  # the database's: it would be every later item's too
        except RemoteStorageError as e:
            return e

    def partition_state(self, topic_id_partition: TopicIdPartition) -> AtRevision[PartitionState]:
        return self._transactions.read(
            lambda connection: partition_states.read(connection, topic_id_partition)
        )

    def raise_log_start_offset(
        self,
        topic_id_partition: TopicIdPartition,
        log_start_offset: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        require_int64(log_start_offset, "log_start_offset")
        check_storable(context)
        change = log_starts.LogStartRaise(topic_id_partition, log_start_offset)

        def work(session: Session) -> MutationOutcome:
            partition = partitions.lock_known(session, topic_id_partition)
            return applied_once(
                session,
                partition,
                change,
                context,
                lambda: log_starts.raise_log_start(session, partition, change, context),
                # A lower offset repeats no event in particular.
                counts_repeats=False,
            )

        return self._transactions.change(work)

    def scan_remote_log_segments(self, scan: SegmentScan) -> Iterator[SegmentBatch]:
        return scans.scan_segments(self._transactions, scan)

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        try:
            self.check()
        except RemoteStorageError:
            return False
        return True

    def check(self) -> None:
        """Is the database usable at all?

        Raises:
            RetriableRemoteStorageError: it is unreachable, or its schema is older than this
                release's.
        """
        try:
            revision = self._transactions.read(revision_in)
        except RetriableRemoteStorageError as e:
            raise RetriableRemoteStorageError(f"{self._database}: {e}") from e
        if not is_usable(revision):
            raise RetriableRemoteStorageError(
                f"{self._database}: the database has schema revision {revision}, this release "
                f"needs {known_revision()}; `sediment db upgrade` makes it"
            )


def _highest_epoch_of_each_partition_first(change: PartitionLeadership) -> tuple[UUID, int, int]:
    """One that is named twice makes one event."""
    tp, epoch = change.topic_id_partition, change.leader_epoch
    return tp.topic_id, tp.partition, 1 if epoch is None else -epoch


if TYPE_CHECKING:

    def _satisfies(manager: SqlRemoteLogMetadataManager) -> RemoteLogMetadataManager:
        return manager
