"""Explain why retention deletes or keeps a segment, and when that changes.

These functions are pure and repeat no rule: they call plan_retention with other times, a larger
partition, or without the holds and the running copies. A segment that is deleted at one moment is
deleted at every later one, so bisection finds the first.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

from services.api.lineage import Divergence, SegmentLineage
from services.api.partitions import PartitionState, PolledLog, log_end_offset
from services.api.retention import (
    COPIES,
    DEFAULT_MAX_REPORT_AGE_MS,
    SIZE_NOT_APPLIED,
    Deletion,
    RetentionPlan,
    list_order,
    newest_ms,
    plan_retention,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import UNLIMITED, TopicConfig
from services.api.validation import INT64_MAX


@dataclass(frozen=True, slots=True)
class RetentionCase:
    """The arguments of plan_retention.

    Attributes:
        earlier, waits_until_ms: of StoredTopicConfig; None if no change of the settings waits.
    """

    segments: Sequence[RemoteLogSegmentMetadata]
    state: PartitionState
    config: TopicConfig
    now_ms: int
    being_copied: frozenset[UUID] = frozenset()
    max_report_age_ms: int = DEFAULT_MAX_REPORT_AGE_MS
    earlier: TopicConfig | None = None
    waits_until_ms: int | None = None

    @property
    def is_judged(self) -> bool:
        """Return whether a leader has reported; before that, retention begins no deletion."""
        return self.state.report is not None and bool(self.state.lineage.entries)

    def plan(self) -> RetentionPlan:
        has_waited = self.waits_until_ms is None or self.now_ms >= self.waits_until_ms
        return plan_retention(
            self.segments,
            self.state,
            self.config,
            self.config if has_waited or self.earlier is None else self.earlier,
            being_copied=self.being_copied,
            now_ms=self.now_ms,
            max_report_age_ms=self.max_report_age_ms,
        )

    def at(self, now_ms: int) -> "RetentionCase":
        return replace(self, now_ms=now_ms)

    def without_holds(self) -> "RetentionCase":
        return replace(self, state=replace(self.state, holds=()))

    def unobstructed(self) -> "RetentionCase":
        """Return this case without holds, with running copies as dangling ones."""
        segments = tuple(replace(s, copy_leased=False) for s in self.segments)
        return replace(self.without_holds(), segments=segments, being_copied=frozenset())


class Standing(Enum):
    """The verdict of retention on a segment, as people read it.

    DUE: plan_retention deletes it now. LATER: plan_retention deletes it as time passes. OBSTRUCTED:
    without a hold or a running copy it would be DUE or LATER. KEPT: no passing of time deletes it.
    NOT_JUDGED: no leader has reported.
    """

    DUE = "due now"
    LATER = "due later"
    OBSTRUCTED = "held up"
    KEPT = "kept"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Due:
    """The time at which a segment is deleted if nothing but the time changes.

    Attributes:
        at_ms: the first moment at which plan_retention deletes it; now if it already does.
        deletion: the rule and its figures in the plan of that moment.
    """

    at_ms: int
    deletion: Deletion


@dataclass(frozen=True, slots=True)
class SegmentExplanation:
    """The explanation of one segment.

    Attributes:
        due: set if DUE or LATER.
        once_clear: set if OBSTRUCTED: `due` of the unobstructed case.
        bytes_missing: the growth of the partition, now and unobstructed, that would delete the
            segment; None if it is due now, or if no growth deletes it.
        waits_for: the earlier segment at which the scan ends until this segment is due; None if the
            scan reaches this segment.
        divergence: None if the segment is within the lineage, or if the lineage is unknown.
    """

    segment: RemoteLogSegmentMetadata
    standing: Standing
    due: Due | None = None
    once_clear: Due | None = None
    bytes_missing: int | None = None
    waits_for: RemoteLogSegmentMetadata | None = None
    divergence: Divergence | None = None


@dataclass(frozen=True, slots=True)
class PartitionExplanation:
    """The explanation of one partition.

    Attributes:
        plan: the deletions that are due now.
        size_note: why retention.bytes is not applied now, with or without holds; "" if it is
            applied or not set.
        on_hold: the deletions that only holds prevent now.
        oldest: the first segment by start offset that is not being deleted; None if there is none.
        next: the segment at which the scan ends without holds; None if none ends it.
    """

    plan: RetentionPlan
    size_note: str
    on_hold: tuple[Deletion, ...]
    oldest: RemoteLogSegmentMetadata | None
    next: SegmentExplanation | None


@dataclass(frozen=True, slots=True)
class KafkasPart:
    """What Kafka does with a partition that a broker tiers by itself.

    Attributes:
        expected: finished segments that end below Kafka's log start: Kafka is expected to delete
            them.
    """

    log: PolledLog
    age_ms: int
    expected: tuple[RemoteLogSegmentMetadata, ...]

    @property
    def expected_bytes(self) -> int:
        return sum(max(0, s.segment_size_in_bytes) for s in self.expected)


def kafkas_part(
    segments: Sequence[RemoteLogSegmentMetadata], state: PartitionState
) -> KafkasPart | None:
    """Describe what Kafka does; None if no RLM has polled the log, or a leader's RLM reports."""
    log, polled_at_ms = state.polled_log, state.polled_at_ms
    if log is None or polled_at_ms is None or state.report is not None:
        return None
    expected = tuple(
        s
        for s in segments
        if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        and s.end_offset < log.log_start_offset
    )
    return KafkasPart(log, state.read_at_ms - polled_at_ms, expected)


