"""RLMM over gRPC: metadata that something else has kept is taken over."""

from collections.abc import Iterable

from services.api.segment_imports import ImportedSegments, SegmentImport
from services.rpc.clients.calls import call_with_stream
from services.rpc.clients.rlmm.calling import BULK_TIMEOUT_S, CallsRlmm
from services.rpc.converters.segment_imports import import_to_proto, imported_from_proto


class SegmentImportsClient(CallsRlmm):
    """Satisfies services.api.segment_imports.SegmentImports."""

    def import_remote_log_segments(self, imports: Iterable[SegmentImport]) -> ImportedSegments:
        """An import may take as long as it likes, each of its items BULK_TIMEOUT_S at most."""
        method = self._stub.ImportRemoteLogSegments
        messages = map(import_to_proto, imports)
        return imported_from_proto(call_with_stream(method, messages, self._peer, BULK_TIMEOUT_S))
