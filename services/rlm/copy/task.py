"""Run one copy pass over a partition: delete dangling copies, copy each rolled segment."""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from services.api.errors import (
    CorruptSegmentError,
    CustomMetadataTooLargeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.lineage import Lineage
from services.api.remote_log_manager import Problem
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segments import RemoteLogSegmentMetadata
from services.common.cancellation import Flag
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.copy.gaps import LossRecorder, end_dangling_copies
from services.rlm.copy.inspection import InspectedSegment, inspect
from services.rlm.copy.leases import CopyCancelledError
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
    uncopied_log_segments,
)
from services.rlm.copy.segment import SegmentCopier
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition, log_end_problem
from services.rlm.kafka_log.partition_dir import (
    LocalSegment,
    LogFileError,
    SegmentVanishedError,
    reading,
)
from services.rlm.kafka_log.transactions import ProducerIds
from services.rlm.losses import lost_ranges
from services.rlm.metrics import COPY_THROTTLE_SECONDS
from services.rlm.partition import Leadership, Partition, Uncopied, uncopied_of
from services.rlm.reporting import announce
from services.rlm.tier import OffsetRanges, Tier
from services.rlm.tier_state import reaches_back

_POLICY_RETRY_S = 3.0
"""The interval of passes until the cluster has returned the cleanup policy."""

_PAUSE_S = 1.0
"""The interval of passes while retention reads the partition."""

_LOST = (RemoteResourceNotFoundError, CorruptSegmentError)
_log = logging.getLogger(__name__)


