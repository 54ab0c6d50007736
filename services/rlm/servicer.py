"""Serve RemoteLogManager over gRPC: convert the request, call the manager, convert the result."""

from collections.abc import Iterator

import grpc

from services.api.replicas import ReplicaService
from services.rpc.converters.fields import items_from_proto
from services.rpc.converters.log import (
    aux_state_query_from_proto,
    aux_state_to_proto,
    broker_retention_to_proto,
    copy_lag_to_proto,
    deletion_from_proto,
    delta_from_proto,
    describe_page_to_proto,
    epoch_answer_to_proto,
    epoch_query_from_proto,
    fetch_part_to_proto,
    fetch_request_from_proto,
    local_retention_change_from_proto,
    offset_answer_to_proto,
    offset_queries_from_proto,
    raised_to_proto,
    stops_from_proto,
)
from services.rpc.statuses import status_of_outcome
from services.rpc.wire import replace_handlers
from services.rpc.wire_parts import part_to_wire, parts_handler
from tieredstorage.v1 import remote_log_manager_pb2 as pb
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc


class RemoteLogManagerServicer(pb_grpc.RemoteLogManagerServicer):
    """Serve any RemoteLogManager."""

    def __init__(self, manager: ReplicaService) -> None:
        self._manager = manager

    def Fetch(
        self, request: pb.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.FetchResponse]:
        for part in self._manager.fetch(fetch_request_from_proto(request)):
            yield fetch_part_to_proto(part)

    def fetch_parts(
        self, request: pb.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Stream the parts of a fetch as they are on the wire."""
        for part in self._manager.fetch(fetch_request_from_proto(request)):
            yield part_to_wire(part)

    def ListOffsets(
        self, request: pb.ListOffsetsRequest, context: grpc.ServicerContext
    ) -> pb.ListOffsetsResponse:
        found = self._manager.list_offsets(offset_queries_from_proto(request))
        return pb.ListOffsetsResponse(answers=map(offset_answer_to_proto, found))

    def OffsetForLeaderEpoch(
        self, request: pb.OffsetForLeaderEpochRequest, context: grpc.ServicerContext
    ) -> pb.OffsetForLeaderEpochResponse:
        queries = items_from_proto(request.queries, "queries", epoch_query_from_proto)
        answers = self._manager.offsets_for_leader_epochs(queries)
        return pb.OffsetForLeaderEpochResponse(answers=map(epoch_answer_to_proto, answers))

    def DeleteRecords(
        self, request: pb.DeleteRecordsRequest, context: grpc.ServicerContext
    ) -> pb.DeleteRecordsResponse:
        requests = items_from_proto(request.partitions, "partitions", deletion_from_proto)
        raised = self._manager.delete_records(requests, brokers_too=request.brokers_too)
        return pb.DeleteRecordsResponse(answers=map(raised_to_proto, raised))

    def SetLocalRetentionOwner(
        self, request: pb.SetLocalRetentionOwnerRequest, context: grpc.ServicerContext
    ) -> pb.SetLocalRetentionOwnerResponse:
        change = local_retention_change_from_proto(request)
        return broker_retention_to_proto(self._manager.set_local_retention_owner(change))

    def BuildRemoteLogAuxState(
        self, request: pb.BuildRemoteLogAuxStateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.BuildRemoteLogAuxStateResponse]:
        state = self._manager.build_remote_log_aux_state(aux_state_query_from_proto(request))
        yield from aux_state_to_proto(state)

    def DescribePartitions(
        self, request: pb.DescribePartitionsRequest, context: grpc.ServicerContext
    ) -> pb.DescribePartitionsResponse:
        page = self._manager.describe_partitions(
            list(request.topics), page_size=request.page_size, page_token=request.page_token
        )
        return describe_page_to_proto(page)

    def GetCopyLag(
        self, request: pb.GetCopyLagRequest, context: grpc.ServicerContext
    ) -> pb.GetCopyLagResponse:
        return copy_lag_to_proto(self._manager.copy_lag())

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> pb.DrainResponse:
        active = self._manager.drain(cancel=request.cancel)
        return pb.DrainResponse(active_copies=active.copies, active_deletions=active.deletions)

    def OnLeadershipChange(
        self, request: pb.OnLeadershipChangeRequest, context: grpc.ServicerContext
    ) -> pb.OnLeadershipChangeResponse:
        outcomes = self._manager.on_leadership_change(delta_from_proto(request))
        return pb.OnLeadershipChangeResponse(outcomes=map(status_of_outcome, outcomes))

    def StopPartitions(
        self, request: pb.StopPartitionsRequest, context: grpc.ServicerContext
    ) -> pb.StopPartitionsResponse:
        outcomes = self._manager.stop_partitions(stops_from_proto(request))
        return pb.StopPartitionsResponse(outcomes=map(status_of_outcome, outcomes))


def add_to_server(manager: ReplicaService, server: grpc.Server) -> None:
    """Serve `manager`; the records of a fetch do not go through protobuf."""
    servicer = RemoteLogManagerServicer(manager)
    pb_grpc.add_RemoteLogManagerServicer_to_server(servicer, server)
    fetch = {"Fetch": parts_handler(servicer.fetch_parts)}
    replace_handlers(server, "tieredstorage.v1.RemoteLogManager", fetch)
