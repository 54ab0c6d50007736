"""Stop partitions, and delete what the tier has of them if the reason says so."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from itertools import islice

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
from services.api.remote_log_manager import LifecycleOutcome
from services.api.remote_log_metadata_manager import (
    MAX_UPDATE_BATCH,
    RemoteLogMetadataManager,
    all_segments,
)
from services.api.remote_storage_manager import MAX_DELETE_BATCH, RemoteStorageManager
from services.api.retention import Deletion, DeletionReason
from services.api.segments import RemoteLogSegmentState
from services.api.topic_config import RetentionOwner, StoredTopicConfig, TopicConfig
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError
from services.rlm.partition import Partition
from services.rlm.reporting import LineageUnknownError, Reporter, report_of
from services.rlm.scheduler import PassFailedError
from services.workflows.deletion import (
    Deleter,
    DeletionOutcome,
    ExpectedRevisions,
    begin_deletion,
    finish_deletion,
)


class BatchedDeletion:
    """Goes through what `begin` yields. Not thread-safe.

    Args:
        size: segments of one turn.
    """

    def __init__(
        self, begin: Callable[[], Iterator[DeletionOutcome]], size: int = MAX_DELETE_BATCH
    ) -> None:
        self._begin = begin
        self._size = size
        self._outcomes: Iterator[DeletionOutcome] | None = None
        self.failure = ""
        """Of the first segment that failed since the beginning; empty: none has."""

    def go_on(self) -> bool:
        """Take the next turn; False: it was the last one, and the next begins anew.

        Raises:
            DeletionRefusedError: each segment of the turn was refused; the next turn begins anew.
            PassFailedError: none of the turn was deleted; likewise: nothing says that the segments
                behind them fare better.
            RemoteStorageError: as the deletion does; likewise.
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


AT_ONCE = 4
"""A partition that is locked in RLMM keeps a step waiting for seconds; RLMM has other callers."""

FAILURES_UNTIL_ASKED = 3
"""After so many in a row RLMM is asked whether it is there, or those partitions alone cannot be
changed."""

_log = logging.getLogger(__name__)

Left = RemoteStorageError | Callable[[], "Left"] | None
"""Of a stop: the next step, or its outcome."""


def take_steps(stops: Sequence[Left], is_rlmm_ready: Callable[[], bool]) -> list[Left]:
    """Do the next step of each that has one, in any order. Once RLMM is away it is not asked again:
    where it is silent, each question waits for its whole deadline.

    Args:
        is_rlmm_ready: raises RemoteStorageError, or answers False, where RLMM is away.
    """
    steps = _Steps(is_rlmm_ready)
    # What RLMM is asked bears the id of the call that is served.
    context = copy_context()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="stops") as pool:
        return list(pool.map(lambda step: context.copy().run(steps.take, step), stops))


def outcome_of(left: Left) -> LifecycleOutcome:
    assert not callable(left), "no stop has a third step"
    return left


class _Steps:
    """Thread-safe."""

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
        # Whoever asks waits for as long as RLMM is silent; the others' steps do not wait for it.
        if self._is_to_be_asked(left) and not self._is_there():
            assert isinstance(left, RetriableRemoteStorageError)
            self._away = left
        return left

    def _is_to_be_asked(self, left: Left) -> bool:
        with self._lock:
            if not isinstance(left, RetriableRemoteStorageError):
                self._failures_in_a_row = 0
                return False
            self._failures_in_a_row += 1
            return self._failures_in_a_row % FAILURES_UNTIL_ASKED == 0

    def _is_there(self) -> bool:
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
        return ConcurrentUpdateError(f"not known where the log begins; try again: {e}")
    except Exception as e:  # noqa: BLE001 - a boundary: no partition stops another
        _log.exception("a partition was not given up")
        return RemoteStorageError(f"{type(e).__name__}; see the log")


_COPIES = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)

_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_REASON = DeletionReason.TIERING_DISABLED


def kept_because(config: TopicConfig) -> str:
    """Why the tier's part of a topic is kept when its tiering is disabled; empty: it is deleted."""
    if not config.remote_log_delete_on_disable:
        return (
            "remote.log.delete.on.disable is not true, so what is in the tier is kept; set it for "
            "the topic first"
        )
    if config.hold:
        return "sediment.hold is set"
    if config.retention_owner is RetentionOwner.SWEEP and config.sweep_paused:
        return "sediment.sweep.paused is set, and sediment.retention.owner is sweep"
    return ""


