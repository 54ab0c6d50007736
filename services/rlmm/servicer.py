"""Serve RemoteLogMetadataManager over gRPC: each method converts, makes one call and replies."""

from collections.abc import Iterator
from contextlib import closing

import grpc

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
    export_to_proto,
    freeze_to_proto,
    gap_from_proto,
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
    add_outcome_to_proto,
    addition_from_proto,
    bin_query_from_proto,
    bins_to_proto,
    ids_from_proto,
    import_from_proto,
    imported_to_proto,
    lookup_from_proto,
    lookup_outcomes_to_proto,
    scan_from_proto,
    segment_batch_to_proto,
    segment_page_to_proto,
    segment_update_from_proto,
    sweep_from_proto,
    sweeps_to_proto,
    update_outcome_to_proto,
    verification_from_proto,
    verification_page_to_proto,
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
    update_from_proto,
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
            outcomes=[add_outcome_to_proto(outcome) for outcome in outcomes]
        )

    def UpdateRemoteLogSegmentMetadata(
        self, request: pb.UpdateRemoteLogSegmentMetadataRequest, context: grpc.ServicerContext
    ) -> pb.UpdateRemoteLogSegmentMetadataResponse:
        with within("update"):
            update = update_from_proto(request.update)
        with within("context"):
            why = context_from_proto(request.context)
        outcome = self._manager.update_remote_log_segment_metadata(update, why)
        return pb.UpdateRemoteLogSegmentMetadataResponse(outcome=outcome_to_proto(outcome))

    def UpdateRemoteLogSegmentMetadataBatch(
        self,
        request: pb.UpdateRemoteLogSegmentMetadataBatchRequest,
        context: grpc.ServicerContext,
    ) -> pb.UpdateRemoteLogSegmentMetadataBatchResponse:
        updates = items_from_proto(request.updates, "updates", segment_update_from_proto)
        outcomes = self._manager.update_remote_log_segment_metadata_batch(updates)
        return pb.UpdateRemoteLogSegmentMetadataBatchResponse(
            outcomes=[update_outcome_to_proto(outcome) for outcome in outcomes]
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
        found = self._manager.remote_log_segment_metadata(
            partition_of(request.topic_id_partition), request.epoch_for_offset, request.offset
        )
        return pb.GetRemoteLogSegmentMetadataResponse(
            metadata=metadata_to_proto(found.value) if found.value else None,
            revision=found.revision,
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
        found = self._manager.remote_log_segment_metadata_by_id(
            partition_of(request.topic_id_partition), ids_from_proto(request.ids)
        )
        return pb.GetRemoteLogSegmentMetadataByIdResponse(
            segments=[metadata_to_proto(segment) for segment in found.value],
            revision=found.revision,
        )

    def GetNextSegmentWithTxnIndex(
        self, request: pb.GetNextSegmentWithTxnIndexRequest, context: grpc.ServicerContext
    ) -> pb.GetNextSegmentWithTxnIndexResponse:
        found = self._manager.next_segment_with_txn_index(
            partition_of(request.topic_id_partition), request.epoch, request.offset
        )
        return pb.GetNextSegmentWithTxnIndexResponse(
            metadata=metadata_to_proto(found.value) if found.value else None,
            revision=found.revision,
        )

    def GetEarliestLogOffset(
        self, request: pb.GetEarliestLogOffsetRequest, context: grpc.ServicerContext
    ) -> pb.GetEarliestLogOffsetResponse:
        found = self._manager.earliest_log_offset(partition_of(request.topic_id_partition))
        return pb.GetEarliestLogOffsetResponse(earliest_offset=found.value, revision=found.revision)

    def GetHighestOffsetForEpoch(
        self, request: pb.GetHighestOffsetForEpochRequest, context: grpc.ServicerContext
    ) -> pb.GetHighestOffsetForEpochResponse:
        found = self._manager.highest_offset_for_epoch(
            partition_of(request.topic_id_partition), request.leader_epoch
        )
        return pb.GetHighestOffsetForEpochResponse(
            highest_offset=found.value, revision=found.revision
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
        with within("context"):
            why = context_from_proto(request.context)
        outcome = self._manager.raise_log_start_offset(
            partition_of(request.topic_id_partition),
            request.log_start_offset,
            why,
            restores=request.restores,
        )
        return pb.RaiseLogStartOffsetResponse(outcome=outcome_to_proto(outcome))

    def PutRemotePartitionDeleteMetadata(
        self, request: pb.PutRemotePartitionDeleteMetadataRequest, context: grpc.ServicerContext
    ) -> pb.PutRemotePartitionDeleteMetadataResponse:
        with within("metadata"):
            metadata = partition_delete_from_proto(request.metadata)
        with within("context"):
            why = context_from_proto(request.context)
        outcome = self._manager.put_remote_partition_delete_metadata(metadata, why)
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
        with within("context"):
            why = context_from_proto(request.context)
        tp = partition_of(request.topic_id_partition)
        outcome = self._manager.record_gap(tp, gap, request.broker_id, why)
        return pb.RecordGapResponse(outcome=outcome_to_proto(outcome))

    def SetExportPosition(
        self, request: pb.SetExportPositionRequest, context: grpc.ServicerContext
    ) -> pb.SetExportPositionResponse:
        tp = partition_of(request.topic_id_partition)
        position = self._manager.set_export_position(
            tp, request.name, request.next_offset, request.lease_ms
        )
        message = None if position is None else export_to_proto(position)
        return pb.SetExportPositionResponse(position=message)

    def UndeletePartition(
        self, request: pb.UndeletePartitionRequest, context: grpc.ServicerContext
    ) -> pb.UndeletePartitionResponse:
        with within("context"):
            why = context_from_proto(request.context)
        tp = partition_of(request.topic_id_partition)
        outcome = self._manager.undelete_partition(tp, why)
        return pb.UndeletePartitionResponse(outcome=outcome_to_proto(outcome))

    def ResetLeaderEpoch(
        self, request: pb.ResetLeaderEpochRequest, context: grpc.ServicerContext
    ) -> pb.ResetLeaderEpochResponse:
        with within("context"):
            why = context_from_proto(request.context)
        tp = partition_of(request.topic_id_partition)
        epoch = request.leader_epoch if request.HasField("leader_epoch") else None
        outcome = self._manager.reset_leader_epoch(tp, epoch, why)
        return pb.ResetLeaderEpochResponse(outcome=outcome_to_proto(outcome))

    def BeginRebuild(
        self, request: pb.BeginRebuildRequest, context: grpc.ServicerContext
    ) -> pb.BeginRebuildResponse:
        with within("context"):
            why = context_from_proto(request.context)
        return pb.BeginRebuildResponse(freeze=freeze_to_proto(self._manager.begin_rebuild(why)))

    def ConfirmRebuild(
        self, request: pb.ConfirmRebuildRequest, context: grpc.ServicerContext
    ) -> pb.ConfirmRebuildResponse:
        with within("context"):
            why = context_from_proto(request.context)
        freeze = self._manager.confirm_rebuild(why)
        return pb.ConfirmRebuildResponse(freeze=None if freeze is None else freeze_to_proto(freeze))

    def GetTopicConfig(
        self, request: pb.GetTopicConfigRequest, context: grpc.ServicerContext
    ) -> pb.GetTopicConfigResponse:
        stored = self._manager.topic_config(uuid_from_text(request.topic_id, "topic_id"))
        return pb.GetTopicConfigResponse(config=topic_config_to_proto(stored))

    def PutTopicConfig(
        self, request: pb.PutTopicConfigRequest, context: grpc.ServicerContext
    ) -> pb.PutTopicConfigResponse:
        with within("context"):
            why = context_from_proto(request.context)
        stored = self._manager.put_topic_config(
            uuid_from_text(request.topic_id, "topic_id"),
            dict(request.entries),
            request.expected_revision if request.HasField("expected_revision") else None,
            why,
        )
        return pb.PutTopicConfigResponse(config=topic_config_to_proto(stored))

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

    def ReportVerification(
        self, request: pb.ReportVerificationRequest, context: grpc.ServicerContext
    ) -> pb.ReportVerificationResponse:
        run, topics = verification_from_proto(request)
        self._manager.report_verification(run, topics)
        return pb.ReportVerificationResponse()

    def ListVerifications(
        self, request: pb.ListVerificationsRequest, context: grpc.ServicerContext
    ) -> pb.ListVerificationsResponse:
        page = self._manager.list_verifications(
            request.topic, page_size=request.page_size, page_token=request.page_token
        )
        return verification_page_to_proto(page)

    def ReportSweepRun(
        self, request: pb.ReportSweepRunRequest, context: grpc.ServicerContext
    ) -> pb.ReportSweepRunResponse:
        self._manager.report_sweep_run(sweep_from_proto(request))
        return pb.ReportSweepRunResponse()

    def ListSweepRuns(
        self, request: pb.ListSweepRunsRequest, context: grpc.ServicerContext
    ) -> pb.ListSweepRunsResponse:
        return sweeps_to_proto(self._manager.list_sweep_runs())

    def RecordObjectDeletions(
        self, request: pb.RecordObjectDeletionsRequest, context: grpc.ServicerContext
    ) -> pb.RecordObjectDeletionsResponse:
        deletions = items_from_proto(request.deletions, "deletions", object_deletion_from_proto)
        with within("context"):
            why = context_from_proto(request.context)
        tp = partition_of(request.topic_id_partition)
        outcome = self._manager.record_object_deletions(tp, deletions, why)
        return pb.RecordObjectDeletionsResponse(outcome=outcome_to_proto(outcome))


def partition_of(message: segment_pb.TopicIdPartition) -> TopicIdPartition:
    """Convert a request's field topic_id_partition."""
    with within("topic_id_partition"):
        return topic_id_partition_from_proto(message)
