"""Remove partitions that are marked for deletion, and objects that brokers' deletions have left."""

import logging
from collections.abc import Callable, Iterator
from itertools import islice

from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_partitions,
)
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.topic_config import RetentionOwner
from services.rlm.roles.stopping import BatchedDeletion
from services.rlm.scheduler import Lane, PassFailedError
from services.workflows.deletion import Deleter, DeletionOutcome
from services.workflows.kept_segments import delete_kept_segments
from services.workflows.removal import begin_removal, finish_removal, remove_segments

MAX_REMOVALS = 10_000
"""The most removals that are scheduled at once, to bound memory; the others are found later."""

FIND_TASK = "partitions that are marked for deletion"
KEPT_TASK = "kept segments that are due"
_MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
_STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
_log = logging.getLogger(__name__)


class RemotePartitionRemover:
    """Find partitions to remove, and remove each in a task of `lane`.

    Args:
        grace_ms: how long after its mark a partition is kept, by the database's clock.
        now_ms: the timestamp of events.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        broker_id: int,
        grace_ms: int,
        lane: Lane,
        now_ms: Callable[[], int],
    ) -> None:
        self.rsm = rsm
        self.rlmm = rlmm
        self.deleter = Deleter(broker_id)
        self.now_ms = now_ms
        self._grace_ms = grace_ms
        self._lane = lane
        self._scheduled: set[TopicIdPartition] = set()
        self._unscheduled: Iterator[PartitionSummary] | None = None
        lane.schedule(FIND_TASK, self.find)
        deletion = BatchedDeletion(
            lambda: delete_kept_segments(rlmm, rsm, RetentionOwner.RLM, now_ms())
        )
        lane.schedule(KEPT_TASK, deletion.delete_batch)

    def find(self) -> bool:
        """Schedule due removals while there is room; return True if more may be due.

        The next call continues after those that were found, when each of them has run once, so that
        refused removals do not block others.
        """
        unscheduled, self._unscheduled = self._unscheduled or self._due(), None
        room = MAX_REMOVALS - len(self._scheduled)
        begun = 0
        for summary in islice((s for s in unscheduled if self._is_new(s)), room):
            name = summary.topic_id_partition
            self._scheduled.add(name)
            self._lane.schedule(name, _Removal(self, summary).run)
            begun += 1
        if begun == room:
            self._unscheduled = unscheduled
        return begun == room > 0

    def _is_new(self, summary: PartitionSummary) -> bool:
        return summary.topic_id_partition not in self._scheduled

    def refresh(self, summary: PartitionSummary) -> PartitionSummary | None:
        """Return the partition's current state; None if it is not due for removal (any more)."""
        name = summary.topic_id_partition
        return next((s for s in self._due(name.topic) if s.topic_id_partition == name), None)

    def end(self, summary: PartitionSummary, why: str, *details: object) -> None:
        """End the removal; if segments are left, the next `find` finds the partition.

        Args:
            why: the text of the log line, with a place for each of the `details`.
        """
        _log.info(f"%s: {why}", summary.topic_id_partition, *details)
        self._lane.forget(summary.topic_id_partition)
        self._scheduled.discard(summary.topic_id_partition)

    def _due(self, topic: str = "") -> Iterator[PartitionSummary]:
        deleted = all_partitions(self.rlmm, topic=topic, delete_states=(_MARKED, _STARTED))
        return (summary for summary in deleted if not self._is_in_grace(summary))

    def _is_in_grace(self, summary: PartitionSummary) -> bool:
        age_ms = summary.read_at_ms - (summary.marked_at_ms or 0)
        return summary.delete_state is _MARKED and age_ms < self._grace_ms


class _Removal:
    """Remove one partition: begin, delete its segments batch by batch, finish."""

    def __init__(self, remover: RemotePartitionRemover, summary: PartitionSummary) -> None:
        self._remover = remover
        self._summary = summary
        self._deletion = BatchedDeletion(self._begin)

    def run(self) -> bool:
        """Do the next step; return True if there are more.

        Raises:
            PassFailedError: if something could not be removed yet.
        """
        remover, summary = self._remover, self._summary
        try:
            return self._step()
        except ConcurrentUpdateError as e:
            # A new mark after an undelete has a grace period of its own.
            now = remover.refresh(summary)
            if now is None:
                remover.end(summary, "removal cancelled: %s", e)
                return False
            self._summary = now
            raise PassFailedError(f"{summary.topic_id_partition}: {e}") from e
        except RemoteResourceNotFoundError:
            remover.end(summary, "another process removed it")
        except (DeletionRefusedError, InvalidStateTransitionError) as e:
            remover.end(summary, "removal was refused; retrying later: %s", e)
        return False

    def _step(self) -> bool:
        if self._deletion.delete_batch():
            return True
        remover, name = self._remover, self._summary.topic_id_partition
        left = finish_removal(remover.rlmm, remover.rsm, name, remover.deleter, remover.now_ms())
        if left:
            raise PassFailedError(f"{name}: not removed yet: {self._deletion.failure or left}")
        remover.end(self._summary, "removed with all of its segments")
        return False

    def _begin(self) -> Iterator[DeletionOutcome]:
        remover, summary = self._remover, self._summary
        name, deleter, now_ms = summary.topic_id_partition, remover.deleter, remover.now_ms()
        begin_removal(remover.rlmm, name, deleter, now_ms, summary.revision)
        return remove_segments(remover.rlmm, remover.rsm, name, deleter, now_ms)
