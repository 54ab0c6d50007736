"""Add segments, and move them from state to state."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TypeAlias

from sqlalchemy import Connection

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    InvalidStateTransitionError,
    RemoteStorageError,
    SegmentAlreadyExistsError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_log_metadata_manager import SegmentUpdate, UpdateOutcome
from services.api.segment_batches import AddOutcome, SegmentAddition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.validation import require
from services.rlmm.changes import batch as statements
from services.rlmm.changes.audit import Event, addition_event
from services.rlmm.changes.batch import (
    Addition,
    Change,
    Move,
    Outcome,
    Outcomes,
    Requested,
    SegmentBatch,
    SegmentChange,
    change_in,
    change_sound,
    require_distinct,
    segment_id_of,
    tp_of,
)
from services.rlmm.changes.locked_partitions import LockedPartitions, ensure_partitions
from services.rlmm.database import epoch_index
from services.rlmm.database.db import PartitionKey, Transactions, key_of, partition_row, run
from services.rlmm.database.limits import Limits, check_storable
from services.rlmm.database.rows import (
    AnyRow,
    event_key_of,
    kept_until_ms_of,
    segment_from_row,
)
from services.rlmm.guards import (
    Partition,
    fence,
    illegal_move,
    is_superseded,
    may_move,
    raise_leader_epoch,
    unknown_segment,
)

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_VISIBILITY = {
    FINISHED: epoch_index.publish,
    DELETE_STARTED: epoch_index.unpublish,
    DELETE_FINISHED: epoch_index.delete,
}


_HIGHEST_OFFSETS = """
    SELECT h.topic_id, h.partition, h.leader_epoch, h.highest_offset
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int, leader_epoch int)
    CROSS JOIN LATERAL (
        SELECT * FROM highest_offsets
        WHERE topic_id = wanted.topic_id AND partition = wanted.partition
            AND leader_epoch = wanted.leader_epoch
        LIMIT 1
    ) AS h"""

_EpochKey: TypeAlias = tuple[PartitionKey, int]


def index_in_order(
    connection: Connection,
    added: Sequence[RemoteLogSegmentMetadata],
    finished: Sequence[RemoteLogSegmentMetadata],
) -> None:
    """Index imported segments as if they had been added and then published in this order.

    Args:
        finished: which come finished, or were added earlier and finish now.
    """
    if indexed := [each for each in added if each.state is not DELETE_FINISHED]:
        epoch_index.add(connection, indexed)
    if finished:
        for some in _runs(finished, _highest_offsets(connection, finished)):
            epoch_index.publish(connection, [each.remote_log_segment_id for each in some])


def _runs(
    segments: Sequence[RemoteLogSegmentMetadata], highest_offsets: dict[_EpochKey, int]
) -> Iterator[list[RemoteLogSegmentMetadata]]:
    """Split the segments into runs that `publish` accepts at once, and single segments.

    Args:
        highest_offsets: of each partition's leader epochs, the highest offset that finished before
            the first segment; it is raised on the way.
    """
    some: list[RemoteLogSegmentMetadata] = []
    for segment in segments:
        key, ranges = key_of(segment.topic_id_partition), segment.epoch_ranges()
        if all(highest_offsets.get((key, it), -1) < start <= end for it, start, end in ranges):
            some.append(segment)
        else:
            if some:
                yield some
            yield [segment]
            some = []
        for it, _, end in ranges:
            highest_offsets[key, it] = max(highest_offsets.get((key, it), -1), end)
    if some:
        yield some


def _highest_offsets(
    connection: Connection, segments: Sequence[RemoteLogSegmentMetadata]
) -> dict[_EpochKey, int]:
    """Read the highest finished offset of each leader epoch that the segments have."""
    wanted = {
        (key_of(segment.topic_id_partition), each.leader_epoch)
        for segment in segments
        for each in segment.segment_leader_epochs
    }
    rows = [{**partition_row(key), "leader_epoch": epoch} for key, epoch in wanted]
    return {
        ((row.topic_id, row.partition), row.leader_epoch): row.highest_offset
        for row in run(connection, _HIGHEST_OFFSETS, rows)
    }


MAX_ADDED_EPOCHS = 50_000
"""The most leader epochs of one batch of additions; each is a row."""

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED

Additions: TypeAlias = Mapping[int, Requested[SegmentAddition]]
"""Items by their places in the batch, in order."""


def add_all(
    transactions: Transactions, limits: Limits, additions: Sequence[SegmentAddition]
) -> list[AddOutcome]:
    """Add segments; see RemoteLogMetadataManager.add_remote_log_segment_metadata_batch."""
    require_distinct([segment_id_of(item) for item in additions], "adds")
    epochs = sum(len(item.metadata.segment_leader_epochs) for item in additions)
    most = MAX_ADDED_EPOCHS
    require(epochs <= most, "adds", f"at most {most} leader epochs together, has {epochs}")
    return change_sound(transactions, additions, partial(check_addition, limits), _add_in)


def check_addition(limits: Limits, addition: SegmentAddition) -> None:
    """Refuse an addition that no partition can accept."""
    limits.check_addition(addition.metadata)
    check_storable(addition.context)


def _add_in(connection: Connection, additions: Additions) -> Outcomes:
    tps = [tp_of(requested.item) for requested in additions.values()]
    created = ensure_partitions(connection, tps)

    def lock(connection: Connection, tps: Iterable[TopicIdPartition]) -> LockedPartitions:
        return LockedPartitions.lock(connection, tps, created)

    return change_in(
        connection, lock, additions.values(), lambda batch: _Additions(batch, additions).outcomes()
    )


class _Additions:
    def __init__(self, batch: SegmentBatch, items: Additions) -> None:
        self._batch = batch
        self._items = items
        self._added: list[Addition] = []

    def outcomes(self) -> Outcomes:
        outcomes = {
            place: self._batch.outcome(requested, partial(self._add, requested.item))
            for place, requested in self._items.items()
        }
        if self._added:
            connection = self._batch.connection
            statements.add_segments(connection, self._added)
            epoch_index.add(connection, [each.metadata for each in self._added])
        return outcomes

    def _add(self, item: SegmentAddition, change: Change) -> MutationOutcome:
        metadata, partition, context = item.metadata, change.partition, item.context
        epoch = _require_may_add(partition, metadata, context)
        stored = self._batch.stored(metadata.remote_log_segment_id)
        if stored is not None:
            return change.repeat(_added_before(stored, metadata))
        change.locked.require_expected(context)
        change.locked.require_copier(context)
        raise_leader_epoch(partition, epoch)
        outcome = change.record(addition_event(metadata, epoch))
        custom = (None, metadata.custom_metadata)
        partition.move_totals(None, metadata.state, metadata.segment_size_in_bytes, custom)
        self._added.append(Addition(metadata, outcome.revision, item.lease_ms))
        return outcome


def _require_may_add(
    partition: Partition, metadata: RemoteLogSegmentMetadata, context: MutationContext
) -> int | None:
    """Return the broker leader epoch of the call if the partition accepts new segments.

    Raises:
        InvalidStateTransitionError: the partition is being deleted.
        FencedLeaderEpochError: the epoch is below the partition's highest.
    """
    tp, epoch = metadata.topic_id_partition, context.broker_leader_epoch
    if epoch is None:
        epoch = metadata.broker_leader_epoch
    if partition.delete_state is not None:
        raise InvalidStateTransitionError(
            f"partition {tp} is in {partition.delete_state} and takes no new segments"
        )
    fence(partition, tp, epoch)
    return epoch


def _added_before(stored: AnyRow, metadata: RemoteLogSegmentMetadata) -> int:
    """Return the revision that added the stored segment if the addition repeats it.

    Raises:
        InvalidStateTransitionError: the stored segment is in a later state.
        SegmentAlreadyExistsError: the stored segment has other content.
    """
    segment_id = metadata.remote_log_segment_id
    if stored.state != STARTED.value:
        raise illegal_move(f"segment {segment_id}", stored.state, STARTED.value)
    if segment_from_row(stored, segment_id.topic_id_partition) != metadata:
        raise SegmentAlreadyExistsError(
            f"segment {segment_id} exists with other content; use a new id for each copy"
        )
    revision: int = stored.state_revision
    return revision


Updates: TypeAlias = Mapping[int, Requested[SegmentUpdate]]
"""Items by their places in the batch, in order."""


def update_all(
    transactions: Transactions, limits: Limits, updates: Sequence[SegmentUpdate]
) -> list[UpdateOutcome]:
    """Update segments; see RemoteLogMetadataManager.update_remote_log_segment_metadata_batch."""
    require_distinct([segment_id_of(item) for item in updates], "updates")
    return change_sound(transactions, updates, partial(check_update, limits), _update_in)


def check_update(limits: Limits, update: SegmentUpdate) -> None:
    """Refuse an update that no partition can accept."""
    limits.check_update(update.update)
    check_storable(update.context)


def update(batch: SegmentBatch, updates: Updates) -> Outcomes:
    """Check the updates in their order and move their segments."""
    return _Moves(batch, updates).outcomes()


def _update_in(connection: Connection, updates: Updates) -> Outcomes:
    lock = LockedPartitions.lock
    return change_in(connection, lock, updates.values(), lambda batch: update(batch, updates))


class _Moves:
    """Check updates in their order, then write all of them together.

    No item depends on another item's change of its own segment.
    """

    def __init__(self, batch: SegmentBatch, items: Updates) -> None:
        self._batch = batch
        self._items = items
        self._moves: list[Move] = []

    def outcomes(self) -> Outcomes:
        outcomes = {
            place: self._completed(
                requested.item,
                self._batch.outcome(requested, partial(self._move, requested.item)),
            )
            for place, requested in self._items.items()
        }
        if self._moves:
            connection = self._batch.connection
            self._batch.check_at_the_end(statements.move_segments(connection, self._moves))
            for wave in _waves(self._moves):
                _write_index(connection, wave)
        return outcomes

    def _completed(self, item: SegmentUpdate, outcome: Outcome) -> Outcome:
        """Add until when the objects stay, and to a mark the custom metadata that names them."""
        stored = self._batch.stored(segment_id_of(item))
        if stored is None or isinstance(outcome, RemoteStorageError):
            return outcome
        moved = self._moves[-1] if self._moves else None
        is_moved = moved is not None and moved.update is item.update
        kept_until_ms = moved.kept_until_ms if moved and is_moved else kept_until_ms_of(stored)
        named = None
        if item.update.state is DELETE_STARTED:
            sent, named = item.update.custom_metadata, stored.custom_metadata
            if sent is not None and stored.state in (STARTED.value, FINISHED.value):
                named = sent
        return MutationOutcome(outcome.applied, outcome.revision, named, kept_until_ms)

    def _move(self, item: SegmentUpdate, change: Change) -> MutationOutcome:
        segment_id = segment_id_of(item)
        stored = self._batch.stored(segment_id)
        if stored is None:
            raise unknown_segment(segment_id)
        kept_until_ms = kept_until_ms_of(stored)
        if may_move(change.locked, stored, item.update, item.context):
            if stored.state == FINISHED.value:
                kept_until_ms = change.locked.kept_until_ms(item.context)
        elif item.update.state is DELETE_FINISHED and change.locked.may_forget_objects(
            stored, item.context
        ):
            kept_until_ms = None
        else:
            is_own = item.context.plan_id is not None and item.context.plan_id == stored.plan_id
            return MutationOutcome(is_own, change.repeat(stored.state_revision).revision)
        outcome = change.record(_event(item, stored))
        before = RemoteLogSegmentState(stored.state)
        custom, sent = stored.custom_metadata, item.update.custom_metadata
        change.partition.move_totals(
            before,
            item.update.state,
            stored.segment_size_in_bytes,
            (custom, custom if sent is None else sent),
            is_superseded=is_superseded(item.context),
        )
        plan_id, revision = item.context.plan_id, outcome.revision
        move = Move(item.update, stored.state, revision, plan_id, kept_until_ms=kept_until_ms)
        self._moves.append(move)
        return outcome


def _waves(moves: Iterable[Move]) -> Iterator[list[Move]]:
    """Split the moves into waves for the index of offsets, which is written wave by wave.

    For each partition, a wave has a run of deletions or one finishing copy, in their order.
    """
    steps: dict[PartitionKey, list[list[Move]]] = {}
    finished_last: set[PartitionKey] = set()
    for move in moves:
        key = key_of(move.update.remote_log_segment_id.topic_id_partition)
        own = steps.setdefault(key, [])
        finishes = move.update.state is FINISHED
        if not own or finishes or key in finished_last:
            own.append([])
        own[-1].append(move)
        (finished_last.add if finishes else finished_last.discard)(key)
    for wave in zip_longest(*steps.values(), fillvalue=[]):
        yield [move for step in wave for move in step]


def _write_index(connection: Connection, wave: Iterable[Move]) -> None:
    """Write the moves of a wave into the index of offsets."""
    by_state: dict[RemoteLogSegmentState, list[RemoteLogSegmentId]] = {}
    for move in wave:
        by_state.setdefault(move.update.state, []).append(move.update.remote_log_segment_id)
    for state, write in _VISIBILITY.items():
        if state in by_state:
            write(connection, by_state[state])


def _event(item: SegmentUpdate, stored: AnyRow) -> Event:
    segment_id, own = segment_id_of(item), stored.broker_leader_epoch
    epoch = item.context.broker_leader_epoch
    return Event(
        "SEGMENT",
        stored.state,
        item.update.state.value,
        item.update.broker_id,
        own if epoch is None else epoch,
        segment_id.id,
        event_key_of(segment_id.topic_id_partition, stored.end_offset, own),
    )


def apply_unlocked(
    connection: Connection, changes: Mapping[int, Requested[SegmentChange]]
) -> Outcomes:
    """Apply the changes whose partition is known and not locked; omit the others.

    Args:
        changes: of a call each, no two of one segment.
    """

    def change(batch: SegmentBatch) -> Outcomes:
        present = {
            place: requested
            for place, requested in changes.items()
            if tp_of(requested.item) in batch.partitions
        }
        return _change(batch, present)

    return change_in(connection, LockedPartitions.lock_skip_locked, changes.values(), change)


def apply_locked(
    connection: Connection, changes: Mapping[int, Requested[SegmentChange]]
) -> Outcomes:
    """Apply changes of one partition, whose lock this waits for.

    An addition creates the partition too if it is unknown.

    Args:
        changes: of a call each, no two of one segment.
    """
    items = [requested.item for requested in changes.values()]
    added = [tp_of(item) for item in items if isinstance(item, SegmentAddition)]
    created = ensure_partitions(connection, added) if added else ()
    lock = partial(LockedPartitions.lock, created=created)
    return change_in(connection, lock, changes.values(), lambda batch: _change(batch, changes))


def _change(batch: SegmentBatch, changes: Mapping[int, Requested[SegmentChange]]) -> Outcomes:
    batch.items_are_calls = True
    additions: dict[int, Requested[SegmentAddition]] = {}
    updates: dict[int, Requested[SegmentUpdate]] = {}
    for place, requested in changes.items():
        item = requested.item
        if isinstance(item, SegmentAddition):
            additions[place] = Requested(item, requested.call)
        else:
            updates[place] = Requested(item, requested.call)
    return _Additions(batch, additions).outcomes() | update(batch, updates)
