"""Segments that move from state to state: update_remote_log_segment_metadata, also in batches.

Judged item by item in their order and written in a handful of statements, whatever their number.
Of one partition, two copies that finish do not go together: what each displaces depends on the
order.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TypeAlias

from sqlalchemy.orm import Session

from services.api.calls import Call, MutationOutcome
from services.api.errors import RemoteStorageError
from services.api.segment_changes import SegmentUpdate, UpdateOutcome
from services.api.segments import RemoteLogSegmentState
from services.api.validation import within
from services.rlmm import batch_statements as statements
from services.rlmm import visibility
from services.rlmm.batch_records import SegmentEvent
from services.rlmm.batch_statements import Move
from services.rlmm.batches import (
    Asked,
    Outcome,
    Outcomes,
    change_all,
    change_sound,
    require_distinct,
)
from services.rlmm.json_rows import PartitionKey, key_of
from services.rlmm.limits import Limits, check_storable
from services.rlmm.locked_partitions import LockedPartitions
from services.rlmm.rows import AnyRow, event_key_of
from services.rlmm.segment_batch import SegmentBatch, change_in
from services.rlmm.segment_change import segment_id_of, tp_of
from services.rlmm.transactions import Transactions
from services.rlmm.transitions import may_move, unknown_segment

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

_VISIBILITY = {
    FINISHED: visibility.show,
    DELETE_STARTED: visibility.hide,
    DELETE_FINISHED: visibility.forget,
}

Updates: TypeAlias = Mapping[int, Asked[SegmentUpdate]]
"""By their places in the batch, which are in order."""


def update_all(
    transactions: Transactions, limits: Limits, updates: Sequence[SegmentUpdate]
) -> list[UpdateOutcome]:
    """See RemoteLogMetadataManager.update_remote_log_segment_metadata_batch."""
    require_distinct([segment_id_of(item) for item in updates], "updates")
    return change_sound(transactions, updates, partial(check, limits), _update_in)


def check(limits: Limits, update: SegmentUpdate) -> None:
    """Refuse what no partition could take."""
    limits.check_update(update.update)
    check_storable(update.context)


def update_alone(transactions: Transactions, update: SegmentUpdate) -> Outcome:
    """In a transaction of its own; waits for the partition's lock."""
    return change_all(transactions, {0: Asked(update)}, _update_in)[0]


def update(batch: SegmentBatch, updates: Updates) -> Outcomes:
    """Judge the updates in their order and write the moves of their segments."""
    outcomes = Outcomes()
    for wave in _waves(updates):
        outcomes |= _Moves(batch, wave).outcomes()
    return outcomes


def _update_in(session: Session, updates: Updates) -> Outcomes:
    lock = LockedPartitions.lock
    return change_in(session, lock, updates.values(), lambda batch: update(batch, updates))


def _waves(items: Updates) -> Iterator[Updates]:
    """The items, in waves that come one after another: of a partition, each wave has a run of
    deletions or one copy that finishes, in the partition's order."""
    steps: dict[PartitionKey, list[dict[int, Asked[SegmentUpdate]]]] = {}
    finished_last: set[PartitionKey] = set()
    for place, asked in items.items():
        key = key_of(tp_of(asked.item))
        own = steps.setdefault(key, [])
        finishes = asked.item.update.state is FINISHED
        if not own or finishes or key in finished_last:
            own.append({})
        own[-1][place] = asked
        (finished_last.add if finishes else finished_last.discard)(key)
    for wave in zip_longest(*steps.values(), fillvalue={}):
        yield {place: asked for step in wave for place, asked in step.items()}


class _Moves:
    """A wave: judged in the order of its items and written together, as none of them depends on
    what another does to its segment."""

    def __init__(self, batch: SegmentBatch, items: Updates) -> None:
        self._batch = batch
        self._items = items
        self._moves: list[Move] = []

    def outcomes(self) -> Outcomes:
        outcomes = {place: self._judged(asked) for place, asked in self._items.items()}
        if self._moves:
            self._write_moves()
        return outcomes

    def _judged(self, asked: Asked[SegmentUpdate]) -> Outcome:
        try:
            return self._outcome(asked.item, asked.call)
        except RemoteStorageError as e:
            return e

    def _outcome(self, item: SegmentUpdate, call: Call) -> MutationOutcome:
        update, context, segment_id = item.update, item.context, segment_id_of(item)
        records = self._batch.records
        with within("update.remote_log_segment_id"):
            locked = self._batch.partitions.of(segment_id.topic_id_partition)
        answer = records.answered_before(locked.row, update, context)
        if answer is not None:
            return answer
        stored = self._batch.stored(segment_id)
        if stored is None:
            raise unknown_segment(segment_id)
        if not may_move(locked.guards, stored, update, context):
            return records.repeat(locked.row, stored.state_revision)
        outcome = records.change(locked.row, _event(item, stored), update, context, call)
        self._moves.append(Move(update, stored.state, outcome.revision, context.plan_id))
        return outcome

    def _write_moves(self) -> None:
        session = self._batch.session
        self._batch.check_at_the_end(statements.move_segments(session, self._moves))
        for state, write in _VISIBILITY.items():
            moved = [
                move.update.remote_log_segment_id
                for move in self._moves
                if move.update.state is state
            ]
            if moved:
                write(session, moved)


def _event(item: SegmentUpdate, stored: AnyRow) -> SegmentEvent:
    segment_id, own = segment_id_of(item), stored.broker_leader_epoch
    epoch = item.context.broker_leader_epoch
    return SegmentEvent(
        segment_id,
        from_state=stored.state,
        to_state=item.update.state.value,
        key=event_key_of(segment_id.topic_id_partition, stored.end_offset, own),
        broker_id=item.update.broker_id,
        broker_leader_epoch=own if epoch is None else epoch,
    )
