"""Run the tasks of each role, each kind in a lane of its own."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.common.cancellation import Cancellation, Flag
from services.common.quantities import counted
from services.rlm.copy.report import Progress
from services.rlm.copy.rules import CopyRules
from services.rlm.copy.segment import SegmentCopier
from services.rlm.copy.task import CopyTask
from services.rlm.lanes import Lanes
from services.rlm.metrics import (
    COPIED_BYTES,
    COPIED_SEGMENTS,
    LOST_RANGES,
    REMOTE_COPY_BYTES,
    REMOTE_COPY_ERRORS,
    REMOTE_COPY_REQUESTS,
    REMOTE_COPY_RETRIABLE_ERRORS,
    TopicCounts,
)
from services.rlm.partition import Finishing, Partition
from services.rlm.reporting import announce
from services.rlm.retention.expiration_task import Expiration, ExpirationTask
from services.rlm.scheduler import PassFailedError, RunAgain, Task

_COPY_TURN_S = 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _RoleCancellation:
    """Stop and cancel the tasks of one partition in its present role."""

    stopping: Cancellation
    cancelled: Cancellation


@dataclass(frozen=True, slots=True)
class PartitionTasks:
    """Begin and end the tasks of partitions.

    The caller holds a lock, except to wait for a task or to run one without a role.

    Attributes:
        stopping: once set, tasks begin nothing new.
        cancelled: once set, running copies are abandoned, too.
    """

    lanes: Lanes
    rlmm: RemoteLogMetadataManager
    broker_id: int
    copier: SegmentCopier
    copy_rules: CopyRules
    expiration: Expiration
    stopping: Flag
    cancelled: Flag
    topic_counts: TopicCounts
    _cancel: dict[TopicIdPartition, _RoleCancellation] = field(default_factory=dict)

    def begin(self, partition: Partition) -> None:
        """Run the tasks of the partition's role from now on."""
        name = partition.topic_id_partition
        cancel = _RoleCancellation(Cancellation(self.stopping), Cancellation(self.cancelled))
        self._cancel[name] = cancel
        if partition.role.is_leader:
            self.topic_counts.led(name)
            self.lanes.copies.schedule(name, self._copying(partition, cancel))
            self.lanes.expiration.schedule(name, self._expiring(partition, cancel))
        else:
            self.lanes.followers.schedule(name, partial(self._follow, partition))

    def end(self, name: TopicIdPartition, *, abandon_copy: bool = False) -> None:
        """End the tasks of the partition's role. A running copy is finished, as in KIP-405.

        Args:
            abandon_copy: abandon it, because the tier's data is to be deleted.
        """
        cancel = self._cancel.pop(name, None)
        if cancel is not None:
            cancel.stopping.set()
            if abandon_copy:
                cancel.cancelled.set()
        lanes = self.lanes
        for lane in (lanes.copies, lanes.expiration, lanes.followers):
            lane.forget(name)
        self.topic_counts.not_led(name)

    def has(self, name: TopicIdPartition) -> bool:
        return name in self._cancel

    def copy_has_ended(self, name: TopicIdPartition, within_s: float) -> bool:
        """Wait for the last copy pass after `end`; return whether it ended in time."""
        return self.lanes.copies.wait_ended(name, within_s)

    def run_until_done(self, name: TopicIdPartition, delete_batch: Callable[[], bool]) -> None:
        """Run `delete_batch` among the tasks of retention until it returns False.

        Changes of the partition's role do not end it. It replaces an earlier one of the partition.
        """
        lane, key = self.lanes.expiration, Finishing(name)

        def run() -> bool:
            if delete_batch():
                return True
            lane.forget(key, run)
            return False

        lane.schedule(key, run)

    def _follow(self, partition: Partition) -> None:
        """Announce the role and refresh the tier state; change nothing in the tier."""
        leadership = partition.role.leadership
        if leadership is None or leadership.is_leader:
            return
        announce(self.rlmm, partition, leadership, leadership.leader_epoch, self.broker_id)
        if not partition.tier.is_as_polled:
            partition.tier.refresh()

    def _copying(self, partition: Partition, cancel: _RoleCancellation) -> Task:
        task = CopyTask(
            partition,
            self.copier,
            self.rlmm,
            self.broker_id,
            self.copy_rules,
            Progress(),
            cancel.stopping,
            cancel.cancelled,
            turn_s=_COPY_TURN_S,
            clock=self.expiration.clock,
        )
        name = partition.topic_id_partition

        def run() -> RunAgain | None:
            report = task.run()
            partition.copy.problem_log.log(name, partition.copy.problems)
            COPIED_SEGMENTS.inc(report.copied_segments + report.copied_tails)
            COPIED_BYTES.inc(report.copied_bytes)
            for counter, count in (
                (REMOTE_COPY_REQUESTS, report.copy_requests),
                (REMOTE_COPY_BYTES, report.copied_bytes),
                (REMOTE_COPY_ERRORS, report.copy_errors),
                (REMOTE_COPY_RETRIABLE_ERRORS, report.copy_retriable_errors),
            ):
                self.topic_counts.add(counter, name.topic, count)
            LOST_RANGES.inc(len(report.recorded))
            for problem in report.recorded:
                _log.warning("%s: %s", name, problem.message)
            if report.copied_segments:
                _log.info("%s: copied %s", name, counted(report.copied_segments, "segment"))
            if report.more_after_s is not None:
                if report.failure:
                    _log.warning("%s: %s", name, report.failure)
                return RunAgain(report.more_after_s)
            if report.failure:
                raise PassFailedError(report.failure)
            return None

        return run

    def _expiring(self, partition: Partition, cancel: _RoleCancellation) -> Task:
        task = ExpirationTask(partition, self.expiration, cancel.stopping)

        def run() -> None:
            report = task.run()
            if report.deleted_segments:
                _log.info(
                    "%s: retention deleted %s, %d bytes",
                    partition.topic_id_partition,
                    counted(report.deleted_segments, "segment"),
                    report.deleted_bytes,
                )
            if report.failure:
                raise PassFailedError(report.failure)

        return run
