"""Retention: which segments of a partition's tier are to be deleted, and why.

Whoever deletes by retention, or only tells what would be deleted, asks this one pure function.
Source: RemoteLogManager.RLMExpirationTask.cleanupExpiredRemoteLogSegments.

    deletions that did not finish   first, whatever else holds
    the scan                        by start offset: log start, retention.ms, retention.bytes; what
                                    is not of the lineage is skipped, and the first segment that
                                    may stay ends it
    unreferenced segments           all their leader epochs are before the lineage, and they lie
                                    below the log start
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from services.api.ids import uuid_to_text
from services.api.lineage import SegmentLineage
from services.api.partitions import NOTHING_COPIED, PartitionReport, PartitionState, log_end_offset
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import UNLIMITED, TopicConfig

DEFAULT_MAX_REPORT_AGE_MS = 15 * 60 * 1000
DEFAULT_COPY_GRACE_MS = 60 * 60 * 1000
NO_TIMESTAMP = -1

SIZE_NOT_APPLIED = "retention.bytes not applied"
"""So begins the note that says why the size rule was left out."""

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
COPIES = (RemoteLogSegmentState.COPY_SEGMENT_STARTED, _FINISHED)


def young_copies(
    segments: Iterable[RemoteLogSegmentMetadata],
    now_ms: int,
    grace_ms: int = DEFAULT_COPY_GRACE_MS,
) -> list[RemoteLogSegmentMetadata]:
    """Attempts to copy that began less than `grace_ms` ago, wherever. Leased or not they count as
    under way: a copier without leases, as a broker with the plugin, may be anywhere and busy.

    One whose broker's clock is ahead by more than that is not among them: it would never age.
    """
    return [
        s
        for s in segments
        if s.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        and abs(now_ms - s.event_timestamp_ms) < grace_ms
    ]


class DeletionReason(Enum):
    """Why a segment is deleted; the values are for people and for the audit trail."""

    RETENTION_TIME = "retention.ms breached"
    RETENTION_SIZE = "retention.bytes breached"
    LOG_START_OFFSET = "below the log start offset"
    UNREFERENCED = "all leader epochs before the lineage"
    DELETION_NOT_FINISHED = "an earlier deletion did not finish"
    PARTITION_DELETED = "the partition was deleted"
    TIERING_DISABLED = "tiering was disabled"


@dataclass(frozen=True, slots=True)
class Deletion:
    """A segment to delete.

    Attributes:
        detail: the figures by which the rule decided; at most 256 characters.
    """

    segment: RemoteLogSegmentMetadata
    reason: DeletionReason
    detail: str


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What retention asks for.

    Attributes:
        deletions: in the order in which to delete; each segment once. (Kafka lists an unfinished
            deletion that spans two leader epochs twice, and does not see one behind the end of
            the scan: a declared difference.)
        log_start_offset: raise the tier's log start to this before anything is deleted; None: it
            stays.
        notes: what was not applied, and why.
        stopped_at: the segment that ended the scan, as it may stay or is being copied; None:
            nothing did. Told beside the plan and no part of it.
        counted_bytes: of the partition's size, what the tier has, with what is to be deleted; None:
            it was not judged. Told beside the plan, too.
    """

    deletions: tuple[Deletion, ...]
    log_start_offset: int | None = None
    notes: tuple[str, ...] = ()
    stopped_at: RemoteLogSegmentMetadata | None = field(default=None, compare=False)
    counted_bytes: int | None = field(default=None, compare=False)

    @property
    def deleted_size_bytes(self) -> int:
        """Of the .log files; a segment of unknown size counts nothing."""
        return _total_bytes(deletion.segment for deletion in self.deletions)


