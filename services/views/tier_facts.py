"""Read what RLMM knows of the whole tier, with few calls."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError
from services.api.holds import Hold, HoldKind
from services.api.ids import TopicIdPartition
from services.api.operations import (
    CHECKS,
    SWEEPS,
    AnomalyKind,
    AnomalyQuery,
    RecordedRun,
    RunKind,
    RunOutcome,
)
from services.api.partitions import NO_SEGMENTS, SegmentTotals
from services.api.remote_log_metadata_manager import (
    MAX_PAGE_SIZE,
    PartitionSummary,
    RemoteLogMetadataManager,
    all_holds,
    all_partitions,
    all_segments,
    all_tool_runs,
)
from services.api.segments import RemoteLogSegmentState
from services.views.topics import sum_topics

MAX_LISTED_PARTITIONS = 50
"""The most partitions whose unfinished segments are read, those with the most first."""

_UNFINISHED = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
)
LOST = (AnomalyKind.MISSING_OBJECTS, AnomalyKind.CORRUPT_OBJECT)
"""The anomalies of data that cannot be read."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """When something counts as stuck, and which anomalies count.

    Attributes:
        stuck_ms: a copy without a lease, or a deletion, is stuck if it began longer ago.
        anomalies_ms: anomalies count if a run has seen them since.
    """

    stuck_ms: int = 3_600_000
    anomalies_ms: int = 8 * 86_400_000


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
        on_hold: names of topics on hold.
        unconfirmed: names of topics whose deletions wait for a confirmation.
        holds: how many holds last, without those of exports; oldest_hold: the one set first.
        marked: partitions that are being deleted; oldest_mark_ms: since when the first is.
        anomalies: counts by kind; has_more_anomalies: they are counted in part only.
        last: the last whole verification of the topic for which it is oldest, by kind.
        unverified: topics with finished segments that were never verified as a whole, by kind.
        sweeps: the last sweep of each kind and topics, those that ended last first.
        was_checked: whether a check of anything ever ended.
        maintained_ms: when the last maintenance of the database ended; None if none did.
    """

    now_ms: int = 0
    topics: int = 0
    partitions: int = 0
    totals: SegmentTotals = NO_SEGMENTS
    unfinished: int = 0
    unread_partitions: int = 0
    stuck: list[StuckSegment] = field(default_factory=list)
    on_hold: set[str] = field(default_factory=set)
    unconfirmed: set[str] = field(default_factory=set)
    holds: int = 0
    oldest_hold: Hold | None = None
    marked: int = 0
    oldest_mark_ms: int | None = None
    anomalies: Counter[AnomalyKind] = field(default_factory=Counter)
    has_more_anomalies: bool = False
    last: dict[RunKind, RecordedRun] = field(default_factory=dict)
    unverified: Counter[RunKind] = field(default_factory=Counter)
    sweeps: list[RecordedRun] = field(default_factory=list)
    was_checked: bool = False
    maintained_ms: int | None = None

    @property
    def open_sweeps(self) -> list[RecordedRun]:
        """Return the sweeps that did not end well, and that no later one makes up for."""
        return [
            each
            for each in self.sweeps
            if each.outcome is not RunOutcome.DONE and not self._was_done_since(each)
        ]

    def _was_done_since(self, sweep: RecordedRun) -> bool:
        """Return whether a later sweep of its kind, of all its topics, ended well."""
        topics = frozenset(sweep.topics)
        return any(
            later.ended_ms > sweep.ended_ms
            and later.kind is sweep.kind
            and later.outcome is RunOutcome.DONE
            and (not later.topics or (bool(topics) and topics <= {*later.topics}))
            for later in self.sweeps
        )


def tier_facts(rlmm: RemoteLogMetadataManager, bounds: Bounds) -> TierFacts:
    """Read what RLMM knows: a few pages, and the unfinished segments of few partitions."""
    summaries = list(all_partitions(rlmm, page_size=MAX_PAGE_SIZE))
    topics = sum_topics(summaries)
    marks_ms = [each.marked_at_ms for each in summaries if each.marked_at_ms is not None]
    unfinished = [each for each in summaries if _unfinished_of(each.totals)]
    unfinished.sort(key=lambda each: _unfinished_of(each.totals), reverse=True)
    totals = sum((each.totals for each in topics.values()), NO_SEGMENTS)
    stuck = [
        each
        for summary in unfinished[:MAX_LISTED_PARTITIONS]
        for each in _stuck(rlmm, summary, bounds)
    ]
    facts = TierFacts(
        # The database's time, if there is a partition.
        now_ms=summaries[-1].read_at_ms if summaries else time.time_ns() // 1_000_000,
        topics=len(topics),
        partitions=len(summaries),
        totals=totals,
        unfinished=_unfinished_of(totals),
        unread_partitions=max(len(unfinished) - MAX_LISTED_PARTITIONS, 0),
        stuck=sorted(stuck, key=lambda each: each.age_ms, reverse=True),
        on_hold={each.name for each in topics.values() if each.is_on_hold},
        unconfirmed={each.name for each in topics.values() if each.awaits_confirmation},
        marked=len(marks_ms),
        oldest_mark_ms=min(marks_ms, default=None),
    )
    holds = [each for each in all_holds(rlmm) if each.kind is not HoldKind.EXPORT]
    facts.holds = len(holds)
    facts.oldest_hold = min(holds, key=lambda each: each.set_at_ms, default=None)
    seen_from_ms = max(facts.now_ms - bounds.anomalies_ms, 0)
    # Those of lost data are listed apart, however many others there are.
    for kinds in (LOST, tuple(kind for kind in AnomalyKind if kind not in LOST)):
        query = AnomalyQuery(kinds, last_seen_from_ms=seen_from_ms)
        page = rlmm.list_anomalies(query, page_size=MAX_PAGE_SIZE)
        facts.anomalies.update(each.anomaly.kind for each in page.anomalies)
        facts.has_more_anomalies |= bool(page.next_page_token)
    finished = {id for id, each in topics.items() if each.totals.finished_segments}
    _add_runs(facts, list(all_tool_runs(rlmm)), finished)
    return facts


def _unfinished_of(totals: SegmentTotals) -> int:
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


def _add_runs(facts: TierFacts, runs: Sequence[RecordedRun], topic_ids: Set[UUID]) -> None:
    facts.sweeps = sweeps_of(runs)
    facts.was_checked = any(each.kind in CHECKS for each in runs)
    maintained_ms = (each.ended_ms for each in runs if each.kind is RunKind.MAINTENANCE)
    facts.maintained_ms = max(maintained_ms, default=None)
    whole: Counter[RunKind] = Counter()
    for each in runs:
        if each.counts.topic_id in topic_ids and each.ended_parts == each.parts:
            whole[each.kind] += 1
            oldest = facts.last.setdefault(each.kind, each)
            if each.ended_ms < oldest.ended_ms:
                facts.last[each.kind] = each
    for kind in CHECKS:
        facts.unverified[kind] = len(topic_ids) - whole[kind]


def sweeps_of(runs: Iterable[RecordedRun]) -> list[RecordedRun]:
    """Return the sweeps, those that ended last first."""
    sweeps = (each for each in runs if each.kind in SWEEPS)
    return sorted(sweeps, key=lambda each: each.ended_ms, reverse=True)
