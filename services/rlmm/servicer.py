"""Serve RemoteLogMetadataManager over gRPC: each method converts, makes one call and replies."""

from collections.abc import Iterator
from contextlib import closing

import grpc

from services.api.calls import MutationContext
from services.api.holds import Hold
from services.api.ids import TopicIdPartition, uuid_from_text
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.validation import within
from services.rpc.converters.fields import items_from_proto, require_set
from services.rpc.converters.partitions import (
    anomaly_from_proto,
    anomaly_page_to_proto,
    anomaly_query_from_proto,
    event_page_to_proto,
    event_query_from_proto,
    gap_from_proto,
    hold_from_proto,
    hold_page_to_proto,
    hold_to_proto,
    leaderships_from_proto,
    object_deletion_from_proto,
    partition_page_to_proto,
    partitions_from_proto,
    polled_log_from_proto,
    report_from_proto,
    report_outcome_to_proto,
    state_to_proto,
    topic_config_to_proto,
    watch_update_to_proto,
    watched_from_proto,
)
from services.rpc.converters.segments import (
    addition_from_proto,
    bin_query_from_proto,
    bins_to_proto,
    change_outcome_to_proto,
    ids_from_proto,
    import_from_proto,
    imported_to_proto,
    kept_page_to_proto,
    lookup_from_proto,
    lookup_outcomes_to_proto,
    run_from_proto,
    run_page_to_proto,
    scan_from_proto,
    segment_batch_to_proto,
    segment_page_to_proto,
    segment_update_from_proto,
)
from services.rpc.converters.shared import (
    context_from_proto,
    metadata_to_proto,
    outcome_to_proto,
    partition_delete_from_proto,
    partition_delete_state,
    retention_owner,
    segment_id_from_proto,
    segment_state,
    topic_id_partition_from_proto,
)
from services.rpc.statuses import status_of_outcome
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb


