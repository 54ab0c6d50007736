"""RLMM on the wire: where metadata and bucket disagree."""

import grpc

from services.rlmm.serving.serves_rlmm import ServesRlmm
from services.rpc.converters.anomalies import (
    anomaly_from_proto,
    anomaly_page_to_proto,
    anomaly_query_from_proto,
)
from services.rpc.converters.shared import items_from_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class AnomaliesServicer(ServesRlmm):
    """Serves services.api.anomalies.Anomalies."""

    def ReportAnomalies(
        self, request: pb.ReportAnomaliesRequest, context: grpc.ServicerContext
    ) -> pb.ReportAnomaliesResponse:
        anomalies = items_from_proto(request.anomalies, "anomalies", anomaly_from_proto)
        self._manager.report_anomalies(anomalies, request.run_id)
        return pb.ReportAnomaliesResponse()

    def ListAnomalies(
        self, request: pb.ListAnomaliesRequest, context: grpc.ServicerContext
    ) -> pb.ListAnomaliesResponse:
        page = self._manager.list_anomalies(
            anomaly_query_from_proto(request),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return anomaly_page_to_proto(page)
