"""Convert RLMM's messages about partitions: state, reports, events, anomalies, topic settings."""

from dataclasses import replace

from services.api.calls import AtRevision
from services.api.errors import RemoteStorageError
from services.api.holds import Hold, HoldPage
from services.api.operations import (
    Anomaly,
    AnomalyPage,
    AnomalyQuery,
    ObjectDeletion,
    RecordedAnomaly,
)
from services.api.partitions import (
    NEVER_TRIMMED,
    EventPage,
    EventQuery,
    OffsetGap,
    PartitionReport,
    PartitionState,
    PolledLog,
)
from services.api.remote_log_metadata_manager import PartitionPage, ReportOutcome
from services.api.topic_config import StoredTopicConfig
from services.api.watches import ChangedSegment, PartitionUpdate, WatchedPartition, WatchUpdate
from services.rpc.converters.fields import converters, register_message
from services.rpc.statuses import error_of, status_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb

converters(PartitionPage, pb.ListPartitionsResponse)
converters(OffsetGap, pb.OffsetGap)
converters(Hold, pb.Hold)
converters(HoldPage, pb.ListHoldsResponse)
report_to_proto, report_from_proto = converters(
    PartitionReport, pb.PartitionReport, names={"lineage": "leader_epochs"}
)
polled_log_to_proto, polled_log_from_proto = converters(
    PolledLog, pb.PolledLog, names={"lineage": "leader_epochs"}
)
_state_to_proto, _state_from_proto = converters(
    PartitionState, pb.PartitionState, names={"lineage": "leader_epochs"}
)
watched_to_proto, watched_from_proto = converters(WatchedPartition, pb.WatchedPartition)
converters(ChangedSegment, pb.ChangedSegment, names={"id": "segment_id"})
converters(PartitionUpdate, pb.PartitionUpdate, names={"place": "index"})
watch_update_to_proto, watch_update_from_proto = converters(WatchUpdate, pb.WatchPartitionsResponse)
converters(EventQuery, pb.ListEventsRequest, besides=["page_size", "page_token"])
converters(EventPage, pb.ListEventsResponse)
converters(StoredTopicConfig, pb.TopicConfig)
converters(ObjectDeletion, pb.ObjectDeletion)


def report_outcome_to_proto(outcome: ReportOutcome) -> pb.ReportOutcome:
    if isinstance(outcome, RemoteStorageError):
        return pb.ReportOutcome(error=status_of(outcome))
    stored = outcome.value.report
    return pb.ReportOutcome(
        result=pb.ReportedState(
            state=_state_to_proto(replace(outcome.value, report=None)),
            revision=outcome.revision,
            local_trim_offset=stored.local_trim_offset if stored else NEVER_TRIMMED,
        )
    )


def report_outcome_from_proto(message: pb.ReportOutcome, report: PartitionReport) -> ReportOutcome:
    """Read the outcome of a report; `report` completes the state, since responses omit it."""
    if not message.HasField("result"):
        return error_of(message.error)
    stored = replace(report, local_trim_offset=message.result.local_trim_offset)
    state = _state_from_proto(message.result.state)
    return AtRevision(replace(state, report=stored), message.result.revision)


_anomaly_to_proto, _anomaly_from_proto = converters(
    Anomaly, pb.Anomaly, besides=["first_seen_ms", "last_seen_ms", "times_seen", "run_id"]
)


def _recorded_to_proto(anomaly: RecordedAnomaly) -> pb.Anomaly:
    message = _anomaly_to_proto(anomaly.anomaly)
    message.first_seen_ms = anomaly.first_seen_ms
    message.last_seen_ms = anomaly.last_seen_ms
    message.times_seen = anomaly.times_seen
    message.run_id = anomaly.run_id
    return message


def _recorded_from_proto(message: pb.Anomaly) -> RecordedAnomaly:
    return RecordedAnomaly(
        anomaly=_anomaly_from_proto(message),
        first_seen_ms=message.first_seen_ms,
        last_seen_ms=message.last_seen_ms,
        times_seen=message.times_seen,
        run_id=message.run_id,
    )


register_message(RecordedAnomaly, _recorded_to_proto, _recorded_from_proto)
converters(AnomalyQuery, pb.ListAnomaliesRequest, besides=["page_size", "page_token"])
converters(AnomalyPage, pb.ListAnomaliesResponse)