class RemoteLogMetadataManagerServicer(pb_grpc.RemoteLogMetadataManagerServicer):
    """Serve any RemoteLogMetadataManager; one method per RPC, in the contract's order."""

    def __init__(self, manager: RemoteLogMetadataManager) -> None:
        self._manager = manager

    def AddRemoteLogSegmentMetadata(
        self, request: pb.AddRemoteLogSegmentMetadataRequest, context: grpc.ServicerContext
    ) -> pb.AddRemoteLogSegmentMetadataResponse:
        item = addition_from_proto(request)
        outcome = self._manager.add_remote_log_segment_metadata(
            item.metadata, item.context, lease_ms=item.lease_ms
        )
        return pb.AddRemoteLogSegmentMetadataResponse(outcome=outcome_to_proto(outcome))

    def AddRemoteLogSegmentMetadataBatch(
        self, request: pb.AddRemoteLogSegmentMetadataBatchRequest, context: grpc.ServicerContext
    ) -> pb.AddRemoteLogSegmentMetadataBatchResponse:
        additions = items_from_proto(request.adds, "adds", addition_from_proto)
        outcomes = self._manager.add_remote_log_segment_metadata_batch(additions)
        return pb.AddRemoteLogSegmentMetadataBatchResponse(
            outcomes=[change_outcome_to_proto(each, pb.AddOutcome) for each in outcomes]
        )

    def UpdateRemoteLogSegmentMetadata(
        self, request: pb.UpdateRemoteLogSegmentMetadataRequest, context: grpc.ServicerContext
    ) -> pb.UpdateRemoteLogSegmentMetadataResponse:
        change = segment_update_from_proto(request)
        outcome = self._manager.update_remote_log_segment_metadata(change.update, change.context)
        return pb.UpdateRemoteLogSegmentMetadataResponse(outcome=outcome_to_proto(outcome))

    def UpdateRemoteLogSegmentMetadataBatch(
        self,
        request: pb.UpdateRemoteLogSegmentMetadataBatchRequest,
        context: grpc.ServicerContext,
    ) -> pb.UpdateRemoteLogSegmentMetadataBatchResponse:
        updates = items_from_proto(request.updates, "updates", segment_update_from_proto)
        outcomes = self._manager.update_remote_log_segment_metadata_batch(updates)
        return pb.UpdateRemoteLogSegmentMetadataBatchResponse(
            outcomes=[change_outcome_to_proto(each, pb.UpdateOutcome) for each in outcomes]
        )

    def RenewCopyLeases(
        self, request: pb.RenewCopyLeasesRequest, context: grpc.ServicerContext
    ) -> pb.RenewCopyLeasesResponse:
        segment_ids = items_from_proto(request.segments, "segments", segment_id_from_proto)
        outcomes = self._manager.renew_copy_leases(segment_ids, request.lease_ms, request.broker_id)
        return pb.RenewCopyLeasesResponse(outcomes=map(status_of_outcome, outcomes))

    def GetRemoteLogSegmentMetadata(
        self, request: pb.GetRemoteLogSegmentMetadataRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSegmentMetadataResponse:
        answer = self._manager.remote_log_segment_metadata(
            partition_of(request.topic_id_partition), request.epoch_for_offset, request.offset
        )
        return pb.GetRemoteLogSegmentMetadataResponse(
            metadata=metadata_to_proto(answer.value) if answer.value else None,
            revision=answer.revision,
        )

    def GetRemoteLogSegmentMetadataBatch(
        self, request: pb.GetRemoteLogSegmentMetadataBatchRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSegmentMetadataBatchResponse:
        lookups = items_from_proto(request.lookups, "lookups", lookup_from_proto)
        outcomes = self._manager.remote_log_segment_metadata_batch(lookups)
        return lookup_outcomes_to_proto(outcomes)

    def GetRemoteLogSegmentMetadataById(
        self, request: pb.GetRemoteLogSegmentMetadataByIdRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSegmentMetadataByIdResponse:
        answer = self._manager.remote_log_segment_metadata_by_id(
            partition_of(request.topic_id_partition), ids_from_proto(request.ids)
        )
        return pb.GetRemoteLogSegmentMetadataByIdResponse(
            segments=[metadata_to_proto(segment) for segment in answer.value],
            revision=answer.revision,
        )

    def GetNextSegmentWithTxnIndex(
        self, request: pb.GetNextSegmentWithTxnIndexRequest, context: grpc.ServicerContext
    ) -> pb.GetNextSegmentWithTxnIndexResponse:
        answer = self._manager.next_segment_with_txn_index(
            partition_of(request.topic_id_partition), request.epoch, request.offset
        )
        return pb.GetNextSegmentWithTxnIndexResponse(
            metadata=metadata_to_proto(answer.value) if answer.value else None,
            revision=answer.revision,
        )

    def GetEarliestLogOffset(
        self, request: pb.GetEarliestLogOffsetRequest, context: grpc.ServicerContext
    ) -> pb.GetEarliestLogOffsetResponse:
        answer = self._manager.earliest_log_offset(partition_of(request.topic_id_partition))
        return pb.GetEarliestLogOffsetResponse(
            earliest_offset=answer.value, revision=answer.revision
        )

    def GetHighestOffsetForEpoch(
        self, request: pb.GetHighestOffsetForEpochRequest, context: grpc.ServicerContext
    ) -> pb.GetHighestOffsetForEpochResponse:
        answer = self._manager.highest_offset_for_epoch(
            partition_of(request.topic_id_partition), request.leader_epoch
        )
        return pb.GetHighestOffsetForEpochResponse(
            highest_offset=answer.value, revision=answer.revision
        )

    def GetRemoteLogSize(
        self, request: pb.GetRemoteLogSizeRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSizeResponse:
        size = self._manager.remote_log_size(
            partition_of(request.topic_id_partition), request.leader_epoch
        )
        return pb.GetRemoteLogSizeResponse(size_bytes=size.value, revision=size.revision)

    def ListRemoteLogSegments(
        self, request: pb.ListRemoteLogSegmentsRequest, context: grpc.ServicerContext
    ) -> pb.ListRemoteLogSegmentsResponse:
        page = self._manager.list_remote_log_segments(
            partition_of(request.topic_id_partition),
            request.leader_epoch if request.HasField("leader_epoch") else None,
            states=[segment_state.from_proto(state, "states") for state in request.states],
            min_offset=request.min_offset if request.HasField("min_offset") else None,
            if_revision_not=(
                request.if_revision_not if request.HasField("if_revision_not") else None
            ),
            deletes_for=(
                retention_owner.from_proto(request.deletes_for, "deletes_for")
                if request.deletes_for
                else None
            ),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return segment_page_to_proto(page)

    def ListKeptSegments(
        self, request: pb.ListKeptSegmentsRequest, context: grpc.ServicerContext
    ) -> pb.ListKeptSegmentsResponse:
        page = self._manager.list_kept_segments(
            topic=request.topic,
            due_only=request.due_only,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return kept_page_to_proto(page)

    def ScanRemoteLogSegments(
        self, request: pb.ScanRemoteLogSegmentsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ScanRemoteLogSegmentsResponse]:
        for batch in self._manager.scan_remote_log_segments(scan_from_proto(request)):
            yield segment_batch_to_proto(batch)

    def BinRemoteLogSegments(
        self, request: pb.BinRemoteLogSegmentsRequest, context: grpc.ServicerContext
    ) -> pb.BinRemoteLogSegmentsResponse:
        return bins_to_proto(self._manager.bin_remote_log_segments(bin_query_from_proto(request)))

    def ImportRemoteLogSegments(
        self,
        request_iterator: Iterator[pb.ImportRemoteLogSegmentsRequest],
        context: grpc.ServicerContext,
    ) -> pb.ImportRemoteLogSegmentsResponse:
        imports = map(import_from_proto, request_iterator)
        return imported_to_proto(self._manager.import_remote_log_segments(imports))

    def OnPartitionLeadershipChanges(
        self, request: pb.OnPartitionLeadershipChangesRequest, context: grpc.ServicerContext
    ) -> pb.OnPartitionLeadershipChangesResponse:
        leaders = leaderships_from_proto(request.leaders, "leaders")
        followers = leaderships_from_proto(request.followers, "followers")
        cluster_id = request.cluster_id if request.HasField("cluster_id") else None
        self._manager.on_partition_leadership_changes(
            leaders, followers, request.broker_id, cluster_id
        )
        return pb.OnPartitionLeadershipChangesResponse()

    def OnStopPartitions(
        self, request: pb.OnStopPartitionsRequest, context: grpc.ServicerContext
    ) -> pb.OnStopPartitionsResponse:
        partitions = partitions_from_proto(request.partitions, "partitions")
        self._manager.on_stop_partitions(partitions, request.broker_id)
        return pb.OnStopPartitionsResponse()

    def ReportPartitionState(
        self, request: pb.ReportPartitionStateRequest, context: grpc.ServicerContext
    ) -> pb.ReportPartitionStateResponse:
        outcomes = self._manager.report_partition_state(
            items_from_proto(request.reports, "reports", report_from_proto),
            items_from_proto(request.polled_logs, "polled_logs", polled_log_from_proto),
        )
        return pb.ReportPartitionStateResponse(
            outcomes=[report_outcome_to_proto(outcome) for outcome in outcomes]
        )

    def RaiseLogStartOffset(
        self, request: pb.RaiseLogStartOffsetRequest, context: grpc.ServicerContext
    ) -> pb.RaiseLogStartOffsetResponse:
        outcome = self._manager.raise_log_start_offset(
            partition_of(request.topic_id_partition),
            request.log_start_offset,
            context_of(request.context),
            restores=request.restores,
        )
        return pb.RaiseLogStartOffsetResponse(outcome=outcome_to_proto(outcome))

    def PutRemotePartitionDeleteMetadata(
        self, request: pb.PutRemotePartitionDeleteMetadataRequest, context: grpc.ServicerContext
    ) -> pb.PutRemotePartitionDeleteMetadataResponse:
        with within("metadata"):
            metadata = partition_delete_from_proto(request.metadata)
        outcome = self._manager.put_remote_partition_delete_metadata(
            metadata, context_of(request.context)
        )
        return pb.PutRemotePartitionDeleteMetadataResponse(outcome=outcome_to_proto(outcome))

    def GetPartitionState(
        self, request: pb.GetPartitionStateRequest, context: grpc.ServicerContext
    ) -> pb.GetPartitionStateResponse:
        return state_to_proto(
            self._manager.partition_state(partition_of(request.topic_id_partition))
        )

    def ListPartitions(
        self, request: pb.ListPartitionsRequest, context: grpc.ServicerContext
    ) -> pb.ListPartitionsResponse:
        states = request.delete_states
        page = self._manager.list_partitions(
            topic=request.topic,
            delete_states=[partition_delete_state.from_proto(s, "delete_states") for s in states],
            cluster_id=request.cluster_id,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return partition_page_to_proto(page)

    def GetPartitionRevisions(
        self, request: pb.GetPartitionRevisionsRequest, context: grpc.ServicerContext
    ) -> pb.GetPartitionRevisionsResponse:
        partitions = items_from_proto(
            request.partitions, "partitions", topic_id_partition_from_proto
        )
        revisions = self._manager.partition_revisions(partitions)
        return pb.GetPartitionRevisionsResponse(revisions=revisions)

    def WatchPartitions(
        self, request: pb.WatchPartitionsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchPartitionsResponse]:
        partitions = items_from_proto(request.partitions, "partitions", watched_from_proto)
        updates = self._manager.watch_partitions(partitions)
        # A watch lasts for an hour, and these take more memory than all that it needs.
        del request, partitions
        with closing(updates):
            for update in updates:
                yield watch_update_to_proto(update)

    def ListEvents(
        self, request: pb.ListEventsRequest, context: grpc.ServicerContext
    ) -> pb.ListEventsResponse:
        page = self._manager.list_events(
            event_query_from_proto(request),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return event_page_to_proto(page)

    def IsReady(
        self, request: pb.IsReadyRequest, context: grpc.ServicerContext
    ) -> pb.IsReadyResponse:
        ready = self._manager.is_ready(partition_of(request.topic_id_partition))
        return pb.IsReadyResponse(ready=ready)

    def RecordGap(
        self, request: pb.RecordGapRequest, context: grpc.ServicerContext
    ) -> pb.RecordGapResponse:
        require_set(request, "gap")
        with within("gap"):
            gap = gap_from_proto(request.gap)
        tp = partition_of(request.topic_id_partition)
        outcome = self._manager.record_gap(tp, gap, request.broker_id, context_of(request.context))
        return pb.RecordGapResponse(outcome=outcome_to_proto(outcome))

    def SetHold(
        self, request: pb.SetHoldRequest, context: grpc.ServicerContext
    ) -> pb.SetHoldResponse:
        lease_ms = request.lease_ms if request.HasField("lease_ms") else None
        hold = self._manager.set_hold(_hold_of(request), lease_ms)
        return pb.SetHoldResponse(hold=hold_to_proto(hold))

    def EndHold(
        self, request: pb.EndHoldRequest, context: grpc.ServicerContext
    ) -> pb.EndHoldResponse:
        ended = self._manager.end_hold(_hold_of(request), context_of(request.context))
        return pb.EndHoldResponse(hold=None if ended is None else hold_to_proto(ended))

    def ListHolds(
        self, request: pb.ListHoldsRequest, context: grpc.ServicerContext
    ) -> pb.ListHoldsResponse:
        page = self._manager.list_holds(
            request.topic, page_size=request.page_size, page_token=request.page_token
        )
        return hold_page_to_proto(page)

    def ReplaceSegmentData(
        self, request: pb.ReplaceSegmentDataRequest, context: grpc.ServicerContext
    ) -> pb.ReplaceSegmentDataResponse:
        require_set(request, "segment_id")
        with within("segment_id"):
            segment_id = segment_id_from_proto(request.segment_id)
        outcome = self._manager.replace_segment_data(
            segment_id,
            request.expected_custom_metadata,
            request.new_custom_metadata,
            context_of(request.context),
        )
        return pb.ReplaceSegmentDataResponse(outcome=outcome_to_proto(outcome))

    def UndeletePartition(
        self, request: pb.UndeletePartitionRequest, context: grpc.ServicerContext
    ) -> pb.UndeletePartitionResponse:
        outcome = self._manager.undelete_partition(
            partition_of(request.topic_id_partition), context_of(request.context)
        )
        return pb.UndeletePartitionResponse(outcome=outcome_to_proto(outcome))

    def ResetLeaderEpoch(
        self, request: pb.ResetLeaderEpochRequest, context: grpc.ServicerContext
    ) -> pb.ResetLeaderEpochResponse:
        tp = partition_of(request.topic_id_partition)
        epoch = request.leader_epoch if request.HasField("leader_epoch") else None
        outcome = self._manager.reset_leader_epoch(tp, epoch, context_of(request.context))
        return pb.ResetLeaderEpochResponse(outcome=outcome_to_proto(outcome))

    def GetTopicConfig(
        self, request: pb.GetTopicConfigRequest, context: grpc.ServicerContext
    ) -> pb.GetTopicConfigResponse:
        stored = self._manager.topic_config(uuid_from_text(request.topic_id, "topic_id"))
        return pb.GetTopicConfigResponse(config=topic_config_to_proto(stored))

    def PutTopicConfig(
        self, request: pb.PutTopicConfigRequest, context: grpc.ServicerContext
    ) -> pb.PutTopicConfigResponse:
        stored = self._manager.put_topic_config(
            uuid_from_text(request.topic_id, "topic_id"),
            dict(request.entries),
            request.expected_revision if request.HasField("expected_revision") else None,
            context_of(request.context),
            now=request.now,
        )
        return pb.PutTopicConfigResponse(config=topic_config_to_proto(stored))

    def ConfirmDeletions(
        self, request: pb.ConfirmDeletionsRequest, context: grpc.ServicerContext
    ) -> pb.ConfirmDeletionsResponse:
        stored = self._manager.confirm_deletions(
            uuid_from_text(request.topic_id, "topic_id"),
            request.expected_config_revision,
            context_of(request.context),
        )
        return pb.ConfirmDeletionsResponse(config=topic_config_to_proto(stored))

    def ReportAnomalies(
        self, request: pb.ReportAnomaliesRequest, context: grpc.ServicerContext
    ) -> pb.ReportAnomaliesResponse:
        anomalies = items_from_proto(request.anomalies, "anomalies", anomaly_from_proto)
        self._manager.report_anomalies(anomalies, request.run_id)
        return pb.ReportAnomaliesResponse()

    def ListAnomalies(
        self, request: pb.ListAnomaliesRequest, context: grpc.ServicerContext
    ) -> pb.ListAnomaliesResponse:
        page = self._manager.list_anomalies(
            anomaly_query_from_proto(request),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return anomaly_page_to_proto(page)

    def ReportToolRun(
        self, request: pb.ReportToolRunRequest, context: grpc.ServicerContext
    ) -> pb.ReportToolRunResponse:
        run, counts = run_from_proto(request)
        self._manager.report_tool_run(run, counts)
        return pb.ReportToolRunResponse()

    def ListToolRuns(
        self, request: pb.ListToolRunsRequest, context: grpc.ServicerContext
    ) -> pb.ListToolRunsResponse:
        page = self._manager.list_tool_runs(
            request.topic, page_size=request.page_size, page_token=request.page_token
        )
        return run_page_to_proto(page)

    def RecordObjectDeletions(
        self, request: pb.RecordObjectDeletionsRequest, context: grpc.ServicerContext
    ) -> pb.RecordObjectDeletionsResponse:
        deletions = items_from_proto(request.deletions, "deletions", object_deletion_from_proto)
        tp = partition_of(request.topic_id_partition)
        outcome = self._manager.record_object_deletions(tp, deletions, context_of(request.context))
        return pb.RecordObjectDeletionsResponse(outcome=outcome_to_proto(outcome))


def _hold_of(request: pb.SetHoldRequest | pb.EndHoldRequest) -> Hold:
    require_set(request, "hold")
    with within("hold"):
        return hold_from_proto(request.hold)


def context_of(message: segment_pb.MutationContext) -> MutationContext:
    """Convert a request's field context."""
    with within("context"):
        return context_from_proto(message)


def partition_of(message: segment_pb.TopicIdPartition) -> TopicIdPartition:
    """Convert a request's field topic_id_partition."""
    with within("topic_id_partition"):
        return topic_id_partition_from_proto(message)


def add_to_server(manager: RemoteLogMetadataManager, server: grpc.Server) -> None:
    servicer = RemoteLogMetadataManagerServicer(manager)
    pb_grpc.add_RemoteLogMetadataManagerServicer_to_server(servicer, server)
