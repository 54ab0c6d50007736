"""RLMM on the wire: leases of copies under way."""

import grpc

from services.rlmm.serving.serves_rlmm import ServesRlmm
from services.rpc.converters.shared import items_from_proto, segment_id_from_proto
from services.rpc.statuses import status_of_outcome
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class CopyLeasesServicer(ServesRlmm):
    """Serves services.api.copy_leases.CopyLeases."""

    def RenewCopyLeases(
        self, request: pb.RenewCopyLeasesRequest, context: grpc.ServicerContext
    ) -> pb.RenewCopyLeasesResponse:
        segment_ids = items_from_proto(request.segments, "segments", segment_id_from_proto)
        outcomes = self._manager.renew_copy_leases(segment_ids, request.lease_ms, request.broker_id)
        return pb.RenewCopyLeasesResponse(outcomes=map(status_of_outcome, outcomes))
