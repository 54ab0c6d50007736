"""RemoteLogMetadataManager over gRPC."""

from collections.abc import Generator, Iterable, Iterator, Sequence

import grpc

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import PartitionReport, PolledLog
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    ReportOutcome,
)
from services.api.segment_batches import (
    ImportedSegments,
    LookupOutcome,
    SegmentBatch,
    SegmentImport,
    SegmentLookup,
    SegmentScan,
)
from services.api.watches import WatchedPartition, WatchUpdate
from services.rpc.client.calls import (
    UNARY_TIMEOUT_S,
    call_stream,
    call_with_stream,
)
from services.rpc.client.channel import peer_of
from services.rpc.client.contract import ContractClient, unary
from services.rpc.converters import partitions as of_partitions
from services.rpc.converters import segments as of_segments
from services.rpc.converters.shared import topic_id_partition_to_proto as tp_to_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc

Contract = RemoteLogMetadataManager

BULK_TIMEOUT_S = 300.0
"""Of a batch, and of the wait for the next message of a stream: a sweep may take its time."""

WATCH_TIMEOUT_S = 10.0
"""The longest silence of a watch, which has a heartbeat each second."""

ATTEMPTS_PER_LEASE = 6

SHORTEST_TIMEOUT_S = 1.0


def _timeout_of_renewal_s(request: pb.RenewCopyLeasesRequest) -> float:
    """Leave time for another call before the leases end if this one hangs."""
    timeout_s = max(request.lease_ms / 1000 / ATTEMPTS_PER_LEASE, SHORTEST_TIMEOUT_S)
    return min(timeout_s, UNARY_TIMEOUT_S)


class RemoteLogMetadataManagerClient(ContractClient):
    """Satisfy services.api.remote_log_metadata_manager.RemoteLogMetadataManager; thread-safe."""

    def __init__(self, channel: grpc.Channel, peer: str) -> None:
        stub = pb_grpc.RemoteLogMetadataManagerStub(channel)
        super().__init__(stub, peer_of("rlmm", channel, peer))

    add_remote_log_segment_metadata = unary(Contract.add_remote_log_segment_metadata)
    add_remote_log_segment_metadata_batch = unary(
        Contract.add_remote_log_segment_metadata_batch, BULK_TIMEOUT_S
    )
    update_remote_log_segment_metadata = unary(Contract.update_remote_log_segment_metadata)
    update_remote_log_segment_metadata_batch = unary(
        Contract.update_remote_log_segment_metadata_batch, BULK_TIMEOUT_S
    )

    renew_copy_leases = unary(Contract.renew_copy_leases, _timeout_of_renewal_s)
    remote_log_segment_metadata = unary(Contract.remote_log_segment_metadata)

    def remote_log_segment_metadata_batch(
        self, lookups: Sequence[SegmentLookup]
    ) -> list[LookupOutcome]:
        request = pb.GetRemoteLogSegmentMetadataBatchRequest(
            lookups=[of_segments.lookup_to_proto(lookup) for lookup in lookups]
        )
        reply = self.call("GetRemoteLogSegmentMetadataBatch", request, BULK_TIMEOUT_S)
        return [of_segments.lookup_outcome_from_proto(outcome) for outcome in reply.outcomes]

    remote_log_segment_metadata_by_id = unary(Contract.remote_log_segment_metadata_by_id)
    next_segment_with_txn_index = unary(Contract.next_segment_with_txn_index)
    earliest_log_offset = unary(Contract.earliest_log_offset)
    highest_offset_for_epoch = unary(Contract.highest_offset_for_epoch)
    remote_log_size = unary(Contract.remote_log_size)
    list_remote_log_segments = unary(Contract.list_remote_log_segments)
    list_kept_segments = unary(Contract.list_kept_segments)

    def scan_remote_log_segments(self, scan: SegmentScan) -> Iterator[SegmentBatch]:
        method, request = self._stub.ScanRemoteLogSegments, of_segments.scan_to_proto(scan)
        for response in call_stream(method, request, self._peer, BULK_TIMEOUT_S):
            yield of_segments.segment_batch_from_proto(response)

    bin_remote_log_segments = unary(Contract.bin_remote_log_segments)

    def import_remote_log_segments(self, imports: Iterable[SegmentImport]) -> ImportedSegments:
        """Import segments; only the wait for each outcome has a timeout, BULK_TIMEOUT_S."""
        method = self._stub.ImportRemoteLogSegments
        messages = map(of_segments.import_to_proto, imports)
        return of_segments.imported_from_proto(
            call_with_stream(method, messages, self._peer, BULK_TIMEOUT_S)
        )

    list_source_positions = unary(Contract.list_source_positions)
    on_partition_leadership_changes = unary(Contract.on_partition_leadership_changes)
    on_stop_partitions = unary(Contract.on_stop_partitions)
    announce_endpoint = unary(Contract.announce_endpoint, _timeout_of_renewal_s)

    def report_partition_state(
        self, reports: Sequence[PartitionReport], polled_logs: Sequence[PolledLog] = ()
    ) -> list[ReportOutcome]:
        request = pb.ReportPartitionStateRequest(
            reports=[of_partitions.report_to_proto(report) for report in reports],
            polled_logs=[of_partitions.polled_log_to_proto(log) for log in polled_logs],
        )
        reply = self.call("ReportPartitionState", request, BULK_TIMEOUT_S)
        pairs = zip(reply.outcomes, reports, strict=True)
        return [
            of_partitions.report_outcome_from_proto(outcome, report) for outcome, report in pairs
        ]

    raise_log_start_offset = unary(Contract.raise_log_start_offset)
    put_remote_partition_delete_metadata = unary(Contract.put_remote_partition_delete_metadata)
    partition_state = unary(Contract.partition_state)
    list_partitions = unary(Contract.list_partitions)
    partition_revisions = unary(Contract.partition_revisions)

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

    list_events = unary(Contract.list_events)

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        request = pb.IsReadyRequest(topic_id_partition=tp_to_proto(topic_id_partition))
        try:
            return bool(self.call("IsReady", request).ready)
        except RetriableRemoteStorageError:
            return False

    record_gap = unary(Contract.record_gap)
    set_hold = unary(Contract.set_hold)
    end_hold = unary(Contract.end_hold)
    list_holds = unary(Contract.list_holds)
    replace_segment_data = unary(Contract.replace_segment_data)
    undelete_partition = unary(Contract.undelete_partition)
    reset_leader_epoch = unary(Contract.reset_leader_epoch)
    topic_config = unary(Contract.topic_config)
    put_topic_config = unary(
        Contract.put_topic_config,
        # A repeat would find the revision that the first attempt made.
        is_idempotent=lambda request: not request.HasField("expected_revision"),
    )
    confirm_deletions = unary(Contract.confirm_deletions)
    report_anomalies = unary(Contract.report_anomalies, BULK_TIMEOUT_S)
    list_anomalies = unary(Contract.list_anomalies)
    report_tool_run = unary(Contract.report_tool_run, BULK_TIMEOUT_S)
    list_tool_runs = unary(Contract.list_tool_runs)
    record_object_deletions = unary(
        Contract.record_object_deletions,
        BULK_TIMEOUT_S,
        # Without a request id, a repeat would record the deletions again.
        is_idempotent=lambda request: request.context.HasField("request_id"),
    )


def _conforms(client: RemoteLogMetadataManagerClient) -> RemoteLogMetadataManager:
    return client
