"""Copies that begin: add_remote_log_segment_metadata, also in batches.

Judged item by item in their order and written in a handful of statements, whatever their number.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from sqlalchemy.orm import Session

from services.api.calls import Call, MutationContext, MutationOutcome
from services.api.errors import (
    InvalidStateTransitionError,
    RemoteStorageError,
    SegmentAlreadyExistsError,
)
from services.api.ids import TopicIdPartition
from services.api.segment_batches import AddOutcome, SegmentAddition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.validation import require, within
from services.rlmm import batch_statements as statements
from services.rlmm import visibility
from services.rlmm.batch_records import SegmentEvent
from services.rlmm.batch_statements import Addition
from services.rlmm.batches import (
    Asked,
    Outcome,
    Outcomes,
    change_all,
    change_sound,
    require_distinct,
)
from services.rlmm.limits import Limits, check_storable
from services.rlmm.locked_partitions import LockedPartitions, make_known
from services.rlmm.partition_view import PartitionView
from services.rlmm.partitions import fence, raise_leader_epoch
from services.rlmm.rows import AnyRow, event_key, segment_from_row
from services.rlmm.segment_batch import SegmentBatch, change_in
from services.rlmm.segment_change import segment_id_of, tp_of
from services.rlmm.transactions import Transactions

MAX_ADDED_EPOCHS = 50_000
"""Of one batch together: each is a row."""

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED

Additions: TypeAlias = Mapping[int, Asked[SegmentAddition]]
"""By their places in the batch, which are in order."""


def add_all(
    transactions: Transactions, limits: Limits, additions: Sequence[SegmentAddition]
) -> list[AddOutcome]:
    """See RemoteLogMetadataManager.add_remote_log_segment_metadata_batch."""
    require_distinct([segment_id_of(item) for item in additions], "adds")
    epochs = sum(len(item.metadata.segment_leader_epochs) for item in additions)
    most = MAX_ADDED_EPOCHS
    require(epochs <= most, "adds", f"at most {most} leader epochs together, has {epochs}")
    return change_sound(transactions, additions, partial(check, limits), _add_in)


def check(limits: Limits, addition: SegmentAddition) -> None:
    """Refuse what no partition could take."""
    limits.check_addition(addition.metadata)
    check_storable(addition.context)


def add_alone(transactions: Transactions, addition: SegmentAddition) -> Outcome:
    """In a transaction of its own; waits for the partition's lock, or makes the partition known."""
    return change_all(transactions, {0: Asked(addition)}, _add_in)[0]


def add(batch: SegmentBatch, additions: Additions) -> Outcomes:
    """Judge the additions in their order and write the new segments."""
    return _Additions(batch, additions).outcomes()


def _add_in(session: Session, additions: Additions) -> Outcomes:
    tps = [tp_of(asked.item) for asked in additions.values()]
    created = make_known(session, tps)

    def lock(session: Session, tps: Iterable[TopicIdPartition]) -> LockedPartitions:
        return LockedPartitions.lock(session, tps, created)

    return change_in(session, lock, additions.values(), lambda batch: add(batch, additions))


class _Additions:
    def __init__(self, batch: SegmentBatch, items: Additions) -> None:
        self._batch = batch
        self._items = items
        self._added: list[Addition] = []

    def outcomes(self) -> Outcomes:
        outcomes = {place: self._judged(asked) for place, asked in self._items.items()}
        if self._added:
            session = self._batch.session
            statements.add_segments(session, self._added)
            visibility.note_copies_started(session, [each.metadata for each in self._added])
        return outcomes

    def _judged(self, asked: Asked[SegmentAddition]) -> Outcome:
        try:
            return self._outcome(asked.item, asked.call)
        except RemoteStorageError as e:
            return e

    def _outcome(self, item: SegmentAddition, call: Call) -> MutationOutcome:
        metadata, context, records = item.metadata, item.context, self._batch.records
        with within("metadata.remote_log_segment_id"):
            locked = self._batch.partitions.of(metadata.topic_id_partition)
        answer = records.answered_before(locked.row, metadata, context)
        if answer is not None:
            return answer
        epoch = _require_may_add(locked.row, metadata, context)
        stored = self._batch.stored(segment_id_of(item))
        if stored is not None:
            return records.repeat(locked.row, _added_before(stored, metadata))
        locked.guards.require_expected(context)
        raise_leader_epoch(locked.row, epoch)
        event = SegmentEvent(
            segment_id_of(item),
            from_state=None,
            to_state=metadata.state.value,
            key=event_key(metadata),
            broker_id=metadata.broker_id,
            broker_leader_epoch=epoch,
        )
        outcome = records.change(locked.row, event, metadata, context, call)
        self._added.append(Addition(metadata, outcome.revision, item.lease_ms))
        return outcome


def _require_may_add(
    partition: PartitionView, metadata: RemoteLogSegmentMetadata, context: MutationContext
) -> int | None:
    """The broker leader epoch of the call.

    Raises:
        InvalidStateTransitionError: the partition is being deleted.
        FencedLeaderEpochError: the epoch is below the partition's highest.
    """
    tp, epoch = metadata.topic_id_partition, context.broker_leader_epoch
    if epoch is None:
        epoch = metadata.broker_leader_epoch
    if partition.delete_state is not None:
        raise InvalidStateTransitionError(f"partition {tp} is in {partition.delete_state}")
    fence(partition, tp, epoch)
    return epoch


def _added_before(stored: AnyRow, metadata: RemoteLogSegmentMetadata) -> int:
    """The revision that carries the stored segment, which is to be added again.

    Raises:
        InvalidStateTransitionError: it is in a later state.
        SegmentAlreadyExistsError: it has other content.
    """
    segment_id = metadata.remote_log_segment_id
    if stored.state != STARTED.value:
        raise InvalidStateTransitionError(
            f"segment {segment_id}: {stored.state} to {STARTED.value}"
        )
    if segment_from_row(stored, segment_id.topic_id_partition) != metadata:
        raise SegmentAlreadyExistsError(f"segment {segment_id} is there with other content")
    revision: int = stored.state_revision
    return revision
