"""Decide which segments of a partition's tier retention deletes, and why.

plan_retention is pure. Every process that deletes by retention, or shows what retention would
delete, calls it. Source: RemoteLogManager.RLMExpirationTask.cleanupExpiredRemoteLogSegments.

    unfinished deletions            first, always
    the scan                        by start offset: log start, retention.ms, retention.bytes;
                                    skips segments outside the lineage, and ends at the first
                                    segment that no rule deletes, or that a hold keeps;
                                a deletion that the settings in force a while ago do not want
                                waits, so that a wrong setting can be set back
    unreferenced segments           all their leader epochs are before the lineage, and they lie
                                    below the log start; no hold keeps them

A superseded segment goes with the one that has all of its records, or before: copy passes delete
it. It is not counted, and raises no log start. A tail is not counted either: the leader's report
counts its segment, which is only local as a whole.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from uuid import UUID

from services.api.holds import Hold, Mark, keeping_hold
from services.api.ids import uuid_to_text
from services.api.lineage import SegmentLineage
from services.api.partitions import NOTHING_COPIED, PartitionReport, PartitionState, log_end_offset
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from services.api.superseded import is_tail, superseded
from services.api.topic_config import UNLIMITED, TopicConfig

DEFAULT_MAX_REPORT_AGE_MS = 15 * 60 * 1000
DEFAULT_COPY_GRACE_MS = 60 * 60 * 1000
REMOVAL_GRACE_MS = 60 * 60 * 1000
"""A removal sweep skips partitions that were marked less than this ago."""
DAILY_DELETION_BYTES = 10 * 2**30
DAILY_DELETION_PERCENT = 20
"""A day (UTC) may delete so many bytes, or this share of the tier; more waits for a person."""
NO_TIMESTAMP = -1

NO_REPORT = "no leader has reported: its lineage is not known, nothing new is deleted"
"""The note if nothing new is deleted because no leader has reported."""

SIZE_NOT_APPLIED = "retention.bytes not applied"
"""The beginning of the note that gives the reason why the size rule was not applied."""

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
COPIES = (RemoteLogSegmentState.COPY_SEGMENT_STARTED, _FINISHED)


def young_copies(
    segments: Iterable[RemoteLogSegmentMetadata],
    now_ms: int,
    grace_ms: int = DEFAULT_COPY_GRACE_MS,
) -> list[RemoteLogSegmentMetadata]:
    """Return the copy attempts of all brokers that began less than `grace_ms` ago.

    They count as running even without a lease: a broker with the plugin copies without leases.
    An attempt dated more than `grace_ms` ahead of `now_ms` is left out: it would never age.
    """
    return [
        s
        for s in segments
        if s.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        and abs(now_ms - s.event_timestamp_ms) < grace_ms
    ]


class DeletionReason(Enum):
    """The reason why a segment is deleted, as people and the audit trail read it."""

    RETENTION_TIME = "retention.ms breached"
    RETENTION_SIZE = "retention.bytes breached"
    LOG_START_OFFSET = "below the log start offset"
    UNREFERENCED = "all leader epochs before the lineage"
    DELETION_NOT_FINISHED = "an earlier deletion did not finish"
    PARTITION_DELETED = "the partition was deleted"
    TIERING_DISABLED = "tiering was disabled"
    SUPERSEDED = "superseded by another segment"


@dataclass(frozen=True, slots=True)
class Deletion:
    """The segment to delete, and the reason.

    Attributes:
        detail: the figures that the rule compared; at most 256 characters.
    """

    segment: RemoteLogSegmentMetadata
    reason: DeletionReason
    detail: str


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The deletions that retention requires of one partition.

    Attributes:
        deletions: in the order of deletion; each segment once. (A declared difference: Kafka lists
            an unfinished deletion that spans two leader epochs twice, and misses one behind the
            end of the scan.)
        log_start_offset: raise the tier's log start to this before any deletion; None if it stays.
        notes: the rules that were not applied, and why.
        stopped_at: the segment that ended the scan, because no rule deletes it, it is being
            copied, or a hold keeps it; None if the scan reached the end. For display; not
            compared.
        retained_for: the hold that keeps `stopped_at`, which a rule would delete; None if no hold
            does.
        waiting: the deletions that only the changed settings want, after `deletions` in the order
            of the scan. For display; not compared.
        counted_bytes: the tier's part of the partition's size, including the segments to delete;
            None if it was not computed. For display; not compared.
    """

    deletions: tuple[Deletion, ...]
    log_start_offset: int | None = None
    notes: tuple[str, ...] = ()
    stopped_at: RemoteLogSegmentMetadata | None = field(default=None, compare=False)
    counted_bytes: int | None = field(default=None, compare=False)
    retained_for: Hold | None = field(default=None, compare=False)
    waiting: tuple[Deletion, ...] = field(default=(), compare=False)

    @property
    def deleted_size_bytes(self) -> int:
        """Return the total size of the .log files to delete; an unknown size counts as 0."""
        return _total_bytes(deletion.segment for deletion in self.deletions)

    @property
    def waiting_size_bytes(self) -> int:
        return _total_bytes(deletion.segment for deletion in self.waiting)


