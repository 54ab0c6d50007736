"""RLMM over gRPC: leases of copies under way."""

from collections.abc import Sequence

from services.api.copy_leases import RenewOutcome
from services.api.ids import RemoteLogSegmentId
from services.rpc.clients.calls import UNARY_TIMEOUT_S, call_once
from services.rpc.clients.rlmm.calling import CallsRlmm
from services.rpc.converters.shared import segment_id_to_proto
from services.rpc.statuses import outcome_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb

ATTEMPTS_PER_LEASE = 6
SHORTEST_TIMEOUT_S = 1.0


class CopyLeasesClient(CallsRlmm):
    """Satisfies services.api.copy_leases.CopyLeases."""

    def renew_copy_leases(
        self, segment_ids: Sequence[RemoteLogSegmentId], lease_ms: int, broker_id: int
    ) -> list[RenewOutcome]:
        request = pb.RenewCopyLeasesRequest(
            segments=map(segment_id_to_proto, segment_ids), lease_ms=lease_ms, broker_id=broker_id
        )
        # A call that hangs must leave time for another before the leases end.
        timeout_s = max(lease_ms / 1000 / ATTEMPTS_PER_LEASE, SHORTEST_TIMEOUT_S)
        timeout_s = min(timeout_s, UNARY_TIMEOUT_S)
        reply = call_once(self._stub.RenewCopyLeases, request, self._peer, timeout_s)
        return [outcome_of(status) for status in reply.outcomes]
