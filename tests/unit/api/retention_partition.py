"""Build segments and a partition's state for retention, and apply its plans."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import PartitionReport, PartitionState
from services.api.retention import RetentionPlan
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
TP = TopicIdPartition(UUID(int=1), "orders", 0)
NOW_MS = 1_700_000_000_000
SIZE = 1024

Epochs = Sequence[tuple[int, int]]


def lineage(*pairs: tuple[int, int]) -> Lineage:
    return Lineage(segment_leader_epochs(pairs))


def segment(
    start: int,
    end: int,
    epochs: Epochs = (),
    *,
    attempt: int = 1,
    state: RemoteLogSegmentState = FINISHED,
    size: int = SIZE,
    age_ms: int = 0,
) -> RemoteLogSegmentMetadata:
    """Return a segment of epoch 0 by default; `attempt` distinguishes two with the same offsets."""
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(
            TP, UUID(int=(start << 64) + (end << 8) + attempt)
        ),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=NOW_MS - age_ms,
        broker_id=1,
        event_timestamp_ms=NOW_MS,
        segment_leader_epochs=segment_leader_epochs(epochs or [(0, start)]),
        segment_size_in_bytes=size,
        state=state,
    )


def partition(
    history: Lineage,
    log_end_offset: int,
    *,
    log_start_offset: int = 0,
    only_local_bytes: int = 0,
    copied_through_offset: int | None = None,
    leader_epoch: int | None = None,
    report_age_ms: int = 0,
) -> PartitionState:
    """Return a state as its leader reported it; by default the leader has seen every copy."""
    copied_through = log_end_offset - 1 if copied_through_offset is None else copied_through_offset
    report = PartitionReport(
        topic_id_partition=TP,
        broker_id=1,
        leader_epoch=(history.latest_epoch or 0) if leader_epoch is None else leader_epoch,
        report_number=1,
        lineage=history,
        local_log_start_offset=log_end_offset,
        log_end_offset=log_end_offset,
        high_watermark=log_end_offset,
        last_stable_offset=log_end_offset,
        only_local_bytes=only_local_bytes,
        copied_through_offset=copied_through,
    )
    return PartitionState(
        log_start_offset=log_start_offset,
        lineage=history,
        report=report,
        reported_at_ms=NOW_MS - report_age_ms,
        read_at_ms=NOW_MS,
    )


def without(
    segments: Sequence[RemoteLogSegmentMetadata], plan: RetentionPlan
) -> list[RemoteLogSegmentMetadata]:
    """Return the segments that are left after the plan's deletions."""
    deleted = {deletion.segment for deletion in plan.deletions}
    return [kept for kept in segments if kept not in deleted]


def raised(state: PartitionState, plan: RetentionPlan) -> PartitionState:
    """Return the partition's state with the plan's log start, as RLMM sets it."""
    if plan.log_start_offset is None:
        return state
    return replace(
        state,
        log_start_offset=plan.log_start_offset,
        lineage=state.lineage.from_offset(plan.log_start_offset),
    )
