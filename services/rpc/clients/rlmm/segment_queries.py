"""RLMM over gRPC: which segments there are, by offset, by id, in lists and in bulk."""

from collections.abc import Iterator, Sequence
from uuid import UUID

from services.api.calls import AtRevision
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.segment_batches import LookupOutcome, SegmentLookup
from services.api.segment_queries import SegmentPage
from services.api.segment_scan import SegmentBatch, SegmentScan
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import RetentionOwner
from services.rpc.clients.calls import call_once, call_stream
from services.rpc.clients.rlmm.calling import BULK_TIMEOUT_S, CallsRlmm
from services.rpc.converters.batches import lookup_outcome_from_proto, lookup_to_proto
from services.rpc.converters.bulk import scan_to_proto, segment_batch_from_proto
from services.rpc.converters.enums import retention_owner, segment_state
from services.rpc.converters.metadata import segment_page_from_proto
from services.rpc.converters.shared import metadata_from_proto, topic_id_partition_to_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class SegmentQueriesClient(CallsRlmm):
    """Satisfies services.api.segment_queries.SegmentQueries."""

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        request = pb.GetRemoteLogSegmentMetadataRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition),
            epoch_for_offset=epoch_for_offset,
            offset=offset,
        )
        reply = call_once(self._stub.GetRemoteLogSegmentMetadata, request, self._peer)
        found = metadata_from_proto(reply.metadata) if reply.HasField("metadata") else None
        return AtRevision(found, reply.revision)

    def remote_log_segment_metadata_batch(
        self, lookups: Sequence[SegmentLookup]
    ) -> list[LookupOutcome]:
        request = pb.GetRemoteLogSegmentMetadataBatchRequest(
            lookups=[lookup_to_proto(lookup) for lookup in lookups]
        )
        method = self._stub.GetRemoteLogSegmentMetadataBatch
        reply = call_once(method, request, self._peer, BULK_TIMEOUT_S)
        return [lookup_outcome_from_proto(outcome) for outcome in reply.outcomes]

    def remote_log_segment_metadata_by_id(
        self, topic_id_partition: TopicIdPartition, ids: Sequence[UUID]
    ) -> AtRevision[tuple[RemoteLogSegmentMetadata, ...]]:
        request = pb.GetRemoteLogSegmentMetadataByIdRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition),
            ids=[uuid_to_text(id) for id in ids],
        )
        reply = call_once(self._stub.GetRemoteLogSegmentMetadataById, request, self._peer)
        return AtRevision(tuple(map(metadata_from_proto, reply.segments)), reply.revision)

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        request = pb.GetNextSegmentWithTxnIndexRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition),
            epoch=epoch,
            offset=offset,
        )
        reply = call_once(self._stub.GetNextSegmentWithTxnIndex, request, self._peer)
        found = metadata_from_proto(reply.metadata) if reply.HasField("metadata") else None
        return AtRevision(found, reply.revision)

    def earliest_log_offset(self, topic_id_partition: TopicIdPartition) -> AtRevision[int | None]:
        request = pb.GetEarliestLogOffsetRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition)
        )
        reply = call_once(self._stub.GetEarliestLogOffset, request, self._peer)
        found = reply.earliest_offset if reply.HasField("earliest_offset") else None
        return AtRevision(found, reply.revision)

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        request = pb.GetHighestOffsetForEpochRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition),
            leader_epoch=leader_epoch,
        )
        reply = call_once(self._stub.GetHighestOffsetForEpoch, request, self._peer)
        found = reply.highest_offset if reply.HasField("highest_offset") else None
        return AtRevision(found, reply.revision)

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        request = pb.GetRemoteLogSizeRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition),
            leader_epoch=leader_epoch,
        )
        reply = call_once(self._stub.GetRemoteLogSize, request, self._peer)
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
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition),
            leader_epoch=leader_epoch,
            states=[segment_state.to_proto(state) for state in states],
            min_offset=min_offset,
            if_revision_not=if_revision_not,
            page_size=page_size,
            page_token=page_token,
        )
        if deletes_for is not None:
            request.deletes_for = retention_owner.to_proto(deletes_for)
        reply = call_once(self._stub.ListRemoteLogSegments, request, self._peer)
        return segment_page_from_proto(reply)

    def scan_remote_log_segments(self, scan: SegmentScan) -> Iterator[SegmentBatch]:
        method, request = self._stub.ScanRemoteLogSegments, scan_to_proto(scan)
        for response in call_stream(method, request, self._peer, BULK_TIMEOUT_S):
            yield segment_batch_from_proto(response)
