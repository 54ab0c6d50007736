"""Report the partitions that this broker leads to RLMM (report_partition_states)."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from services.api.calls import AtRevision
from services.api.errors import (
    ConcurrentUpdateError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import PartitionReport, PartitionState
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
from services.rlm.tier_state import Tier


def announce(
    rlmm: RemoteLogMetadataManager,
    partition: Partition,
    leadership: Leadership,
    epoch: int | None,
    broker_id: int,
) -> None:
    """Tell of a role under `epoch` unless it was told. Makes the partition known, of its cluster,
    and fences leaders of lower epochs.

    Raises:
        RemoteStorageError: RLMM did not take it.
    """
    told = replace(leadership, leader_epoch=epoch)
    if partition.report.announced == told:
        return
    this = [PartitionLeadership(partition.topic_id_partition, epoch)]
    leaders, followers = (this, []) if leadership.is_leader else ([], this)
    rlmm.on_partition_leadership_changes(leaders, followers, broker_id, partition.role.cluster_id)
    partition.report.announced = told


_ATTEMPTS = 3
_log = logging.getLogger(__name__)


class LineageUnknownError(Exception):
    """The tier's leader epochs are lost, or damaged. A report without them could make retention
    take what the broker no longer has for another history's."""


_NOT_NOW = (LogFileError, SegmentVanishedError, LineageUnknownError, RemoteStorageError)
"""What keeps one partition from being reported, and no other; all but RetriableRemoteStorageError,
which the next one would meet, too."""


def report_of(
    partition: Partition, broker_id: int, *, by_last_seen: bool = False
) -> PartitionReport | None:
    """What is to be said of a partition whose log is here; its number is still to be given.

    Args:
        by_last_seen: by the tier as it was seen last, and RLMM is not asked: not to be sent.

    None where there is nothing that could be relied on: it is not led here, no log, no leader
    epochs, a log that the tier's log start does not belong to, a partition that was deleted.

    Raises:
        LogFileError, SegmentVanishedError: the folder cannot be read now.
        LineageUnknownError: no report may be sent: the tier's leader epochs are lost.
        RetriableRemoteStorageError: RLMM cannot be reached, or RSM to read these epochs.
    """
    log = _led_log(partition)
    if log is None:
        return None
    # The log first: whatever it has lost by now, a tier that is seen after it has.
    tier = partition.tier.last_seen if by_last_seen else partition.tier.refresh()
    return _told(partition, broker_id, log, tier)


@dataclass(frozen=True, slots=True)
class _LedLog:
    """A log that can be relied on, and the leader epoch that it is led under here."""

    log: LocalLog
    leader_epoch: int


def _led_log(partition: Partition) -> _LedLog | None:
    leadership = partition.role.leadership
    if leadership is None or not leadership.is_leader:
        return None
    log = partition.role.local.read() if partition.role.local else None
    if log is None or log.lineage_problem is not None or leadership.is_overtaken(log.lineage):
        return None
    return _LedLog(log, leadership.epoch_of(log.lineage) or 0)


def _told(partition: Partition, broker_id: int, led: _LedLog, tier: Tier) -> PartitionReport | None:
    was_deleted = partition.report.announced and tier.known is False
    if was_deleted or led.log.log_end_offset < tier.log_start_offset:
        return None
    drafted = partition.report.draft
    if (
        drafted is None
        or drafted.log is not led.log
        or drafted.tier is not tier
        or drafted.leader_epoch != led.leader_epoch
    ):
        report = _draft(partition, broker_id, led, tier)
        drafted = DraftReport(led.log, tier, led.leader_epoch, report)
        partition.report.draft = drafted
    return drafted.report


