"""Reports of leaders and the state of partitions, remote_log_metadata_manager.proto."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from services.api.calls import AtRevision
from services.api.errors import RemoteStorageError
from services.api.lineage import Lineage
from services.api.partition_changes import ReportOutcome
from services.api.partition_state import PartitionReport, PartitionState
from services.api.validation import within
from services.rpc.converters.offset_gaps import gap_from_proto, gap_to_proto
from services.rpc.converters.shared import (
    items_from_proto,
    leader_epochs_from_proto,
    require_set,
    topic_id_partition_from_proto,
    topic_id_partition_to_proto,
)
from services.rpc.statuses import error_of, status_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb


def report_to_proto(report: PartitionReport) -> pb.PartitionReport:
    return pb.PartitionReport(
        topic_id_partition=topic_id_partition_to_proto(report.topic_id_partition),
        broker_id=report.broker_id,
        leader_epoch=report.leader_epoch,
        report_number=report.report_number,
        leader_epochs=_lineage_to_proto(report.lineage),
        local_log_start_offset=report.local_log_start_offset,
        log_end_offset=report.log_end_offset,
        high_watermark=report.high_watermark,
        last_stable_offset=report.last_stable_offset,
        only_local_bytes=report.only_local_bytes,
        copied_through_offset=report.copied_through_offset,
    )


def report_from_proto(message: pb.PartitionReport) -> PartitionReport:
    require_set(message, "topic_id_partition")
    with within("topic_id_partition"):
        tp = topic_id_partition_from_proto(message.topic_id_partition)
    return PartitionReport(
        topic_id_partition=tp,
        broker_id=message.broker_id,
        leader_epoch=message.leader_epoch,
        report_number=message.report_number,
        lineage=_lineage_from_proto(message.leader_epochs),
        local_log_start_offset=message.local_log_start_offset,
        log_end_offset=message.log_end_offset,
        high_watermark=message.high_watermark,
        last_stable_offset=message.last_stable_offset,
        only_local_bytes=message.only_local_bytes,
        copied_through_offset=message.copied_through_offset,
    )


def reports_from_proto(messages: Sequence[pb.PartitionReport]) -> tuple[PartitionReport, ...]:
    return items_from_proto(messages, "reports", report_from_proto)


def state_to_proto(state: AtRevision[PartitionState]) -> pb.GetPartitionStateResponse:
    value = state.value
    message = pb.PartitionState(
        log_start_offset=value.log_start_offset,
        leader_epochs=_lineage_to_proto(value.lineage),
        report=report_to_proto(value.report) if value.report else None,
        reported_at_ms=value.reported_at_ms,
        read_at_ms=value.read_at_ms,
        gaps=[gap_to_proto(gap) for gap in value.gaps],
        highest_broker_leader_epoch=value.highest_broker_leader_epoch,
    )
    return pb.GetPartitionStateResponse(state=message, revision=state.revision)


def state_from_proto(message: pb.GetPartitionStateResponse) -> AtRevision[PartitionState]:
    state = message.state
    has_epoch = state.HasField("highest_broker_leader_epoch")
    value = PartitionState(
        log_start_offset=state.log_start_offset,
        lineage=_lineage_from_proto(state.leader_epochs),
        report=report_from_proto(state.report) if state.HasField("report") else None,
        reported_at_ms=state.reported_at_ms if state.HasField("reported_at_ms") else None,
        read_at_ms=state.read_at_ms,
        gaps=tuple(gap_from_proto(gap) for gap in state.gaps),
        highest_broker_leader_epoch=state.highest_broker_leader_epoch if has_epoch else None,
    )
    return AtRevision(value, message.revision)


def report_outcome_to_proto(outcome: ReportOutcome) -> pb.ReportOutcome:
    if isinstance(outcome, RemoteStorageError):
        return pb.ReportOutcome(error=status_of(outcome))
    without_report = state_to_proto(AtRevision(replace(outcome.value, report=None), 0)).state
    return pb.ReportOutcome(
        result=pb.ReportedState(state=without_report, revision=outcome.revision)
    )


def report_outcome_from_proto(message: pb.ReportOutcome, report: PartitionReport) -> ReportOutcome:
    """`report` is what the outcome answers; it does not travel back."""
    if not message.HasField("result"):
        return error_of(message.error)
    result = message.result
    reply = pb.GetPartitionStateResponse(state=result.state, revision=result.revision)
    state = state_from_proto(reply)
    return AtRevision(replace(state.value, report=report), state.revision)


def _lineage_to_proto(lineage: Lineage) -> list[segment_pb.SegmentLeaderEpoch]:
    return [
        segment_pb.SegmentLeaderEpoch(leader_epoch=e.leader_epoch, start_offset=e.start_offset)
        for e in lineage.entries
    ]


def _lineage_from_proto(messages: Iterable[segment_pb.SegmentLeaderEpoch]) -> Lineage:
    return Lineage(leader_epochs_from_proto(messages, "leader_epochs"))
