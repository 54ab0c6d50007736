"""Record offsets that the broker deleted before their copy."""

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
from services.rlm.copy.report import Range
from services.rlm.partition import Partition
from services.rlm.tier import Tier


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
            refusal = _copied_by(active_copies, first, last)
            refusal = refusal or self._reported_by(state.report, leader_epoch, last)
            if not refusal and losses.failure is not None:
                refusal = _text(losses.failure)
            if refusal:
                status = f"not recorded: {refusal}"
                losses.unrecorded.append(lost_problem(partition, (first, last), status))
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
        problems, status = losses.recorded, "recorded as a gap"
        try:
            self.rlmm.record_gap(partition.topic_id_partition, gap, self.broker_id, context)
            failpoint("gap.recorded")
        except RETRIABLE_ERRORS as e:
            losses.failure, status = e, f"perhaps recorded as a gap: {_text(e)}"
        except RemoteStorageError as e:
            problems, status = losses.unrecorded, f"not recorded: {_text(e)}"
        problems.append(lost_problem(partition, (first, last), status))

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

    def _reported_by(self, report: PartitionReport | None, epoch: int | None, last: int) -> str:
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


def _copied_by(active_copies: Sequence[RemoteLogSegmentMetadata], first: int, last: int) -> str:
    for segment in active_copies:
        if segment.start_offset <= last and first <= segment.end_offset:
            return (
                f"broker {segment.broker_id} is copying offsets {segment.start_offset} to "
                f"{segment.end_offset}"
            )
    return ""


def lost_problem(
    partition: Partition, lost: Range, status: str = "", *, is_known: bool = False
) -> Problem:
    """Describe a lost range, perhaps recorded before; copying continues after it."""
    first, last = lost
    reason = "known gap: " if is_known else ""
    reason += f"the broker deleted offsets {first} to {last} before they were copied"
    path = "" if partition.role.local is None else str(partition.role.local.folder.path)
    reason = f"{reason}; {status}" if status else reason
    return Problem(ProblemKind.LOST_BEFORE_COPY, path, reason, first)
