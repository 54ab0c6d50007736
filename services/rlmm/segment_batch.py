"""What the changes of segments in one transaction have in common."""

from collections.abc import Callable, Collection
from typing import TypeAlias

from sqlalchemy.orm import Session

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.segment_batches import SegmentAddition
from services.api.segment_changes import SegmentUpdate
from services.rlmm import batch_statements as statements
from services.rlmm.batch_records import BatchRecords
from services.rlmm.batches import Asked
from services.rlmm.json_rows import key_of, when_needed
from services.rlmm.locked_partitions import LockedPartitions
from services.rlmm.rows import AnyRow

SegmentChange: TypeAlias = SegmentAddition | SegmentUpdate


class SegmentBatch:
    """Changes of segments of which no two are the same, in a pipeline; see json_rows.pipelined.

    What is read is asked for at once, and what all of them write is written at the end.

    Attributes:
        partitions: locked.
        records: of all changes.
    """

    def __init__(
        self,
        session: Session,
        partitions: LockedPartitions,
        asked: Collection[Asked[SegmentChange]],
    ) -> None:
        self.session = session
        self.partitions = partitions
        rows = statements.ask_for_segments(session, [segment_id_of(each.item) for each in asked])
        self._stored = when_needed(lambda: statements.by_segment(rows))
        contexts = [(key_of(tp_of(each.item)), each.item.context) for each in asked]
        self.records = BatchRecords(session, contexts)
        self._checks: list[Callable[[], None]] = []

    def stored(self, segment_id: RemoteLogSegmentId) -> AnyRow | None:
        """All columns of the segment as it was before the batch, and copy_leased."""
        return self._stored().get(statements.segment_key(segment_id))

    def check_at_the_end(self, check: Callable[[], None]) -> None:
        """Have `check` called by `require_written`."""
        self._checks.append(check)

    def write(self) -> None:
        """The events, the answers and the partitions, when all is judged and written."""
        self.records.write()
        self.partitions.write_back()

    def require_written(self) -> None:
        """Call this when the pipeline has ended: only then is it known what was written.

        Raises:
            RemoteStorageError: not what was judged.
        """
        for check in self._checks:
            check()


def segment_id_of(change: SegmentChange) -> RemoteLogSegmentId:
    if isinstance(change, SegmentAddition):
        return change.metadata.remote_log_segment_id
    return change.update.remote_log_segment_id


def tp_of(change: SegmentChange) -> TopicIdPartition:
    return segment_id_of(change).topic_id_partition