def _draft(partition: Partition, broker_id: int, led: _LedLog, tier: Tier) -> PartitionReport:
    log = led.log
    # The end of all that was copied in this lineage, even behind a gap: what the gap holds is then
    # counted nowhere, and retention by size deletes too little rather than too much.
    copied_through = max(tier.covered(log.lineage).last, tier.log_start_offset - 1)
    return PartitionReport(
        topic_id_partition=partition.topic_id_partition,
        broker_id=broker_id,
        leader_epoch=led.leader_epoch,
        report_number=0,
        lineage=_lineage(partition, log, tier),
        local_log_start_offset=log.segments[0].base_offset,
        log_end_offset=log.log_end_offset,
        # As the broker wrote it down, some seconds ago. It bounds the tier's log start: one that is
        # too low holds a deletion back for a pass; the log's end, which the next leader may not
        # have, would let the log start pass records that are acknowledged only later.
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        only_local_bytes=_only_local_bytes(log, copied_through),
        copied_through_offset=copied_through,
    )


def _lineage(partition: Partition, log: LocalLog, tier: Tier) -> Lineage:
    """With the epochs that the broker has forgotten together with their records."""
    try:
        lineage = partition.tier.lineage.merged(tier, log.lineage)
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as e:
        raise LineageUnknownError(f"the tier's leader epochs cannot be read: {e}") from e
    start = tier.start_offset
    if start is not None and lineage.epoch_for_offset(start) is None:
        raise LineageUnknownError(f"no leader epoch is known for offset {start} of the tier")
    return lineage


def _only_local_bytes(log: LocalLog, copied_through_offset: int) -> int:
    """Source: UnifiedLog.onlyLocalLogSegmentsSize."""
    return sum(s.size_bytes for s in log.segments if s.base_offset > copied_through_offset)


@dataclass(frozen=True, slots=True)
class _Draft:
    partition: Partition
    report: PartitionReport


def _batches(drafts: Iterable[_Draft]) -> Iterator[list[_Draft]]:
    """As many as one call may bring. Where `drafts` breaks off, first those that there were."""
    batch: list[_Draft] = []
    epochs = 0
    try:
        for draft in drafts:
            more = len(draft.report.lineage.entries)
            if batch and (len(batch) == MAX_REPORTS or epochs + more > MAX_REPORTED_EPOCHS):
                yield batch
                batch, epochs = [], 0
            batch.append(draft)
            epochs += more
    except RetriableRemoteStorageError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _rsm_last(partition: Partition) -> int:
    """The place in a pass, by what was seen last: first those that need nothing of RSM, then those
    for which it was not asked in vain."""
    log = partition.role.local.last_seen if partition.role.local else None
    lineage = partition.tier.lineage
    if log is None or not lineage.needs_rsm(partition.tier.last_seen, log.lineage):
        return 0
    return 1 + lineage.asked_in_vain


def _is_same(sent: PartitionReport, report: PartitionReport) -> bool:
    return replace(report, report_number=sent.report_number) == sent


