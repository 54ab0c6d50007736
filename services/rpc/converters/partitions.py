"""Convert RLMM's messages about partitions: state, reports, events, anomalies, topic settings."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from services.api.calls import AtRevision
from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.lineage import Lineage
from services.api.partitions import (
    Anomaly,
    AnomalyPage,
    AnomalyQuery,
    DeletionFreeze,
    EventPage,
    EventQuery,
    ObjectDeletion,
    OffsetGap,
    PartitionEvent,
    PartitionReport,
    PartitionState,
    PolledLog,
    SeenAnomaly,
    SegmentTotals,
)
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    PartitionPage,
    PartitionSummary,
    ReportOutcome,
)
from services.api.segments import ExportPosition
from services.api.topic_config import StoredTopicConfig
from services.api.validation import require, within
from services.api.watches import ChangedSegment, PartitionUpdate, WatchedPartition, WatchUpdate
from services.rpc.converters.shared import (
    anomaly_kind,
    items_from_proto,
    leader_epochs_from_proto,
    partition_delete_state,
    partition_of,
    segment_state,
    topic_id_partition_from_proto,
    topic_id_partition_to_proto,
)
from services.rpc.statuses import error_of, status_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

MAX_PARTITIONS_PER_CALL = 10_000


def leadership_to_proto(leadership: PartitionLeadership) -> pb.PartitionLeadership:
    return pb.PartitionLeadership(
        topic_id_partition=topic_id_partition_to_proto(leadership.topic_id_partition),
        leader_epoch=leadership.leader_epoch,
    )


def leaderships_from_proto(
    messages: Sequence[pb.PartitionLeadership], field: str
) -> list[PartitionLeadership]:
    _require_bounded(messages, field)
    return list(items_from_proto(messages, field, _leadership_from_proto))


def partitions_from_proto(
    messages: Sequence[segment_pb.TopicIdPartition], field: str
) -> list[TopicIdPartition]:
    _require_bounded(messages, field)
    return list(items_from_proto(messages, field, topic_id_partition_from_proto))


def _require_bounded(messages: Sequence[object], field: str) -> None:
    require(
        len(messages) <= MAX_PARTITIONS_PER_CALL,
        field,
        f"must be at most {MAX_PARTITIONS_PER_CALL}, are {len(messages)}",
    )


def _leadership_from_proto(message: pb.PartitionLeadership) -> PartitionLeadership:
    tp = partition_of(message)
    return PartitionLeadership(
        tp, message.leader_epoch if message.HasField("leader_epoch") else None
    )


def partition_page_to_proto(page: PartitionPage) -> pb.ListPartitionsResponse:
    return pb.ListPartitionsResponse(
        partitions=[_summary_to_proto(summary) for summary in page.partitions],
        next_page_token=page.next_page_token,
    )


def partition_page_from_proto(message: pb.ListPartitionsResponse) -> PartitionPage:
    return PartitionPage(
        partitions=tuple(_summary_from_proto(summary) for summary in message.partitions),
        next_page_token=message.next_page_token,
    )


def _summary_to_proto(summary: PartitionSummary) -> pb.PartitionSummary:
    message = pb.PartitionSummary(
        topic_id_partition=topic_id_partition_to_proto(summary.topic_id_partition),
        revision=summary.revision,
        marked_at_ms=summary.marked_at_ms,
        read_at_ms=summary.read_at_ms,
        cluster_id=summary.cluster_id,
        known_since_ms=summary.known_since_ms,
        is_held=summary.is_held,
    )
    if summary.delete_state is not None:
        message.delete_state = partition_delete_state.to_proto(summary.delete_state)
    if summary.totals is not None:
        message.totals.CopyFrom(_totals_to_proto(summary.totals))
    return message


def _totals_to_proto(totals: SegmentTotals) -> pb.SegmentTotals:
    return pb.SegmentTotals(
        finished_segments=totals.finished_segments,
        finished_bytes=totals.finished_bytes,
        live_segments=totals.live_segments,
        live_bytes=totals.live_bytes,
    )


def _totals_from_proto(message: pb.SegmentTotals) -> SegmentTotals:
    return SegmentTotals(
        finished_segments=message.finished_segments,
        finished_bytes=message.finished_bytes,
        live_segments=message.live_segments,
        live_bytes=message.live_bytes,
    )


def _summary_from_proto(message: pb.PartitionSummary) -> PartitionSummary:
    deleting = (
        message.delete_state
        != segment_pb.RemotePartitionDeleteState.REMOTE_PARTITION_DELETE_STATE_UNSPECIFIED
    )
    return PartitionSummary(
        topic_id_partition=topic_id_partition_from_proto(message.topic_id_partition),
        delete_state=(
            partition_delete_state.from_proto(message.delete_state, "delete_state")
            if deleting
            else None
        ),
        revision=message.revision,
        marked_at_ms=message.marked_at_ms if message.HasField("marked_at_ms") else None,
        read_at_ms=message.read_at_ms,
        cluster_id=message.cluster_id if message.HasField("cluster_id") else None,
        known_since_ms=message.known_since_ms,
        totals=_totals_from_proto(message.totals) if message.HasField("totals") else None,
        is_held=message.is_held,
    )


def indexed_partitions_from_proto(
    messages: Sequence[segment_pb.TopicIdPartition], field: str
) -> tuple[TopicIdPartition, ...]:
    return items_from_proto(messages, field, topic_id_partition_from_proto)


def watched_to_proto(watched: WatchedPartition) -> pb.WatchedPartition:
    return pb.WatchedPartition(
        topic_id_partition=topic_id_partition_to_proto(watched.topic_id_partition),
        after_revision=watched.after_revision,
        after_changed_at_us=watched.after_changed_at_us,
    )


def watched_from_proto(message: pb.WatchedPartition) -> WatchedPartition:
    tp = partition_of(message)
    after_revision = message.after_revision if message.HasField("after_revision") else None
    has_time = message.HasField("after_changed_at_us")
    return WatchedPartition(tp, after_revision, message.after_changed_at_us if has_time else None)


def watch_update_to_proto(update: WatchUpdate) -> pb.WatchPartitionsResponse:
    return pb.WatchPartitionsResponse(
        partitions=[
            pb.PartitionUpdate(
                index=each.place,
                revision=each.revision,
                segments=[
                    pb.ChangedSegment(
                        segment_id=uuid_to_text(segment.id),
                        state=segment_state.to_proto(segment.state),
                    )
                    for segment in each.segments
                ],
                everything=each.everything,
                changed_at_us=each.changed_at_us,
            )
            for each in update.partitions
        ],
        complete_through_ms=update.complete_through_ms,
    )


def watch_update_from_proto(message: pb.WatchPartitionsResponse) -> WatchUpdate:
    return WatchUpdate(
        tuple(
            PartitionUpdate(
                each.index,
                each.revision,
                tuple(
                    ChangedSegment(
                        uuid_from_text(segment.segment_id, "segment_id"),
                        segment_state.from_proto(segment.state, "state"),
                    )
                    for segment in each.segments
                ),
                each.everything,
                each.changed_at_us,
            )
            for each in message.partitions
        ),
        message.complete_through_ms,
    )


def gap_to_proto(gap: OffsetGap) -> pb.OffsetGap:
    return pb.OffsetGap(start_offset=gap.start_offset, end_offset=gap.end_offset, kind=gap.kind)


def gap_from_proto(message: pb.OffsetGap) -> OffsetGap:
    return OffsetGap(message.start_offset, message.end_offset, message.kind)


def export_to_proto(export: ExportPosition) -> pb.ExportPosition:
    return pb.ExportPosition(
        name=export.name, next_offset=export.next_offset, lease_until_ms=export.lease_until_ms
    )


def export_from_proto(message: pb.ExportPosition) -> ExportPosition:
    return ExportPosition(message.name, message.next_offset, message.lease_until_ms)


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
    tp = partition_of(message)
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


def polled_log_to_proto(log: PolledLog) -> pb.PolledLog:
    return pb.PolledLog(
        topic_id_partition=topic_id_partition_to_proto(log.topic_id_partition),
        broker_id=log.broker_id,
        leader_epoch=log.leader_epoch,
        leader_epochs=_lineage_to_proto(log.lineage),
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
    )


def polled_log_from_proto(message: pb.PolledLog) -> PolledLog:
    tp = partition_of(message)
    return PolledLog(
        topic_id_partition=tp,
        broker_id=message.broker_id,
        leader_epoch=message.leader_epoch,
        lineage=_lineage_from_proto(message.leader_epochs),
        log_start_offset=message.log_start_offset,
        high_watermark=message.high_watermark,
    )


def polled_logs_from_proto(messages: Sequence[pb.PolledLog]) -> tuple[PolledLog, ...]:
    return items_from_proto(messages, "polled_logs", polled_log_from_proto)


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
        polled_log=polled_log_to_proto(value.polled_log) if value.polled_log else None,
        polled_at_ms=value.polled_at_ms,
        export_positions=map(export_to_proto, value.export_positions),
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
        polled_log=polled_log_from_proto(state.polled_log)
        if state.HasField("polled_log")
        else None,
        polled_at_ms=state.polled_at_ms if state.HasField("polled_at_ms") else None,
        export_positions=tuple(map(export_from_proto, state.export_positions)),
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
    """Read the outcome of a report; `report` completes the state, since responses omit it."""
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


def event_query_to_proto(
    query: EventQuery, page_size: int, page_token: str
) -> pb.ListEventsRequest:
    return pb.ListEventsRequest(
        topic_id_partition=topic_id_partition_to_proto(query.topic_id_partition),
        after_revision=query.after_revision,
        segment_id="" if query.segment_id is None else uuid_to_text(query.segment_id),
        plan_id=query.plan_id,
        page_size=page_size,
        page_token=page_token,
    )


def event_query_from_proto(message: pb.ListEventsRequest) -> EventQuery:
    with within("topic_id_partition"):
        tp = topic_id_partition_from_proto(message.topic_id_partition)
    segment_id = message.segment_id
    return EventQuery(
        tp,
        after_revision=message.after_revision,
        segment_id=uuid_from_text(segment_id, "segment_id") if segment_id else None,
        plan_id=message.plan_id,
    )


def event_page_to_proto(page: EventPage) -> pb.ListEventsResponse:
    return pb.ListEventsResponse(
        events=[_event_to_proto(event) for event in page.events],
        next_page_token=page.next_page_token,
        revision=page.revision,
    )


def event_page_from_proto(message: pb.ListEventsResponse) -> EventPage:
    return EventPage(
        events=tuple(_event_from_proto(event) for event in message.events),
        next_page_token=message.next_page_token,
        revision=message.revision,
    )


def _event_to_proto(event: PartitionEvent) -> pb.PartitionEvent:
    return pb.PartitionEvent(
        revision=event.revision,
        at_ms=event.at_ms,
        kind=event.kind,
        from_state=event.from_state,
        to_state=event.to_state,
        segment_id="" if event.segment_id is None else uuid_to_text(event.segment_id),
        key=event.key,
        actor=event.actor,
        call_id=event.call_id,
        request_id=event.request_id,
        reason=event.reason,
        rule_detail=event.rule_detail,
        plan_id=event.plan_id,
        broker_id=event.broker_id,
        broker_leader_epoch=event.broker_leader_epoch,
        repeat_count=event.repeat_count,
    )


def _event_from_proto(message: pb.PartitionEvent) -> PartitionEvent:
    segment_id = message.segment_id
    has_epoch = message.HasField("broker_leader_epoch")
    return PartitionEvent(
        revision=message.revision,
        at_ms=message.at_ms,
        kind=message.kind,
        from_state=message.from_state,
        to_state=message.to_state,
        segment_id=uuid_from_text(segment_id, "segment_id") if segment_id else None,
        key=message.key,
        actor=message.actor,
        call_id=message.call_id,
        request_id=message.request_id,
        reason=message.reason,
        rule_detail=message.rule_detail,
        plan_id=message.plan_id,
        broker_id=message.broker_id,
        broker_leader_epoch=message.broker_leader_epoch if has_epoch else None,
        repeat_count=message.repeat_count,
    )


def topic_config_to_proto(stored: StoredTopicConfig) -> pb.TopicConfig:
    return pb.TopicConfig(
        topic_id=uuid_to_text(stored.topic_id),
        topic=stored.topic,
        entries=stored.entries,
        revision=stored.revision,
    )


def topic_config_from_proto(message: pb.TopicConfig) -> StoredTopicConfig:
    return StoredTopicConfig(
        topic_id=uuid_from_text(message.topic_id, "topic_id"),
        topic=message.topic,
        entries=dict(message.entries),
        revision=message.revision,
    )


def freeze_to_proto(freeze: DeletionFreeze | None) -> pb.DeletionFreeze | None:
    if freeze is None:
        return None
    return pb.DeletionFreeze(since_ms=freeze.since_ms, actor=freeze.actor, reason=freeze.reason)


def freeze_from_proto(message: pb.DeletionFreeze) -> DeletionFreeze:
    return DeletionFreeze(message.since_ms, message.actor, message.reason)


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
    """Read an anomaly without the fields that only responses have."""
    return Anomaly(
        kind=anomaly_kind.from_proto(message.kind, "kind"),
        topic_id=uuid_from_text(message.topic_id, "topic_id"),
        partition=message.partition,
        segment_id=uuid_from_text(message.segment_id, "segment_id"),
        object_key=message.object_key,
        detail=message.detail,
    )


def object_deletion_to_proto(deletion: ObjectDeletion) -> pb.ObjectDeletion:
    return pb.ObjectDeletion(
        segment_id=uuid_to_text(deletion.segment_id), object_key=deletion.object_key
    )


def object_deletion_from_proto(message: pb.ObjectDeletion) -> ObjectDeletion:
    return ObjectDeletion(uuid_from_text(message.segment_id, "segment_id"), message.object_key)


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
