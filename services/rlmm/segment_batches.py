"""Many segments moved at once: update_remote_log_segment_metadata_batch.

What the single call does in a dozen statements per segment is done here in a handful per batch;
who may move is judged by the same code (transitions.may_move). Of one partition, two copies that
finish do not go together: what each displaces depends on the order.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from sqlalchemy.orm import Session

from services.api.calls import MutationOutcome
from services.api.errors import RemoteStorageError
from services.api.ids import RemoteLogSegmentId
from services.api.segment_changes import SegmentUpdate, UpdateOutcome
from services.api.segments import RemoteLogSegmentState
from services.api.validation import within
from services.rlmm import batch_statements as statements
from services.rlmm import visibility
from services.rlmm.batch_records import BatchRecords, SegmentEvent
from services.rlmm.batch_statements import Move
from services.rlmm.batches import Outcome, Outcomes, change_all, require_distinct
from services.rlmm.json_rows import PartitionKey, key_of
from services.rlmm.limits import Limits, check_storable
from services.rlmm.locked_partitions import LockedPartitions
from services.rlmm.rows import AnyRow, event_key_of
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

Updates = Mapping[int, SegmentUpdate]
"""By their places in the batch, which are in order."""


def update_all(
    transactions: Transactions, limits: Limits, updates: Sequence[SegmentUpdate]
) -> list[UpdateOutcome]:
    """See RemoteLogMetadataManager.update_remote_log_segment_metadata_batch."""
    require_distinct([_segment_id(item) for item in updates], "updates")
    outcomes, sound = Outcomes(), {}
    for place, item in enumerate(updates):
        try:
            limits.check_update(item.update)
            check_storable(item.context)
            sound[place] = item
        except RemoteStorageError as e:
            outcomes[place] = e
    outcomes |= change_all(transactions, sound, _segment_id, _update)
    return [outcomes[place] for place in range(len(updates))]


def _segment_id(item: SegmentUpdate) -> RemoteLogSegmentId:
    return item.update.remote_log_segment_id


def _update(session: Session, items: Updates) -> Outcomes:
    tps = (_segment_id(item).topic_id_partition for item in items.values())
    partitions = LockedPartitions.lock(session, tps)
    if any(item.update.state is DELETE_STARTED for item in items.values()):
        partitions.read_topics()
    outcomes = Outcomes()
    for wave in _waves(items):
        outcomes |= _Moves(session, partitions, wave).outcomes()
    partitions.write_back()
    return outcomes


def _waves(items: Updates) -> Iterator[Updates]:
    """The items, in waves that come one after another: of a partition, each wave has a run of
    deletions or one copy that finishes, in the partition's order."""
    steps: dict[PartitionKey, list[dict[int, SegmentUpdate]]] = {}
    finished_last: set[PartitionKey] = set()
    for place, item in items.items():
        key = key_of(_segment_id(item).topic_id_partition)
        own = steps.setdefault(key, [])
        finishes = item.update.state is FINISHED
        if not own or finishes or key in finished_last:
            own.append({})
        own[-1][place] = item
        (finished_last.add if finishes else finished_last.discard)(key)
    for wave in zip_longest(*steps.values(), fillvalue={}):
        yield {place: item for step in wave for place, item in step.items()}


class _Moves:
    """A wave: judged in the order of its items and written together, as none of them depends on
    what another does to its segment."""

    def __init__(self, session: Session, partitions: LockedPartitions, items: Updates) -> None:
        self._session = session
        self._partitions = partitions
        self._items = items
        ids = [_segment_id(item) for item in items.values()]
        self._stored = statements.stored_segments(session, ids)
        self._records = BatchRecords(
            session,
            [
                (key_of(_segment_id(item).topic_id_partition), item.context)
                for item in items.values()
            ],
        )
        self._moves: list[Move] = []

    def outcomes(self) -> Outcomes:
        outcomes = {place: self._judged(item) for place, item in self._items.items()}
        if self._moves:
            self._write_moves()
        self._records.write()
        return outcomes

    def _judged(self, item: SegmentUpdate) -> Outcome:
        try:
            return self._outcome(item)
        except RemoteStorageError as e:
            return e

    def _outcome(self, item: SegmentUpdate) -> MutationOutcome:
        update, context, segment_id = item.update, item.context, _segment_id(item)
        with within("update.remote_log_segment_id"):
            locked = self._partitions.of(segment_id.topic_id_partition)
        answer = self._records.answered_before(locked.row, update, context)
        if answer is not None:
            return answer
        stored = self._stored.get(statements.segment_key(segment_id))
        if stored is None:
            raise unknown_segment(segment_id)
        if not may_move(locked.guards, stored, update, context):
            return self._records.repeat(locked.row, stored.state_revision)
        outcome = self._records.change(locked.row, _event(item, stored), update, context)
        self._moves.append(Move(update, stored.state, outcome.revision, context.plan_id))
        return outcome

    def _write_moves(self) -> None:
        statements.move_segments(self._session, self._moves)
        for state, write in _VISIBILITY.items():
            moved = [
                move.update.remote_log_segment_id
                for move in self._moves
                if move.update.state is state
            ]
            if moved:
                write(self._session, moved)


def _event(item: SegmentUpdate, stored: AnyRow) -> SegmentEvent:
    segment_id, own = _segment_id(item), stored.broker_leader_epoch
    epoch = item.context.broker_leader_epoch
    return SegmentEvent(
        segment_id,
        from_state=stored.state,
        to_state=item.update.state.value,
        key=event_key_of(segment_id.topic_id_partition, stored.end_offset, own),
        broker_id=item.update.broker_id,
        broker_leader_epoch=own if epoch is None else epoch,
    )
