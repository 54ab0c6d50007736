"""RLMM on the wire: metadata that something else has kept is taken over."""

from collections.abc import Iterator

import grpc

from services.rlmm.serving.serves_rlmm import ServesRlmm
from services.rpc.converters.segment_imports import import_from_proto, imported_to_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class SegmentImportsServicer(ServesRlmm):
    """Serves services.api.segment_imports.SegmentImports."""

    def ImportRemoteLogSegments(
        self,
        request_iterator: Iterator[pb.ImportRemoteLogSegmentsRequest],
        context: grpc.ServicerContext,
    ) -> pb.ImportRemoteLogSegmentsResponse:
        imports = map(import_from_proto, request_iterator)
        return imported_to_proto(self._manager.import_remote_log_segments(imports))
