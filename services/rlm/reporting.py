"""Announce roles to RLMM and report the partitions that this broker leads."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from services.api.calls import AtRevision
from services.api.errors import (
    ConcurrentUpdateError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import NEVER_TRIMMED, PartitionReport, PartitionState
from services.api.remote_log_metadata_manager import (
    MAX_REPORTED_EPOCHS,
    MAX_REPORTS,
    PartitionLeadership,
    RemoteLogMetadataManager,
    ReportOutcome,
)
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError
from services.rlm.partition import DraftReport, Leadership, Partition, SentReport
from services.rlm.tier import Tier

T = TypeVar("T")
_log = logging.getLogger(__name__)


def announce(
    rlmm: RemoteLogMetadataManager,
    partition: Partition,
    leadership: Leadership,
    epoch: int | None,
    broker_id: int,
) -> None:
    """Announce a role under `epoch` to RLMM, once.

    This adds the partition to RLMM, with its cluster, and fences leaders of lower epochs.
    """
    role = replace(leadership, leader_epoch=epoch)
    if partition.report.announced == role:
        return
    this = [PartitionLeadership(partition.topic_id_partition, epoch)]
    leaders, followers = (this, []) if leadership.is_leader else ([], this)
    rlmm.on_partition_leadership_changes(leaders, followers, broker_id, partition.role.cluster_id)
    partition.report.announced = role


class LineageUnknownError(Exception):
    """The error if the tier's leader epochs are lost or damaged.

    After a report without them, retention could mistake records that the broker no longer has for
    another leader's.
    """


NOT_REPORTED = (LogFileError, SegmentVanishedError, LineageUnknownError, RemoteStorageError)
"""Failures that concern one partition's report; a RetriableRemoteStorageError concerns all."""


def report_of(
    partition: Partition, broker_id: int, *, by_cached: bool = False
) -> PartitionReport | None:
    """Make the report of a partition whose log is here, without its number.

    The result is None if nothing reliable is known: the partition is not led here or was deleted,
    it has no log or no leader epochs, or the tier's log start belongs to another log.

    Args:
        by_cached: use the last known tier state and do not call RLMM; send such a report only to
            record a trim, which RLMM's answer confirms or not.

    Raises:
        LineageUnknownError: if the tier's leader epochs are lost, so that no report may be sent.
    """
    led = _led_log(partition)
    if led is None:
        return None
    # The log first: records that it has lost by now are in a tier that is read later.
    tier = partition.tier.cached if by_cached else partition.tier.refresh()
    if not by_cached and tier.known:
        partition.tier.beginning.read(tier)
    return _draft_report(partition, broker_id, led, tier)


_LedLog = tuple[LocalLog, int]
"""A reliable log, and the leader epoch under which this broker leads it."""


def _led_log(partition: Partition) -> _LedLog | None:
    leadership = partition.role.leadership
    if leadership is None or not leadership.is_leader:
        return None
    log = partition.role.local.read() if partition.role.local else None
    if log is None or not log.lineage.entries or leadership.is_overtaken(log.lineage):
        return None
    return log, leadership.epoch_of(log.lineage) or 0


def _draft_report(
    partition: Partition, broker_id: int, led: _LedLog, tier: Tier
) -> PartitionReport | None:
    log, epoch = led
    was_deleted = partition.report.announced and tier.known is False
    if was_deleted or log.log_end_offset < tier.log_start_offset:
        return None
    draft, begins_at = partition.report.draft, partition.tier.beginning.cached
    if (
        draft is None
        or draft.begins_at != begins_at
        or draft.log is not log
        or draft.tier is not tier
        or draft.leader_epoch != epoch
        or draft.report.local_trim_offset != (partition.report.trim_offset)
    ):
        report = _new_report(partition, broker_id, led, tier)
        draft = DraftReport(log, tier, begins_at, epoch, report)
        partition.report.draft = draft
    return draft.report


