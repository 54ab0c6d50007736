"""RemoteLogMetadataManager on the wire: convert, one call, reply."""

from collections.abc import Iterator

import grpc

from services.api.errors import NotServedError
from services.api.ids import TopicIdPartition, uuid_from_text
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.validation import within
from services.rlmm.not_served_servicer import NotServed
from services.rpc.converters.batches import (
    add_outcome_to_proto,
    additions_from_proto,
    ids_from_proto,
    indexed_partitions_from_proto,
    lookup_outcome_to_proto,
    lookups_from_proto,
)
from services.rpc.converters.bulk import (
    scan_from_proto,
    segment_batch_to_proto,
    segment_updates_from_proto,
    update_outcome_to_proto,
)
from services.rpc.converters.enums import partition_delete_state, retention_owner, segment_state
from services.rpc.converters.events import event_page_to_proto, event_query_from_proto
from services.rpc.converters.metadata import (
    leaderships_from_proto,
    partition_page_to_proto,
    partitions_from_proto,
    segment_page_to_proto,
)
from services.rpc.converters.partition_state import (
    report_outcome_to_proto,
    reports_from_proto,
    state_to_proto,
)
from services.rpc.converters.shared import (
    context_from_proto,
    metadata_from_proto,
    metadata_to_proto,
    outcome_to_proto,
    partition_delete_from_proto,
    topic_id_partition_from_proto,
    update_from_proto,
)
from services.rpc.converters.topic_config import topic_config_to_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb


