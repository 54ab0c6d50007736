"""Run one copy pass over a partition: delete dangling copies, copy each rolled segment, a tail."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from services.api.errors import (
    CorruptSegmentError,
    CustomMetadataTooLargeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.lineage import Lineage, SegmentLineage
from services.api.remote_log_manager import Problem
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segments import RemoteLogSegmentMetadata
from services.common.cancellation import Flag
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.copy.dangling_copies import end_dangling_copies
from services.rlm.copy.folder_lock import PartitionBusyError, exclusive
from services.rlm.copy.gaps import LossRecorder
from services.rlm.copy.inspection import InspectedSegment, inspect
from services.rlm.copy.leases import CopyCancelledError
from services.rlm.copy.quota_turn import QuotaTurn
from services.rlm.copy.report import (
    PassReport,
    Progress,
    Range,
    awaited_log_start,
    compacted,
    copied_elsewhere,
    partition_deleted,
    refused,
    vanished,
    waiting_for,
)
from services.rlm.copy.rules import (
    CopyRule,
    CopyRules,
    candidate_log_segments,
    deleted_before_copy,
    in_tier,
    lagging_log_segments,
)
from services.rlm.copy.segment import SegmentCopier
from services.rlm.copy.superseded_copies import SupersededCopies
from services.rlm.copy.tails import Tail, TailAge, inspect_tail, next_tail
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition, log_end_problem
from services.rlm.kafka_log.partition_dir import (
    LocalSegment,
    LogFileError,
    SegmentVanishedError,
)
from services.rlm.kafka_log.transactions import ProducerReplay
from services.rlm.losses import lost_ranges
from services.rlm.partition import Lag, Leadership, Partition, lag_of
from services.rlm.reporting import announce
from services.rlm.tier import OffsetRanges, Tier
from services.rlm.tier_lineage import reaches_back

_POLICY_RETRY_S = 3.0
"""The interval of passes until the cluster has returned the cleanup policy."""

_PAUSE_S = 1.0
"""The interval of passes while retention reads the partition."""

_LOST = (RemoteResourceNotFoundError, CorruptSegmentError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pass:
    """The state of the partition that a pass copies, and its report.

    Attributes:
        log: from the tier's log start on.
        covered: the offsets in the tier, by the log's lineage.
        copied: the same without those that only tails have.
        elsewhere: segments that another process may be copying.
    """

    local: LocalPartition
    log: LocalLog
    tier: Tier
    covered: OffsetRanges
    copied: OffsetRanges
    elsewhere: Sequence[RemoteLogSegmentMetadata]
    report: PassReport

    @property
    def path(self) -> str:
        return str(self.local.folder.path)


class CopyTask:
    """Run copy passes over one partition, one at a time.

    Args:
        rules: the limits by the settings of the topic and the quota of the process.
        stopping: once set, begin no other segment, and stop waiting for RSM.
        cancelled: once set, also abandon the segment that is being copied.
        turn_s: after so many seconds a pass ends with its segment and lets others run; None to copy
            everything in one pass.
    """

    def __init__(
        self,
        partition: Partition,
        copier: SegmentCopier,
        rlmm: RemoteLogMetadataManager,
        broker_id: int,
        rules: CopyRules,
        progress: Progress,
        stopping: Flag,
        cancelled: Flag,
        turn_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._partition = partition
        self._name = partition.topic_id_partition
        self._copier = copier
        self._rlmm = rlmm
        self._broker_id = broker_id
        self._rules = rules
        self._rule = CopyRule()
        self._leadership: Leadership | None = None
        self._epoch: int | None = None
        self._lagging: list[LocalSegment] = []
        self._lagging_before: list[LocalSegment] = []
        self._producers = ProducerReplay()
        self._tail_age = TailAge(clock)
        self._superseded = SupersededCopies(rlmm, broker_id, copier.now_ms)
        self._idle_state: object = None
        """The state of a pass that had nothing to do; until it changes, no pass has."""
        self._quota_turn = QuotaTurn(rules.quota, clock)
        self._progress = progress
        self._stopping = stopping
        self._cancelled = cancelled
        self._turn_s = turn_s
        self._clock = clock

    def run(self) -> PassReport:
        """Run one pass. Failures of files, store and database are in the report."""
        report = PassReport()
        try:
            self._run(report)
        finally:
            if report.more_after_s is None:
                self._quota_turn.cancel()
        return report

    def _run(self, report: PassReport) -> None:
        local, leadership = self._partition.role.local, self._partition.role.leadership
        if local is None or leadership is None or not leadership.is_leader:
            self._partition.copy.lag = Lag()
            return
        try:
            idle = self._log_if_idle(local, leadership)
            tail = None if idle is None else self._due_tail(idle, self._partition.tier.cached)
            if idle is None:
                with exclusive(local.folder.path):
                    self._pass(local, leadership, report)
            elif tail is not None:
                with exclusive(local.folder.path):
                    self._tail_pass(local, leadership, idle, tail, report)
        except FileNotFoundError:
            _log.info("%s: the broker removed its folder; copying ends", self._name)
            self._partition.copy.lag = Lag()
            report.folder_is_gone = True
        except (PartitionBusyError, CopyCancelledError, SegmentVanishedError) as e:
            report.failed(e, may_pass=True)
        except LogFileError as e:
            report.problems.append(e.problem(blocked_segments=0))
            report.failed(e, may_pass=False)
        except RemoteStorageError as e:
            report.problems.append(refused(e, str(local.folder.path), blocked_segments=0))
            report.failed(e, may_pass=isinstance(e, RETRIABLE_ERRORS))
        self._partition.copy.record(tuple(report.problems))

    def _pass(self, local: LocalPartition, leadership: Leadership, report: PassReport) -> None:
        log = local.read()
        if log is None:
            self._partition.copy.lag = Lag()
            report.folder_is_gone = not local.is_present()
            return
        if leadership.is_overtaken(log.lineage):
            report.failed(
                f"its log has records of leader epoch {log.lineage.latest_epoch}, but RLM knows "
                f"this broker as the leader of epoch {leadership.leader_epoch} only; waiting for "
                "the next leadership change",
                may_pass=True,
            )
            return
        self._idle_state = None
        self._lagging_before = self._lagging
        self._leadership, self._epoch = leadership, leadership.epoch_of(log.lineage)
        # Publish lag from the last known tier state: metrics stay current while RLMM is down.
        self._count_lag(log, self._partition.tier.cached)
        self._rule = rule = self._rules.of(self._name)
        announce(self._rlmm, self._partition, leadership, self._epoch, self._broker_id)
        if rule.is_awaited:
            report.more_after_s = _POLICY_RETRY_S
            return
        tier = self._partition.tier.refresh()
        if tier.known is False:
            # The announcement adds the partition, unless its deletion is finished.
            self._count_lag(log, tier)
            report.problems.append(partition_deleted(str(local.folder.path), len(log.rolled)))
            return
        beginning = self._partition.tier.beginning
        beginning.read(tier)
        if rule.copies:
            beginning.begin(tier, log.log_start_offset, log.removed_before_offset)
        else:
            beginning.forget()
        dangling = end_dangling_copies(self._copier, self._broker_id, tier.unfinished, report)
        self._count_lag(log, tier)
        current = _Pass(
            local,
            log.from_offset(tier.log_start_offset),
            tier,
            tier.covered(log.lineage),
            tier.copied(log.lineage),
            dangling.elsewhere,
            report,
        )
        failure = dangling.failure
        if failure is not None and dangling.stops_copying(current.copied, self._copier.now_ms()):
            raise failure
        if rule.copies:
            self._copy_rolled(current)
        elif rule.compaction:
            blocked = len(lagging_log_segments(current.log, current.copied))
            problem = compacted(self._name.topic, rule.compaction, current.path, blocked)
            report.problems.append(problem)
        if failure is not None and not report.failure:
            raise failure
        if report.found_only_tails and not self._lagging and not tier.unfinished:
            self._idle_state = self._state_at(log, leadership)

    def _tail_pass(
        self,
        local: LocalPartition,
        leadership: Leadership,
        log: LocalLog,
        tail: Tail,
        report: PassReport,
    ) -> None:
        """Copy a tail after a pass that had nothing else to do, without a call to read the tier."""
        tier = self._partition.tier.cached
        self._idle_state = None
        if self._partition.copy.blocked_until_restart is None:
            current = _Pass(local, log, tier, OffsetRanges(), OffsetRanges(), (), report)
            self._copy_tail(current, tail, self._lineage(tier, log.lineage))
        if report.found_only_tails:
            self._idle_state = self._state_at(log, leadership)

    def _log_if_idle(self, local: LocalPartition, leadership: Leadership) -> LocalLog | None:
        """Return the log if only its active segment changed since a pass had nothing to do.

        The active segment is not copied, unless a tail is due.
        """
        tier = self._partition.tier
        if self._idle_state is None or not tier.is_as_polled:
            return None
        log = local.read()
        is_idle = log is not None and self._idle_state == self._state_at(log, leadership)
        return log if is_idle else None

    def _state_at(self, log: LocalLog, leadership: Leadership) -> object:
        """Return what decides whether a pass has anything to do; None if one always has."""
        tier = self._partition.tier
        if log.log_end_offset < tier.cached.log_start_offset:
            return None
        return (
            log.rolled,
            log.lineage,
            log.log_start_offset,
            log.removed_before_offset,
            leadership,
            self._rules.of(self._name),
            tier.cached.revision,
        )

    def _count_lag(self, log: LocalLog, tier: Tier) -> None:
        self._partition.copy.rule = self._rule
        self._lagging = self._partition.count_lag(log, tier)

    def _publish_lag(self, segments: list[LocalSegment]) -> None:
        self._lagging = segments
        self._partition.copy.lag = lag_of(segments, self._rule.local_retention_ms)

    def _copy_rolled(self, current: _Pass) -> None:
        log, report = current.log, current.report
        problem = log_end_problem(current.local, log, current.tier.log_start_offset)
        if problem is not None:
            report.problems.append(problem)
            report.failed(problem.message, may_pass=False)
            return
        if log.lineage_problem is not None:
            report.problems.append(log.lineage_problem)
            return
        if log.awaited_log_start_offset:
            report.failed(awaited_log_start(log), may_pass=True)
            return
        failure = self._record_lost(current)
        self._mark_superseded(current)
        self._copy_missing(current)
        if failure is not None and not report.failure:
            raise failure

    def _mark_superseded(self, current: _Pass) -> None:
        log, tier = current.log, current.tier
        if self._rules.lag_defaults is None or not self._superseded.may_exist(tier):
            return  # `sediment ship` deletes no objects.
        lineage = self._lineage(tier, log.lineage)
        if lineage.entries:
            self._partition.tier.changed_here()
            of_log = SegmentLineage(lineage, log.log_end_offset)
            self._superseded.mark(self._name, tier, of_log, self._epoch)

    def _copy_missing(self, current: _Pass) -> None:
        log, report = current.log, current.report
        if log.high_watermark_problem is not None and self._lagging:
            problem = log.high_watermark_problem
            report.problems.append(replace(problem, blocked_segments=len(self._lagging)))
            return
        candidates = self._candidates(current)
        blocked = self._partition.copy.blocked_until_restart
        if blocked is not None and candidates:
            report.problems.append(replace(blocked, blocked_segments=len(candidates)))
            return
        waiting = waiting_for(current.elsewhere, candidates)
        candidates = candidates[: len(candidates) - len(waiting)]
        self._progress.planned(
            self._name, len(candidates), sum(segment.size_bytes for segment in candidates)
        )
        if candidates:
            self._copy_all(current, self._lineage(current.tier, log.lineage), candidates)
        if current.elsewhere and not report.failure:
            problem = copied_elsewhere(current.elsewhere[0], current.path, len(waiting))
            report.problems.append(problem)
            if report.more_after_s is None:
                report.failed(problem.message, may_pass=True)
        is_paused = blocked is not None or report.more_after_s is not None
        if not (is_paused or report.failure or report.blocked_segments):
            tier = self._partition.tier.refresh() if report.copied_segments else current.tier
            tail = self._due_tail(current.log, tier)
            if tail is not None:
                self._copy_tail(current, tail, self._lineage(tier, log.lineage))

    def _due_tail(self, log: LocalLog, tier: Tier) -> Tail | None:
        rule = self._rules.of(self._name)
        if not rule.copies or rule.tail_ms is None:
            return None
        settled = self._partition.role.as_settled(log.from_offset(tier.log_start_offset))
        tail = next_tail(settled, tier.covered(log.lineage))
        return tail if self._tail_age.is_due(tail, rule.tail_ms) else None

    def _record_lost(self, current: _Pass) -> RemoteStorageError | None:
        """Record lost ranges; return the error of RLMM, if any, which does not stop copying."""
        log, tier, report = current.log, current.tier, current.report
        lost = lost_ranges(self._partition, log, current.covered, tier)
        self._partition.copy.lost = tuple(lost)
        recorder = LossRecorder(self._rlmm, self._broker_id)
        deleted = deleted_before_copy(log, current.covered, tier.log_start_offset)
        recorder.record_deleted(self._partition, tier, deleted, self._epoch)
        losses = recorder.record(
            self._partition, tier, lost, self._epoch, current.elsewhere, self._why_lost(lost)
        )
        report.problems += [*losses.recorded, *losses.unrecorded]
        report.recorded += losses.recorded
        report.known_gaps += losses.known
        return losses.failure

    def _why_lost(self, lost: Sequence[Range]) -> str:
        """Describe what the previous pass knew of lost segments: bytes, and what blocked them."""
        sizes = [
            segment.size_bytes
            for segment in self._lagging_before
            if any(first <= segment.base_offset <= last for first, last in lost)
        ]
        known = [f"{sum(sizes)} bytes"] if sizes else []
        blocking = [p for p in self._partition.copy.problems if p.blocked_segments]
        known += [f"blocked by {p.kind.value}: {p.message}" for p in blocking[:1]]
        return "; ".join(known)

    def _candidates(self, current: _Pass) -> list[LocalSegment]:
        report, covered = current.report, current.copied
        present = in_tier(current.log, covered)
        report.present_segments = len(present)
        report.present_bytes = sum(segment.size_bytes for segment in present)
        log = self._partition.role.as_settled(current.log)
        candidates = candidate_log_segments(log, covered)
        report.unsettled_segments = len(lagging_log_segments(log, covered)) - len(candidates)
        report.settled_before_offset = log.last_stable_offset
        return self._rules.eligible(self._rule, candidates, log.segments)

    def _lineage(self, tier: Tier, local: Lineage) -> Lineage:
        try:
            return self._partition.tier.lineage.merged(tier, local)
        except RemoteStorageError as e:
            # Copy with the history in RLMM's report: the next copy reads it from this one's
            # LEADER_EPOCH index. An incomplete history is used only if the whole one is lost.
            reported = self._rlmm.partition_state(self._name).value.lineage.merged_with_report(
                local
            )
            if not isinstance(e, _LOST) and not reaches_back(tier, reported):
                raise
            _log.warning(
                "%s: cannot read the tier's leader epochs; using those that RLMM was sent",
                self._name,
                exc_info=True,
            )
            return reported

    def _copy_all(
        self, current: _Pass, lineage: Lineage, candidates: Sequence[LocalSegment]
    ) -> None:
        local, log, report = current.local, current.log, current.report
        ends_s = None if self._turn_s is None else self._clock() + self._turn_s
        for number, segment in enumerate(candidates):
            if ends_s is not None and self._clock() >= ends_s:
                report.more_after_s = 0.0
                return
            if not self._may_begin(segment.size_bytes, report):
                return
            blocked_segments = len(candidates) - number
            with self._stopping_at_failure(current, segment, blocked_segments) as problems:
                inspected = inspect(
                    log.segments,
                    segment,
                    lineage,
                    log.log_start_offset,
                    may_have_holes=self._rule.may_have_holes,
                    producers=self._producers,
                )
                if not self._copy_if_led(local, inspected, report):
                    return
            if problems:
                return
            self._publish_lag([s for s in self._lagging if s.base_offset != segment.base_offset])
            report.problems += inspected.rebuilt
            report.copied_segments += 1
            report.copied_bytes += inspected.size_bytes
            self._progress.copied(self._name, segment.base_offset, inspected.size_bytes)

    def _copy_tail(self, current: _Pass, tail: Tail, lineage: Lineage) -> None:
        log, report = current.log, current.report
        with self._stopping_at_failure(current, tail.segment, blocked_segments=0) as problems:
            inspected = inspect_tail(
                tail, log.segments, lineage, log.log_start_offset, self._producers
            )
            if inspected is None or not self._may_begin(inspected.size_bytes, report):
                return
            if not self._copy_if_led(current.local, inspected, report):
                return
        if not problems:
            report.copied_tails += 1
            report.copied_bytes += inspected.size_bytes

    def _may_begin(self, size_bytes: int, report: PassReport) -> bool:
        """Return whether another segment may be copied now; if not, the report says why."""
        if self._stopping.is_set():
            report.failed("RLM is stopping, or drained", may_pass=False)
            return False
        wait_s = _PAUSE_S if self._partition.retention.copy_paused else None
        report.more_after_s = wait_s or self._quota_turn.wait_s(size_bytes) or None
        return report.more_after_s is None

    def _copy_if_led(
        self, local: LocalPartition, inspected: InspectedSegment, report: PassReport
    ) -> bool:
        """Copy what was inspected; return False if this broker does not lead any more."""
        # The bytes sent must be those that were inspected; the folder is checked once.
        local.require_present()
        if not self._is_still_led(local):
            report.more_after_s = 0.0
            return False
        self._rule = self._rules.of(self._name)
        if not self._rule.copies:
            self._publish_lag([])
            return False
        self._quota_turn.end()
        self._copy(inspected, report)
        return True

    def _is_still_led(self, local: LocalPartition) -> bool:
        """Return whether the leader epoch of this pass is still the latest known here.

        RLMM refuses a copy under an older epoch.
        """
        leadership, log = self._partition.role.leadership, local.cached
        if leadership is None or leadership != self._leadership or log is None:
            return False
        return leadership.epoch_of(log.lineage) == self._epoch

    def _copy(self, inspected: InspectedSegment, report: PassReport) -> None:
        counted = 0

        def sent(size_bytes: int) -> None:
            nonlocal counted
            counted += size_bytes
            self._progress.sent(self._name, size_bytes)

        self._partition.tier.changed_here()
        report.copy_requests += 1
        try:
            copied = self._copier.copy(
                self._name, inspected, self._epoch, sent, self._stopping, self._cancelled
            )
        except BaseException as e:
            self._progress.sent(self._name, -counted)
            if isinstance(e, (*RETRIABLE_ERRORS, SegmentVanishedError)):
                report.copy_retriable_errors += 1
            elif not isinstance(e, CopyCancelledError):
                report.copy_errors += 1
            raise
        self._partition.tier.copied(copied.segment, copied.added_at, copied.finished_at)

    @contextmanager
    def _stopping_at_failure(
        self, current: _Pass, segment: LocalSegment, blocked_segments: int
    ) -> Iterator[list[Problem]]:
        """Convert the failure of a segment into a problem, which also stops the segments after it.

        The yielded list contains the problem.

        Raises:
            FileNotFoundError: if the broker has dropped the partition meanwhile, or moved it to
                another disk.
        """
        problems: list[Problem] = []
        report = current.report
        try:
            yield problems
        except (LogFileError, SegmentVanishedError, RemoteStorageError) as e:
            if not current.local.is_present():
                raise FileNotFoundError(current.path) from e
            if isinstance(e, LogFileError):
                problems.append(e.problem(blocked_segments))
            elif isinstance(e, SegmentVanishedError):
                problems.append(vanished(segment, blocked_segments))
                report.failed(e, may_pass=True)
            else:
                path, offset = str(segment.log_path), segment.base_offset
                problems.append(refused(e, path, blocked_segments, offset))
                report.failed(e, may_pass=isinstance(e, RETRIABLE_ERRORS))
            if isinstance(e, CustomMetadataTooLargeError):
                self._partition.copy.blocked_until_restart = problems[0]
        report.problems += problems
