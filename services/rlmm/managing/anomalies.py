"""RLMM on SQL: where metadata and bucket disagree."""

from collections.abc import Sequence

from services.api.anomalies import ALL_ANOMALIES, Anomaly, AnomalyPage, AnomalyQuery
from services.rlmm import anomalies as anomaly_rows
from services.rlmm import page_tokens
from services.rlmm.managing.database import OnDatabase


class SqlAnomalies(OnDatabase):
    """Satisfies services.api.anomalies.Anomalies."""

    def report_anomalies(self, anomalies: Sequence[Anomaly], run_id: str) -> None:
        anomaly_rows.check_report(anomalies, run_id)
        self._transactions.change(lambda session: anomaly_rows.report(session, anomalies, run_id))

    def list_anomalies(
        self, query: AnomalyQuery = ALL_ANOMALIES, *, page_size: int = 0, page_token: str = ""
    ) -> AnomalyPage:
        limit = page_tokens.page_limit(page_size)
        after = page_tokens.decode(anomaly_rows.fingerprint(query), page_token)
        return self._transactions.read(
            lambda connection: anomaly_rows.list_anomalies(
                connection, query, limit=limit, after=after
            )
        )
