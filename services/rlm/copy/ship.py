"""Copy every rolled segment in a broker's log directories once, and report the rest."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from threading import Event

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.common.retry import Backoff
from services.rlm.cleanup_policies import CleanedLogs
from services.rlm.copy.report import PassReport, Progress, Range
from services.rlm.copy.rules import CopyRules
from services.rlm.copy.segment import CopyLimits, SegmentCopier
from services.rlm.copy.task import CopyTask
from services.rlm.kafka_log.local_log import LocalPartition
from services.rlm.kafka_log.log_dir import (
    PartitionDir,
    SkippedFolder,
    find_partitions,
    is_held_by_another,
)
from services.rlm.partition import Partition, new_partition
from services.rlm.reporting import NOT_REPORTED, Reporter, report_of
from services.rlm.topic_configs import TopicConfigs

DEFAULT_LEASE_MS = 30_000
_CONFIG_MAX_AGE_S = 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShipSettings:
    """The bounds of one run.

    Attributes:
        threads: partitions that are copied at once.
        retry_for_s: how long to retry while store or database are down, seconds since the last
            copied segment of any partition. Leases should be shorter, because the run waits no
            longer than this for the dangling copies of a killed run.
    """

    threads: int = 4
    retry_for_s: float = 60.0
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=0.5, max_s=10.0))
    limits: CopyLimits = field(default_factory=lambda: CopyLimits(lease_ms=DEFAULT_LEASE_MS))


class ShipOutcome(Enum):
    """The outcome of a run.

    DONE: every rolled segment is in the tier, except known gaps and segments that a running broker
    has not settled yet. PARTIAL: segments failed, wait or are unsettled without a broker, or this
    run was the first to find lost offsets. FAILED: no partition is complete.
    """

    DONE = "DONE"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"


@dataclass
class PartitionShipReport:
    """The result of one partition.

    Attributes: as of PassReport, and:
        blocked_segments: rolled segments that are not in the tier; `problems` say why.
        will_settle: a broker runs on the directory and settles the unsettled segments later.
        complete: every settled segment is in the tier; earlier losses do not count.
    """

    topic_id_partition: TopicIdPartition
    copied_segments: int = 0
    copied_bytes: int = 0
    present_segments: int = 0
    present_bytes: int = 0
    blocked_segments: int = 0
    unsettled_segments: int = 0
    settled_before_offset: int = 0
    will_settle: bool = False
    cleaned_attempts: int = 0
    problems: tuple[Problem, ...] = ()
    recorded: tuple[Problem, ...] = ()
    known_gaps: tuple[Range, ...] = ()
    complete: bool = False

    @property
    def has_lost(self) -> bool:
        """Return whether this run was the first to find lost offsets."""
        return any(map(_is_loss, self.problems))

    @property
    def leaves_out(self) -> bool:
        """Return whether segments are unsettled and no broker runs that would settle them."""
        return self.unsettled_segments > 0 and not self.will_settle

    def add(self, report: PassReport, *, first: bool) -> None:
        if first:
            self.present_segments = report.present_segments
            self.present_bytes = report.present_bytes
        self.copied_segments += report.copied_segments
        self.copied_bytes += report.copied_bytes
        self.cleaned_attempts += report.cleaned_attempts
        recorded = {problem.offset for problem in self.recorded}
        known = tuple(gap for gap in report.known_gaps if gap[0] not in recorded)
        self.known_gaps = known or self.known_gaps
        # The next pass does not repeat what this one rebuilt or recorded.
        rebuilt = tuple(p for p in self.problems if p.kind is ProblemKind.INDEX_REBUILT)
        now = {problem.offset for problem in report.problems if _is_loss(problem)}
        before = tuple(problem for problem in self.recorded if problem.offset not in now)
        self.problems = (*rebuilt, *before, *report.problems)
        self.recorded = (*before, *report.recorded)
        self.blocked_segments = report.blocked_segments
        self.unsettled_segments = report.unsettled_segments
        self.settled_before_offset = report.settled_before_offset
        self.complete = not report.failure and report.blocked_segments == 0


def _is_loss(problem: Problem) -> bool:
    return problem.kind is ProblemKind.LOST_BEFORE_COPY


def _gone(directory: PartitionDir) -> Problem:
    reason = (
        "the folder was removed or belongs to another topic now: the broker moved or deleted the "
        "partition, or its topic was created again; run `sediment ship` again"
    )
    return Problem(ProblemKind.UNREADABLE, str(directory.path), reason)


@dataclass(frozen=True, slots=True)
class ShipReport:
    """The result of a run, partitions by topic and number.

    Attributes:
        skipped_folders: partitions' folders that were not looked at: how many, by the reason.
    """

    partitions: tuple[PartitionShipReport, ...]
    log_dir_problems: tuple[Problem, ...]
    skipped_folders: Mapping[SkippedFolder, int] = field(default_factory=dict)

    @property
    def outcome(self) -> ShipOutcome:
        complete = [partition.complete for partition in self.partitions]
        has_problems = any(p.has_lost or p.leaves_out for p in self.partitions)
        if all(complete) and not has_problems and not self.log_dir_problems:
            return ShipOutcome.DONE
        return ShipOutcome.PARTIAL if any(complete) else ShipOutcome.FAILED


def ship(
    log_dirs: Sequence[Path],
    rsm: RemoteStorageManager,
    rlmm: RemoteLogMetadataManager,
    settings: ShipSettings | None = None,
    progress: Progress | None = None,
    *,
    topics: Sequence[str] = (),
    cancelled: Event | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> ShipReport:
    """Copy every rolled segment that is not in the tier yet, without any copy lag.

    A second run copies the rest. Topics whose copying is disabled, and compacted logs, are skipped.

    Args:
        topics: only these; all if empty.
        cancelled: set it to end early; the next run cleans up running copies.

    Raises:
        LogDirError: if no directory can be used. All other failures are in the report.
    """
    settings = settings or ShipSettings()
    found = find_partitions(log_dirs)
    shipper = _Shipper(
        SegmentCopier(rsm, rlmm, found.broker_id, now_ms, settings.limits),
        rsm,
        rlmm,
        found.broker_id,
        CopyRules(
            TopicConfigs(rlmm, _CONFIG_MAX_AGE_S),
            lag_defaults=None,
            cleanup_policies=CleanedLogs(log_dirs),
        ),
        settings,
        progress or Progress(),
        cancelled or Event(),
        _RetryDeadline(settings.retry_for_s),
    )
    chosen = [p for name, p in found.partitions.items() if not topics or name.topic in topics]
    chosen.sort(key=lambda p: (p.topic_id_partition.topic, p.topic_id_partition.partition))
    with ThreadPoolExecutor(settings.threads, thread_name_prefix="ship") as pool:
        reports = tuple(pool.map(shipper.ship, chosen))
    return ShipReport(reports, tuple(found.problems), dict(found.skipped))


@dataclass(frozen=True, slots=True)
class _Shipper:
    copier: SegmentCopier
    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    broker_id: int
    rules: CopyRules
    settings: ShipSettings
    progress: Progress
    cancelled: Event
    retry_deadline: "_RetryDeadline"

    def ship(self, directory: PartitionDir) -> PartitionShipReport:
        partition = new_partition(
            directory.topic_id_partition, LocalPartition(directory), self.rsm, self.rlmm
        )
        task = CopyTask(
            partition,
            self.copier,
            self.rlmm,
            self.broker_id,
            self.rules,
            self.progress,
            stopping=self.cancelled,
            cancelled=self.cancelled,
        )
        total = PartitionShipReport(directory.topic_id_partition)
        failures = passes = 0
        while True:
            report = task.run()
            if report.folder_is_gone:
                report.problems.append(_gone(directory))
                report.failed("its folder is gone", may_pass=False)
            total.add(report, first=passes == 0)
            total.will_settle = is_held_by_another(directory.path.parent)
            passes += 1
            if report.copied_segments:
                failures = 0
                self.retry_deadline.renew()
            if not report.may_pass:
                self._report(partition)
                return total
            failures += 1
            wait_s = self.settings.backoff.delay_s(failures)
            if not self.retry_deadline.lasts(wait_s) or self.cancelled.wait(wait_s):
                return total

    def _report(self, partition: Partition) -> None:
        """Report the partition once; a failure does not fail the run, and the next run retries."""
        try:
            report = report_of(partition, self.broker_id)
            if report is not None:
                Reporter(self.rlmm, self.broker_id).report(partition, report)
        except NOT_REPORTED as e:
            _log.warning(
                "%s: not reported; the next run retries: %s", partition.topic_id_partition, e
            )


class _RetryDeadline:
    """The time limit that restarts with each success of any partition."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self.renew()

    def renew(self) -> None:
        self._until_s = time.monotonic() + self._for_s

    def lasts(self, wait_s: float) -> bool:
        return time.monotonic() + wait_s <= self._until_s