def plan_retention(
    segments: Sequence[RemoteLogSegmentMetadata],
    state: PartitionState,
    config: TopicConfig,
    earlier: TopicConfig,
    *,
    being_copied: Collection[UUID] = (),
    now_ms: int,
    max_report_age_ms: int = DEFAULT_MAX_REPORT_AGE_MS,
) -> RetentionPlan:
    """Decide which segments of one partition to delete.

    The caller checks that the topic is tiered and that the caller may delete (retention_owner).

    Args:
        segments: all segments of list_remote_log_segments, in any order.
        earlier: StoredTopicConfig.earlier_config; a segment is deleted only if its retention.ms and
            retention.bytes want that too, and the log start rises only as far as by both.
        being_copied: ids of segments whose copy, or its clean-up, is running. Such a segment, and
            one whose copy is leased, is never deleted and ends the scan. Any other
            COPY_SEGMENT_STARTED is a dangling copy: the rules apply to it as to a finished one,
            but it does not count towards the partition's size.
        now_ms: by the database's clock.
        max_report_age_ms: retention.bytes is not applied if the report is older.
    """
    before = replace(
        config, retention_ms=earlier.retention_ms, retention_bytes=earlier.retention_bytes
    )
    plan, *others = (
        _plan(segments, state, each, being_copied, now_ms, max_report_age_ms)
        for each in dict.fromkeys((config, before))
    )
    return _common(plan, others[0], state.log_start_offset) if others else plan


def _common(plan: RetentionPlan, before: RetentionPlan, log_start_offset: int) -> RetentionPlan:
    """Return the common part of the plans by the settings now and before.

    Both scans delete the beginning of the same list, so the common part is the shorter one.
    """
    wanted = {d.segment.remote_log_segment_id for d in before.deletions}
    waiting = tuple(d for d in plan.deletions if d.segment.remote_log_segment_id not in wanted)
    if not waiting:
        return plan
    starts = (
        log_start_offset if p.log_start_offset is None else p.log_start_offset
        for p in (plan, before)
    )
    log_start = min(starts)
    return replace(
        plan,
        deletions=tuple(d for d in plan.deletions if d.segment.remote_log_segment_id in wanted),
        log_start_offset=log_start if log_start > log_start_offset else None,
        notes=tuple(dict.fromkeys((*before.notes, *plan.notes))),
        stopped_at=before.stopped_at,
        retained_for=before.retained_for,
        waiting=waiting,
    )


