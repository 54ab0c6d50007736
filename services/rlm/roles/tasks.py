"""Run the tasks of each role, each kind in a lane of its own."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.common.cancellation import Cancellation, Flag
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


class FollowerTask:
    """Keep the state of a followed partition current; change nothing in the tier."""

    def __init__(
        self, partition: Partition, rlmm: RemoteLogMetadataManager, broker_id: int
    ) -> None:
        self._partition = partition
        self._rlmm = rlmm
        self._broker_id = broker_id

    def run(self) -> None:
        """Announce the role and refresh the tier state."""
        partition = self._partition
        leadership = partition.role.leadership
        if leadership is None or leadership.is_leader:
            return
        announce(self._rlmm, partition, leadership, leadership.leader_epoch, self._broker_id)
        if not partition.tier.is_as_polled:
            partition.tier.refresh()


@dataclass(frozen=True, slots=True)
class SharedByTasks:
    """The dependencies that the tasks of all partitions share.

    Attributes:
        stopping: once set, tasks begin nothing new.
        cancelled: once set, running copies are abandoned, too.
    """

    rlmm: RemoteLogMetadataManager
    broker_id: int
    copier: SegmentCopier
    copy_rules: CopyRules
    expiration: Expiration
    stopping: Flag
    cancelled: Flag
    topic_counts: TopicCounts


@dataclass(frozen=True, slots=True)
class _RoleCancellation:
    """Stop and cancel the tasks of one partition in its present role."""

    stopping: Cancellation
    cancelled: Cancellation


class PartitionTasks:
    """Begin and end the tasks of partitions.

    The caller holds a lock, except to wait for a task or to run one without a role.
    """

    def __init__(self, lanes: Lanes, shared: SharedByTasks) -> None:
        self._lanes = lanes
        self._shared = shared
        self._cancel: dict[TopicIdPartition, _RoleCancellation] = {}

    def begin(self, partition: Partition) -> None:
        """Run the tasks of the partition's role from now on."""
        name, shared = partition.topic_id_partition, self._shared
        cancel = _RoleCancellation(Cancellation(shared.stopping), Cancellation(shared.cancelled))
        self._cancel[name] = cancel
        if partition.role.is_leader:
            shared.topic_counts.led(name)
            self._lanes.copies.schedule(name, self._copying(partition, cancel))
            self._lanes.expiration.schedule(name, self._expiring(partition, cancel))
        else:
            follower = FollowerTask(partition, shared.rlmm, shared.broker_id)
            self._lanes.followers.schedule(name, follower.run)

    def end(self, name: TopicIdPartition, *, abandon_copy: bool = False) -> None:
        """End the tasks of the partition's role. A running copy is finished, as KIP-405 says.

        Args:
            abandon_copy: abandon it, because the tier's data is to be deleted.
        """
        cancel = self._cancel.pop(name, None)
        if cancel is not None:
            cancel.stopping.set()
            if abandon_copy:
                cancel.cancelled.set()
        lanes = self._lanes
        for lane in (lanes.copies, lanes.expiration, lanes.followers):
            lane.forget(name)
        self._shared.topic_counts.not_led(name)

    def has(self, name: TopicIdPartition) -> bool:
        return name in self._cancel

    def copy_has_ended(self, name: TopicIdPartition, within_s: float) -> bool:
        """Wait for the last copy pass after `end`; return whether it ended in time."""
        return self._lanes.copies.wait_ended(name, within_s)

    def run_until_done(self, name: TopicIdPartition, go_on: Callable[[], bool]) -> None:
        """Run `go_on` among the tasks of retention until it returns False.

        Changes of the partition's role do not end it. It replaces an earlier one of the partition.
        """
        lane, key = self._lanes.expiration, Finishing(name)

        def run() -> bool:
            if go_on():
                return True
            lane.forget(key, run)
            return False

        lane.schedule(key, run)

    def _copying(self, partition: Partition, cancel: _RoleCancellation) -> Task:
        shared = self._shared
        task = CopyTask(
            partition,
            shared.copier,
            shared.rlmm,
            shared.broker_id,
            shared.copy_rules,
            Progress(),
            cancel.stopping,
            cancel.cancelled,
            turn_s=_COPY_TURN_S,
        )

        def run() -> RunAgain | None:
            report = task.run()
            partition.copy.problem_log.log(partition.topic_id_partition, partition.copy.problems)
            COPIED_SEGMENTS.inc(report.copied_segments)
            COPIED_BYTES.inc(report.copied_bytes)
            topic = partition.topic_id_partition.topic
            shared.topic_counts.add(REMOTE_COPY_REQUESTS, topic, report.copy_requests)
            shared.topic_counts.add(REMOTE_COPY_BYTES, topic, report.copied_bytes)
            shared.topic_counts.add(REMOTE_COPY_ERRORS, topic, report.copy_errors)
            retriable = report.copy_retriable_errors
            shared.topic_counts.add(REMOTE_COPY_RETRIABLE_ERRORS, topic, retriable)
            LOST_RANGES.inc(len(report.recorded))
            for problem in report.recorded:
                _log.warning("%s: %s", partition.topic_id_partition, problem.message)
            if report.copied_segments:
                _log.info(
                    "%s: copied %d segments", partition.topic_id_partition, report.copied_segments
                )
            if report.more_after_s is not None:
                if report.failure:
                    _log.warning("%s: %s", partition.topic_id_partition, report.failure)
                return RunAgain(report.more_after_s)
            if report.failure:
                raise PassFailedError(report.failure)
            return None

        return run

    def _expiring(self, partition: Partition, cancel: _RoleCancellation) -> Task:
        task = ExpirationTask(partition, self._shared.expiration, cancel.stopping)

        def run() -> None:
            report = task.run()
            if report.deleted_segments:
                _log.info(
                    "%s: retention deleted %d segments, %d bytes",
                    partition.topic_id_partition,
                    report.deleted_segments,
                    report.deleted_bytes,
                )
            if report.failure:
                raise PassFailedError(report.failure)

        return run
