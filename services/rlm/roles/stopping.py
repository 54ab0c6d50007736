"""Stop partitions and disable topics, and delete their segments from the tier if required."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic
from typing import Protocol
from uuid import UUID

from cachetools import LRUCache

from services.api.calls import MutationContext
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_manager import MAX_STOPS, LifecycleOutcome
from services.api.remote_log_metadata_manager import (
    MAX_UPDATE_BATCH,
    RemoteLogMetadataManager,
    all_segments,
)
from services.api.remote_storage_manager import MAX_DELETE_BATCH, RemoteStorageManager
from services.api.retention import Deletion, DeletionReason
from services.api.segments import RemoteLogSegmentState
from services.api.topic_config import RetentionOwner, StoredTopicConfig, TopicConfig
from services.common.cancellation import Flag
from services.common.retry import replan
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError
from services.rlm.partition import Partition
from services.rlm.reporting import LineageUnknownError, Reporter, report_of
from services.rlm.roles.tasks import PartitionTasks
from services.rlm.scheduler import PassFailedError
from services.rlm.tier_state import Tier
from services.rlm.topic_configs import TopicConfigs
from services.workflows.deletion import (
    Deleter,
    DeletionOutcome,
    ExpectedRevisions,
    batches,
    begin_deletion,
    finish_deletion,
)


class BatchedDeletion:
    """Delete the segments that `begin` yields, one batch per call. Not thread-safe.

    Args:
        size: segments per batch.
    """

    def __init__(
        self, begin: Callable[[], Iterator[DeletionOutcome]], size: int = MAX_DELETE_BATCH
    ) -> None:
        self._begin = begin
        self._size = size
        self._outcomes: Iterator[DeletionOutcome] | None = None
        self.failure = ""
        """Why the first segment failed since the beginning; empty if none has."""

    def go_on(self) -> bool:
        """Delete the next batch; return False after the last one.

        After that, and after an error, the next call begins from the start.

        Raises:
            DeletionRefusedError: if each segment of the batch was refused.
            PassFailedError: if no segment of the batch was deleted.
            RemoteStorageError: if the deletion itself failed.
        """
        if self._outcomes is None:
            self._outcomes, self.failure = self._begin(), ""
        outcomes, self._outcomes = self._outcomes, None
        taken = list(islice(outcomes, self._size))
        failed = [o for o in taken if o.error is not None]
        first = next((f"{o.segment.remote_log_segment_id}: {o.error}" for o in failed), "")
        self.failure = self.failure or first
        if failed and len(failed) == len(taken):
            is_refused = all(isinstance(o.error, DeletionRefusedError) for o in failed)
            raise DeletionRefusedError(first) if is_refused else PassFailedError(first)
        if len(taken) < self._size:
            return False
        self._outcomes = outcomes
        return True


STEPS_AT_ONCE = 4
"""More than one, because a partition that is locked in RLMM delays its step for seconds."""

FAILURES_UNTIL_CHECK = 3
"""After so many failures in a row, check whether RLMM is ready: the failures may concern only
these partitions."""

_log = logging.getLogger(__name__)

Left = RemoteStorageError | Callable[[], "Left"] | None
"""The next step of a stop, or its outcome."""


def take_steps(stops: Sequence[Left], is_rlmm_ready: Callable[[], bool]) -> list[Left]:
    """Do the next step of each stop that has one, in any order.

    After RLMM was found down, it is not called again, because each call would wait for its whole
    deadline.

    Args:
        is_rlmm_ready: raises RemoteStorageError or returns False while RLMM is down.
    """
    steps = _Steps(is_rlmm_ready)
    # Calls to RLMM carry the request id of the call that is served.
    context = copy_context()
    with ThreadPoolExecutor(STEPS_AT_ONCE, thread_name_prefix="stops") as pool:
        return list(pool.map(lambda step: context.copy().run(steps.take, step), stops))


def outcome_of(left: Left) -> LifecycleOutcome:
    assert not callable(left), "no stop has a third step"
    return left


class _Steps:
    """Take steps until RLMM is down. Thread-safe."""

    def __init__(self, is_rlmm_ready: Callable[[], bool]) -> None:
        self._is_rlmm_ready = is_rlmm_ready
        self._lock = threading.Lock()
        self._failures_in_a_row = 0
        self._away: RetriableRemoteStorageError | None = None

    def take(self, step: Left) -> Left:
        if not callable(step):
            return step
        away = self._away
        if away is not None:
            return away
        left = _result_of(step)
        # Only this thread waits while RLMM does not answer; the steps of other threads continue.
        if self._is_check_due(left) and not self._is_rlmm_reachable():
            assert isinstance(left, RetriableRemoteStorageError)
            self._away = left
        return left

    def _is_check_due(self, left: Left) -> bool:
        with self._lock:
            if not isinstance(left, RetriableRemoteStorageError):
                self._failures_in_a_row = 0
                return False
            self._failures_in_a_row += 1
            return self._failures_in_a_row % FAILURES_UNTIL_CHECK == 0

    def _is_rlmm_reachable(self) -> bool:
        try:
            return self._is_rlmm_ready()
        except RemoteStorageError:
            return False


def _result_of(step: Callable[[], Left]) -> Left:
    try:
        return step()
    except RemoteStorageError as e:
        return e
    except (LogFileError, SegmentVanishedError, LineageUnknownError) as e:
        return ConcurrentUpdateError(f"the log cannot be read, so its start is unknown; retry: {e}")
    except Exception as e:  # noqa: BLE001 - a boundary: no partition stops another
        _log.exception("stopping a partition failed")
        return RemoteStorageError(f"{type(e).__name__}; see the log of RLM")


_COPIES = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)

_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_REASON = DeletionReason.TIERING_DISABLED


def kept_because(config: TopicConfig) -> str:
    """Return why the tier keeps a disabled topic's data; empty if the data is deleted."""
    if not config.remote_log_delete_on_disable:
        return (
            "the tier keeps its data because remote.log.delete.on.disable is not true; set it for "
            "the topic to delete the data"
        )
    if config.hold:
        return "the tier keeps its data because sediment.hold is set"
    if config.retention_owner is RetentionOwner.SWEEP and config.sweep_paused:
        return "the tier keeps its data because sediment.sweep.paused is set and the sweep owns it"
    return ""


