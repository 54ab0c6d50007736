"""Serve RemoteLogMetadataManager over gRPC: each method converts, makes one call and replies."""

from collections.abc import Iterator
from contextlib import closing

import grpc

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rpc.converters.fields import items_from_proto
from services.rpc.converters.partitions import (
    polled_log_from_proto,
    report_from_proto,
    report_outcome_to_proto,
    watch_update_to_proto,
    watched_from_proto,
)
from services.rpc.converters.rpcs import served
from services.rpc.converters.segments import (
    import_from_proto,
    imported_to_proto,
    lookup_from_proto,
    lookup_outcomes_to_proto,
    scan_from_proto,
    segment_batch_to_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc

Contract = RemoteLogMetadataManager


class RemoteLogMetadataManagerServicer(pb_grpc.RemoteLogMetadataManagerServicer):
    """Serve any RemoteLogMetadataManager; one method per RPC, in the contract's order."""

    def __init__(self, manager: RemoteLogMetadataManager) -> None:
        self.manager = manager

    AddRemoteLogSegmentMetadata = served(Contract.add_remote_log_segment_metadata)
    AddRemoteLogSegmentMetadataBatch = served(Contract.add_remote_log_segment_metadata_batch)
    UpdateRemoteLogSegmentMetadata = served(Contract.update_remote_log_segment_metadata)
    UpdateRemoteLogSegmentMetadataBatch = served(Contract.update_remote_log_segment_metadata_batch)
    RenewCopyLeases = served(Contract.renew_copy_leases)
    GetRemoteLogSegmentMetadata = served(Contract.remote_log_segment_metadata)

    def GetRemoteLogSegmentMetadataBatch(
        self, request: pb.GetRemoteLogSegmentMetadataBatchRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSegmentMetadataBatchResponse:
        lookups = items_from_proto(request.lookups, "lookups", lookup_from_proto)
        outcomes = self.manager.remote_log_segment_metadata_batch(lookups)
        return lookup_outcomes_to_proto(outcomes)

    GetRemoteLogSegmentMetadataById = served(Contract.remote_log_segment_metadata_by_id)
    GetNextSegmentWithTxnIndex = served(Contract.next_segment_with_txn_index)
    GetEarliestLogOffset = served(Contract.earliest_log_offset)
    GetHighestOffsetForEpoch = served(Contract.highest_offset_for_epoch)
    GetRemoteLogSize = served(Contract.remote_log_size)
    ListRemoteLogSegments = served(Contract.list_remote_log_segments)
    ListKeptSegments = served(Contract.list_kept_segments)

    def ScanRemoteLogSegments(
        self, request: pb.ScanRemoteLogSegmentsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ScanRemoteLogSegmentsResponse]:
        for batch in self.manager.scan_remote_log_segments(scan_from_proto(request)):
            yield segment_batch_to_proto(batch)

    BinRemoteLogSegments = served(Contract.bin_remote_log_segments)

    def ImportRemoteLogSegments(
        self,
        request_iterator: Iterator[pb.ImportRemoteLogSegmentsRequest],
        context: grpc.ServicerContext,
    ) -> pb.ImportRemoteLogSegmentsResponse:
        imports = map(import_from_proto, request_iterator)
        return imported_to_proto(self.manager.import_remote_log_segments(imports))

    ListSourcePositions = served(Contract.list_source_positions)
    OnPartitionLeadershipChanges = served(Contract.on_partition_leadership_changes)
    OnStopPartitions = served(Contract.on_stop_partitions)
    AnnounceEndpoint = served(Contract.announce_endpoint)

    def ReportPartitionState(
        self, request: pb.ReportPartitionStateRequest, context: grpc.ServicerContext
    ) -> pb.ReportPartitionStateResponse:
        outcomes = self.manager.report_partition_state(
            items_from_proto(request.reports, "reports", report_from_proto),
            items_from_proto(request.polled_logs, "polled_logs", polled_log_from_proto),
        )
        return pb.ReportPartitionStateResponse(
            outcomes=[report_outcome_to_proto(outcome) for outcome in outcomes]
        )

    RaiseLogStartOffset = served(Contract.raise_log_start_offset)
    PutRemotePartitionDeleteMetadata = served(Contract.put_remote_partition_delete_metadata)
    GetPartitionState = served(Contract.partition_state)
    ListPartitions = served(Contract.list_partitions)
    GetPartitionRevisions = served(Contract.partition_revisions)

    def WatchPartitions(
        self, request: pb.WatchPartitionsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchPartitionsResponse]:
        partitions = items_from_proto(request.partitions, "partitions", watched_from_proto)
        updates = self.manager.watch_partitions(partitions)
        # A watch lasts for an hour, and these take more memory than all that it needs.
        del request, partitions
        with closing(updates):
            for update in updates:
                yield watch_update_to_proto(update)

    ListEvents = served(Contract.list_events)
    IsReady = served(Contract.is_ready)
    RecordGap = served(Contract.record_gap)
    SetHold = served(Contract.set_hold)
    EndHold = served(Contract.end_hold)
    ListHolds = served(Contract.list_holds)
    ReplaceSegmentData = served(Contract.replace_segment_data)
    UndeletePartition = served(Contract.undelete_partition)
    ResetLeaderEpoch = served(Contract.reset_leader_epoch)
    GetTopicConfig = served(Contract.topic_config)
    PutTopicConfig = served(Contract.put_topic_config)
    ConfirmDeletions = served(Contract.confirm_deletions)
    ReportAnomalies = served(Contract.report_anomalies)
    ListAnomalies = served(Contract.list_anomalies)
    ReportToolRun = served(Contract.report_tool_run)
    ListToolRuns = served(Contract.list_tool_runs)
    RecordObjectDeletions = served(Contract.record_object_deletions)


def add_to_server(manager: RemoteLogMetadataManager, server: grpc.Server) -> None:
    servicer = RemoteLogMetadataManagerServicer(manager)
    pb_grpc.add_RemoteLogMetadataManagerServicer_to_server(servicer, server)
