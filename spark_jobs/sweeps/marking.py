"""Mark planned segments DELETE_SEGMENT_STARTED.

If a partition changed since it was planned, plan it again and mark the segments that both plans
contain; never more than was planned.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import pyarrow as pa

from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.retry import replan
from services.workflows.deletion import Deleter, DeletionOutcome, ExpectedRevisions, begin_deletion
from services.workflows.removal import begin_removal
from spark_jobs.connections import Services
from spark_jobs.sweeps.plan import (
    FAILED,
    MARKED,
    MARKED_SCHEMA,
    REFUSED,
    PartitionPlan,
    Row,
    batches_of,
    narrowed,
    plans_of,
    rows_in,
    rows_of,
)
from spark_jobs.sweeps.planning import RemovalPlanner, RetentionPlanner
from spark_jobs.sweeps.waves import Pace

_NOT_MARKED = (RetriableRemoteStorageError, ThrottledError)

# What another run would not change. One that plans again may get past a ConcurrentUpdateError.
_REFUSALS = (
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)

PlanAgain = Callable[[TopicIdPartition], PartitionPlan]


@dataclass(frozen=True, slots=True)
class Mark:
    """The result of marking: MARKED; or REFUSED or FAILED, with the error.

    Another run changes nothing of what is REFUSED, and may mark what is FAILED.
    """

    outcome: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMarks:
    """The outcome of marking a plan.

    Attributes:
        plan: the frozen plan, with each segment as it was when it was marked.
        segments: by segment id; one for each deletion of the plan.
        partition: the mark of the partition itself; None if it is not being removed.
    """

    plan: PartitionPlan
    segments: Mapping[UUID, Mark] = field(default_factory=dict)
    partition: Mark | None = None


def mark_retention(
    batches: Iterable[pa.RecordBatch],
    services: Services,
    deleter: Deleter,
    copy_grace_ms: int,
    segments_per_s: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """Mark for retention: PLAN_SCHEMA, each partition's rows together, to MARKED_SCHEMA.

    Safe to run twice: a segment that is already marked counts as marked.
    """
    with services.connected_rlmm() as rlmm:
        again = RetentionPlanner(rlmm, copy_grace_ms).plan_again
        mark = partial(mark_partition, rlmm, plan_again=again, deleter=deleter)
        yield from _marked(batches, mark, segments_per_s)


def mark_removals(
    batches: Iterable[pa.RecordBatch],
    services: Services,
    deleter: Deleter,
    grace_ms: int,
    segments_per_s: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """Mark removed partitions DELETE_PARTITION_STARTED, then their segments."""
    with services.connected_rlmm() as rlmm:
        again = RemovalPlanner(rlmm, grace_ms).plan_again
        mark = partial(mark_removal, rlmm, plan_again=again, deleter=deleter)
        yield from _marked(batches, mark, segments_per_s)


def _marked(
    batches: Iterable[pa.RecordBatch],
    mark: Callable[[PartitionPlan], PartitionMarks],
    segments_per_s: float | None,
) -> Iterator[pa.RecordBatch]:
    pace = Pace(segments_per_s)

    def rows() -> Iterator[Row]:
        for plan in plans_of(rows_in(batches)):
            pace.wait_for(len(plan.deletions))
            yield from _rows(mark(plan))

    yield from batches_of(rows(), MARKED_SCHEMA)


def mark_partition(
    rlmm: RemoteLogMetadataManager,
    plan: PartitionPlan,
    plan_again: PlanAgain,
    deleter: Deleter,
) -> PartitionMarks:
    """Mark a plan's segments at the revisions it was made for.

    If the partition has changed, plan it again and mark the segments that both plans contain.

    Raises:
        RetriableRemoteStorageError, ThrottledError: RLMM is unreachable; some segments may be
            marked.
    """
    marks: dict[UUID, Mark] = {}
    segment_by_id = {d.segment.remote_log_segment_id.id: d.segment for d in plan.deletions}
    moved: set[UUID] = set()

    def mark(planned: PartitionPlan) -> None:
        moved.clear()
        stale: ConcurrentUpdateError | None = None
        for outcome in _begun(rlmm, planned, deleter):
            segment_id = outcome.segment.remote_log_segment_id.id
            marks[segment_id] = _mark_of(outcome)
            segment_by_id[segment_id] = outcome.segment
            if isinstance(outcome.error, ConcurrentUpdateError):
                moved.add(segment_id)
                stale = outcome.error
        if stale is not None:
            raise stale

    def narrowed_plan() -> PartitionPlan:
        now = plan_again(plan.topic_id_partition)
        kept = "changed since the plan was made; retention keeps it now"
        why = now.skipped or "; ".join((kept, *now.notes))
        marks.update(dict.fromkeys(moved, Mark(REFUSED, why)))
        return narrowed(now, moved)

    try:
        replan(mark, narrowed_plan, first=plan)
    except RemoteResourceNotFoundError as e:
        marks |= dict.fromkeys(moved, _refusal(e))
    except ConcurrentUpdateError:
        pass  # `marks` has the refusals of the last plan.
    return PartitionMarks(_with_segments(plan, segment_by_id.values()), marks)


def mark_removal(
    rlmm: RemoteLogMetadataManager,
    plan: PartitionPlan,
    plan_again: PlanAgain,
    deleter: Deleter,
) -> PartitionMarks:
    """Move a deleted partition to DELETE_PARTITION_STARTED and mark its segments.

    Does nothing to a partition that the plan skips. A partition that changed is planned again: one
    that was restored and marked again has a new grace period. Raises as mark_partition does.
    """
    if plan.skipped is not None:
        return PartitionMarks(plan)
    tp = plan.topic_id_partition
    try:
        _begin_removal(rlmm, plan, plan_again, deleter)
    except _NOT_MARKED:
        raise
    except RemoteStorageError as e:
        return PartitionMarks(plan, _by_id(_unmarked(plan, e)), _refusal(e))
    outcomes = begin_deletion(rlmm, tp, plan.deletions, None, None, deleter, now_ms())
    plan = _with_segments(plan, (outcome.segment for outcome in outcomes))
    marks = _by_id(outcomes)
    # The partition cannot be finished while segments are left, so the first of them speaks for it.
    return PartitionMarks(plan, marks, _worst(marks.values()))


def now_ms() -> int:
    """Return this machine's time, for the timestamps of events."""
    return time.time_ns() // 1_000_000