class PartitionBusyError(Exception):
    """The error if another process is copying this partition."""


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the folder's lock, so that no running copy is mistaken for a dangling one.

    Nothing is written, Kafka does not use the lock, and the kernel releases it with the process.

    Raises:
        PartitionBusyError: if another process holds the lock.
        FileNotFoundError: if the folder is gone.
        LogFileError: UNREADABLE, or the file system has no locks.
    """
    with reading(directory):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with reading(directory):
            _lock(fd, directory)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, directory: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise PartitionBusyError(
            f"{directory}: another process is copying this partition; retrying"
        ) from e


@dataclass(frozen=True, slots=True)
class _QuotaTurn:
    """The bytes that were taken from the copy quota, and the time at which they may be copied."""

    size_bytes: int
    taken_s: float
    due_s: float


@dataclass(frozen=True, slots=True)
class _Resting:
    """The state that a pass found when it had nothing to do.

    Until this state changes, later passes have nothing to do: the active segment is not copied, and
    all rolled segments are in the tier.
    """

    rolled: tuple[LocalSegment, ...]
    lineage: Lineage
    log_start_offset: int
    removed_before_offset: int
    leadership: Leadership
    rule: CopyRule
    revision: int | None


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
        self._uncopied: list[LocalSegment] = []
        self._uncopied_before: list[LocalSegment] = []
        self._producers = ProducerIds()
        self._resting: _Resting | None = None
        self._quota_turn: _QuotaTurn | None = None
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
            if report.more_after_s is None and self._quota_turn is not None:
                self._rules.quota.force_take(-self._quota_turn.size_bytes)
                self._end_quota_turn()
        return report

    def _run(self, report: PassReport) -> None:
        local, leadership = self._partition.role.local, self._partition.role.leadership
        if local is None or leadership is None or not leadership.is_leader:
            self._partition.copy.uncopied = Uncopied()
            return
        try:
            if not self._rests(local, leadership):
                with exclusive(local.found.path):
                    self._pass(local, leadership, report)
        except FileNotFoundError:
            _log.info("%s: the broker removed its folder; copying ends", self._name)
            self._partition.copy.uncopied = Uncopied()
            report.folder_is_gone = True
        except (PartitionBusyError, CopyCancelledError, SegmentVanishedError) as e:
            report.failed(e, may_pass=True)
        except LogFileError as e:
            report.problems.append(e.problem(held_segments=0))
            report.failed(e, may_pass=False)
        except RemoteStorageError as e:
            report.problems.append(refused(e, str(local.found.path), held_segments=0))
            report.failed(e, may_pass=isinstance(e, RETRIABLE_ERRORS))
        self._partition.copy.record(tuple(report.problems))

    def _pass(self, local: LocalPartition, leadership: Leadership, report: PassReport) -> None:
        log = local.read()
        if log is None:
            self._partition.copy.uncopied = Uncopied()
            report.folder_is_gone = not local.is_there()
            return
        if leadership.is_overtaken(log.lineage):
            report.failed(
                f"its log has records of leader epoch {log.lineage.latest_epoch}, but RLM knows "
                f"this broker as the leader of epoch {leadership.leader_epoch} only; waiting for "
                "the next leadership change",
                may_pass=True,
            )
            return
        self._resting = None
        self._uncopied_before = self._uncopied
        self._leadership, self._epoch = leadership, leadership.epoch_of(log.lineage)
        # Publish lag from the last known tier state: metrics stay current while RLMM is down.
        self._record_uncopied(log, self._partition.tier.cached)
        self._rule = rule = self._rules.of(self._name)
        announce(self._rlmm, self._partition, leadership, self._epoch, self._broker_id)
        if rule.is_awaited:
            report.more_after_s = _POLICY_RETRY_S
            return
        tier = self._partition.tier.refresh()
        if tier.known is False:
            # The announcement adds the partition, unless its deletion is finished.
            self._record_uncopied(log, tier)
            report.problems.append(partition_deleted(str(local.found.path), len(log.rolled)))
            return
        beginning = self._partition.tier.beginning
        beginning.read(tier)
        if rule.copies:
            beginning.begin(tier, log.log_start_offset, log.removed_before_offset)
        else:
            beginning.forget()
        dangling = end_dangling_copies(self._copier, self._broker_id, tier.unfinished, report)
        self._record_uncopied(log, tier)
        if dangling.failure is not None:
            covered = tier.covered(log.lineage)
            if dangling.stops_copying(covered, self._copier.now_ms()):
                raise dangling.failure
        if rule.copies:
            self._copy_what_is_rolled(local, log, tier, dangling.elsewhere, report)
        elif rule.compaction:
            report.problems.append(self._compacted(local, log, tier, rule))
        if dangling.failure is not None and not report.failure:
            raise dangling.failure
        if report.found_nothing and not self._uncopied and not tier.unfinished:
            self._resting = self._state_at(log, leadership)

    def _compacted(
        self, local: LocalPartition, log: LocalLog, tier: Tier, rule: CopyRule
    ) -> Problem:
        log = log.from_offset(tier.log_start_offset)
        held = len(uncopied_log_segments(log, tier.covered(log.lineage)))
        return compacted(self._name.topic, rule.compaction, str(local.found.path), held)

    def _rests(self, local: LocalPartition, leadership: Leadership) -> bool:
        """Return whether nothing changed since a pass that had nothing to do."""
        if self._resting is None:
            return False
        log = local.read()
        return log is not None and self._resting == self._state_at(log, leadership)

    def _state_at(self, log: LocalLog, leadership: Leadership) -> _Resting | None:
        """Return the state that is known without RLMM; None if RLMM has to be read."""
        tier = self._partition.tier
        if not tier.is_as_polled or log.log_end_offset < tier.cached.log_start_offset:
            return None
        return _Resting(
            log.rolled,
            log.lineage,
            log.log_start_offset,
            log.removed_before_offset,
            leadership,
            self._rules.of(self._name),
            tier.cached.revision,
        )

    def _record_uncopied(self, log: LocalLog, tier: Tier) -> None:
        """Publish what is not in the tier, also if it is held back."""
        rule = self._rule
        if tier.known is None or not (rule.copies or rule.is_awaited or rule.compaction):
            self._publish_uncopied([])
        elif log.log_end_offset < tier.log_start_offset:  # It is not the log that was copied.
            self._publish_uncopied(list(log.rolled))
        else:
            log = log.from_offset(tier.log_start_offset)
            self._publish_uncopied(uncopied_log_segments(log, tier.covered(log.lineage)))

    def _publish_uncopied(self, segments: list[LocalSegment]) -> None:
        self._uncopied = segments
        self._partition.copy.uncopied = uncopied_of(segments, self._rule.local_retention_ms)

    def _copy_what_is_rolled(
        self,
        local: LocalPartition,
        log: LocalLog,
        tier: Tier,
        elsewhere: Sequence[RemoteLogSegmentMetadata],
        report: PassReport,
    ) -> None:
        problem = log_end_problem(local, log, tier.log_start_offset)
        if problem is not None:
            report.problems.append(problem)
            report.failed(problem.message, may_pass=False)
            return
        log = log.from_offset(tier.log_start_offset)
        if log.lineage_problem is not None:
            report.problems.append(log.lineage_problem)
            return
        if log.awaited_log_start_offset:
            report.failed(awaited_log_start(log), may_pass=True)
            return
        covered = tier.covered(log.lineage)
        failure = self._record_lost(log, covered, tier, elsewhere, report)
        self._copy_missing(local, log, covered, tier, elsewhere, report)
        if failure is not None and not report.failure:
            raise failure

    def _copy_missing(
        self,
        local: LocalPartition,
        log: LocalLog,
        covered: OffsetRanges,
        tier: Tier,
        elsewhere: Sequence[RemoteLogSegmentMetadata],
        report: PassReport,
    ) -> None:
        if log.high_watermark_problem is not None and self._uncopied:
            problem = log.high_watermark_problem
            report.problems.append(replace(problem, held_segments=len(self._uncopied)))
            return
        candidates = self._candidates(log, covered, report)
        blocked = self._partition.copy.blocked
        if blocked is not None and candidates:
            report.problems.append(replace(blocked, held_segments=len(candidates)))
            return
        waiting = waiting_for(elsewhere, candidates)
        candidates = candidates[: len(candidates) - len(waiting)]
        self._progress.planned(
            self._name, len(candidates), sum(segment.size_bytes for segment in candidates)
        )
        if candidates:
            lineage = self._lineage(tier, log.lineage)
            self._copy_all(local, log, lineage, candidates, report)
        if elsewhere and not report.failure:
            problem = copied_elsewhere(elsewhere[0], str(local.found.path), len(waiting))
            report.problems.append(problem)
            if report.more_after_s is None:
                report.failed(problem.message, may_pass=True)

    def _record_lost(
        self,
        log: LocalLog,
        covered: OffsetRanges,
        tier: Tier,
        elsewhere: Sequence[RemoteLogSegmentMetadata],
        report: PassReport,
    ) -> RemoteStorageError | None:
        """Record lost ranges; return the error of RLMM, if any, which does not stop copying."""
        lost = lost_ranges(self._partition, log, covered, tier)
        self._partition.copy.lost = tuple(lost)
        recorder = LossRecorder(self._rlmm, self._broker_id)
        deleted = deleted_before_copy(log, covered, tier.log_start_offset)
        recorder.record_deleted(self._partition, tier, deleted, self._epoch)
        why = self._why_lost(lost)
        losses = recorder.record(self._partition, tier, lost, self._epoch, elsewhere, why)
        report.problems += [*losses.recorded, *losses.unrecorded]
        report.recorded += losses.recorded
        report.known_gaps += losses.known
        return losses.failure

    def _why_lost(self, lost: Sequence[Range]) -> str:
        """Describe what the previous pass knew of lost segments: bytes, and what held them back."""
        sizes = [
            segment.size_bytes
            for segment in self._uncopied_before
            if any(first <= segment.base_offset <= last for first, last in lost)
        ]
        known = [f"{sum(sizes)} bytes"] if sizes else []
        held = [problem for problem in self._partition.copy.problems if problem.held_segments]
        known += [f"held back by {p.kind.value}: {p.message}" for p in held[:1]]
        return "; ".join(known)

    def _candidates(
        self, log: LocalLog, covered: OffsetRanges, report: PassReport
    ) -> list[LocalSegment]:
        present = in_tier(log, covered)
        report.present_segments = len(present)
        report.present_bytes = sum(segment.size_bytes for segment in present)
        log = self._partition.role.as_settled(log)
        candidates = candidate_log_segments(log, covered)
        report.unsettled_segments = len(uncopied_log_segments(log, covered)) - len(candidates)
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
        self,
        local: LocalPartition,
        log: LocalLog,
        lineage: Lineage,
        candidates: Sequence[LocalSegment],
        report: PassReport,
    ) -> None:
        ends_s = None if self._turn_s is None else self._clock() + self._turn_s
        for number, segment in enumerate(candidates):
            if self._stopping.is_set():
                report.failed("RLM is stopping, or drained", may_pass=False)
                return
            if ends_s is not None and self._clock() >= ends_s:
                report.more_after_s = 0.0
                return
            if self._partition.retention.copy_paused:
                report.more_after_s = _PAUSE_S
                return
            wait_s = self._quota_wait_s(segment.size_bytes)
            if wait_s:
                report.more_after_s = wait_s
                return
            with self._stopping_at_failure(
                local, segment, len(candidates) - number, report
            ) as trouble:
                inspected = inspect(
                    log.segments,
                    segment,
                    lineage,
                    log.log_start_offset,
                    may_have_holes=self._rule.may_have_holes,
                    producers=self._producers,
                )
                # The bytes sent must be those that were inspected; the folder is checked once.
                local.require_there()
                if not self._is_still_led(local):
                    report.more_after_s = 0.0
                    return
                self._rule = self._rules.of(self._name)
                if not self._rule.copies:
                    self._publish_uncopied([])
                    return
                self._end_quota_turn()
                self._copy(inspected, report)
            if trouble:
                return
            self._publish_uncopied(
                [s for s in self._uncopied if s.base_offset != segment.base_offset]
            )
            report.problems += inspected.rebuilt
            report.copied_segments += 1
            report.copied_bytes += inspected.size_bytes
            self._progress.copied(self._name, segment.base_offset, inspected.size_bytes)

    def _is_still_led(self, local: LocalPartition) -> bool:
        """Return whether the leader epoch of this pass is still the latest known here.

        RLMM refuses a copy under an older epoch.
        """
        leadership, log = self._partition.role.leadership, local.cached
        if leadership is None or leadership != self._leadership or log is None:
            return False
        return leadership.epoch_of(log.lineage) == self._epoch

    def _quota_wait_s(self, size_bytes: int) -> float:
        """Return the seconds until the quota allows the segment; 0 if it does now.

        The bytes are taken at once, so that segments are copied in the order of their requests. No
        thread waits: the pass ends and runs again when the bytes may be copied.
        """
        now_s, turn = self._clock(), self._quota_turn
        if turn is None:
            wait_s = self._rules.quota.try_take(size_bytes)
            if wait_s:
                self._rules.quota.force_take(size_bytes)
            self._quota_turn = turn = _QuotaTurn(size_bytes, now_s, now_s + wait_s)
        return max(turn.due_s - now_s, 0.0)

    def _end_quota_turn(self) -> None:
        turn, self._quota_turn = self._quota_turn, None
        if turn is not None and turn.due_s > turn.taken_s:
            COPY_THROTTLE_SECONDS.observe(self._clock() - turn.taken_s)

    def _copy(self, inspected: InspectedSegment, report: PassReport) -> None:
        counted = 0

        def sent(size_bytes: int) -> None:
            nonlocal counted
            counted += size_bytes
            self._progress.sent(self._name, size_bytes)

        self._partition.tier.changed_here()
        report.copy_requests += 1
        try:
            self._copier.copy(
                self._name, inspected, self._epoch, sent, self._stopping, self._cancelled
            )
        except BaseException as e:
            self._progress.sent(self._name, -counted)
            if isinstance(e, (*RETRIABLE_ERRORS, SegmentVanishedError)):
                report.copy_retriable_errors += 1
            elif not isinstance(e, CopyCancelledError):
                report.copy_errors += 1
            raise

    @contextmanager
    def _stopping_at_failure(
        self,
        local: LocalPartition,
        segment: LocalSegment,
        held_segments: int,
        report: PassReport,
    ) -> Iterator[list[Problem]]:
        """Convert the failure of a segment into a problem, which also stops the segments after it.

        The yielded list contains the problem.

        Raises:
            FileNotFoundError: if the broker has dropped the partition meanwhile, or moved it to
                another disk.
        """
        trouble: list[Problem] = []
        try:
            with _raised_as_gone(local):
                yield trouble
        except LogFileError as e:
            trouble.append(e.problem(held_segments))
        except SegmentVanishedError as e:
            trouble.append(vanished(segment, held_segments))
            report.failed(e, may_pass=True)
        except RemoteStorageError as e:
            trouble.append(refused(e, str(segment.log_path), held_segments, segment.base_offset))
            report.failed(e, may_pass=isinstance(e, RETRIABLE_ERRORS))
            if isinstance(e, CustomMetadataTooLargeError):
                self._partition.copy.blocked = trouble[0]
        report.problems += trouble


@contextmanager
def _raised_as_gone(local: LocalPartition) -> Iterator[None]:
    """Raise FileNotFoundError for any failure if the folder is gone or belongs to another topic."""
    try:
        yield
    except (LogFileError, SegmentVanishedError, RemoteStorageError) as e:
        if not local.is_there():
            raise FileNotFoundError(str(local.found.path)) from e
        raise
