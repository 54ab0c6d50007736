"""Single changes of segments that share a transaction because they meet; see gathering."""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from services.api.segment_batches import SegmentAddition
from services.api.segment_changes import SegmentUpdate
from services.rlmm.batches import Asked, Outcomes
from services.rlmm.json_rows import pipelined
from services.rlmm.locked_partitions import LockedPartitions
from services.rlmm.segment_additions import add
from services.rlmm.segment_batch import SegmentBatch, SegmentChange, tp_of
from services.rlmm.segment_updates import update


def change_free(session: Session, changes: Mapping[int, Asked[SegmentChange]]) -> Outcomes:
    """Do those changes whose partition is known and nobody else has locked; leave out the others.

    Args:
        changes: no two of one partition.
    """
    with pipelined(session.connection()):
        tps = [tp_of(asked.item) for asked in changes.values()]
        partitions = LockedPartitions.lock_free(session, tps)
        batch = SegmentBatch(session, partitions, changes.values())
        additions: dict[int, Asked[SegmentAddition]] = {}
        updates: dict[int, Asked[SegmentUpdate]] = {}
        for place, asked in changes.items():
            item = asked.item
            if tp_of(item) not in partitions:
                continue
            if isinstance(item, SegmentAddition):
                additions[place] = Asked(item, asked.call)
            else:
                updates[place] = Asked(item, asked.call)
        outcomes = add(batch, additions) | update(batch, updates)
        batch.write()
    batch.require_written()
    return outcomes