def _new_report(partition: Partition, broker_id: int, led: _LedLog, tier: Tier) -> PartitionReport:
    log, leader_epoch = led
    # The end of all copied offsets in this lineage, even after a gap: the gap's offsets are then
    # not counted, so that retention by size deletes too little rather than too much.
    # Without tails: a segment that is in the tier only in part counts as only local, as a whole.
    copied_through = max(tier.copied(log.lineage).last, tier.log_start_offset - 1)
    only_local_bytes = _only_local_bytes(log, copied_through)
    begins_at = partition.tier.beginning.cached
    if begins_at is not None and not tier.segments:
        copied_through = max(copied_through, min(begins_at, log.segments[0].base_offset) - 1)
    return PartitionReport(
        topic_id_partition=partition.topic_id_partition,
        broker_id=broker_id,
        leader_epoch=leader_epoch,
        report_number=0,
        lineage=_lineage(partition, log, tier),
        local_log_start_offset=log.segments[0].base_offset,
        log_end_offset=log.log_end_offset,
        # From the broker's checkpoint, some seconds old. It bounds the tier's log start: if it is
        # too low, a deletion waits for a pass. The log's end is no bound: the next leader may not
        # have it, and the log start would pass records that are acknowledged only later.
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        only_local_bytes=only_local_bytes,
        copied_through_offset=copied_through,
        lag_bytes=sum(segment.size_bytes for segment in partition.lagging(log, tier)),
        local_trim_offset=partition.report.trim_offset,
    )


def _lineage(partition: Partition, log: LocalLog, tier: Tier) -> Lineage:
    """Return the lineage with the epochs whose records the broker has deleted."""
    try:
        lineage = partition.tier.lineage.merged(tier, log.lineage)
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as e:
        raise LineageUnknownError(f"cannot read the tier's leader epochs: {e}") from e
    start = tier.start_offset
    if start is not None and lineage.epoch_for_offset(start) is None:
        raise LineageUnknownError(f"no leader epoch is known for the tier's start offset {start}")
    return lineage


def _only_local_bytes(log: LocalLog, copied_through_offset: int) -> int:
    """Return the bytes that are only local (Kafka: UnifiedLog.onlyLocalLogSegmentsSize)."""
    return sum(s.size_bytes for s in log.segments if s.base_offset > copied_through_offset)


_Draft = tuple[Partition, PartitionReport]
"""A report to number and to send."""