@dataclass(frozen=True, slots=True)
class TierDeletion:
    """Delete the tiered data of partitions that were deleted or disabled.

    Attributes:
        now_ms: the timestamp of events.
    """

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    broker_id: int
    reporter: Reporter
    now_ms: Callable[[], int]

    def is_rlmm_ready(self, name: TopicIdPartition) -> bool:
        """Return whether RLMM is ready for the partition.

        Raises:
            RetriableRemoteStorageError: if RLMM is unreachable.
        """
        return self.rlmm.is_ready(name)

    def mark_partition(self, name: TopicIdPartition, leader_epoch: int | None) -> None:
        """Move the partition to DELETE_PARTITION_MARKED. Idempotent.

        Raises:
            FencedLeaderEpochError: if RLMM knows a later leader epoch.
            RetriableRemoteStorageError: if RLMM is unreachable.
        """
        marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        event = RemotePartitionDeleteMetadata(name, marked, self.now_ms(), self.broker_id)
        why = MutationContext(reason="topic deleted", broker_leader_epoch=leader_epoch)
        self.rlmm.put_remote_partition_delete_metadata(event, why)

    def require_nothing_left(self, name: TopicIdPartition) -> None:
        """Raise if the tier has segments of the partition that are not marked for deletion.

        Raises:
            InvalidStateTransitionError: if it has some.
            RetriableRemoteStorageError: if RLMM is unreachable.
        """
        try:
            left = next(all_segments(self.rlmm, name, states=_COPIES), None)
        except RemoteResourceNotFoundError:
            return
        if left is not None:
            raise InvalidStateTransitionError(
                f"{name}: this broker does not lead the partition, which has segments in the tier; "
                "send the stop to its leader, which deletes them"
            )

    def require_allowed(
        self, name: TopicIdPartition, *, by_settings: bool = False
    ) -> StoredTopicConfig:
        """Return the topic's settings if they allow deleting its tiered data.

        Args:
            by_settings: the settings must disable tiering, because no call has.

        Raises:
            DeletionRefusedError: if the settings do not allow it.
            RemoteResourceNotFoundError: if RLMM does not know the topic: there is nothing to
                delete.
            RetriableRemoteStorageError: if RLMM is unreachable.
        """
        stored = self.rlmm.topic_config(name.topic_id)
        if by_settings and stored.config.remote_storage_enable is not False:
            raise DeletionRefusedError(
                f"topic {name.topic}: remote.storage.enable is no longer false"
            )
        reason = kept_because(stored.config)
        if reason:
            raise DeletionRefusedError(f"topic {name.topic}: {reason}")
        return stored

    def mark_segments(self, partition: Partition, topic: StoredTopicConfig) -> None:
        """Raise the tier's log start to the local one and mark every segment.

        Raises:
            ConcurrentUpdateError: if the topic's settings changed meanwhile.
            DeletionRefusedError: if the settings forbid it, or another broker is copying a segment.
            FencedLeaderEpochError: if another broker leads the partition.
            InvalidStateTransitionError: if its log is not here.
            LogFileError, SegmentVanishedError, LineageUnknownError: if the log cannot be read.
            RetriableRemoteStorageError: if RLMM is unreachable.
        """
        name, now_ms = partition.topic_id_partition, self.now_ms()
        # The report of another task may overtake this one: then make and send a new one.
        deleter, log_start_offset = replan(
            lambda _: self._reported(partition, topic), lambda: None, first=None
        )
        expected = ExpectedRevisions(None, topic.revision)
        begin_deletion(
            self.rlmm, name, [], log_start_offset, expected, deleter, now_ms, _REASON.value
        )
        segments = all_segments(self.rlmm, name, states=_COPIES)
        refusal = None
        while batch := list(islice(segments, MAX_UPDATE_BATCH)):
            deletions = [Deletion(segment, _REASON, "") for segment in batch]
            begun = begin_deletion(self.rlmm, name, deletions, None, expected, deleter, now_ms)
            errors = (outcome.error for outcome in begun if outcome.error is not None)
            refusal = refusal or next(errors, None)
        partition.tier.refresh()
        if refusal is not None:
            raise refusal
        _log.info(
            "%s: tiering is disabled; its segments are marked for deletion, log start %d",
            name,
            log_start_offset,
        )

    def finishing(self, name: TopicIdPartition) -> Callable[[], bool]:
        """Return a function that deletes the objects of marked segments, one batch per call.

        The function returns False after the last batch. It raises PassFailedError if some segments
        could not be deleted, and RemoteStorageError; the next call begins from the start.
        """
        deletion = BatchedDeletion(lambda: self._finish(name))

        def go_on() -> bool:
            try:
                if deletion.go_on():
                    return True
            except RemoteResourceNotFoundError:
                return False
            if deletion.failure:
                raise PassFailedError(deletion.failure)
            return False

        return go_on

    def _reported(self, partition: Partition, topic: StoredTopicConfig) -> tuple[Deleter, int]:
        """Report the log; return the deleter and the local log start.

        RLMM accepts a local log start only after a report of the log.
        """
        name = partition.topic_id_partition
        log = partition.role.local.read() if partition.role.local else None
        report = report_of(partition, self.broker_id)
        if log is None or report is None:
            raise InvalidStateTransitionError(
                f"{name}: this broker has no log of it, or not the one that was copied, so that "
                "the start of what remains is unknown; send the stop to the broker with the log"
            )
        self.reporter.report(partition, report)
        # RLMM requires an owner; remote.log.delete.on.disable applies to any owner of retention.
        owner = topic.config.retention_owner or RetentionOwner.RLM
        deleter = Deleter(self.broker_id, owner, broker_leader_epoch=report.leader_epoch)
        return deleter, log.log_start_offset

    def _finish(self, name: TopicIdPartition) -> Iterator[DeletionOutcome]:
        marked, deleter = all_segments(self.rlmm, name, states=[_DELETING]), Deleter(self.broker_id)
        while batch := list(islice(marked, MAX_DELETE_BATCH)):
            yield from finish_deletion(self.rlmm, self.rsm, batch, deleter, self.now_ms())


