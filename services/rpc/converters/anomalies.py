"""Anomalies, remote_log_metadata_manager.proto."""

from services.api.anomalies import Anomaly, AnomalyPage, AnomalyQuery, SeenAnomaly
from services.api.ids import uuid_from_text, uuid_to_text
from services.rpc.converters.enums import anomaly_kind
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


def anomaly_to_proto(anomaly: Anomaly) -> pb.Anomaly:
    return pb.Anomaly(
        kind=anomaly_kind.to_proto(anomaly.kind),
        topic_id=uuid_to_text(anomaly.topic_id),
        partition=anomaly.partition,
        segment_id=uuid_to_text(anomaly.segment_id),
        object_key=anomaly.object_key,
        detail=anomaly.detail,
    )


def anomaly_from_proto(message: pb.Anomaly) -> Anomaly:
    """Without what is in answers only."""
    return Anomaly(
        kind=anomaly_kind.from_proto(message.kind, "kind"),
        topic_id=uuid_from_text(message.topic_id, "topic_id"),
        partition=message.partition,
        segment_id=uuid_from_text(message.segment_id, "segment_id"),
        object_key=message.object_key,
        detail=message.detail,
    )


def anomaly_query_to_proto(
    query: AnomalyQuery, page_size: int, page_token: str
) -> pb.ListAnomaliesRequest:
    return pb.ListAnomaliesRequest(
        kinds=[anomaly_kind.to_proto(kind) for kind in query.kinds],
        topic_id="" if query.topic_id is None else uuid_to_text(query.topic_id),
        last_seen_from_ms=query.last_seen_from_ms,
        page_size=page_size,
        page_token=page_token,
    )


def anomaly_query_from_proto(message: pb.ListAnomaliesRequest) -> AnomalyQuery:
    topic_id, has_time = message.topic_id, message.HasField("last_seen_from_ms")
    return AnomalyQuery(
        kinds=tuple(
            anomaly_kind.from_proto(kind, f"kinds[{index}]")
            for index, kind in enumerate(message.kinds)
        ),
        topic_id=uuid_from_text(topic_id, "topic_id") if topic_id else None,
        last_seen_from_ms=message.last_seen_from_ms if has_time else None,
    )


def anomaly_page_to_proto(page: AnomalyPage) -> pb.ListAnomaliesResponse:
    return pb.ListAnomaliesResponse(
        anomalies=[_seen_to_proto(seen) for seen in page.anomalies],
        next_page_token=page.next_page_token,
    )


def anomaly_page_from_proto(message: pb.ListAnomaliesResponse) -> AnomalyPage:
    return AnomalyPage(
        anomalies=tuple(_seen_from_proto(each) for each in message.anomalies),
        next_page_token=message.next_page_token,
    )


def _seen_to_proto(seen: SeenAnomaly) -> pb.Anomaly:
    message = anomaly_to_proto(seen.anomaly)
    message.first_seen_ms = seen.first_seen_ms
    message.last_seen_ms = seen.last_seen_ms
    message.times_seen = seen.times_seen
    message.run_id = seen.run_id
    return message


def _seen_from_proto(message: pb.Anomaly) -> SeenAnomaly:
    return SeenAnomaly(
        anomaly=anomaly_from_proto(message),
        first_seen_ms=message.first_seen_ms,
        last_seen_ms=message.last_seen_ms,
        times_seen=message.times_seen,
        run_id=message.run_id,
    )
