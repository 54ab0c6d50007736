"""The RPCs of the contract that this release does not serve yet; each says so by name."""

from collections.abc import Iterator

import grpc

from services.api.errors import NotServedError
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc


class NotServed(pb_grpc.RemoteLogMetadataManagerServicer):
    """A base for the servicer: UNIMPLEMENTED (NOT_SERVED)."""

    def RenewCopyLeases(
        self, request: pb.RenewCopyLeasesRequest, context: grpc.ServicerContext
    ) -> pb.RenewCopyLeasesResponse:
        raise NotServedError("RenewCopyLeases is not served yet")

    def RecordGap(
        self, request: pb.RecordGapRequest, context: grpc.ServicerContext
    ) -> pb.RecordGapResponse:
        raise NotServedError("RecordGap is not served yet")

    def ReportAnomalies(
        self, request: pb.ReportAnomaliesRequest, context: grpc.ServicerContext
    ) -> pb.ReportAnomaliesResponse:
        raise NotServedError("ReportAnomalies is not served yet")

    def ListAnomalies(
        self, request: pb.ListAnomaliesRequest, context: grpc.ServicerContext
    ) -> pb.ListAnomaliesResponse:
        raise NotServedError("ListAnomalies is not served yet")

    def ImportRemoteLogSegments(
        self,
        request_iterator: Iterator[pb.ImportRemoteLogSegmentsRequest],
        context: grpc.ServicerContext,
    ) -> pb.ImportRemoteLogSegmentsResponse:
        raise NotServedError("ImportRemoteLogSegments is not served yet")

    def UndeletePartition(
        self, request: pb.UndeletePartitionRequest, context: grpc.ServicerContext
    ) -> pb.UndeletePartitionResponse:
        raise NotServedError("UndeletePartition is not served yet")

    def ResetLeaderEpoch(
        self, request: pb.ResetLeaderEpochRequest, context: grpc.ServicerContext
    ) -> pb.ResetLeaderEpochResponse:
        raise NotServedError("ResetLeaderEpoch is not served yet")
