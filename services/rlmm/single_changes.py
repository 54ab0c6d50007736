"""Single changes of segments: several that meet, and one alone; see gathering."""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from services.api.segment_batches import SegmentAddition
from services.api.segment_changes import SegmentUpdate
from services.rlmm.batches import Asked, Outcome, Outcomes
from services.rlmm.locked_partitions import LockedPartitions
from services.rlmm.segment_additions import add, add_alone
from services.rlmm.segment_batch import SegmentBatch, change_in
from services.rlmm.segment_change import SegmentChange, tp_of
from services.rlmm.segment_updates import update, update_alone
from services.rlmm.transactions import Transactions


def change_free(session: Session, changes: Mapping[int, Asked[SegmentChange]]) -> Outcomes:
    """Do those changes whose partition is known and nobody else has locked; leave out the others.

    Args:
        changes: no two of one partition.
    """
    return change_in(
        session,
        LockedPartitions.lock_free,
        changes.values(),
        lambda batch: _change(batch, changes),
    )


def change_alone(transactions: Transactions, change: SegmentChange) -> Outcome:
    """In a transaction of its own, which waits for the partition's lock; an addition makes the
    partition known."""
    if isinstance(change, SegmentAddition):
        return add_alone(transactions, change)
    return update_alone(transactions, change)


def _change(batch: SegmentBatch, changes: Mapping[int, Asked[SegmentChange]]) -> Outcomes:
    additions: dict[int, Asked[SegmentAddition]] = {}
    updates: dict[int, Asked[SegmentUpdate]] = {}
    for place, asked in changes.items():
        item = asked.item
        if tp_of(item) not in batch.partitions:
            continue
        if isinstance(item, SegmentAddition):
            additions[place] = Asked(item, asked.call)
        else:
            updates[place] = Asked(item, asked.call)
    return add(batch, additions) | update(batch, updates)