def _plan(
    segments: Sequence[RemoteLogSegmentMetadata],
    state: PartitionState,
    config: TopicConfig,
    being_copied: Collection[UUID],
    now_ms: int,
    max_report_age_ms: int,
) -> RetentionPlan:
    """Decide which segments to delete by one version of the settings."""
    ordered = sorted(segments, key=list_order)
    copying = {s.remote_log_segment_id.id for s in segments if s.copy_leased}.union(being_copied)
    idle = [s for s in ordered if s.remote_log_segment_id.id not in copying]
    unfinished = tuple(
        Deletion(s, DeletionReason.DELETION_NOT_FINISHED, f"found {s.state.value}")
        for s in idle
        if s.state is _DELETING
    )
    report = state.report
    if report is None or not state.lineage.entries:
        # A polled log does not count: Kafka owns the retention of what a broker tiers by itself.
        # Not even by the log start: of two segments with the same offsets, only the lineage
        # decides which one is the partition's.
        return RetentionPlan(unfinished, notes=(NO_REPORT,))

    lineage = SegmentLineage(state.lineage, log_end_offset(ordered, state.lineage, report))
    at_or_above_start = (s for s in ordered if s.end_offset >= state.log_start_offset)
    others = {worse.remote_log_segment_id for worse, _ in superseded(at_or_above_start, lineage)}
    # What a segment supersedes is scanned behind it: it stays or goes with that one.
    ordered.sort(key=lambda s: (s.start_offset, s.remote_log_segment_id in others))
    distinct = [s for s in ordered if s.remote_log_segment_id not in others]
    counted = tuple(_counted(distinct, lineage, state.log_start_offset))
    excess_bytes, notes = _excess_bytes(counted, state, report, config, max_report_age_ms)
    rules = _Rules(lineage, state.log_start_offset, config, now_ms, excess_bytes)
    holds = [hold for hold in state.holds if hold.lasts_at(now_ms)]
    expired, stopped_at, retained_for = _scan(ordered, lineage, rules, copying, holds)
    first_epoch, start = state.lineage.entries[0].leader_epoch, state.log_start_offset
    unreferenced = (
        each
        for each in _unreferenced(idle, first_epoch, start)
        if not _is_held(each.segment, holds, start)
    )
    return RetentionPlan(
        deletions=(*unfinished, *expired, *unreferenced),
        log_start_offset=_raised_log_start(expired, state.log_start_offset),
        notes=(*notes, *_stop_reason(stopped_at, retained_for, copying)),
        stopped_at=stopped_at,
        retained_for=retained_for,
        counted_bytes=_total_bytes(counted),
    )


def _scan(
    ordered: Iterable[RemoteLogSegmentMetadata],
    lineage: SegmentLineage,
    rules: "_Rules",
    copying: Collection[UUID],
    holds: Sequence[Hold],
) -> tuple[list[Deletion], RemoteLogSegmentMetadata | None, Hold | None]:
    """Return the deletions of the scan, the segment that ended it, and the hold that keeps it.

    The first segment that no rule deletes, that is being copied, or that a hold keeps, ends the
    scan; so does one whose deletion would raise the log start over offsets that a hold keeps.
    """
    expired: list[Deletion] = []
    # Within the lineage, the order by start offset is also the order by epoch, which Kafka uses.
    for segment in filter(lineage.knows, ordered):
        if segment.remote_log_segment_id.id in copying:
            return expired, segment, None
        if segment.state not in COPIES:
            continue
        first_offset = min(segment.start_offset, rules.next_log_start_offset)
        deletion = rules.breached_by(segment)
        if deletion is not None:
            start = rules.log_start_offset
            hold = keeping_hold(holds, Mark.SEGMENT, first_offset, segment.end_offset, start)
            if hold is not None:
                return expired, segment, hold
            expired.append(deletion)
        elif lineage.contains(segment):
            return expired, segment, None
    return expired, None, None


def _stop_reason(
    stopped_at: RemoteLogSegmentMetadata | None,
    retained_for: Hold | None,
    copying: Collection[UUID],
) -> tuple[str, ...]:
    if stopped_at is not None and retained_for is not None:
        return (f"stopped at a segment that is due: {_name(stopped_at)}; {retained_for}",)
    if stopped_at is None or stopped_at.remote_log_segment_id.id not in copying:
        return ()
    return (f"stopped at a segment that is being copied: {_name(stopped_at)}",)


