"""Run RLMM in process on PostgreSQL: each method of the contract checks and delegates."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import Engine

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.endpoints import RlmEndpoint, require_endpoint
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
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
from services.api.partitions import (
    GAP_KINDS,
    EventPage,
    EventQuery,
    OffsetGap,
    PartitionReport,
    PartitionState,
    PolledLog,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_metadata_manager import (
    MAX_REPORTED_EPOCHS,
    MAX_REPORTS,
    KeptPage,
    PartitionLeadership,
    PartitionPage,
    RemoteLogMetadataManager,
    RenewOutcome,
    ReportOutcome,
    SegmentPage,
    SegmentUpdate,
    UpdateOutcome,
)
from services.api.segment_batches import (
    MAX_BATCH,
    MAX_REVISIONS,
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
from services.api.topic_config import RetentionOwner, StoredTopicConfig, topic_config
from services.api.validation import require, require_count, require_int32, require_int64
from services.api.watches import WatchedPartition, WatchUpdate
from services.common.batches import batches
from services.rlmm.changes import (
    audit,
    endpoints,
    gaps,
    holds,
    leases,
    partition_states,
    partitions,
    polled_log_rows,
    replacements,
    segment_changes,
    source_positions,
    topic_configs,
)
from services.rlmm.changes.batch import change_partition
from services.rlmm.changes.group_commit import GroupCommit
from services.rlmm.changes.imports import import_all
from services.rlmm.changes.locked_partitions import LockedPartitions
from services.rlmm.changes.partitions import require_bounded
from services.rlmm.changes.segment_changes import apply_locked, apply_unlocked
from services.rlmm.database.db import Transactions
from services.rlmm.database.limits import Limits, Page, check_storable, check_text
from services.rlmm.database.schema_revision import is_usable, needed
from services.rlmm.database.shares import WatchLimits
from services.rlmm.deletion_bound import deletion_bound
from services.rlmm.guards import TOPIC_FIELD, require_owner_may_delete
from services.rlmm.operations import anomalies as anomaly_rows
from services.rlmm.operations import tool_runs
from services.rlmm.reads import listings, lookups, segment_bins
from services.rlmm.reads.listings import SegmentQuery
from services.rlmm.reads.lookups import find_segments
from services.rlmm.reads.watches import Watches


class SqlRemoteLogMetadataManager:
    """Satisfy services.api.remote_log_metadata_manager.RemoteLogMetadataManager; thread-safe.

    All state is in the database, whose schema services.rlmm.database.schema.upgrade creates.
    Several managers may run on the same database.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits | None = None,
        watch_limits: WatchLimits | None = None,
    ) -> None:
        self._transactions = Transactions(
            engine, self._require_usable, lambda: self._watches.read_soon()
        )
        self._bound = deletion_bound(engine)
        self._is_usable = False
        self._limits = limits or Limits()
        self._database = f"{engine.url.host}:{engine.url.port}/{engine.url.database}"
        self._change_partition = partial(change_partition, self._transactions)
        self._group_commit = GroupCommit(self._transactions, apply_unlocked, apply_locked)
        self._watches = Watches(engine, self._transactions, watch_limits)

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        addition = SegmentAddition(metadata, context, lease_ms)
        segment_changes.check_addition(self._limits, addition)
        return self._group_commit.change(addition)

    def add_remote_log_segment_metadata_batch(
        self, additions: Sequence[SegmentAddition]
    ) -> list[AddOutcome]:
        return segment_changes.add_all(self._transactions, self._limits, additions)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        change = SegmentUpdate(update, context)
        segment_changes.check_update(self._limits, change)
        return self._group_commit.change(change)

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        return segment_changes.update_all(self._transactions, self._limits, updates)

    def renew_copy_leases(
        self, segment_ids: Sequence[RemoteLogSegmentId], lease_ms: int, broker_id: int
    ) -> list[RenewOutcome]:
        return leases.renew_all(self._transactions, segment_ids, lease_ms, broker_id)

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch_for_offset, "epoch_for_offset")
        require_int64(offset, "offset")
        return lookups.segment_for_offset(
            self._transactions, topic_id_partition, epoch_for_offset, offset
        )

    def remote_log_segment_metadata_batch(
        self, lookups: Sequence[SegmentLookup]
    ) -> Iterator[LookupOutcome]:
        require_count(lookups, "lookups", MAX_BATCH)
        return self._transactions.read_each(lambda it: find_segments(it, lookups))

    def remote_log_segment_metadata_by_id(
        self, topic_id_partition: TopicIdPartition, ids: Sequence[UUID]
    ) -> AtRevision[tuple[RemoteLogSegmentMetadata, ...]]:
        require_count(ids, "ids", MAX_BATCH)
        return self._transactions.read(lookups.segments_by_id, topic_id_partition, ids)

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch, "epoch")
        require_int64(offset, "offset")
        return lookups.find_segment(
            self._transactions, lookups.NEXT_WITH_TXN_INDEX, topic_id_partition, epoch, offset
        )

    def earliest_log_offset(self, topic_id_partition: TopicIdPartition) -> AtRevision[int | None]:
        return self._transactions.read(lookups.earliest_offset, topic_id_partition)

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        require_int32(leader_epoch, "leader_epoch")
        return lookups.answer_of_epoch(
            self._transactions, lookups.HIGHEST_OFFSET, topic_id_partition, leader_epoch
        )

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        require_int32(leader_epoch, "leader_epoch")
        return lookups.answer_of_epoch(
            self._transactions, lookups.LOG_SIZE, topic_id_partition, leader_epoch
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
        query = SegmentQuery(topic_id_partition, leader_epoch, states, min_offset)
        if if_revision_not is not None:
            require_int64(if_revision_not, "if_revision_not")
        page = Page.of(query.fingerprint(), page_size, page_token)
        if deletes_for is not None:
            self._transactions.read(require_owner_may_delete, topic_id_partition, deletes_for)
        return self._transactions.read(listings.list_segments, query, if_revision_not, page)

    def list_kept_segments(
        self,
        *,
        topic: str = "",
        due_only: bool = False,
        page_size: int = 0,
        page_token: str = "",
    ) -> KeptPage:
        check_text(topic, "topic")
        page = Page.of(("kept", topic, due_only), page_size, page_token)
        return self._transactions.read(listings.list_kept, topic, due_only, page)

    def scan_remote_log_segments(self, scan: SegmentScan) -> Iterator[SegmentBatch]:
        # Arrow takes some 36 MiB and only scans need it.
        from services.rlmm.reads import scans  # noqa: PLC0415

        check_text(scan.topic, "topic")
        return scans.scan_segments(self._transactions, scan)

    def bin_remote_log_segments(self, query: BinQuery) -> AtRevision[BinnedSegments]:
        return self._transactions.read_in_transaction(segment_bins.read, query)

    def import_remote_log_segments(self, imports: Iterable[SegmentImport]) -> ImportedSegments:
        return import_all(self._transactions, self._limits, imports)

    def list_source_positions(self, cluster_id: str = "") -> list[SourcePosition]:
        check_text(cluster_id, "cluster_id")
        return self._transactions.read(source_positions.list_positions, cluster_id)

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
        cluster_id: str | None = None,
    ) -> None:
        require_int32(broker_id, "broker_id", at_least=-1)
        if cluster_id is not None:
            partitions.check_cluster_id(cluster_id)
        require_bounded(leaders, "leaders")
        require_bounded(followers, "followers")
        self._transactions.change(
            partitions.announce_all, leaders, followers, broker_id, cluster_id
        )

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        """Check the arguments only, because RLMM keeps no state for a broker's replica."""
        require_bounded(partitions, "partitions")
        require_int32(broker_id, "broker_id", at_least=-1)

    def announce_endpoint(
        self, endpoint: RlmEndpoint, instance_id: UUID, lease_ms: int
    ) -> list[RlmEndpoint]:
        require_endpoint(endpoint, lease_ms)
        return self._transactions.change(endpoints.announce, endpoint, instance_id, lease_ms)

    def report_partition_state(
        self, reports: Sequence[PartitionReport], polled_logs: Sequence[PolledLog] = ()
    ) -> list[ReportOutcome]:
        """Store each report in a transaction of its own, with one partition's lock at a time.

        All polled logs are stored in one transaction, without the partitions' locks.
        """
        if reports or not polled_logs:
            require_count(reports, "reports", MAX_REPORTS)
        lineages = [*(r.lineage for r in reports), *(log.lineage for log in polled_logs)]
        epochs = sum(len(lineage.entries) for lineage in lineages)
        most = MAX_REPORTED_EPOCHS
        require(epochs <= most, "reports", f"at most {most} leader epochs together, are {epochs}")
        if polled_logs:
            require_count(polled_logs, "polled_logs", MAX_REPORTS)
            for log in polled_logs:
                self._limits.check_report(log)
            self._transactions.change(polled_log_rows.store, polled_logs)
        outcomes: list[ReportOutcome] = []
        for some in batches(reports, partition_states.MAX_REPORTS_AT_ONCE):
            outcomes += self._store_reports(some)
        return outcomes

    def raise_log_start_offset(
        self,
        topic_id_partition: TopicIdPartition,
        log_start_offset: int,
        context: MutationContext = NO_CONTEXT,
        *,
        restores: bool = False,
    ) -> MutationOutcome:
        require_int64(log_start_offset, "log_start_offset")
        rise = partition_states.LogStartRaise(topic_id_partition, log_start_offset, restores)
        return self._change_partition(rise, context, partition_states.raise_log_start)

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        is_first = metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        lock = LockedPartitions.lock_or_create if is_first else LockedPartitions.lock
        field = f"metadata.{TOPIC_FIELD}"
        return self._change_partition(metadata, context, partitions.move_deletion, lock, field)

    def partition_state(self, topic_id_partition: TopicIdPartition) -> AtRevision[PartitionState]:
        return self._transactions.read(partition_states.read, topic_id_partition)

    def list_partitions(
        self,
        *,
        topic: str = "",
        delete_states: Sequence[RemotePartitionDeleteState] = (),
        cluster_id: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> PartitionPage:
        query = listings.PartitionQuery(topic, delete_states, cluster_id)
        page = Page.of(query.fingerprint(), page_size, page_token)
        return self._transactions.read(listings.list_partitions, query, page)

    def partition_revisions(self, partitions: Sequence[TopicIdPartition]) -> list[int]:
        require_count(partitions, "partitions", MAX_REVISIONS)
        return self._transactions.read(lookups.revisions, partitions)

    def watch_partitions(
        self, partitions: Sequence[WatchedPartition]
    ) -> Generator[WatchUpdate, None, None]:
        return self._watches.watch(partitions)

    def list_events(
        self, query: EventQuery, *, page_size: int = 0, page_token: str = ""
    ) -> EventPage:
        page = Page.of(audit.fingerprint(query), page_size, page_token)
        return self._transactions.read(audit.list_events, query, page)

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        try:
            self.check()
        except RemoteStorageError:
            return False
        return True

    def record_gap(
        self,
        topic_id_partition: TopicIdPartition,
        gap: OffsetGap,
        broker_id: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        known = ", ".join(GAP_KINDS)
        require(gap.kind in GAP_KINDS, "gap.kind", f"must be {known}, is {gap.kind[:64]!r}")
        require_int32(broker_id, "broker_id", at_least=-1)
        loss = gaps.GapRecord(topic_id_partition, gap, broker_id)
        return self._change_partition(loss, context, gaps.record_gap)

    def set_hold(self, hold: Hold, lease_ms: int | None = None) -> Hold:
        holds.check(hold, lease_ms)
        return self._transactions.change(holds.set_hold, hold, lease_ms)

    def end_hold(self, hold: Hold, context: MutationContext = NO_CONTEXT) -> Hold | None:
        check_text(hold.name, "hold.name")
        _require_only_reason(context, "a hold")
        return self._transactions.change(holds.end_hold, hold, context.reason)

    def list_holds(self, topic: str = "", *, page_size: int = 0, page_token: str = "") -> HoldPage:
        page = Page.of(holds.fingerprint(topic), page_size, page_token)
        return self._transactions.read(holds.list_holds, topic, page)

    def replace_segment_data(
        self,
        segment_id: RemoteLogSegmentId,
        expected_custom_metadata: bytes,
        new_custom_metadata: bytes,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        self._limits.check_replacement(new_custom_metadata)
        replacement = replacements.SegmentReplacement(
            segment_id, expected_custom_metadata, new_custom_metadata
        )
        field = f"segment_id.{TOPIC_FIELD}"
        return self._change_partition(replacement, context, replacements.replace_data, field=field)

    def undelete_partition(
        self, topic_id_partition: TopicIdPartition, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        undeletion = partitions.Undeletion(topic_id_partition)
        lock = partitions.lock_to_undelete
        return self._change_partition(undeletion, context, partitions.undelete, lock)

    def reset_leader_epoch(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        if leader_epoch is not None:
            require_int32(leader_epoch, "leader_epoch")
        reset = partition_states.LeaderEpochReset(topic_id_partition, leader_epoch)
        return self._change_partition(reset, context, partition_states.reset_leader_epoch)

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        return self._transactions.read(topic_configs.read, topic_id)

    def put_topic_config(
        self,
        topic_id: UUID,
        entries: Mapping[str, str],
        expected_revision: int | None = None,
        context: MutationContext = NO_CONTEXT,
        *,
        now: bool = False,
    ) -> StoredTopicConfig:
        topic_config(entries)  # Refuses entries that cannot be stored, such as NUL and long texts.
        _require_only_reason(context, "topic settings")
        if expected_revision is not None:
            require_int64(expected_revision, "expected_revision")
        stored = self._transactions.change(
            topic_configs.put, topic_id, entries, expected_revision, context, now
        )
        self._bound.read_soon()
        return stored

    def confirm_deletions(
        self,
        topic_id: UUID,
        expected_config_revision: int,
        context: MutationContext = NO_CONTEXT,
    ) -> StoredTopicConfig:
        _require_only_reason(context, "a confirmation")
        require_int64(expected_config_revision, "expected_config_revision")
        confirmed = self._transactions.change(
            topic_configs.confirm_deletions, topic_id, expected_config_revision, context.reason
        )
        self._bound.read_soon()
        return confirmed

    def report_anomalies(self, anomalies: Sequence[Anomaly], run_id: str) -> None:
        anomaly_rows.check_report(anomalies, run_id)
        self._transactions.change(anomaly_rows.report, anomalies, run_id)

    def list_anomalies(
        self, query: AnomalyQuery = ALL_ANOMALIES, *, page_size: int = 0, page_token: str = ""
    ) -> AnomalyPage:
        page = Page.of(anomaly_rows.fingerprint(query), page_size, page_token)
        return self._transactions.read(anomaly_rows.list_anomalies, query, page)

    def report_tool_run(self, run: ToolRun, counts: Sequence[RunCounts]) -> None:
        tool_runs.check(run, counts)
        self._transactions.change(tool_runs.report, run, counts)

    def list_tool_runs(
        self, topic: str = "", *, page_size: int = 0, page_token: str = ""
    ) -> RunPage:
        page = Page.of(tool_runs.fingerprint(topic), page_size, page_token)
        return self._transactions.read(tool_runs.list_runs, topic, page)

    def record_object_deletions(
        self,
        topic_id_partition: TopicIdPartition,
        deletions: Sequence[ObjectDeletion],
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        record = anomaly_rows.ObjectDeletions(topic_id_partition, tuple(deletions))
        anomaly_rows.check_deletions(record)
        return self._change_partition(record, context, anomaly_rows.record_deletions)

    def _store_reports(self, reports: Sequence[PartitionReport]) -> list[ReportOutcome]:
        try:
            for report in reports:
                self._limits.check_report(report)
            return self._transactions.change(partition_states.store_reports, reports)
        except RetriableRemoteStorageError:
            raise  # A failure of the database would repeat for every later item.
        except RemoteStorageError as e:
            if len(reports) == 1:
                return [e]
        return [outcome for report in reports for outcome in self._store_reports([report])]

    def end_watches(self) -> None:
        """End all watches and refuse later ones: this process stops."""
        self._watches.close()

    def check(self) -> None:
        """Check that the database can be changed and has a schema that this release supports.

        Stores which topics wait for a confirmation: a refused change itself leaves no trace.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or read-only, a pooler changes
                sessions, or the schema is older than this release's.
        """
        self._is_usable = False
        try:
            self._transactions.check_session()
            revision = self._schema_revision()
        except RetriableRemoteStorageError as e:
            raise RetriableRemoteStorageError(f"{self._database}: {e}") from e
        if not is_usable(revision):
            raise RetriableRemoteStorageError(f"{self._database}: {needed(revision)}")
        self._is_usable = True
        if refused := self._bound.take_refused():
            self._transactions.change(self._bound.store_refused, refused)

    def _require_usable(self) -> None:
        """Refuse changes of a database that failed the last check, until a check passes.

        The server's readiness checks every second, at no cost to a change.
        """
        if not self._is_usable:
            self.check()

    def _schema_revision(self) -> str | None:
        """Read the schema's revision without Alembic, which takes 10 ms.

        The readiness check reads the revision each second.
        """
        has_schema = self._transactions.read_row("SELECT to_regclass('alembic_version')", {})
        if has_schema.to_regclass is None:
            return None
        row = self._transactions.read_row("SELECT version_num FROM alembic_version", {})
        return None if row is None else str(row.version_num)


def _require_only_reason(context: MutationContext, what: str) -> None:
    check_storable(context)
    only_reason = context == MutationContext(reason=context.reason)
    require(only_reason, "context", f"only reason may be set for {what}")


if TYPE_CHECKING:

    def _satisfies(manager: SqlRemoteLogMetadataManager) -> RemoteLogMetadataManager:
        return manager
