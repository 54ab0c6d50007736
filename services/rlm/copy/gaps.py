"""Record offsets that the broker deleted before their copy; delete dangling copies."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from services.api.calls import MAX_TEXT_LENGTH, MutationContext
from services.api.errors import InvalidStateTransitionError, RemoteStorageError
from services.api.partitions import (
    DELETED_AT_BROKER,
    LOST_BEFORE_COPY,
    OffsetGap,
    PartitionReport,
    is_recorded,
)
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.retention import young_copies
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.failpoints import failpoint
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.copy.report import PassReport, Range
from services.rlm.copy.segment import ENDED_BY_ANOTHER, SegmentCopier, is_attempt_of
from services.rlm.partition import Partition
from services.rlm.tier import OffsetRanges, Tier

MAX_DANGLING_COPIES = 1
"""Copying continues with at most so many dangling copies of uncopied offsets."""

ANOTHER_AFTER_MS = 10 * 60 * 1000
"""With more dangling copies, another copy may begin so long after the latest one. If the store
accepts nothing, each pass would add one; if only an earlier store is down, the copy succeeds."""

ENOUGH_REFUSED = 10
"""A pass stops cleaning up after so many permanent refusals."""


@dataclass
class Losses:
    """The lost ranges of a partition after one pass.

    Attributes:
        recorded: first found and recorded by this pass; also ranges that were perhaps recorded,
            because RLMM did not answer: the next pass may find them known, so they are listed now.
        unrecorded: not recorded yet; the next pass retries.
        known: recorded before.
        failure: the error if RLMM was unreachable; None if it answered each time.
    """

    recorded: list[Problem] = field(default_factory=list)
    unrecorded: list[Problem] = field(default_factory=list)
    known: list[Range] = field(default_factory=list)
    failure: RemoteStorageError | None = None


@dataclass(frozen=True, slots=True)
class LossRecorder:
    """Record losses for one broker."""

    rlmm: RemoteLogMetadataManager
    broker_id: int

    def record(
        self,
        partition: Partition,
        tier: Tier,
        lost: Sequence[Range],
        leader_epoch: int | None,
        elsewhere: Sequence[RemoteLogSegmentMetadata],
        why: str = "",
    ) -> Losses:
        """Record the lost ranges (lost_ranges) that are not recorded yet.

        Ranges that may still be copied are left out: those that another process of this broker
        (`elsewhere`) or another broker is copying, and those that a reporting leader still has.

        Args:
            why: what kept them from being copied, if known, for the audit trail.

        Raises:
            RemoteStorageError: if the recorded gaps cannot be read; nothing was recorded.
        """
        losses = Losses()
        gaps = partition.tier.gaps.refresh(tier) if lost else ()
        losses.known += [offsets for offsets in lost if is_recorded(gaps, *offsets)]
        found = [offsets for offsets in lost if offsets not in losses.known]
        if not found:
            return losses
        state = self.rlmm.partition_state(partition.topic_id_partition).value
        active_copies = [*elsewhere, *self._copied_by_others(tier, state.read_at_ms)]
        for first, last in found:
            refusal = _copied_yet(active_copies, first, last)
            refusal = refusal or self._still_had(state.report, leader_epoch, last)
            if not refusal and losses.failure is not None:
                refusal = _text(losses.failure)
            if refusal:
                note = f"not recorded: {refusal}"
                losses.unrecorded.append(lost_problem(partition, (first, last), note))
            else:
                self._record(partition, first, last, leader_epoch, why, losses)
        return losses

    def record_deleted(
        self, partition: Partition, tier: Tier, deleted: Sequence[Range], leader_epoch: int | None
    ) -> None:
        """Record ranges that were deleted at the broker (rules.deleted_before_copy).

        They are no losses; readers pass them. Once a segment that reaches into one is copied, RLMM
        refuses the range.

        Raises:
            RemoteStorageError: if RLMM is unreachable; copy nothing behind the ranges yet.
        """
        gaps = partition.tier.gaps.refresh(tier) if deleted else ()
        context = MutationContext(reason="deleted at the broker", broker_leader_epoch=leader_epoch)
        for first, last in deleted:
            if not is_recorded(gaps, first, last):
                gap = OffsetGap(first, last, DELETED_AT_BROKER)
                with suppress(InvalidStateTransitionError):
                    self.rlmm.record_gap(partition.topic_id_partition, gap, self.broker_id, context)

    def _record(
        self,
        partition: Partition,
        first: int,
        last: int,
        leader_epoch: int | None,
        why: str,
        losses: Losses,
    ) -> None:
        gap = OffsetGap(first, last, LOST_BEFORE_COPY)
        context = MutationContext(
            reason="lost before its copy",
            rule_detail=why[:MAX_TEXT_LENGTH] or None,
            broker_leader_epoch=leader_epoch,
        )
        problems, note = losses.recorded, "recorded as a gap"
        try:
            self.rlmm.record_gap(partition.topic_id_partition, gap, self.broker_id, context)
            failpoint("gap.recorded")
        except RETRIABLE_ERRORS as e:
            losses.failure, note = e, f"perhaps recorded as a gap: {_text(e)}"
        except RemoteStorageError as e:
            problems, note = losses.unrecorded, f"not recorded: {_text(e)}"
        problems.append(lost_problem(partition, (first, last), note))

    def _copied_by_others(self, tier: Tier, now_ms: int) -> list[RemoteLogSegmentMetadata]:
        """Return other brokers' running copies by retention's rule: leased, or begun recently."""
        copies = [
            segment
            for segment in tier.unfinished
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
            and segment.broker_id != self.broker_id
        ]
        young = {segment.remote_log_segment_id for segment in young_copies(copies, now_ms)}
        return [c for c in copies if c.copy_leased or c.remote_log_segment_id in young]

    def _still_had(self, report: PartitionReport | None, epoch: int | None, last: int) -> str:
        """Return why another broker's report contradicts the loss; "" if it does not.

        If leaders are unknown, every broker with a folder of the partition records losses.
        """
        if report is None or report.broker_id == self.broker_id:
            return ""
        is_older = epoch is not None and report.leader_epoch < epoch
        if is_older or report.local_log_start_offset > last:
            return ""
        return (
            f"broker {report.broker_id} reported a log that starts at offset "
            f"{report.local_log_start_offset}"
        )


def _text(error: RemoteStorageError) -> str:
    return f"{type(error).__name__}: {error}"


def _copied_yet(active_copies: Sequence[RemoteLogSegmentMetadata], first: int, last: int) -> str:
    for segment in active_copies:
        if segment.start_offset <= last and first <= segment.end_offset:
            return (
                f"broker {segment.broker_id} is copying offsets {segment.start_offset} to "
                f"{segment.end_offset}"
            )
    return ""


def lost_problem(
    partition: Partition, lost: Range, note: str = "", *, is_known: bool = False
) -> Problem:
    """Describe a lost range, perhaps recorded before; copying continues after it."""
    first, last = lost
    reason = "known gap: " if is_known else ""
    reason += f"the broker deleted offsets {first} to {last} before they were copied"
    path = "" if partition.role.local is None else str(partition.role.local.found.path)
    reason = f"{reason}; {note}" if note else reason
    return Problem(ProblemKind.LOST_BEFORE_COPY, path, reason, first)


@dataclass(frozen=True, slots=True)
class DanglingCopies:
    """The unfinished copies of this broker that were not deleted.

    Attributes:
        elsewhere: copies that another process may be making under this broker's id: an RLM on
            another copy of the folder, or the broker itself.
        attempts: dangling copies that could not be deleted.
        failure: the error of the last one; None if there are none.
    """

    elsewhere: Sequence[RemoteLogSegmentMetadata] = ()
    attempts: Sequence[RemoteLogSegmentMetadata] = ()
    failure: RemoteStorageError | None = None

    def stops_copying(self, covered: OffsetRanges, now_ms: int) -> bool:
        """Return whether there are too many dangling copies to begin another copy now.

        A dangling copy of offsets in the tier does not count: a later copy succeeded.
        """
        at_uncopied = [s for s in self.attempts if not covered.covers(s.end_offset, s.end_offset)]
        latest_ms = [abs(now_ms - segment.event_timestamp_ms) for segment in at_uncopied]
        return len(at_uncopied) > MAX_DANGLING_COPIES and min(latest_ms) < ANOTHER_AFTER_MS


def end_dangling_copies(
    copier: SegmentCopier,
    broker_id: int,
    unfinished: Sequence[RemoteLogSegmentMetadata],
    report: PassReport,
) -> DanglingCopies:
    """Delete this broker's dangling copies among the tier's unfinished segments.

    A copy that cannot be deleted, because an earlier store is down or refuses deletes, does not
    stop copying: the next attempt has its own id.

    Raises:
        ENDED_BY_ANOTHER: if another process ended one; refresh the tier and retry.
    """
    own = [segment for segment in unfinished if is_attempt_of(broker_id, segment)]
    elsewhere = copier.active_copies_elsewhere(own)
    ids = {segment.remote_log_segment_id for segment in elsewhere}
    dangling = [segment for segment in own if segment.remote_log_segment_id not in ids]
    refused: list[RemoteLogSegmentMetadata] = []
    failure: RemoteStorageError | None = None
    for number, segment in enumerate(dangling):
        try:
            copier.clean_up(segment)
        except RemoteStorageError as e:
            if isinstance(e, ENDED_BY_ANOTHER) and copier.is_finished_or_gone(segment):
                raise
            refused.append(segment)
            failure = e
            if isinstance(e, RETRIABLE_ERRORS) or len(refused) == ENOUGH_REFUSED:
                # The others would each wait for the same store.
                return DanglingCopies(elsewhere, [*refused, *dangling[number + 1 :]], e)
        else:
            report.cleaned_attempts += 1
    return DanglingCopies(elsewhere, refused, failure)
