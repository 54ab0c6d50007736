"""Read the facts of `sediment status`, with few calls, and judge each of them."""

import time
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.operations import (
    AnomalyKind,
    AnomalyQuery,
    RecordedSweep,
    SweepOutcome,
    Verification,
    VerificationKind,
)
from services.api.partitions import NO_SEGMENTS, SegmentTotals
from services.api.remote_log_manager import CopyLag
from services.api.remote_log_metadata_manager import (
    MAX_PAGE_SIZE,
    PartitionSummary,
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
    all_verifications,
)
from services.api.segments import RemoteLogSegmentState
from services.views.endpoints import Severity

MAX_LISTED_PARTITIONS = 50
"""The most partitions whose unfinished segments are read, those with the most first."""

_UNFINISHED = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
)
_LOST = (AnomalyKind.MISSING_OBJECTS, AnomalyKind.CORRUPT_OBJECT)
_DAY_MS = 86_400_000
_LATE = 0.5
"""The share of its local retention after which uncopied data is a warning."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """When something counts as stuck, and which anomalies count.

    Attributes:
        stuck_ms: a copy without a lease, or a deletion, is stuck if it began longer ago.
        anomalies_ms: anomalies count if a run has seen them since.
    """

    stuck_ms: int
    anomalies_ms: int


@dataclass(frozen=True, slots=True)
class StuckSegment:
    """A segment whose copy or deletion began long ago and has not finished."""

    topic_id_partition: TopicIdPartition
    state: RemoteLogSegmentState
    start_offset: int
    age_ms: int


@dataclass(slots=True)
class TierFacts:
    """What RLMM knows of the tier.

    Attributes:
        unfinished: segments that are being copied or deleted.
        unread_partitions: partitions with such segments that were not read.
        stuck: those that are stuck, the oldest first.
        held: names of topics on hold.
        marked: partitions that are being deleted; oldest_mark_ms: since when the first is.
        anomalies: counts by kind; has_more_anomalies: they are counted in part only.
        last: the last whole verification of the topic for which it is oldest, by kind.
        unverified: topics with finished segments that were never verified as a whole, by kind.
        sweeps: the last sweep of each kind and topics, those that ended last first.
    """

    now_ms: int = 0
    topics: int = 0
    partitions: int = 0
    totals: SegmentTotals = NO_SEGMENTS
    unfinished: int = 0
    unread_partitions: int = 0
    stuck: list[StuckSegment] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    marked: int = 0
    oldest_mark_ms: int | None = None
    anomalies: Counter[AnomalyKind] = field(default_factory=Counter)
    has_more_anomalies: bool = False
    last: dict[VerificationKind, Verification] = field(default_factory=dict)
    unverified: Counter[VerificationKind] = field(default_factory=Counter)
    sweeps: list[RecordedSweep] = field(default_factory=list)

    @property
    def anomaly_severity(self) -> Severity:
        if any(self.anomalies[kind] for kind in _LOST):
            return Severity.CRITICAL
        is_open = self.anomalies[AnomalyKind.UNREFERENCED_COMPLETE]
        return Severity.WARNING if is_open else Severity.OK

    @property
    def sweep_severity(self) -> Severity:
        is_open = any(
            each.record.outcome is not SweepOutcome.DONE and not self._was_done_since(each)
            for each in self.sweeps
        )
        return Severity.WARNING if is_open else Severity.OK

    def _was_done_since(self, sweep: RecordedSweep) -> bool:
        """Return whether a later sweep of its kind, of all its topics, ended well."""
        topics = frozenset(sweep.record.topics)
        return any(
            later.ended_ms > sweep.ended_ms
            and later.record.kind is sweep.record.kind
            and later.record.outcome is SweepOutcome.DONE
            and (not later.record.topics or (bool(topics) and topics <= {*later.record.topics}))
            for later in self.sweeps
        )

    @property
    def stuck_severity(self) -> Severity:
        return Severity.WARNING if self.stuck else Severity.OK

    @property
    def marked_severity(self) -> Severity:
        marked_ms = self.oldest_mark_ms
        is_old = marked_ms is not None and self.now_ms - marked_ms > _DAY_MS
        return Severity.WARNING if is_old else Severity.OK


def lag_severity(lag: CopyLag) -> Severity:
    """Judge how far copies are behind: data that may be deleted before it is copied is critical."""
    used = lag.local_retention_used or 0.0
    if used >= 1:
        return Severity.CRITICAL
    is_late = used >= _LATE or lag.held_back_partitions > 0 or lag.drained or lag.earlier_histories
    return Severity.WARNING if is_late else Severity.OK


def tier_facts(rlmm: RemoteLogMetadataManager, bounds: Bounds) -> TierFacts:
    """Read what RLMM knows: a few pages, and the unfinished segments of few partitions."""
    # The database's time, if there is a partition.
    facts = TierFacts(now_ms=time.time_ns() // 1_000_000)
    topic_ids, finished = set[UUID](), set[UUID]()
    unfinished: list[PartitionSummary] = []
    marks_ms: list[int] = []
    for summary in all_partitions(rlmm, page_size=MAX_PAGE_SIZE):
        tp, totals = summary.topic_id_partition, summary.totals
        facts.now_ms = summary.read_at_ms
        facts.partitions += 1
        facts.totals += totals
        topic_ids.add(tp.topic_id)
        if totals.finished_segments:
            finished.add(tp.topic_id)
        if totals.live_segments > totals.finished_segments:
            unfinished.append(summary)
        if summary.is_held:
            facts.held.add(tp.topic)
        if summary.marked_at_ms is not None:
            marks_ms.append(summary.marked_at_ms)
    facts.topics, facts.marked = len(topic_ids), len(marks_ms)
    facts.oldest_mark_ms = min(marks_ms, default=None)
    facts.unfinished = facts.totals.live_segments - facts.totals.finished_segments
    unfinished.sort(key=_unfinished_of, reverse=True)
    facts.unread_partitions = max(len(unfinished) - MAX_LISTED_PARTITIONS, 0)
    stuck = [
        each
        for summary in unfinished[:MAX_LISTED_PARTITIONS]
        for each in _stuck(rlmm, summary, bounds)
    ]
    facts.stuck = sorted(stuck, key=lambda each: each.age_ms, reverse=True)
    seen_from_ms = max(facts.now_ms - bounds.anomalies_ms, 0)
    # Those that are critical apart: however many others there are, they are seen.
    for kinds in (_LOST, tuple(kind for kind in AnomalyKind if kind not in _LOST)):
        query = AnomalyQuery(kinds, last_seen_from_ms=seen_from_ms)
        page = rlmm.list_anomalies(query, page_size=MAX_PAGE_SIZE)
        facts.anomalies.update(seen.anomaly.kind for seen in page.anomalies)
        facts.has_more_anomalies |= bool(page.next_page_token)
    _add_verifications(facts, rlmm, finished)
    facts.sweeps = rlmm.list_sweep_runs()
    return facts


def _unfinished_of(summary: PartitionSummary) -> int:
    totals = summary.totals
    return totals.live_segments - totals.finished_segments


def _stuck(
    rlmm: RemoteLogMetadataManager, summary: PartitionSummary, bounds: Bounds
) -> Iterator[StuckSegment]:
    tp = summary.topic_id_partition
    try:
        for segment in all_segments(rlmm, tp, states=_UNFINISHED):
            age_ms = summary.read_at_ms - segment.event_timestamp_ms
            if age_ms > bounds.stuck_ms and not segment.copy_leased:
                yield StuckSegment(tp, segment.state, segment.start_offset, age_ms)
    except RemoteResourceNotFoundError:
        return  # The partition was removed meanwhile.


def _add_verifications(
    facts: TierFacts, rlmm: RemoteLogMetadataManager, topic_ids: Set[UUID]
) -> None:
    whole: Counter[VerificationKind] = Counter()
    for each in all_verifications(rlmm):
        if each.verified.topic_id in topic_ids and each.verified_parts == each.parts:
            whole[each.kind] += 1
            oldest = facts.last.setdefault(each.kind, each)
            if each.ended_ms < oldest.ended_ms:
                facts.last[each.kind] = each
    for kind in VerificationKind:
        facts.unverified[kind] = len(topic_ids) - whole[kind]
