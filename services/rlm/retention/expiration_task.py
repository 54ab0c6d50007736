"""Run one retention pass over a partition: finish earlier deletions, report, plan, delete."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from services.api.errors import (
    ConcurrentUpdateError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.partitions import PartitionReport
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.remote_storage_manager import MAX_DELETE_BATCH, RemoteStorageManager
from services.api.retention import RetentionPlan
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import RetentionOwner, StoredTopicConfig
from services.common.batches import batches
from services.common.cancellation import Flag
from services.common.fair_queue import FairQueue, Slot
from services.common.retry import replan
from services.rlm.cleanup_policies import Policies, is_awaited, is_compacted
from services.rlm.copy.segment import SegmentCopier, is_attempt_of
from services.rlm.metrics import DELETED_BYTES, DELETED_SEGMENTS
from services.rlm.partition import NothingDue, Partition
from services.rlm.reporting import Reporter, report_of
from services.rlm.retention.snapshot import (
    Snapshot,
    due_after_ms,
    due_at_bytes,
    may_be_due,
    read_snapshot,
)
from services.rlm.topic_configs import TopicConfigs
from services.workflows.deletion import Deleter, ExpectedRevisions, begin_deletion, finish_deletion

_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_log = logging.getLogger(__name__)


@dataclass
class ExpirationReport:
    """The result of one retention pass.

    Attributes:
        deleted_segments, deleted_bytes: DELETE_SEGMENT_FINISHED by this pass.
        failure: why the pass did not delete everything that was due; empty if it did. The next pass
            finds the rest.
    """

    deleted_segments: int = 0
    deleted_bytes: int = 0
    failure: str = ""

    def deleted(self, segment: RemoteLogSegmentMetadata) -> None:
        size_bytes = max(segment.segment_size_in_bytes, 0)
        self.deleted_segments += 1
        self.deleted_bytes += size_bytes
        DELETED_SEGMENTS.inc()
        DELETED_BYTES.inc(size_bytes)

    def failed(self, segment: RemoteLogSegmentMetadata, error: RemoteStorageError) -> None:
        self.failure = self.failure or f"{segment.remote_log_segment_id}: {error}"


@dataclass(frozen=True, slots=True)
class Expiration:
    """The dependencies that the expiration tasks of all partitions share.

    Attributes:
        clock: monotonic seconds.
        now_ms: the timestamp of events.
        budget: bounds the segments that all passes list at once; a pass waits for its share.
        cleanup_policies: None if the policies are not read.
    """

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    broker_id: int
    copier: SegmentCopier
    reporter: Reporter
    topic_configs: TopicConfigs
    clock: Callable[[], float]
    now_ms: Callable[[], int]
    budget: FairQueue
    cleanup_policies: Policies | None = None


class ExpirationTask:
    """Run retention passes over one partition, one at a time.

    Args:
        stopping: once set, begin no deletion; the next process finishes segments that are marked.
    """

    def __init__(self, partition: Partition, shared: Expiration, stopping: Flag) -> None:
        self._partition = partition
        self._name = partition.topic_id_partition
        self._shared = shared
        self._stopping = stopping

    def run(self) -> ExpirationReport:
        """Run one pass: finish the deletions that any process began, then begin those due.

        The pass begins no deletion if another service owns retention, or nothing can be due.

        Raises:
            LineageUnknownError: if the tier's leader epochs are lost or damaged.
        """
        report = ExpirationReport()

        def pauses_copies() -> bool:
            # A large partition that is copied all the time would never be read as a whole. Two more
            # plans may overlap a copy that had begun.
            self._shared.topic_configs.forget(self._name.topic_id)
            return True

        try:
            replan(partial(self._pass, report), pauses_copies, first=False)
        except ConcurrentUpdateError as e:
            report.failure = str(e)
        finally:
            self._partition.retention.copy_paused = False
        return report

    def _pass(self, report: ExpirationReport, pauses_copies: bool) -> None:
        state, tier = self._partition.tier, self._partition.tier.cached
        # Copies of this process begin no deletion.
        if state.may_have_changed_elsewhere or tier.unfinished or tier.deleting_segments:
            self._finish_started(report)
        topic = self._owned_settings()
        if topic is None or self._report_if_due(topic, by_cached=True) is None:
            return
        tier = self._partition.tier.cached
        segments = tier.segments + tier.deleting_segments + len(tier.unfinished)
        try:
            room = self._shared.budget.acquire(
                segments, is_active=lambda: not self._stopping.is_set()
            )
        except RetriableRemoteStorageError:
            return  # Stopping.
        with room:
            self._partition.retention.copy_paused = pauses_copies
            self._expire(topic, room, report)

    def _expire(self, topic: StoredTopicConfig, room: Slot, report: ExpirationReport) -> None:
        # The state may have changed while this pass waited for room.
        snapshot = self._snapshot_if_due(topic)
        if snapshot is None:
            return
        being_copied = self._shared.copier.being_copied
        plan = snapshot.plan(topic, being_copied)
        uncounted_bytes = snapshot.uncounted_bytes(plan)
        if uncounted_bytes is not None:
            self._partition.retention.uncounted_bytes = uncounted_bytes
        due = tuple(d for d in plan.deletions if d.segment.state is not _DELETING)
        if not due:
            after_ms = due_after_ms(snapshot, plan, topic, being_copied)
            self._partition.retention.nothing_due = NothingDue(
                snapshot.revision,
                topic,
                until_s=None if after_ms is None else self._shared.clock() + after_ms / 1000,
                until_bytes=due_at_bytes(plan, topic),
            )
        elif not self._stopping.is_set():
            # Deleting may take long, and needs only the segments that are due.
            snapshot = replace(snapshot, segments=())
            room.release(all_but=len(due))
            self._delete(snapshot, topic, replace(plan, deletions=due), report)

    def _finish_started(self, report: ExpirationReport) -> None:
        """Finish the deletion of all marked segments, whichever process marked them.

        The mark decided the deletion, whatever the settings are now. Each step may be repeated,
        also by two processes at once. The copy pass cleans up this broker's own copy attempts.
        """
        shared, tier = self._shared, self._partition.tier.refresh()
        if not tier.deleting_segments and all(s.state is not _DELETING for s in tier.unfinished):
            return
        begun = all_segments(shared.rlmm, self._name, states=[_DELETING])
        others = (s for s in begun if not is_attempt_of(shared.broker_id, s))
        self._finish(others, Deleter(shared.broker_id), report)

    def _owned_settings(self) -> StoredTopicConfig | None:
        """Return the topic's settings if this RLM applies its retention.

        The result is None if the topic is unknown, it has another retention owner, or the topic
        is or may be compacted.
        """
        try:
            topic = self._shared.topic_configs.of(self._name.topic_id)
        except RemoteResourceNotFoundError:
            return None
        self._partition.retention.topic_config = topic
        is_ours = topic.config.retention_owner in (None, RetentionOwner.RLM)
        return topic if is_ours and not self._is_perhaps_compacted() else None

    def _is_perhaps_compacted(self) -> bool:
        """Return whether the topic is compacted, or its policy is not known yet.

        Compaction keeps the latest record of a key for ever. Segments that were copied before the
        policy was known must not be deleted by retention.ms.
        """
        policies = self._shared.cleanup_policies
        if policies is None or self._partition.tier.cached.segments == 0:
            return False
        policy = policies.of(self._name)
        return is_awaited(policy) or is_compacted(policy)

    def _snapshot_if_due(self, topic: StoredTopicConfig) -> Snapshot | None:
        """Report the partition and return its snapshot; None if nothing can be due."""
        shared, report = self._shared, self._report_if_due(topic)
        if report is None:
            return None
        state = shared.reporter.report(self._partition, report)
        snapshot = read_snapshot(shared.rlmm, self._name, state)
        tier = self._partition.tier
        if tier.cached.revision != snapshot.revision:
            # The report itself may have raised the revision, as the first one of a leader does.
            tier.adopt(snapshot.tier())
        return snapshot

    def _report_if_due(
        self, topic: StoredTopicConfig, *, by_cached: bool = False
    ) -> PartitionReport | None:
        """Return the report of the partition; None if nothing can be due."""
        shared, partition = self._shared, self._partition
        report = report_of(partition, shared.broker_id, by_cached=by_cached)
        if report is None or not may_be_due(
            partition.tier.cached,
            report.only_local_bytes,
            topic,
            partition.retention.nothing_due,
            shared.clock(),
        ):
            return None
        return report

    def _delete(
        self,
        snapshot: Snapshot,
        topic: StoredTopicConfig,
        plan: RetentionPlan,
        report: ExpirationReport,
    ) -> None:
        shared = self._shared
        leader = snapshot.state.report
        deleter = Deleter(
            broker_id=shared.broker_id,
            retention_owner=RetentionOwner.RLM,
            broker_leader_epoch=None if leader is None else leader.leader_epoch,
        )
        expected = ExpectedRevisions(snapshot.revision, topic.revision)
        self._partition.tier.changed_here()
        begun = begin_deletion(
            shared.rlmm,
            self._name,
            plan.deletions,
            plan.log_start_offset,
            expected,
            deleter,
            shared.now_ms(),
        )
        self._partition.retention.copy_paused = False
        # Local reads use the last known tier: the refresh applies the new log start to them.
        self._partition.tier.refresh()
        self._finish([o.segment for o in begun if o.error is None], deleter, report)
        # Drop the deleted segments from memory.
        self._partition.tier.refresh()
        if plan.log_start_offset is not None:
            _log.info("%s: log start offset raised to %d", self._name, plan.log_start_offset)
        for outcome in begun:
            if isinstance(outcome.error, ConcurrentUpdateError):
                raise outcome.error
            if outcome.error is not None:
                report.failed(outcome.segment, outcome.error)

    def _finish(
        self,
        marked: Iterable[RemoteLogSegmentMetadata],
        deleter: Deleter,
        report: ExpirationReport,
    ) -> None:
        shared = self._shared
        for batch in batches(marked, MAX_DELETE_BATCH):
            if self._stopping.is_set():
                return
            self._partition.tier.changed_here()
            now_ms = shared.now_ms()
            for outcome in finish_deletion(shared.rlmm, shared.rsm, batch, deleter, now_ms):
                if outcome.error is None:
                    report.deleted(outcome.segment)
                else:
                    report.failed(outcome.segment, outcome.error)