class _Rules:
    """The rules that raise the log start or depend on it (Kafka: RemoteLogRetentionHandler)."""

    def __init__(
        self,
        lineage: SegmentLineage,
        log_start_offset: int,
        config: TopicConfig,
        now_ms: int,
        excess_bytes: int,
    ) -> None:
        self._lineage = lineage
        self.log_start_offset = log_start_offset
        self._config = config
        self._cleanup_until_ms = now_ms - config.retention_ms
        self._excess_bytes = excess_bytes
        self.next_log_start_offset = log_start_offset

    def breached_by(self, segment: RemoteLogSegmentMetadata) -> Deletion | None:
        """Return the deletion by the first rule that applies, or None.

        Call it once per segment, in the order of the scan.
        """
        if self._below_log_start(segment):
            detail = f"end_offset {segment.end_offset} < log start {self.log_start_offset}"
            return Deletion(segment, DeletionReason.LOG_START_OFFSET, detail)
        if not self._lineage.contains(segment):
            return None
        if segment.end_offset < self.next_log_start_offset:
            # Another copy of offsets that are being deleted: the excess does not include it.
            detail = (
                f"end_offset {segment.end_offset} < next log start {self.next_log_start_offset}"
            )
            return Deletion(segment, DeletionReason.LOG_START_OFFSET, detail)
        deletion = self._time_breach(segment) or self._size_breach(segment)
        if deletion is not None:
            self.next_log_start_offset = segment.end_offset + 1
        return deletion

    def _below_log_start(self, segment: RemoteLogSegmentMetadata) -> bool:
        # The lineage begins at the log start. A segment that ends below it and has records of a
        # later epoch belongs to another history.
        last_epoch = segment.segment_leader_epochs[-1].leader_epoch
        is_below = segment.end_offset < self.log_start_offset
        return is_below and last_epoch <= self._lineage.first_epoch

    def _time_breach(self, segment: RemoteLogSegmentMetadata) -> Deletion | None:
        unlimited = self._config.retention_ms == UNLIMITED
        newest = newest_ms(segment)
        if unlimited or newest >= self._cleanup_until_ms:
            return None
        self._excess_bytes -= _size_bytes(segment)
        detail = (
            f"max_timestamp {newest} < {self._cleanup_until_ms} "
            f"(retention.ms {self._config.retention_ms})"
        )
        return Deletion(segment, DeletionReason.RETENTION_TIME, detail)

    def _size_breach(self, segment: RemoteLogSegmentMetadata) -> Deletion | None:
        size_bytes = _size_bytes(segment)
        if self._excess_bytes <= 0 or size_bytes > self._excess_bytes or is_tail(segment):
            return None
        detail = (
            f"its {size_bytes} bytes fit into the excess of {self._excess_bytes} over "
            f"retention.bytes {self._config.retention_bytes}"
        )
        self._excess_bytes -= size_bytes
        return Deletion(segment, DeletionReason.RETENTION_SIZE, detail)