def explain_segment(case: RetentionCase, segment: RemoteLogSegmentMetadata) -> SegmentExplanation:
    """Explain one segment of the case.

    This computes one plan per bisection step: over the times at which segments expire (three times
    if something is held up), and over the bytes by which the partition may grow. A large partition
    with many segments takes about a hundred plans.
    """
    due, unobstructed = _due(case, segment), case.unobstructed()
    unheld = case.without_holds()
    unheld_due = _due(unheld, segment) if case.state.holds else due
    once_clear = _due(unobstructed, segment) if due is None else None
    return SegmentExplanation(
        segment=segment,
        standing=_standing(case, due, once_clear),
        due=due,
        once_clear=once_clear,
        bytes_missing=_bytes_missing(unobstructed, segment),
        waits_for=_waits_for(unheld if due is None else case, segment, due or unheld_due),
        divergence=_divergence(case, segment),
    )


def explain_partition(case: RetentionCase) -> PartitionExplanation:
    """Explain a partition, and the segment that is deleted next."""
    plan, unheld = case.plan(), case.without_holds().plan()
    planned = set(map(_id_of, plan.deletions))
    live = (s for s in sorted(case.segments, key=list_order) if s.state in COPIES)
    next_one = unheld.stopped_at
    return PartitionExplanation(
        plan=plan,
        size_note=next((n for n in unheld.notes if n.startswith(SIZE_NOT_APPLIED)), ""),
        on_hold=tuple(d for d in unheld.deletions if _id_of(d) not in planned),
        oldest=next(live, None),
        next=None if next_one is None else explain_segment(case, next_one),
    )


def _standing(case: RetentionCase, due: Due | None, once_clear: Due | None) -> Standing:
    if due is not None:
        return Standing.DUE if due.at_ms <= case.now_ms else Standing.LATER
    if once_clear is not None:
        return Standing.OBSTRUCTED
    return Standing.KEPT if case.is_judged else Standing.NOT_JUDGED


def _due(case: RetentionCase, segment: RemoteLogSegmentMetadata) -> Due | None:
    deletion = _deletion_of(case.plan(), segment)
    if deletion is not None:
        return Due(case.now_ms, deletion)
    moments = _moments_ms(case)
    found = bisect_left(
        moments, True, key=lambda ms: _deletion_of(case.at(ms).plan(), segment) is not None
    )
    if found == len(moments):
        return None
    at_ms = moments[found]
    deletion = _deletion_of(case.at(at_ms).plan(), segment)
    return None if deletion is None else Due(at_ms, deletion)


def _moments_ms(case: RetentionCase) -> list[int]:
    """Return the future times, ascending, at which more may be deleted.

    A segment exceeds retention.ms, a hold ends, or a change has waited long enough.
    """
    moments_ms = {hold.until_ms for hold in case.state.holds if hold.until_ms is not None}
    if case.waits_until_ms is not None:
        moments_ms.add(case.waits_until_ms)
    for config in (case.config, case.earlier):
        if config is not None and config.retention_ms != UNLIMITED:
            moments_ms |= {newest_ms(s) + config.retention_ms + 1 for s in case.segments}
    return sorted(ms for ms in moments_ms if ms > case.now_ms)


def _bytes_missing(case: RetentionCase, segment: RemoteLogSegmentMetadata) -> int | None:
    report = case.state.report
    if report is None or case.config.retention_bytes == UNLIMITED:
        return None

    def is_deleted(more_bytes: int) -> bool:
        grown = replace(report, only_local_bytes=report.only_local_bytes + more_bytes)
        state = replace(case.state, report=grown)
        return _deletion_of(replace(case, state=state).plan(), segment) is not None

    if is_deleted(0):
        return None
    # With this growth, every segment is excess.
    total_bytes = sum(max(0, s.segment_size_in_bytes) for s in case.segments)
    limits = [c.retention_bytes for c in (case.config, case.earlier) if c is not None]
    most = max(limits) + total_bytes + 1
    most = min(most, INT64_MAX - report.only_local_bytes)
    if not is_deleted(most):
        return None
    return 1 + bisect_left(range(1, most), True, key=is_deleted)


def _waits_for(
    unheld: RetentionCase, segment: RemoteLogSegmentMetadata, due: Due | None
) -> RemoteLogSegmentMetadata | None:
    if due is not None and due.at_ms <= unheld.now_ms:
        return None
    before_ms = max([unheld.now_ms, *_moments_ms(unheld)]) if due is None else due.at_ms - 1
    stopped_at = unheld.at(before_ms).plan().stopped_at
    if stopped_at is None or list_order(stopped_at) >= list_order(segment):
        return None
    return stopped_at


def _divergence(case: RetentionCase, segment: RemoteLogSegmentMetadata) -> Divergence | None:
    report, lineage = case.state.report, case.state.lineage
    if report is None or not lineage.entries:
        return None
    end_offset = log_end_offset(case.segments, lineage, report)
    return SegmentLineage(lineage, end_offset).divergence(segment)


def _deletion_of(plan: RetentionPlan, segment: RemoteLogSegmentMetadata) -> Deletion | None:
    id = segment.remote_log_segment_id.id
    return next((d for d in plan.deletions if _id_of(d) == id), None)


def _id_of(deletion: Deletion) -> UUID:
    return deletion.segment.remote_log_segment_id.id