def report_batches(items: Iterable[T], epochs_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Split reports into batches, one per call; if `items` fails, yield the last batch first."""
    batch: list[T] = []
    epochs = 0
    try:
        for item in items:
            more = epochs_of(item)
            if batch and (len(batch) == MAX_REPORTS or epochs + more > MAX_REPORTED_EPOCHS):
                yield batch
                batch, epochs = [], 0
            batch.append(item)
            epochs += more
    except RetriableRemoteStorageError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _rsm_last(partition: Partition) -> int:
    """Return the sort key of a pass: partitions that do not need RSM come first.

    The partitions for which RSM did not answer come last.
    """
    log = partition.role.local.cached if partition.role.local else None
    lineage = partition.tier.lineage
    if log is None or not lineage.needs_rsm(partition.tier.cached, log.lineage):
        return 0
    return 1 + lineage.unanswered_calls


def _is_same(sent: PartitionReport, report: PartitionReport) -> bool:
    return replace(report, report_number=sent.report_number) == sent


@dataclass(eq=False)
class Reporter:
    """Send reports, each numbered higher than any earlier one of its partition. Thread-safe.

    The stored number is read once, and again after another process has sent a report. The number
    does not depend on a clock, which may be set back.

    Attributes:
        renew_s: interval at which an unchanged report is sent again, seconds, if its age matters.
        age_matters: returns whether the partition's retention uses reports and refuses old ones.
        clock: monotonic seconds.
    """

    rlmm: RemoteLogMetadataManager
    broker_id: int
    renew_s: float = 300.0
    clock: Callable[[], float] = time.monotonic
    age_matters: Callable[[TopicIdPartition], bool] = lambda _: True
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def report(self, partition: Partition, report: PartitionReport) -> AtRevision[PartitionState]:
        """Send a report of `report_of`; return the state that RLMM has after it.

        Raises:
            ConcurrentUpdateError: if another process has sent a report meanwhile; make a new one.
            FencedLeaderEpochError: if another broker leads the partition.
            RemoteStorageError: if RLMM refused the report.
        """
        (outcome,) = self._send([(partition, report)])
        if isinstance(outcome, RemoteStorageError):
            raise outcome
        return outcome

    def report_each(self, drafts: Sequence[_Draft]) -> list[ReportOutcome]:
        """Send reports; return one outcome per report, in order.

        Raises:
            RetriableRemoteStorageError: if RLMM is unreachable; not all were sent.
        """
        batches = report_batches(drafts, lambda draft: len(draft[1].lineage.entries))
        return [outcome for batch in batches for outcome in self._send(batch)]

    def local_trim_offset(self, partition: Partition) -> int:
        """Return the trim that RLMM has recorded; RLMM is called once for each role."""
        if partition.report.local_trim_offset is None:
            self._read_stored(partition)
        return partition.report.trim_offset

    def report_all(self, partitions: Iterable[Partition]) -> None:
        """Report partitions that changed since their last report, or whose report gets old.

        A partition at rest costs no request: changes show in the last known tier state. A refused
        report is logged and not sent again before the partition changes, unless another process has
        sent one meanwhile. While RSM is down, partitions that do not need it are reported, and RSM
        is called for one of the others, which comes last the next time.

        Raises:
            RetriableRemoteStorageError: if RLMM or RSM is unreachable; not all were reported.
        """
        drafts = self._due_drafts(sorted(partitions, key=_rsm_last))
        for batch in report_batches(drafts, lambda draft: len(draft[1].lineage.entries)):
            for (partition, _), outcome in zip(batch, self._send(batch), strict=True):
                name = partition.topic_id_partition
                if isinstance(outcome, ConcurrentUpdateError):
                    _log.info("%s: another process has reported; the next pass sends again", name)
                elif isinstance(outcome, RemoteStorageError):
                    _log.warning("%s: RLMM refused the report: %s", name, outcome)

    def _due_drafts(self, partitions: Iterable[Partition]) -> Iterator[_Draft]:
        for partition in partitions:
            try:
                report = self._report_if_due(partition)
            except RetriableRemoteStorageError:
                raise
            except NOT_REPORTED as e:
                _log.warning(
                    "%s: not reported; retrying at the next interval: %s",
                    partition.topic_id_partition,
                    e,
                )
                continue
            if report is not None:
                yield partition, report

    def _report_if_due(self, partition: Partition) -> PartitionReport | None:
        tier, sent = partition.tier.cached, partition.report.sent
        if tier.known is None:
            return None
        if sent is None:
            return report_of(partition, self.broker_id)
        is_old = self.clock() - sent.at_s >= self.renew_s and self.age_matters(
            partition.topic_id_partition
        )
        led = _led_log(partition)
        report = None if led is None else _draft_report(partition, self.broker_id, led, tier)
        is_changed = report is not None and not _is_same(sent.report, report)
        if not (is_changed or is_old):
            return None
        # Read the state again before sending, unless the poll shows that no other process changed
        # it. What a running copy changes is in a later report.
        is_current = report is not None and not partition.tier.may_have_changed_elsewhere
        return report if is_current else report_of(partition, self.broker_id)

    def _send(self, drafts: Sequence[_Draft]) -> list[ReportOutcome]:
        """Send reports once; return one outcome per report, in order."""
        reports = [self._numbered(*draft) for draft in drafts]
        outcomes = self.rlmm.report_partition_state(reports)
        for (partition, _), report, outcome in zip(drafts, reports, outcomes, strict=True):
            self._record_outcome(partition, report, outcome)
        return outcomes

    def _numbered(self, partition: Partition, report: PartitionReport) -> PartitionReport:
        with self._lock:
            is_known = partition.report.number is not None
        stored = 0 if is_known else self._read_stored(partition)
        with self._lock:
            number = max(stored, partition.report.number or 0) + 1
            partition.report.number = number
        return replace(report, report_number=number)

    def _read_stored(self, partition: Partition) -> int:
        """Read the stored report; return its number, 0 without one."""
        try:
            state = self.rlmm.partition_state(partition.topic_id_partition).value
        except RetriableRemoteStorageError:
            raise
        except RemoteStorageError:
            return 0  # New to RLMM; any other reason is in the outcome of the report.
        stored = state.report
        partition.report.local_trim_offset = stored.local_trim_offset if stored else NEVER_TRIMMED
        return stored.report_number if stored else 0

    def _record_outcome(
        self, partition: Partition, report: PartitionReport, outcome: ReportOutcome
    ) -> None:
        if isinstance(outcome, RetriableRemoteStorageError):
            return
        with self._lock:
            if isinstance(outcome, ConcurrentUpdateError):
                partition.report.number = None
            else:
                if not isinstance(outcome, RemoteStorageError) and outcome.value.report:
                    # RLMM may have a later one: that of another leader.
                    trim_offset = outcome.value.report.local_trim_offset
                    partition.report.local_trim_offset = trim_offset
                    report = replace(report, local_trim_offset=trim_offset)
                partition.report.sent = SentReport(report, self.clock())