class Reporter:
    """Sends reports, each numbered higher than any before it of its partition, whoever sent that:
    the stored number is read once, and again when another process has gone on from it. No clock is
    part of the number, so that a clock that is set back takes nothing away. Thread-safe.

    Args:
        renew_s: an unchanged report is sent again so often, seconds, where it matters how old it
            is.
        age_matters: of which partitions; what decides by a report's figures refuses old ones.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        broker_id: int,
        renew_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        age_matters: Callable[[TopicIdPartition], bool] = lambda _: True,
    ) -> None:
        self._rlmm = rlmm
        self._broker_id = broker_id
        self._renew_s = renew_s
        self._clock = clock
        self._age_matters = age_matters
        self._lock = threading.Lock()

    def report(self, partition: Partition, report: PartitionReport) -> AtRevision[PartitionState]:
        """Send what `report_of` answered; the state that RLMM makes of it.

        Raises:
            FencedLeaderEpochError: another broker leads the partition.
            RemoteStorageError: it was not taken.
        """
        (outcome,) = self._send([_Draft(partition, report)])
        if isinstance(outcome, RemoteStorageError):
            raise outcome
        return outcome

    def report_all(self, partitions: Iterable[Partition]) -> None:
        """Report those of which something changed since their last report, or whose report gets
        old; many in one call. Whether something changed is judged by the tier as the latest copy
        pass saw it: RLMM is asked nothing for a partition that rests.

        A report that is refused is told of, and sent again as if it had been taken: what refuses
        it does not pass soon.

        Where RSM is away, those are reported that can be without it. It is asked for one of the
        others only, which is the last to be asked for the next time.

        Raises:
            RetriableRemoteStorageError: RLMM or RSM cannot be reached; not all are reported.
        """
        for batch in _batches(self._worth_sending(sorted(partitions, key=_rsm_last))):
            for draft, outcome in zip(batch, self._send(batch), strict=True):
                if isinstance(outcome, RemoteStorageError):
                    _log.warning(
                        "%s: report refused: %s", draft.partition.topic_id_partition, outcome
                    )

    def _worth_sending(self, partitions: Iterable[Partition]) -> Iterator[_Draft]:
        for partition in partitions:
            try:
                report = self._report_if_due(partition)
            except RetriableRemoteStorageError:
                raise
            except _NOT_NOW as e:
                _log.warning("%s: not reported: %s", partition.topic_id_partition, e)
                continue
            if report is not None:
                yield _Draft(partition, report)

    def _report_if_due(self, partition: Partition) -> PartitionReport | None:
        tier, sent = partition.tier.last_seen, partition.report.sent
        if tier.known is None:
            return None
        if sent is None:
            return report_of(partition, self._broker_id)
        is_old = self._clock() - sent.at_s >= self._renew_s and self._age_matters(
            partition.topic_id_partition
        )
        log = _led_log(partition)
        report = None if log is None else _told(partition, self._broker_id, log, tier)
        if report is not None and not _is_same(sent.report, report):
            return report_of(partition, self._broker_id)
        if not is_old:
            return None
        # What is said again is read again, but where nothing has changed by what is polled.
        is_as_polled = report is not None and partition.tier.is_as_polled
        return report if is_as_polled else report_of(partition, self._broker_id)

    def _send(self, drafts: Sequence[_Draft]) -> list[ReportOutcome]:
        """An outcome each, in order. What another sender overtook is numbered anew and sent again,
        a few times."""
        outcomes: dict[int, ReportOutcome] = {}
        waiting = list(range(len(drafts)))
        for _ in range(_ATTEMPTS):
            reports = [self._numbered(drafts[at]) for at in waiting]
            answers = self._rlmm.report_partition_state(reports)
            for at, report, answer in zip(waiting, reports, answers, strict=True):
                outcomes[at] = answer
                self._note(drafts[at].partition, report, answer)
            waiting = [at for at in waiting if isinstance(outcomes[at], ConcurrentUpdateError)]
            if not waiting:
                break
        return [outcomes[at] for at in range(len(drafts))]

    def _numbered(self, draft: _Draft) -> PartitionReport:
        partition = draft.partition
        with self._lock:
            is_known = partition.report.number is not None
        stored = 0 if is_known else self._stored_number(partition)
        with self._lock:
            number = max(stored, partition.report.number or 0) + 1
            partition.report.number = number
        return replace(draft.report, report_number=number)

    def _stored_number(self, partition: Partition) -> int:
        try:
            state = self._rlmm.partition_state(partition.topic_id_partition).value
        except RetriableRemoteStorageError:
            raise
        except RemoteStorageError:
            return 0  # not known yet; or what is wrong with it, the report's own outcome says
        return state.report.report_number if state.report else 0

    def _note(self, partition: Partition, report: PartitionReport, outcome: ReportOutcome) -> None:
        if isinstance(outcome, RetriableRemoteStorageError):
            return
        with self._lock:
            if isinstance(outcome, ConcurrentUpdateError):
                partition.report.number = None
            else:
                partition.report.sent = SentReport(report, self._clock())