class RemoteLogMetadataManagerServicer(NotServed):
    """Serves any RemoteLogMetadataManager."""

    def __init__(self, manager: RemoteLogMetadataManager) -> None:
        self._manager = manager

    def AddRemoteLogSegmentMetadata(
        self, request: pb.AddRemoteLogSegmentMetadataRequest, context: grpc.ServicerContext
    ) -> pb.AddRemoteLogSegmentMetadataResponse:
        if request.HasField("lease_ms"):
            raise NotServedError("lease_ms: is not served by this release; leave it unset")
        with within("metadata"):
            metadata = metadata_from_proto(request.metadata)
        with within("context"):
            why = context_from_proto(request.context)
        outcome = self._manager.add_remote_log_segment_metadata(metadata, why)
        return pb.AddRemoteLogSegmentMetadataResponse(outcome=outcome_to_proto(outcome))

    def AddRemoteLogSegmentMetadataBatch(
        self, request: pb.AddRemoteLogSegmentMetadataBatchRequest, context: grpc.ServicerContext
    ) -> pb.AddRemoteLogSegmentMetadataBatchResponse:
        additions = additions_from_proto(request.adds)
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
        updates = segment_updates_from_proto(request.updates)
        outcomes = self._manager.update_remote_log_segment_metadata_batch(updates)
        return pb.UpdateRemoteLogSegmentMetadataBatchResponse(
            outcomes=[update_outcome_to_proto(outcome) for outcome in outcomes]
        )

    def GetRemoteLogSegmentMetadata(
        self, request: pb.GetRemoteLogSegmentMetadataRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSegmentMetadataResponse:
        found = self._manager.remote_log_segment_metadata(
            _partition(request.topic_id_partition), request.epoch_for_offset, request.offset
        )
        return pb.GetRemoteLogSegmentMetadataResponse(
            metadata=metadata_to_proto(found.value) if found.value else None,
            revision=found.revision,
        )

    def GetRemoteLogSegmentMetadataBatch(
        self, request: pb.GetRemoteLogSegmentMetadataBatchRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSegmentMetadataBatchResponse:
        lookups = lookups_from_proto(request.lookups)
        outcomes = self._manager.remote_log_segment_metadata_batch(lookups)
        return pb.GetRemoteLogSegmentMetadataBatchResponse(
            outcomes=[lookup_outcome_to_proto(outcome) for outcome in outcomes]
        )

    def GetRemoteLogSegmentMetadataById(
        self, request: pb.GetRemoteLogSegmentMetadataByIdRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSegmentMetadataByIdResponse:
        found = self._manager.remote_log_segment_metadata_by_id(
            _partition(request.topic_id_partition), ids_from_proto(request.ids)
        )
        return pb.GetRemoteLogSegmentMetadataByIdResponse(
            segments=[metadata_to_proto(segment) for segment in found.value],
            revision=found.revision,
        )

    def GetEarliestLogOffset(
        self, request: pb.GetEarliestLogOffsetRequest, context: grpc.ServicerContext
    ) -> pb.GetEarliestLogOffsetResponse:
        found = self._manager.earliest_log_offset(_partition(request.topic_id_partition))
        return pb.GetEarliestLogOffsetResponse(earliest_offset=found.value, revision=found.revision)

    def GetHighestOffsetForEpoch(
        self, request: pb.GetHighestOffsetForEpochRequest, context: grpc.ServicerContext
    ) -> pb.GetHighestOffsetForEpochResponse:
        found = self._manager.highest_offset_for_epoch(
            _partition(request.topic_id_partition), request.leader_epoch
        )
        return pb.GetHighestOffsetForEpochResponse(
            highest_offset=found.value, revision=found.revision
        )

    def PutRemotePartitionDeleteMetadata(
        self, request: pb.PutRemotePartitionDeleteMetadataRequest, context: grpc.ServicerContext
    ) -> pb.PutRemotePartitionDeleteMetadataResponse:
        with within("metadata"):
            metadata = partition_delete_from_proto(request.metadata)
        with within("context"):
            why = context_from_proto(request.context)
        outcome = self._manager.put_remote_partition_delete_metadata(metadata, why)
        return pb.PutRemotePartitionDeleteMetadataResponse(outcome=outcome_to_proto(outcome))

    def ListRemoteLogSegments(
        self, request: pb.ListRemoteLogSegmentsRequest, context: grpc.ServicerContext
    ) -> pb.ListRemoteLogSegmentsResponse:
        page = self._manager.list_remote_log_segments(
            _partition(request.topic_id_partition),
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

    def GetRemoteLogSize(
        self, request: pb.GetRemoteLogSizeRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSizeResponse:
        size = self._manager.remote_log_size(
            _partition(request.topic_id_partition), request.leader_epoch
        )
        return pb.GetRemoteLogSizeResponse(size_bytes=size.value, revision=size.revision)

    def GetNextSegmentWithTxnIndex(
        self, request: pb.GetNextSegmentWithTxnIndexRequest, context: grpc.ServicerContext
    ) -> pb.GetNextSegmentWithTxnIndexResponse:
        found = self._manager.next_segment_with_txn_index(
            _partition(request.topic_id_partition), request.epoch, request.offset
        )
        return pb.GetNextSegmentWithTxnIndexResponse(
            metadata=metadata_to_proto(found.value) if found.value else None,
            revision=found.revision,
        )

    def IsReady(
        self, request: pb.IsReadyRequest, context: grpc.ServicerContext
    ) -> pb.IsReadyResponse:
        ready = self._manager.is_ready(_partition(request.topic_id_partition))
        return pb.IsReadyResponse(ready=ready)

    def OnPartitionLeadershipChanges(
        self, request: pb.OnPartitionLeadershipChangesRequest, context: grpc.ServicerContext
    ) -> pb.OnPartitionLeadershipChangesResponse:
        leaders = leaderships_from_proto(request.leaders, "leaders")
        followers = leaderships_from_proto(request.followers, "followers")
        self._manager.on_partition_leadership_changes(leaders, followers, request.broker_id)
        return pb.OnPartitionLeadershipChangesResponse()

    def OnStopPartitions(
        self, request: pb.OnStopPartitionsRequest, context: grpc.ServicerContext
    ) -> pb.OnStopPartitionsResponse:
        partitions = partitions_from_proto(request.partitions, "partitions")
        self._manager.on_stop_partitions(partitions, request.broker_id)
        return pb.OnStopPartitionsResponse()

    def ListPartitions(
        self, request: pb.ListPartitionsRequest, context: grpc.ServicerContext
    ) -> pb.ListPartitionsResponse:
        states = request.delete_states
        page = self._manager.list_partitions(
            topic=request.topic,
            delete_states=[partition_delete_state.from_proto(s, "delete_states") for s in states],
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return partition_page_to_proto(page)

    def GetPartitionRevisions(
        self, request: pb.GetPartitionRevisionsRequest, context: grpc.ServicerContext
    ) -> pb.GetPartitionRevisionsResponse:
        partitions = indexed_partitions_from_proto(request.partitions, "partitions")
        revisions = self._manager.partition_revisions(partitions)
        return pb.GetPartitionRevisionsResponse(revisions=revisions)

    def ListEvents(
        self, request: pb.ListEventsRequest, context: grpc.ServicerContext
    ) -> pb.ListEventsResponse:
        page = self._manager.list_events(
            event_query_from_proto(request),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return event_page_to_proto(page)

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

    def ReportPartitionState(
        self, request: pb.ReportPartitionStateRequest, context: grpc.ServicerContext
    ) -> pb.ReportPartitionStateResponse:
        outcomes = self._manager.report_partition_state(reports_from_proto(request.reports))
        return pb.ReportPartitionStateResponse(
            outcomes=[report_outcome_to_proto(outcome) for outcome in outcomes]
        )

    def GetPartitionState(
        self, request: pb.GetPartitionStateRequest, context: grpc.ServicerContext
    ) -> pb.GetPartitionStateResponse:
        return state_to_proto(self._manager.partition_state(_partition(request.topic_id_partition)))

    def RaiseLogStartOffset(
        self, request: pb.RaiseLogStartOffsetRequest, context: grpc.ServicerContext
    ) -> pb.RaiseLogStartOffsetResponse:
        with within("context"):
            why = context_from_proto(request.context)
        outcome = self._manager.raise_log_start_offset(
            _partition(request.topic_id_partition), request.log_start_offset, why
        )
        return pb.RaiseLogStartOffsetResponse(outcome=outcome_to_proto(outcome))

    def ScanRemoteLogSegments(
        self, request: pb.ScanRemoteLogSegmentsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ScanRemoteLogSegmentsResponse]:
        for batch in self._manager.scan_remote_log_segments(scan_from_proto(request)):
            yield segment_batch_to_proto(batch)


def _partition(message: segment_pb.TopicIdPartition) -> TopicIdPartition:
    with within("topic_id_partition"):
        return topic_id_partition_from_proto(message)
