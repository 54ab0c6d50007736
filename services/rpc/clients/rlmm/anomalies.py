"""RLMM over gRPC: where metadata and bucket disagree."""

from collections.abc import Sequence

from services.api.anomalies import ALL_ANOMALIES, Anomaly, AnomalyPage, AnomalyQuery
from services.rpc.clients.calls import call_once
from services.rpc.clients.rlmm.calling import BULK_TIMEOUT_S, CallsRlmm
from services.rpc.converters.anomalies import (
    anomaly_page_from_proto,
    anomaly_query_to_proto,
    anomaly_to_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class AnomaliesClient(CallsRlmm):
    """Satisfies services.api.anomalies.Anomalies."""

    def report_anomalies(self, anomalies: Sequence[Anomaly], run_id: str) -> None:
        request = pb.ReportAnomaliesRequest(
            anomalies=[anomaly_to_proto(anomaly) for anomaly in anomalies], run_id=run_id
        )
        call_once(self._stub.ReportAnomalies, request, self._peer, BULK_TIMEOUT_S)

    def list_anomalies(
        self, query: AnomalyQuery = ALL_ANOMALIES, *, page_size: int = 0, page_token: str = ""
    ) -> AnomalyPage:
        request = anomaly_query_to_proto(query, page_size, page_token)
        return anomaly_page_from_proto(call_once(self._stub.ListAnomalies, request, self._peer))