def plan_retention(
    segments: Sequence[RemoteLogSegmentMetadata],
    state: PartitionState,
    config: TopicConfig,
    *,
    being_copied: Collection[UUID] = (),
    now_ms: int,
    max_report_age_ms: int = DEFAULT_MAX_REPORT_AGE_MS,
) -> RetentionPlan:
    """Decide what of one partition is to be deleted.

    Who may delete (retention_owner, sweep_paused) and whether the topic is tiered is for the
    caller to know.

    Args:
        segments: all that list_remote_log_segments answers, in any order.
        being_copied: ids of segments whose copy, or its clean-up, is under way. Such a one, and
            one whose copy is leased, is never deleted, and ends the scan. Any other
            COPY_SEGMENT_STARTED is what a copy left behind, to which the rules apply as to a
            finished one; only the partition's size does not count it.
        now_ms: by the database's clock.
        max_report_age_ms: retention.bytes is not applied by the sizes of an older report.
    """
    ordered = sorted(segments, key=list_order)
    copying = {s.remote_log_segment_id.id for s in segments if s.copy_leased}.union(being_copied)
    idle = [s for s in ordered if s.remote_log_segment_id.id not in copying]
    unfinished = tuple(
        Deletion(s, DeletionReason.DELETION_NOT_FINISHED, f"found {s.state.value}")
        for s in idle
        if s.state is _DELETING
    )
    if config.hold:
        return RetentionPlan(unfinished, notes=("on hold: nothing new is deleted",))
    report = state.report
    if report is None or not state.lineage.entries:
        # Not even by the log start: without a lineage nobody can say which of two segments with
        # the same offsets is the partition's.
        note = "no leader has reported: its lineage is not known, nothing new is deleted"
        return RetentionPlan(unfinished, notes=(note,))

    lineage = SegmentLineage(state.lineage, log_end_offset(ordered, state.lineage, report))
    counted = tuple(_counted(ordered, lineage, state.log_start_offset))
    excess_bytes, notes = _excess_bytes(counted, state, report, config, max_report_age_ms)
    rules = _Rules(lineage, state.log_start_offset, config, now_ms, excess_bytes)
    expired, stopped_at = _scan(ordered, lineage, rules, copying)
    unreferenced = _unreferenced(
        idle, state.lineage.entries[0].leader_epoch, state.log_start_offset
    )
    return RetentionPlan(
        deletions=(*unfinished, *expired, *unreferenced),
        log_start_offset=_raised_log_start(expired, state.log_start_offset),
        notes=(*notes, *_stop_note(stopped_at, copying)),
        stopped_at=stopped_at,
        counted_bytes=_total_bytes(counted),
    )


def _scan(
    ordered: Iterable[RemoteLogSegmentMetadata],
    lineage: SegmentLineage,
    rules: "_Rules",
    copying: Collection[UUID],
) -> tuple[list[Deletion], RemoteLogSegmentMetadata | None]:
    """What the rules want deleted up to the first segment that may stay, or is being copied; and
    that segment."""
    expired: list[Deletion] = []
    # By start offset, which orders what is of the lineage by its epochs too, as Kafka lists them.
    for segment in filter(lineage.knows, ordered):
        if segment.remote_log_segment_id.id in copying:
            return expired, segment
        if segment.state not in COPIES:
            continue
        deletion = rules.breached_by(segment)
        if deletion is not None:
            expired.append(deletion)
        elif lineage.contains(segment):
            return expired, segment
    return expired, None


def _stop_note(
    stopped_at: RemoteLogSegmentMetadata | None, copying: Collection[UUID]
) -> tuple[str, ...]:
    if stopped_at is None or stopped_at.remote_log_segment_id.id not in copying:
        return ()
    return (f"stopped at a segment that is being copied: {_name(stopped_at)}",)