@dataclass(frozen=True, slots=True)
class TierDeletion:
    """
    Attributes:
        now_ms: the time that events bear.
    """

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    broker_id: int
    reporter: Reporter
    now_ms: Callable[[], int]

    def is_rlmm_ready(self, name: TopicIdPartition) -> bool:
        """
        Raises:
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        return self.rlmm.is_ready(name)

    def mark_partition(self, name: TopicIdPartition, leader_epoch: int | None) -> None:
        """Move the partition to DELETE_PARTITION_MARKED; again is once.

        Raises:
            FencedLeaderEpochError: RLMM knows of a later leader epoch.
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        event = RemotePartitionDeleteMetadata(name, marked, self.now_ms(), self.broker_id)
        why = MutationContext(reason="topic deleted", broker_leader_epoch=leader_epoch)
        self.rlmm.put_remote_partition_delete_metadata(event, why)

    def require_nothing_left(self, name: TopicIdPartition) -> None:
        """
        Raises:
            InvalidStateTransitionError: there is something in the tier that is not marked.
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        try:
            left = next(all_segments(self.rlmm, name, states=_COPIES), None)
        except RemoteResourceNotFoundError:
            return
        if left is not None:
            raise InvalidStateTransitionError(
                f"{name}: this broker was not told to lead it, and it has segments in the tier; "
                "only its leader deletes them"
            )

    def require_allowed(
        self, name: TopicIdPartition, *, by_settings: bool = False
    ) -> StoredTopicConfig:
        """The topic's settings, under which the tier's part of it may be deleted.

        Args:
            by_settings: nobody but these says that tiering is disabled.

        Raises:
            DeletionRefusedError: it may not.
            RemoteResourceNotFoundError: the topic is not known: there is nothing to delete.
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        stored = self.rlmm.topic_config(name.topic_id)
        if by_settings and stored.config.remote_storage_enable is not False:
            raise DeletionRefusedError(
                f"topic {name.topic}: remote.storage.enable is not false any more"
            )
        reason = kept_because(stored.config)
        if reason:
            raise DeletionRefusedError(f"topic {name.topic}: {reason}")
        return stored

    def mark_segments(self, partition: Partition, topic: StoredTopicConfig) -> None:
        """Raise the tier's log start to the local one and mark every segment.

        Raises:
            ConcurrentUpdateError: the topic's settings changed meanwhile.
            DeletionRefusedError: they forbid it; or another broker copies a segment.
            FencedLeaderEpochError: another broker leads the partition.
            InvalidStateTransitionError: its log is not here.
            LogFileError, SegmentVanishedError, LineageUnknownError: it cannot be read now.
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        name, now_ms = partition.topic_id_partition, self.now_ms()
        deleter, log_start_offset = self._reported(partition, topic)
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
        _log.info("%s: tiering is disabled, log start %d", name, log_start_offset)

    def finishing(self, name: TopicIdPartition) -> Callable[[], bool]:
        """What deletes the objects of all that is marked, a batch a turn; False: they are gone.

        It raises PassFailedError where some could not be deleted, and RemoteStorageError; the next
        turn begins anew.
        """
        turns = BatchedDeletion(lambda: self._finish(name))

        def go_on() -> bool:
            try:
                if turns.go_on():
                    return True
            except RemoteResourceNotFoundError:
                return False
            if turns.failure:
                raise PassFailedError(turns.failure)
            return False

        return go_on

    def _reported(self, partition: Partition, topic: StoredTopicConfig) -> tuple[Deleter, int]:
        """Who deletes, and the local log start, which RLMM takes for one only where it was told how
        far the log goes."""
        name = partition.topic_id_partition
        log = partition.role.local.read() if partition.role.local else None
        report = report_of(partition, self.broker_id)
        if log is None or report is None:
            raise InvalidStateTransitionError(
                f"{name}: its log is not here, or is not the one that was copied: not known where "
                "what remains begins"
            )
        self.reporter.report(partition, report)
        # Whose retention it is does not matter: remote.log.delete.on.disable is a decision of the
        # topic's own. RLMM asks for an owner, so the topic's is named.
        owner = topic.config.retention_owner or RetentionOwner.RLM
        deleter = Deleter(self.broker_id, owner, broker_leader_epoch=report.leader_epoch)
        return deleter, log.log_start_offset

    def _finish(self, name: TopicIdPartition) -> Iterator[DeletionOutcome]:
        marked, deleter = all_segments(self.rlmm, name, states=[_DELETING]), Deleter(self.broker_id)
        while batch := list(islice(marked, MAX_DELETE_BATCH)):
            yield from finish_deletion(self.rlmm, self.rsm, batch, deleter, self.now_ms())