COPY_ENDS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Disabling:
    """Disable the tiering of one partition, step by step.

    Attributes:
        lock: of the roles; held during `give_up` and while tasks are ended.
        give_up: ends the role after everything is marked; None if the topic's settings disabled
            tiering, and the role stays.
    """

    partition: Partition
    tasks: PartitionTasks
    tier_deletion: TierDeletion
    lock: AbstractContextManager[object]
    give_up: Callable[[], None] | None

    def begin(self) -> Left:
        """End the tasks, if the settings in RLMM allow the deletion now."""
        name = self.partition.topic_id_partition
        try:
            topic = self.tier_deletion.require_allowed(name, by_settings=self.give_up is None)
        except RemoteResourceNotFoundError:
            self._end_role()
            return None
        with self.lock:
            self.tasks.end(name, abandon_copy=True)
        return partial(self._mark, topic, monotonic() + COPY_ENDS_WITHIN_S)

    def _mark(self, topic: StoredTopicConfig, until_s: float) -> None:
        name = self.partition.topic_id_partition
        # A segment that is copied after the marking would stay in the tier for ever.
        if not self.tasks.copy_has_ended(name, max(until_s - monotonic(), 0.0)):
            raise ConcurrentUpdateError(f"{name}: a copy is still running; retry")
        self.tier_deletion.mark_segments(self.partition, topic)
        self._end_role()
        self.tasks.run_until_done(name, self.tier_deletion.finishing(name))

    def _end_role(self) -> None:
        if self.give_up is not None:
            with self.lock:
                self.give_up()