def _begin_removal(
    rlmm: RemoteLogMetadataManager,
    plan: PartitionPlan,
    plan_again: PlanAgain,
    deleter: Deleter,
) -> None:
    tp = plan.topic_id_partition

    def begin(planned: PartitionPlan) -> None:
        begin_removal(rlmm, tp, deleter, now_ms(), planned.revision)

    def due_plan() -> PartitionPlan:
        now = plan_again(tp)
        if now.skipped is not None:
            raise DeletionRefusedError(f"changed since the plan was made: {now.skipped}")
        return now

    replan(begin, due_plan, first=plan, stale=(ConcurrentUpdateError, InvalidStateTransitionError))


def _begun(
    rlmm: RemoteLogMetadataManager, plan: PartitionPlan, deleter: Deleter
) -> list[DeletionOutcome]:
    """Call begin_deletion; turn a refusal of the whole into the outcome of each segment."""
    if not plan.deletions or plan.config_revision is None:
        return []
    expected = ExpectedRevisions(plan.revision, plan.config_revision)
    tp, log_start = plan.topic_id_partition, plan.log_start_offset
    try:
        return begin_deletion(rlmm, tp, plan.deletions, log_start, expected, deleter, now_ms())
    except _NOT_MARKED:
        raise
    except RemoteStorageError as e:
        return _unmarked(plan, e)


def _unmarked(plan: PartitionPlan, error: RemoteStorageError) -> list[DeletionOutcome]:
    """Return a refusal for each segment, except those that an earlier run has marked."""
    started = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    return [
        DeletionOutcome(d.segment, None if d.segment.state is started else error)
        for d in plan.deletions
    ]


def _with_segments(
    plan: PartitionPlan, segments: Iterable[RemoteLogSegmentMetadata]
) -> PartitionPlan:
    """Return the plan with each of its segments as it was marked."""
    by_id = {each.remote_log_segment_id: each for each in segments}
    latest = (replace(d, segment=by_id[d.segment.remote_log_segment_id]) for d in plan.deletions)
    return replace(plan, deletions=tuple(latest))


def _by_id(outcomes: Iterable[DeletionOutcome]) -> dict[UUID, Mark]:
    return {o.segment.remote_log_segment_id.id: _mark_of(o) for o in outcomes}


def _mark_of(outcome: DeletionOutcome) -> Mark:
    if outcome.error is None:
        return Mark(MARKED)
    if outcome.segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
        return Mark(FAILED, str(outcome.error))  # A lease, which ends.
    return _refusal(outcome.error)


def _refusal(error: RemoteStorageError) -> Mark:
    return Mark(REFUSED if isinstance(error, _REFUSALS) else FAILED, str(error))


def _worst(marks: Iterable[Mark]) -> Mark:
    by_outcome = {mark.outcome: mark for mark in marks}
    return by_outcome.get(FAILED) or by_outcome.get(REFUSED) or Mark(MARKED)


def _rows(marks: PartitionMarks) -> Iterator[Row]:
    head, *segments = rows_of(marks.plan)
    yield _with_mark(head, marks.partition)
    for row in segments:
        yield _with_mark(row, marks.segments[UUID(row["segment_id"])])


def _with_mark(row: Row, mark: Mark | None) -> Row:
    return {**row, "outcome": mark and mark.outcome, "error": mark and mark.error}
