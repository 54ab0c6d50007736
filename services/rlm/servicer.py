"""Serve RemoteLogManager over gRPC: convert the request, call the manager, convert the result."""

from collections.abc import Iterator

import grpc

from services.api.replicas import ReplicaService
from services.common.copied_bytes import BYTES_COPIED
from services.rpc.converters.log import (
    aux_state_query_from_proto,
    aux_state_to_proto,
    fetch_part_to_proto,
    fetch_request_from_proto,
)
from services.rpc.converters.rpcs import served
from services.rpc.wire import replace_handlers
from services.rpc.wire_parts import part_to_wire, parts_handler
from tieredstorage.v1 import remote_log_manager_pb2 as pb
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc


class RemoteLogManagerServicer(pb_grpc.RemoteLogManagerServicer):
    """Serve any RemoteLogManager; one method per RPC, in the contract's order."""

    def __init__(self, manager: ReplicaService) -> None:
        self.manager = manager

    def Fetch(
        self, request: pb.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.FetchResponse]:
        for part in self.manager.fetch(fetch_request_from_proto(request)):
            yield fetch_part_to_proto(part)

    def fetch_parts(
        self, request: pb.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Stream the parts of a fetch as they are on the wire."""
        for part in self.manager.fetch(fetch_request_from_proto(request)):
            BYTES_COPIED.labels("message").inc(part.size_bytes)
            yield part_to_wire(part)

    ListOffsets = served(ReplicaService.list_offsets)
    OffsetForLeaderEpoch = served(ReplicaService.offsets_for_leader_epochs)
    DeleteRecords = served(ReplicaService.delete_records)
    SetLocalRetentionOwner = served(ReplicaService.set_local_retention_owner)

    def BuildRemoteLogAuxState(
        self, request: pb.BuildRemoteLogAuxStateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.BuildRemoteLogAuxStateResponse]:
        state = self.manager.build_remote_log_aux_state(aux_state_query_from_proto(request))
        yield from aux_state_to_proto(state)

    DescribePartitions = served(ReplicaService.describe_partitions)
    GetCopyLag = served(ReplicaService.copy_lag)
    Drain = served(ReplicaService.drain)
    OnLeadershipChange = served(ReplicaService.on_leadership_change)
    StopPartitions = served(ReplicaService.stop_partitions)


def add_to_server(manager: ReplicaService, server: grpc.Server) -> None:
    """Serve `manager`; the records of a fetch do not go through protobuf."""
    servicer = RemoteLogManagerServicer(manager)
    pb_grpc.add_RemoteLogManagerServicer_to_server(servicer, server)
    fetch = {"Fetch": parts_handler(servicer.fetch_parts)}
    replace_handlers(server, "tieredstorage.v1.RemoteLogManager", fetch)
