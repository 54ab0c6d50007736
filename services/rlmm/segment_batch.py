"""What the changes of segments in one transaction have in common."""

from collections.abc import Callable, Collection, Iterable

from sqlalchemy.orm import Session

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.rlmm import batch_statements as statements
from services.rlmm.batch_records import BatchRecords
from services.rlmm.batches import Asked, Outcomes
from services.rlmm.json_rows import key_of, pipelined, wait_for_answers, when_needed
from services.rlmm.locked_partitions import LockedPartitions
from services.rlmm.rows import AnyRow
from services.rlmm.segment_change import SegmentChange, segment_id_of, tp_of


def change_in(
    session: Session,
    lock: Callable[[Session, Iterable[TopicIdPartition]], LockedPartitions],
    asked: Collection[Asked[SegmentChange]],
    change: "Callable[[SegmentBatch], Outcomes]",
) -> Outcomes:
    """Do changes of segments, no two of the same, in the session's transaction.

    It waits for the database twice: for all that is read, and for all that is written.

    Args:
        change: judges them and writes the segments.
    """
    with pipelined(session.connection()):
        partitions = lock(session, [tp_of(each.item) for each in asked])
        batch = SegmentBatch(session, partitions, asked)
        wait_for_answers(session.connection())
        outcomes = change(batch)
        batch.write()
    batch.require_written()
    return outcomes


class SegmentBatch:
    """Asks for what is read when it is made, in the pipeline of `change_in`.

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
