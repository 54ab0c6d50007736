"""Remove partitions that are marked for deletion."""

import logging
from collections.abc import Callable, Iterator
from itertools import islice

from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_partitions,
)
from services.api.remote_storage_manager import RemoteStorageManager
from services.rlm.roles.stopping import BatchedDeletion
from services.rlm.scheduler import PassFailedError, Scheduler
from services.workflows.deletion import Deleter, DeletionOutcome
from services.workflows.removal import begin_removal, finish_removal, remove_segments

MAX_REMOVALS = 10_000
"""Partitions that wait at once, so that memory is bounded; the others are found once there is room
again."""

FIND = "partitions that are marked for deletion"
_MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
_STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
_log = logging.getLogger(__name__)


class RemotePartitionRemover:
    """Looks for partitions to remove, and removes each in a task of `scheduler`.

    Args:
        grace_ms: a partition is left alone so long after it was marked, by the database's clock.
        now_ms: the time that events bear.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        broker_id: int,
        grace_ms: int,
        scheduler: Scheduler,
        now_ms: Callable[[], int],
    ) -> None:
        self.rsm = rsm
        self.rlmm = rlmm
        self.deleter = Deleter(broker_id)
        self.now_ms = now_ms
        self._grace_ms = grace_ms
        self._scheduler = scheduler
        self._begun: set[TopicIdPartition] = set()
        self._to_find: Iterator[PartitionSummary] | None = None
        scheduler.schedule(FIND, self.find)

    def find(self) -> bool:
        """Schedule the removal of what is due, as far as there is room; True: there was room for
        some, and more may be due. The next turn comes after those that were found have had one and
        goes on behind them: so many that are refused keep nobody's room."""
        to_find, self._to_find = self._to_find or self._due(), None
        room = MAX_REMOVALS - len(self._begun)
        begun = 0
        for summary in islice((s for s in to_find if self._is_new(s)), room):
            name = summary.topic_id_partition
            self._begun.add(name)
            self._scheduler.schedule(name, _Removal(self, summary).run)
            begun += 1
        if begun == room:
            self._to_find = to_find
        return begun == room > 0

    def _is_new(self, summary: PartitionSummary) -> bool:
        return summary.topic_id_partition not in self._begun

    def look_again(self, summary: PartitionSummary) -> PartitionSummary | None:
        """The partition as it is now; None: it is not to be removed, or not yet."""
        name = summary.topic_id_partition
        return next((s for s in self._due(name.topic) if s.topic_id_partition == name), None)

    def over(self, summary: PartitionSummary, why: str) -> None:
        """Nothing more is to be done of this partition; if it is, the next pass finds it again."""
        _log.info("%s: %s", summary.topic_id_partition, why)
        self._forget(summary)

    def refused(self, summary: PartitionSummary, error: RemoteStorageError) -> None:
        """It is not to be removed now, as while its topic is on hold; the next pass finds it again,
        and again."""
        _log.info("%s: is not removed: %s", summary.topic_id_partition, error)
        self._forget(summary)

    def _forget(self, summary: PartitionSummary) -> None:
        self._scheduler.forget(summary.topic_id_partition)
        self._begun.discard(summary.topic_id_partition)

    def _due(self, topic: str = "") -> Iterator[PartitionSummary]:
        deleted = all_partitions(self.rlmm, topic=topic, delete_states=(_MARKED, _STARTED))
        return (summary for summary in deleted if not self._is_in_grace(summary))

    def _is_in_grace(self, summary: PartitionSummary) -> bool:
        age_ms = summary.read_at_ms - (summary.marked_at_ms or 0)
        return summary.delete_state is _MARKED and age_ms < self._grace_ms


class _Removal:
    """Of one partition: begun, then its segments, a batch a turn, then finished."""

    def __init__(self, remover: RemotePartitionRemover, summary: PartitionSummary) -> None:
        self._remover = remover
        self._summary = summary
        self._turns = BatchedDeletion(self._begin)

    def run(self) -> bool:
        """One turn; True: there are more.

        Raises:
            PassFailedError: something of it could not be removed, yet.
            RemoteStorageError: a service cannot be reached.
        """
        remover, summary = self._remover, self._summary
        try:
            return self._turn()
        except ConcurrentUpdateError as e:
            # A mark that was taken back and made again has a grace period of its own.
            now = remover.look_again(summary)
            if now is None:
                remover.over(summary, f"is not to be removed any more: {e}")
                return False
            self._summary = now
            raise PassFailedError(f"{summary.topic_id_partition}: {e}") from e
        except RemoteResourceNotFoundError:
            remover.over(summary, "was removed by somebody else")
        except (DeletionRefusedError, InvalidStateTransitionError) as e:
            remover.refused(summary, e)
        return False

    def _turn(self) -> bool:
        if self._turns.go_on():
            return True
        remover, name = self._remover, self._summary.topic_id_partition
        if not finish_removal(remover.rlmm, name, remover.deleter, remover.now_ms()):
            raise PassFailedError(
                f"{name}: not removed yet: {self._turns.failure or 'a copy ended meanwhile'}"
            )
        remover.over(self._summary, "removed with all of its segments")
        return False

    def _begin(self) -> Iterator[DeletionOutcome]:
        remover, summary = self._remover, self._summary
        name, deleter, now_ms = summary.topic_id_partition, remover.deleter, remover.now_ms()
        begin_removal(remover.rlmm, name, deleter, now_ms, summary.revision)
        return remove_segments(remover.rlmm, remover.rsm, name, deleter, now_ms)