class _Rules:
    """The rules that raise the log start, or follow from it. Kafka: RemoteLogRetentionHandler."""

    def __init__(
        self,
        lineage: SegmentLineage,
        log_start_offset: int,
        config: TopicConfig,
        now_ms: int,
        excess_bytes: int,
    ) -> None:
        self._lineage = lineage
        self._log_start_offset = log_start_offset
        self._config = config
        self._cleanup_until_ms = now_ms - config.retention_ms
        self._excess_bytes = excess_bytes
        self._next_log_start_offset = log_start_offset

    def breached_by(self, segment: RemoteLogSegmentMetadata) -> Deletion | None:
        """The first rule that wants the segment deleted; asked once for each, in scan order."""
        if self._below_log_start(segment):
            detail = f"end_offset {segment.end_offset} < log start {self._log_start_offset}"
            return Deletion(segment, DeletionReason.LOG_START_OFFSET, detail)
        if not self._lineage.contains(segment):
            return None
        if segment.end_offset < self._next_log_start_offset:
            # A further copy of what goes: not counted in the excess, and no part of it.
            detail = (
                f"end_offset {segment.end_offset} < next log start {self._next_log_start_offset}"
            )
            return Deletion(segment, DeletionReason.LOG_START_OFFSET, detail)
        deletion = self._time_breach(segment) or self._size_breach(segment)
        if deletion is not None:
            self._next_log_start_offset = segment.end_offset + 1
        return deletion

    def _below_log_start(self, segment: RemoteLogSegmentMetadata) -> bool:
        # With records of a later epoch, and yet an end below the log start, it is another
        # history's: the lineage begins at the log start.
        last_epoch = segment.segment_leader_epochs[-1].leader_epoch
        is_below = segment.end_offset < self._log_start_offset
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
        if self._excess_bytes <= 0 or size_bytes > self._excess_bytes:
            return None
        detail = (
            f"size {size_bytes} <= excess {self._excess_bytes} "
            f"(retention.bytes {self._config.retention_bytes})"
        )
        self._excess_bytes -= size_bytes
        return Deletion(segment, DeletionReason.RETENTION_SIZE, detail)


def _counted(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: SegmentLineage, log_start_offset: int
) -> Iterator[RemoteLogSegmentMetadata]:
    """The segments that are the partition's size in the tier, each once.

    Kafka counts also what lies below the log start, and so deletes as much again when a run ends
    between raising the log start and deleting; and it counts a second copy of the same offsets,
    for which records of others would have to go: declared differences.
    """
    covered_through = NOTHING_COPIED
    for segment in segments:
        is_live = segment.state is _FINISHED and segment.end_offset >= log_start_offset
        # By start offset, so that what ended last began no later than this one.
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
    """By how much the partition is larger than retention.bytes, 0 where it is not; and a note
    where that cannot be told. Kafka: buildRetentionSizeData."""
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
        # What has been copied since is counted in only_local_bytes still.
        note = f"copied through {end_offset}, the leader's report through "
        return 0, (f"{SIZE_NOT_APPLIED}: {note}{report.copied_through_offset}",)
    return max(0, size_bytes - config.retention_bytes), ()


def _unreferenced(
    segments: Iterable[RemoteLogSegmentMetadata], first_epoch: int, log_start_offset: int
) -> Iterator[Deletion]:
    """Segments of leaders that the partition's history does not know any more.

    Kafka, where the log is its own truth, does not ask for the log start: a declared difference.
    Here a history may lack its beginning because a broker came back with an empty disk, and what
    the tier has is then the only copy. What lies below the log start was given up on purpose.
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


def newest_ms(segment: RemoteLogSegmentMetadata) -> int:
    """Of its records; where they bear no time, the segment is as old as its latest event."""
    newest = segment.max_timestamp_ms
    return segment.event_timestamp_ms if newest == NO_TIMESTAMP else newest


def _raised_log_start(expired: Iterable[Deletion], log_start_offset: int) -> int | None:
    """What lies below the log start already has an end below it, and raises nothing."""
    after = max((d.segment.end_offset + 1 for d in expired), default=0)
    return after if after > log_start_offset else None


def list_order(segment: RemoteLogSegmentMetadata) -> tuple[int, UUID]:
    """The order in which segments are listed, and scanned."""
    return segment.start_offset, segment.remote_log_segment_id.id


def _total_bytes(segments: Iterable[RemoteLogSegmentMetadata]) -> int:
    return sum(map(_size_bytes, segments))


def _size_bytes(segment: RemoteLogSegmentMetadata) -> int:
    """0 where it is unknown."""
    return max(0, segment.segment_size_in_bytes)


def _name(segment: RemoteLogSegmentMetadata) -> str:
    return f"{segment.start_offset}-{uuid_to_text(segment.remote_log_segment_id.id)}"