_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_MAX_LOGGED = 10_000


class DisablesPartitions(Protocol):
    """The part of PartitionRoles that DisabledTopics uses."""

    def leaders(self) -> list[Partition]: ...

    def disable(self, names: Sequence[TopicIdPartition]) -> list[LifecycleOutcome]: ...


class DisabledTopics:
    """Find led partitions that are disabled and still in the tier, and disable them.

    The settings are read again before that, because the cached ones may be an interval old. A
    partition with nothing in the tier is skipped, so that a disabled topic costs nothing. Not
    thread-safe.

    Args:
        stopping: once set, disable no other partition.
    """

    def __init__(
        self, roles: DisablesPartitions, topic_configs: TopicConfigs, stopping: Flag
    ) -> None:
        self._roles = roles
        self._topic_configs = topic_configs
        self._stopping = stopping
        self._logged: LRUCache[UUID, str] = LRUCache(_MAX_LOGGED)

    def look(self) -> None:
        """Disable the partitions that were found.

        Raises:
            PassFailedError: if some could not be marked for deletion; the next pass retries.
            RetriableRemoteStorageError: if RLMM is unreachable.
        """
        refused: list[RemoteStorageError] = []
        for names in batches(self._found(refused), MAX_STOPS):
            if self._stopping.is_set():
                return
            for name, outcome in zip(names, self._roles.disable(names), strict=True):
                if outcome is not None:
                    self._topic_configs.forget(name.topic_id)
                    refused.append(outcome)
        if refused:
            raise PassFailedError(
                f"{len(refused)} disabled partitions are still in the tier; the first: {refused[0]}"
            )

    def _found(self, refused: list[RemoteStorageError]) -> list[TopicIdPartition]:
        """Return the partitions to disable; add to `refused` the errors of reading settings."""
        found: list[TopicIdPartition] = []
        is_disabled: dict[UUID, bool] = {}
        for partition in self._roles.leaders():
            name = partition.topic_id_partition
            if not _is_in_tier(partition.tier.last_seen):
                continue
            if name.topic_id not in is_disabled:
                try:
                    is_disabled[name.topic_id] = self._is_disabled(name)
                except RetriableRemoteStorageError:
                    raise
                except RemoteStorageError as e:
                    is_disabled[name.topic_id] = False
                    refused.append(e)
            if is_disabled[name.topic_id]:
                found.append(name)
        return found

    def _is_disabled(self, name: TopicIdPartition) -> bool:
        """Return whether the topic is disabled and may be deleted, by the cached settings."""
        try:
            config = self._topic_configs.of(name.topic_id).config
        except RemoteResourceNotFoundError:
            return False
        is_disabled = config.remote_storage_enable is False
        reason = kept_because(config) if is_disabled else ""
        if reason and reason != self._logged.get(name.topic_id):
            _log.info("topic %s: tiering is disabled; %s", name.topic, reason)
        self._logged[name.topic_id] = reason
        return is_disabled and not reason


def _is_in_tier(tier: Tier) -> bool:
    """Return whether the tier has segments that are not marked for deletion.

    Retention finishes the marked ones.
    """
    return tier.segments > 0 or any(segment.state is _STARTED for segment in tier.unfinished)