def _counted(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: SegmentLineage, log_start_offset: int
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield the segments that make up the partition's size in the tier, each offset once.

    Two declared differences: Kafka counts segments below the log start too, and deletes as much
    again after a run that was interrupted between raising the log start and deleting. Kafka also
    counts a second copy of the same offsets, and deletes other records for it.
    """
    covered_through = NOTHING_COPIED
    for segment in segments:
        is_live = segment.state is _FINISHED and segment.end_offset >= log_start_offset
        is_live = is_live and not is_tail(segment)
        # In the order of start offsets: the segment that ended last began no later than this one.
        is_new = segment.end_offset > covered_through
        if is_live and is_new and lineage.contains(segment):
            covered_through = segment.end_offset
            yield segment


def _excess_bytes(
    counted: Iterable[RemoteLogSegmentMetadata],
    state: PartitionState,
    report: PartitionReport,
    config: TopicConfig,
    max_report_age_ms: int,
) -> tuple[int, tuple[str, ...]]:
    """Return the bytes above retention.bytes, or 0; and a note if they cannot be computed.

    Source: RemoteLogManager.buildRetentionSizeData.
    """
    if config.retention_bytes == UNLIMITED:
        return 0, ()
    age_ms = state.report_age_ms
    if age_ms is None or age_ms > max_report_age_ms:
        age = "of unknown age" if age_ms is None else f"{age_ms / 1000:.0f} s old"
        note = f"the leader's report is {age}, at most {max_report_age_ms / 1000:.0f} s"
        return 0, (f"{SIZE_NOT_APPLIED}: {note}",)
    size_bytes, end_offset = report.only_local_bytes, NOTHING_COPIED
    for segment in counted:
        size_bytes += _size_bytes(segment)
        end_offset = max(end_offset, segment.end_offset)
    if end_offset > report.copied_through_offset:
        # only_local_bytes still includes the segments that were copied since the report.
        note = f"copied through {end_offset}, the leader's report through "
        return 0, (f"{SIZE_NOT_APPLIED}: {note}{report.copied_through_offset}",)
    return max(0, size_bytes - config.retention_bytes), ()


def _unreferenced(
    segments: Iterable[RemoteLogSegmentMetadata], first_epoch: int, log_start_offset: int
) -> Iterator[Deletion]:
    """Yield deletions of segments whose leader epochs are all before the lineage.

    A declared difference: Kafka deletes them above the log start, too. Here a lineage may lack its
    beginning because a broker returned with an empty disk, and then the tier has the only copy.
    Offsets below the log start were deleted on purpose.
    """
    for segment in segments:
        last = segment.segment_leader_epochs[-1].leader_epoch
        is_copy = segment.state in COPIES
        if is_copy and last < first_epoch and segment.end_offset < log_start_offset:
            detail = (
                f"last leader epoch {last} < {first_epoch}, the first of the lineage; end_offset "
                f"{segment.end_offset} < log start {log_start_offset}"
            )
            yield Deletion(segment, DeletionReason.UNREFERENCED, detail)


def _is_held(
    segment: RemoteLogSegmentMetadata, holds: Sequence[Hold], log_start_offset: int
) -> bool:
    first, last = segment.start_offset, segment.end_offset
    return keeping_hold(holds, Mark.SEGMENT, first, last, log_start_offset) is not None


def earlier_history(
    segments: Iterable[RemoteLogSegmentMetadata], state: PartitionState
) -> Iterator[Deletion]:
    """Yield deletions of finished segments of a log that the broker began again at its start.

    All their leader epochs are before the lineage, and their offsets are not below it. Retention
    leaves them: only an operator knows that the log was not merely restored in part.
    """
    if not state.lineage.entries:
        return
    first = state.lineage.entries[0]
    for segment in segments:
        last = segment.segment_leader_epochs[-1].leader_epoch
        is_before = last < first.leader_epoch and segment.end_offset >= first.start_offset
        if segment.state is _FINISHED and is_before:
            detail = f"last leader epoch {last} < {first.leader_epoch}, the first of the lineage"
            yield Deletion(segment, DeletionReason.UNREFERENCED, detail)


def newest_ms(segment: RemoteLogSegmentMetadata) -> int:
    """Return the newest record timestamp, or the segment's latest event if records have none."""
    newest = segment.max_timestamp_ms
    return segment.event_timestamp_ms if newest == NO_TIMESTAMP else newest


def _raised_log_start(expired: Iterable[Deletion], log_start_offset: int) -> int | None:
    """Return the offset after the expired segments, or None if the log start is not below it."""
    after = max((d.segment.end_offset + 1 for d in expired), default=0)
    return after if after > log_start_offset else None


def list_order(segment: RemoteLogSegmentMetadata) -> tuple[int, UUID]:
    """Return the sort key by which segments are listed and scanned."""
    return segment.start_offset, segment.remote_log_segment_id.id


def _total_bytes(segments: Iterable[RemoteLogSegmentMetadata]) -> int:
    return sum(map(_size_bytes, segments))


def _size_bytes(segment: RemoteLogSegmentMetadata) -> int:
    """Return the size of the .log file; 0 if it is unknown."""
    return max(0, segment.segment_size_in_bytes)


def _name(segment: RemoteLogSegmentMetadata) -> str:
    return f"{segment.start_offset}-{uuid_to_text(segment.remote_log_segment_id.id)}"
