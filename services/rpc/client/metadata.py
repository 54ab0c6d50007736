"""RemoteLogMetadataManager over gRPC."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import grpc

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.errors import RetriableRemoteStorageError
from services.api.holds import Hold, HoldPage
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, uuid_to_text
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
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.topic_config import RetentionOwner, StoredTopicConfig
from services.api.watches import WatchedPartition, WatchUpdate
from services.rpc.client.calls import (
    UNARY_TIMEOUT_S,
    Response,
    Unary,
    call_once,
    call_stream,
    call_with_stream,
)
from services.rpc.client.channel import peer_of
from services.rpc.converters import partitions as of_partitions
from services.rpc.converters import segments as of_segments
from services.rpc.converters import shared
from services.rpc.converters.shared import topic_id_partition_to_proto as tp_to_proto
from services.rpc.statuses import outcome_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc

BULK_TIMEOUT_S = 300.0
"""Of a batch, and of the wait for the next message of a stream: a sweep may take its time."""

WATCH_TIMEOUT_S = 10.0
"""The longest silence of a watch, which has a heartbeat each second."""

ATTEMPTS_PER_LEASE = 6

SHORTEST_TIMEOUT_S = 1.0


class RemoteLogMetadataManagerClient:
    """Satisfy services.api.remote_log_metadata_manager.RemoteLogMetadataManager; thread-safe."""

    def __init__(self, channel: grpc.Channel, peer: str) -> None:
        self._stub = pb_grpc.RemoteLogMetadataManagerStub(channel)
        self._peer = peer_of("rlmm", channel, peer)

    def _call(
        self, method: Unary[Response], request: object, timeout_s: float = UNARY_TIMEOUT_S
    ) -> Response:
        return call_once(method, request, self._peer, timeout_s)

    def _change(self, method: Unary[Any], request: object) -> MutationOutcome:
        return shared.outcome_from_proto(self._call(method, request).outcome)

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        request = pb.AddRemoteLogSegmentMetadataRequest(
            metadata=shared.metadata_to_proto(metadata),
            context=shared.context_to_proto(context),
            lease_ms=lease_ms,
        )
        return self._change(self._stub.AddRemoteLogSegmentMetadata, request)

    def add_remote_log_segment_metadata_batch(
        self, additions: Sequence[SegmentAddition]
    ) -> list[AddOutcome]:
        request = pb.AddRemoteLogSegmentMetadataBatchRequest(
            adds=[of_segments.addition_to_proto(item) for item in additions]
        )
        reply = self._call(self._stub.AddRemoteLogSegmentMetadataBatch, request, BULK_TIMEOUT_S)
        return [of_segments.change_outcome_from_proto(outcome) for outcome in reply.outcomes]

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        request = pb.UpdateRemoteLogSegmentMetadataRequest(
            update=shared.update_to_proto(update), context=shared.context_to_proto(context)
        )
        return self._change(self._stub.UpdateRemoteLogSegmentMetadata, request)

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        request = pb.UpdateRemoteLogSegmentMetadataBatchRequest(
            updates=[of_segments.segment_update_to_proto(item) for item in updates]
        )
        reply = self._call(self._stub.UpdateRemoteLogSegmentMetadataBatch, request, BULK_TIMEOUT_S)
        return [of_segments.change_outcome_from_proto(outcome) for outcome in reply.outcomes]

    def renew_copy_leases(
        self, segment_ids: Sequence[RemoteLogSegmentId], lease_ms: int, broker_id: int
    ) -> list[RenewOutcome]:
        request = pb.RenewCopyLeasesRequest(
            segments=map(shared.segment_id_to_proto, segment_ids),
            lease_ms=lease_ms,
            broker_id=broker_id,
        )
        # A call that hangs must leave time for another before the leases end.
        timeout_s = max(lease_ms / 1000 / ATTEMPTS_PER_LEASE, SHORTEST_TIMEOUT_S)
        timeout_s = min(timeout_s, UNARY_TIMEOUT_S)
        reply = self._call(self._stub.RenewCopyLeases, request, timeout_s)
        return [outcome_of(status) for status in reply.outcomes]

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        request = pb.GetRemoteLogSegmentMetadataRequest(
            topic_id_partition=tp_to_proto(topic_id_partition),
            epoch_for_offset=epoch_for_offset,
            offset=offset,
        )
        reply = self._call(self._stub.GetRemoteLogSegmentMetadata, request)
        found = shared.metadata_from_proto(reply.metadata) if reply.HasField("metadata") else None
        return AtRevision(found, reply.revision)

    def remote_log_segment_metadata_batch(
        self, lookups: Sequence[SegmentLookup]
    ) -> list[LookupOutcome]:
        request = pb.GetRemoteLogSegmentMetadataBatchRequest(
            lookups=[of_segments.lookup_to_proto(lookup) for lookup in lookups]
        )
        reply = self._call(self._stub.GetRemoteLogSegmentMetadataBatch, request, BULK_TIMEOUT_S)
        return [of_segments.lookup_outcome_from_proto(outcome) for outcome in reply.outcomes]

    def remote_log_segment_metadata_by_id(
        self, topic_id_partition: TopicIdPartition, ids: Sequence[UUID]
    ) -> AtRevision[tuple[RemoteLogSegmentMetadata, ...]]:
        request = pb.GetRemoteLogSegmentMetadataByIdRequest(
            topic_id_partition=tp_to_proto(topic_id_partition), ids=[uuid_to_text(id) for id in ids]
        )
        reply = self._call(self._stub.GetRemoteLogSegmentMetadataById, request)
        return AtRevision(tuple(map(shared.metadata_from_proto, reply.segments)), reply.revision)

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        request = pb.GetNextSegmentWithTxnIndexRequest(
            topic_id_partition=tp_to_proto(topic_id_partition), epoch=epoch, offset=offset
        )
        reply = self._call(self._stub.GetNextSegmentWithTxnIndex, request)
        found = shared.metadata_from_proto(reply.metadata) if reply.HasField("metadata") else None
        return AtRevision(found, reply.revision)

    def earliest_log_offset(self, topic_id_partition: TopicIdPartition) -> AtRevision[int | None]:
        request = pb.GetEarliestLogOffsetRequest(topic_id_partition=tp_to_proto(topic_id_partition))
        reply = self._call(self._stub.GetEarliestLogOffset, request)
        found = reply.earliest_offset if reply.HasField("earliest_offset") else None
        return AtRevision(found, reply.revision)

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        request = pb.GetHighestOffsetForEpochRequest(
            topic_id_partition=tp_to_proto(topic_id_partition), leader_epoch=leader_epoch
        )
        reply = self._call(self._stub.GetHighestOffsetForEpoch, request)
        found = reply.highest_offset if reply.HasField("highest_offset") else None
        return AtRevision(found, reply.revision)

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        request = pb.GetRemoteLogSizeRequest(
            topic_id_partition=tp_to_proto(topic_id_partition), leader_epoch=leader_epoch
        )
        reply = self._call(self._stub.GetRemoteLogSize, request)
        return AtRevision(reply.size_bytes, reply.revision)

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
        request = pb.ListRemoteLogSegmentsRequest(
            topic_id_partition=tp_to_proto(topic_id_partition),
            leader_epoch=leader_epoch,
            states=[shared.segment_state.to_proto(state) for state in states],
            min_offset=min_offset,
            if_revision_not=if_revision_not,
            page_size=page_size,
            page_token=page_token,
        )
        if deletes_for is not None:
            request.deletes_for = shared.retention_owner.to_proto(deletes_for)
        reply = self._call(self._stub.ListRemoteLogSegments, request)
        return of_segments.segment_page_from_proto(reply)

    def list_kept_segments(
        self,
        *,
        topic: str = "",
        due_only: bool = False,
        page_size: int = 0,
        page_token: str = "",
    ) -> KeptPage:
        request = pb.ListKeptSegmentsRequest(
            topic=topic, due_only=due_only, page_size=page_size, page_token=page_token
        )
        return of_segments.kept_page_from_proto(self._call(self._stub.ListKeptSegments, request))

    def scan_remote_log_segments(self, scan: SegmentScan) -> Iterator[SegmentBatch]:
        method, request = self._stub.ScanRemoteLogSegments, of_segments.scan_to_proto(scan)
        for response in call_stream(method, request, self._peer, BULK_TIMEOUT_S):
            yield of_segments.segment_batch_from_proto(response)

    def bin_remote_log_segments(self, query: BinQuery) -> AtRevision[BinnedSegments]:
        request = of_segments.bin_query_to_proto(query)
        return of_segments.bins_from_proto(self._call(self._stub.BinRemoteLogSegments, request))

    def import_remote_log_segments(self, imports: Iterable[SegmentImport]) -> ImportedSegments:
        """Import segments; only the wait for each outcome has a timeout, BULK_TIMEOUT_S."""
        method = self._stub.ImportRemoteLogSegments
        messages = map(of_segments.import_to_proto, imports)
        return of_segments.imported_from_proto(
            call_with_stream(method, messages, self._peer, BULK_TIMEOUT_S)
        )

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
        cluster_id: str | None = None,
    ) -> None:
        request = pb.OnPartitionLeadershipChangesRequest(
            leaders=[of_partitions.leadership_to_proto(leadership) for leadership in leaders],
            followers=[of_partitions.leadership_to_proto(leadership) for leadership in followers],
            broker_id=broker_id,
            cluster_id=cluster_id,
        )
        self._call(self._stub.OnPartitionLeadershipChanges, request)

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        request = pb.OnStopPartitionsRequest(
            partitions=[tp_to_proto(tp) for tp in partitions], broker_id=broker_id
        )
        self._call(self._stub.OnStopPartitions, request)

    def report_partition_state(
        self, reports: Sequence[PartitionReport], polled_logs: Sequence[PolledLog] = ()
    ) -> list[ReportOutcome]:
        request = pb.ReportPartitionStateRequest(
            reports=[of_partitions.report_to_proto(report) for report in reports],
            polled_logs=[of_partitions.polled_log_to_proto(log) for log in polled_logs],
        )
        reply = self._call(self._stub.ReportPartitionState, request, BULK_TIMEOUT_S)
        pairs = zip(reply.outcomes, reports, strict=True)
        return [
            of_partitions.report_outcome_from_proto(outcome, report) for outcome, report in pairs
        ]

    def raise_log_start_offset(
        self,
        topic_id_partition: TopicIdPartition,
        log_start_offset: int,
        context: MutationContext = NO_CONTEXT,
        *,
        restores: bool = False,
    ) -> MutationOutcome:
        request = pb.RaiseLogStartOffsetRequest(
            topic_id_partition=tp_to_proto(topic_id_partition),
            log_start_offset=log_start_offset,
            context=shared.context_to_proto(context),
            restores=restores,
        )
        return self._change(self._stub.RaiseLogStartOffset, request)

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        request = pb.PutRemotePartitionDeleteMetadataRequest(
            metadata=shared.partition_delete_to_proto(metadata),
            context=shared.context_to_proto(context),
        )
        return self._change(self._stub.PutRemotePartitionDeleteMetadata, request)

    def partition_state(self, topic_id_partition: TopicIdPartition) -> AtRevision[PartitionState]:
        request = pb.GetPartitionStateRequest(topic_id_partition=tp_to_proto(topic_id_partition))
        return of_partitions.state_from_proto(self._call(self._stub.GetPartitionState, request))

    def list_partitions(
        self,
        *,
        topic: str = "",
        delete_states: Sequence[RemotePartitionDeleteState] = (),
        cluster_id: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> PartitionPage:
        request = pb.ListPartitionsRequest(
            topic=topic,
            delete_states=[
                shared.partition_delete_state.to_proto(state) for state in delete_states
            ],
            cluster_id=cluster_id,
            page_size=page_size,
            page_token=page_token,
        )
        return of_partitions.partition_page_from_proto(
            self._call(self._stub.ListPartitions, request)
        )

    def partition_revisions(self, partitions: Sequence[TopicIdPartition]) -> list[int]:
        request = pb.GetPartitionRevisionsRequest(partitions=[tp_to_proto(tp) for tp in partitions])
        return list(self._call(self._stub.GetPartitionRevisions, request).revisions)

    def watch_partitions(
        self, partitions: Sequence[WatchedPartition]
    ) -> Generator[WatchUpdate, None, None]:
        request = pb.WatchPartitionsRequest(
            partitions=map(of_partitions.watched_to_proto, partitions)
        )
        method = self._stub.WatchPartitions
        updates = call_stream(method, request, self._peer, WATCH_TIMEOUT_S, WATCH_TIMEOUT_S)
        for response in updates:
            yield of_partitions.watch_update_from_proto(response)

    def list_events(
        self, query: EventQuery, *, page_size: int = 0, page_token: str = ""
    ) -> EventPage:
        request = of_partitions.event_query_to_proto(query)
        request.page_size, request.page_token = page_size, page_token
        return of_partitions.event_page_from_proto(self._call(self._stub.ListEvents, request))

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        request = pb.IsReadyRequest(topic_id_partition=tp_to_proto(topic_id_partition))
        try:
            return self._call(self._stub.IsReady, request).ready
        except RetriableRemoteStorageError:
            return False

    def record_gap(
        self,
        topic_id_partition: TopicIdPartition,
        gap: OffsetGap,
        broker_id: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        request = pb.RecordGapRequest(
            topic_id_partition=tp_to_proto(topic_id_partition),
            gap=of_partitions.gap_to_proto(gap),
            broker_id=broker_id,
            context=shared.context_to_proto(context),
        )
        return self._change(self._stub.RecordGap, request)

    def set_hold(self, hold: Hold, lease_ms: int | None = None) -> Hold:
        request = pb.SetHoldRequest(hold=of_partitions.hold_to_proto(hold), lease_ms=lease_ms)
        return of_partitions.hold_from_proto(self._call(self._stub.SetHold, request).hold)

    def end_hold(self, hold: Hold, context: MutationContext = NO_CONTEXT) -> Hold | None:
        request = pb.EndHoldRequest(
            hold=of_partitions.hold_to_proto(hold), context=shared.context_to_proto(context)
        )
        reply = self._call(self._stub.EndHold, request)
        return of_partitions.hold_from_proto(reply.hold) if reply.HasField("hold") else None

    def list_holds(self, topic: str = "", *, page_size: int = 0, page_token: str = "") -> HoldPage:
        request = pb.ListHoldsRequest(topic=topic, page_size=page_size, page_token=page_token)
        return of_partitions.hold_page_from_proto(self._call(self._stub.ListHolds, request))

    def replace_segment_data(
        self,
        segment_id: RemoteLogSegmentId,
        expected_custom_metadata: bytes,
        new_custom_metadata: bytes,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        request = pb.ReplaceSegmentDataRequest(
            segment_id=shared.segment_id_to_proto(segment_id),
            expected_custom_metadata=expected_custom_metadata,
            new_custom_metadata=new_custom_metadata,
            context=shared.context_to_proto(context),
        )
        return self._change(self._stub.ReplaceSegmentData, request)

    def undelete_partition(
        self, topic_id_partition: TopicIdPartition, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        request = pb.UndeletePartitionRequest(
            topic_id_partition=tp_to_proto(topic_id_partition),
            context=shared.context_to_proto(context),
        )
        return self._change(self._stub.UndeletePartition, request)

    def reset_leader_epoch(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        request = pb.ResetLeaderEpochRequest(
            topic_id_partition=tp_to_proto(topic_id_partition),
            leader_epoch=leader_epoch,
            context=shared.context_to_proto(context),
        )
        return self._change(self._stub.ResetLeaderEpoch, request)

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        request = pb.GetTopicConfigRequest(topic_id=uuid_to_text(topic_id))
        reply = self._call(self._stub.GetTopicConfig, request)
        return of_partitions.topic_config_from_proto(reply.config)

    def put_topic_config(
        self,
        topic_id: UUID,
        entries: Mapping[str, str],
        expected_revision: int | None = None,
        context: MutationContext = NO_CONTEXT,
        *,
        now: bool = False,
    ) -> StoredTopicConfig:
        request = pb.PutTopicConfigRequest(
            topic_id=uuid_to_text(topic_id),
            entries=entries,
            expected_revision=expected_revision,
            context=shared.context_to_proto(context),
            now=now,
        )
        # A repeat would find the revision that the first attempt made.
        repeats = expected_revision is None
        reply = call_once(self._stub.PutTopicConfig, request, self._peer, is_idempotent=repeats)
        return of_partitions.topic_config_from_proto(reply.config)

    def confirm_deletions(
        self,
        topic_id: UUID,
        expected_config_revision: int,
        context: MutationContext = NO_CONTEXT,
    ) -> StoredTopicConfig:
        request = pb.ConfirmDeletionsRequest(
            topic_id=uuid_to_text(topic_id),
            expected_config_revision=expected_config_revision,
            context=shared.context_to_proto(context),
        )
        reply = self._call(self._stub.ConfirmDeletions, request)
        return of_partitions.topic_config_from_proto(reply.config)

    def report_anomalies(self, anomalies: Sequence[Anomaly], run_id: str) -> None:
        request = pb.ReportAnomaliesRequest(
            anomalies=[of_partitions.anomaly_to_proto(anomaly) for anomaly in anomalies],
            run_id=run_id,
        )
        self._call(self._stub.ReportAnomalies, request, BULK_TIMEOUT_S)

    def list_anomalies(
        self, query: AnomalyQuery = ALL_ANOMALIES, *, page_size: int = 0, page_token: str = ""
    ) -> AnomalyPage:
        request = of_partitions.anomaly_query_to_proto(query)
        request.page_size, request.page_token = page_size, page_token
        return of_partitions.anomaly_page_from_proto(self._call(self._stub.ListAnomalies, request))

    def report_tool_run(self, run: ToolRun, counts: Sequence[RunCounts]) -> None:
        request = of_segments.run_to_proto(run, counts)
        self._call(self._stub.ReportToolRun, request, BULK_TIMEOUT_S)

    def list_tool_runs(
        self, topic: str = "", *, page_size: int = 0, page_token: str = ""
    ) -> RunPage:
        request = pb.ListToolRunsRequest(topic=topic, page_size=page_size, page_token=page_token)
        return of_segments.run_page_from_proto(self._call(self._stub.ListToolRuns, request))

    def record_object_deletions(
        self,
        topic_id_partition: TopicIdPartition,
        deletions: Sequence[ObjectDeletion],
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        request = pb.RecordObjectDeletionsRequest(
            topic_id_partition=tp_to_proto(topic_id_partition),
            deletions=[of_partitions.object_deletion_to_proto(each) for each in deletions],
            context=shared.context_to_proto(context),
        )
        reply = call_once(
            self._stub.RecordObjectDeletions,
            request,
            self._peer,
            BULK_TIMEOUT_S,
            # Without a request id, a repeat would record the deletions again.
            is_idempotent=context.request_id is not None,
        )
        return shared.outcome_from_proto(reply.outcome)


def _conforms(client: RemoteLogMetadataManagerClient) -> RemoteLogMetadataManager:
    return client
