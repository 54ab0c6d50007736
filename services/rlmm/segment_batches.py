"""Many segments moved at once: update_remote_log_segment_metadata_batch.

One transaction per partition. What the single call does in a dozen statements per segment is done
here in a handful per partition; who may move is judged by the same code (transitions.may_move).
COPY_SEGMENT_FINISHED alone goes one by one: what it displaces depends on the order.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TypeAlias

from sqlalchemy.orm import Session

from services.api.calls import MutationOutcome
from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError, RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import (
    MAX_UPDATE_BATCH,
    SegmentUpdate,
    UpdateOutcome,
)
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require
from services.rlmm import batch_statements as statements
from services.rlmm import partitions, segments, visibility
from services.rlmm.batch_statements import Move, Remembered
from services.rlmm.limits import Limits, check_storable
from services.rlmm.outcomes import applied_once, body_digest, require_same_body
from services.rlmm.tables import PartitionRow
from services.rlmm.transactions import Transactions
from services.rlmm.transitions import Guards, may_move, unknown_segment

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

Outcomes: TypeAlias = dict[int, UpdateOutcome]
"""By the item's place in the batch."""


def update_all(
    transactions: Transactions, limits: Limits, updates: Sequence[SegmentUpdate]
) -> list[UpdateOutcome]:
    """See RemoteLogMetadataManager.update_remote_log_segment_metadata_batch."""
    _check(updates)
    outcomes = Outcomes()
    by_partition: dict[TopicIdPartition, list[int]] = {}
    for place, item in enumerate(updates):
        try:
            limits.check_update(item.update)
            check_storable(item.context)
        except RemoteStorageError as e:
            outcomes[place] = e
            continue
        tp = item.update.remote_log_segment_id.topic_id_partition
        by_partition.setdefault(tp, []).append(place)
    # Batches that come together take the partitions in one order: whoever is first stays first.
    for tp in sorted(by_partition, key=lambda tp: (tp.topic_id, tp.partition)):
        items = {place: updates[place] for place in by_partition[tp]}
        outcomes |= transactions.change(partial(_update_partition, tp=tp, items=items))
    return [outcomes[place] for place in range(len(updates))]


def _check(updates: Sequence[SegmentUpdate]) -> None:
    count, most = len(updates), MAX_UPDATE_BATCH
    require(1 <= count <= most, "updates", f"must be 1 to {most}, are {count}")
    places: dict[tuple[object, ...], int] = {}
    for place, item in enumerate(updates):
        segment_id = item.update.remote_log_segment_id
        tp = segment_id.topic_id_partition
        first = places.setdefault((tp.topic_id, tp.partition, segment_id.id), place)
        if first != place:
            raise InvalidRequestError(f"updates[{place}]: updates[{first}] has {segment_id} too")


def _update_partition(
    session: Session, tp: TopicIdPartition, items: Mapping[int, SegmentUpdate]
) -> Outcomes:
    try:
        partition = partitions.lock_known(session, tp)
    except (RemoteResourceNotFoundError, InvalidRequestError) as e:
        return dict.fromkeys(items, e)
    guards, outcomes = Guards(session, partition), Outcomes()
    for finishes, places in groupby(items, lambda place: items[place].update.state is FINISHED):
        if finishes:
            outcomes |= {
                place: _finish(session, partition, items[place], guards) for place in places
            }
        else:
            run = list(places)
            deletions = _Deletions(session, partition, [items[place] for place in run], guards)
            outcomes |= zip(run, deletions.outcomes(), strict=True)
    return outcomes


def _finish(
    session: Session, partition: PartitionRow, item: SegmentUpdate, guards: Guards
) -> UpdateOutcome:
    update, context = item.update, item.context
    try:
        return applied_once(
            session,
            partition,
            update,
            context,
            lambda: segments.move(session, partition, update, context, guards),
        )
    except RemoteStorageError as e:
        return e


class _Deletions:
    """Items to DELETE_SEGMENT_STARTED and DELETE_SEGMENT_FINISHED, judged in their order and
    written together: none of them depends on what another does to its segment."""

    def __init__(
        self,
        session: Session,
        partition: PartitionRow,
        items: Sequence[SegmentUpdate],
        guards: Guards,
    ) -> None:
        self._session = session
        self._partition = partition
        self._items = items
        self._guards = guards
        ids = [item.update.remote_log_segment_id.id for item in items]
        self._stored = statements.stored_segments(session, partition, ids)
        request_ids = [i.context.request_id for i in items if i.context.request_id is not None]
        self._remembered = statements.remembered(session, partition, request_ids)
        self._moves: list[Move] = []
        self._repeated: Counter[int] = Counter()

    def outcomes(self) -> list[UpdateOutcome]:
        outcomes = [self._judged(item) for item in self._items]
        if self._moves:
            self._write()
        if self._repeated:
            statements.count_repeats(self._session, self._partition, self._repeated)
        return outcomes

    def _judged(self, item: SegmentUpdate) -> UpdateOutcome:
        try:
            return self._outcome(item)
        except RemoteStorageError as e:
            return e

    def _outcome(self, item: SegmentUpdate) -> MutationOutcome:
        update, context = item.update, item.context
        digest = b"" if context.request_id is None else body_digest(update, context)
        if context.request_id in self._remembered:
            earlier = self._remembered[context.request_id]
            require_same_body(context.request_id, earlier.body_digest, digest)
            self._repeated[earlier.revision] += 1
            return MutationOutcome(applied=True, revision=earlier.revision)
        stored = self._stored.get(update.remote_log_segment_id.id)
        if stored is None:
            raise unknown_segment(update.remote_log_segment_id)
        if not may_move(self._guards, stored, update, context):
            self._repeated[stored.state_revision] += 1
            return MutationOutcome(applied=False, revision=stored.state_revision)
        partition = self._partition
        partition.revision += 1
        self._moves.append(Move(update, context, stored, partition.revision, digest))
        if context.request_id is not None:
            self._remembered[context.request_id] = Remembered(digest, partition.revision)
        return MutationOutcome(applied=True, revision=partition.revision)

    def _write(self) -> None:
        session, partition, moves = self._session, self._partition, self._moves
        statements.move_segments(session, partition, moves)
        hidden = [move.segment_id for move in moves if move.update.state is DELETE_STARTED]
        forgotten = [move.segment_id for move in moves if move.update.state is DELETE_FINISHED]
        if hidden:
            visibility.hide(session, partition, hidden)
        if forgotten:
            visibility.forget(session, partition, forgotten)
        statements.record_moves(session, partition, moves)
        statements.remember(session, partition, moves)
