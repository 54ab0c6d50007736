"""One partition of RLMM, one operation after another: what concurrent histories are held against.

Written from the contract (services/api/remote_log_metadata_manager.py), not from the SQL. States
never change; each operation gives a next one. Left out, as no client here uses them: settings of
topics, reports of leaders.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRangeError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    SegmentAlreadyExistsError,
)
from services.api.partitions import RemotePartitionDeleteMetadata
from services.api.remote_log_metadata_manager import SegmentUpdate
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tests.deep.linearizability.operations import (
    Add,
    Announce,
    Announced,
    Changed,
    Event,
    Mutation,
    PutDeletion,
    RaiseLogStart,
    Refused,
    ResetLeaderEpoch,
    Single,
    Undelete,
    Update,
    UpdateBatch,
)
from tests.deep.linearizability.partition import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    STARTED,
    Body,
    LeaderEpoch,
    Partition,
    Stored,
)

_MAY_FOLLOW = {
    (STARTED, FINISHED),
    (STARTED, DELETE_STARTED),
    (FINISHED, DELETE_STARTED),
    (DELETE_STARTED, DELETE_FINISHED),
}
_DELETION_BEFORE = {MARKED: None, PARTITION_STARTED: MARKED, PARTITION_FINISHED: PARTITION_STARTED}
_NO_BROKER = -1


@dataclass(frozen=True, slots=True)
class Step:
    """What a mutation does to a partition: nothing, where there are no events."""

    partition: Partition
    reply: Changed | Refused | Announced
    events: tuple[Event, ...] = ()


_Item: TypeAlias = tuple[Partition, MutationOutcome, Event | None]


def mutated(partition: Partition, operation: Mutation) -> Step:
    """The partition after `operation`, and what the caller is answered."""
    match operation:
        case UpdateBatch(items):
            return _all_of(partition, items)
        case Announce(leadership, broker_id):
            return _announce(partition, leadership.leader_epoch, broker_id)
    try:
        after, outcome, event = _single(partition, operation)
    except RemoteStorageError as e:
        return Step(partition, Refused(type(e).__name__))
    return Step(after, Changed((outcome,)), () if event is None else (event,))


def _single(partition: Partition, operation: Single) -> _Item:
    match operation:
        case Add(metadata, context, is_leased):
            return _once(
                partition, metadata, context, lambda: _add(partition, metadata, context, is_leased)
            )
        case Update(item):
            return _update(partition, item, partition.revision)
        case PutDeletion(deletion, context):
            if deletion.state is not MARKED:
                _require_seen(partition)
            return _once(
                partition, deletion, context, lambda: _delete(partition, deletion, context)
            )
        case Undelete(context):
            _require_seen(partition)
            return _once(partition, "undelete", context, lambda: _undelete(partition, context))
        case ResetLeaderEpoch(epoch, context):
            _require_seen(partition)
            return _once(
                partition, ("reset", epoch), context, lambda: _reset(partition, epoch, context)
            )
        case RaiseLogStart(offset, context):
            _require_seen(partition)
            return _once(
                partition, offset, context, lambda: _raise_log_start(partition, offset, context)
            )


def _all_of(partition: Partition, items: tuple[SegmentUpdate, ...]) -> Step:
    before = partition.revision
    outcomes: list[MutationOutcome | Refused] = []
    events: list[Event] = []
    for item in items:
        try:
            partition, outcome, event = _update(partition, item, before)
        except RemoteStorageError as e:
            outcomes.append(Refused(type(e).__name__))
            continue
        outcomes.append(outcome)
        if event is not None:
            events.append(event)
    return Step(partition, Changed(tuple(outcomes)), tuple(events))


def _once(
    partition: Partition, asked: object, context: MutationContext, change: Callable[[], _Item]
) -> _Item:
    """What `change` does, but for a request id that is remembered."""
    why = replace(context, request_id=None, expected_revision=None, expected_config_revision=None)
    body: Body = (asked, why)
    request_id = context.request_id
    if request_id is not None and request_id in partition.remembered:
        earlier, revision = partition.remembered[request_id]
        if earlier != body:
            raise InvalidRequestError("the request id came with another body")
        return partition, MutationOutcome(True, revision), None
    after, outcome, event = change()
    if outcome.applied and request_id is not None:
        remembered = {**after.remembered, request_id: (body, outcome.revision)}
        after = replace(after, remembered=remembered)
    return after, outcome, event


def _add(
    partition: Partition,
    metadata: RemoteLogSegmentMetadata,
    context: MutationContext,
    is_leased: bool,
) -> _Item:
    epoch = context.broker_leader_epoch
    if epoch is None:
        epoch = metadata.broker_leader_epoch
    if partition.delete_state is not None:
        raise InvalidStateTransitionError("the partition is being deleted")
    _fence(partition, epoch)
    segment_id = metadata.remote_log_segment_id.id
    stored = partition.segments.get(segment_id)
    if stored is not None:
        if stored.metadata.state is not STARTED:
            raise InvalidStateTransitionError("in a later state")
        if stored.metadata != metadata:
            raise SegmentAlreadyExistsError("with other content")
        return _repeat(partition, stored.state_revision)
    _require_expected(context, partition.revision)
    revision = partition.revision + 1
    after = replace(
        partition,
        revision=revision,
        highest_broker_leader_epoch=_highest(partition, epoch),
        segments={
            **partition.segments,
            segment_id: Stored(metadata, revision, is_leased=is_leased),
        },
    )
    event = Event(
        revision,
        "SEGMENT",
        None,
        STARTED.value,
        segment_id,
        metadata.broker_id,
        epoch,
        context.request_id,
        context.reason,
    )
    return after, MutationOutcome(True, revision), event


def _update(partition: Partition, item: SegmentUpdate, revision_before: int) -> _Item:
    """`revision_before`: of the partition before the call, to which expectations refer."""
    _require_seen(partition)
    update, context = item.update, item.context
    return _once(
        partition, update, context, lambda: _move(partition, update, context, revision_before)
    )


def _move(
    partition: Partition,
    update: RemoteLogSegmentMetadataUpdate,
    context: MutationContext,
    revision_before: int,
) -> _Item:
    segment_id, target = update.remote_log_segment_id.id, update.state
    stored = partition.segments.get(segment_id)
    if stored is None:
        raise RemoteResourceNotFoundError("no such segment")
    present = stored.metadata.state
    if present is target or (present, target) == (DELETE_FINISHED, DELETE_STARTED):
        if update.custom_metadata not in (None, stored.metadata.custom_metadata):
            raise SegmentAlreadyExistsError("with other custom metadata")
        return _repeat(partition, stored.state_revision)
    if (present, target) not in _MAY_FOLLOW:
        raise InvalidStateTransitionError("not allowed")
    is_own_copy = present is STARTED and stored.metadata.broker_id == update.broker_id
    if target is DELETE_STARTED and not is_own_copy:
        _fence(partition, context.broker_leader_epoch)
    _require_expected(context, revision_before)
    is_copied = present is STARTED and stored.is_leased
    if target is DELETE_STARTED and is_copied and not is_own_copy:
        raise DeletionRefusedError("leased")
    revision, metadata = partition.revision + 1, stored.metadata.updated(update)
    finished_revision = revision if target is FINISHED else stored.finished_revision
    segments = {
        **partition.segments,
        segment_id: Stored(metadata, revision, finished_revision),
    }
    epochs = {**partition.epochs, **_epochs_after(partition, metadata)}
    epoch = context.broker_leader_epoch
    event = Event(
        revision,
        "SEGMENT",
        present.value,
        target.value,
        segment_id,
        update.broker_id,
        metadata.broker_leader_epoch if epoch is None else epoch,
        context.request_id,
        context.reason,
    )
    after = replace(partition, revision=revision, segments=segments, epochs=epochs)
    return after, MutationOutcome(True, revision), event


def _epochs_after(
    partition: Partition, metadata: RemoteLogSegmentMetadata
) -> Mapping[int, LeaderEpoch]:
    """The segment's leader epochs, now that it is in its state."""
    segment_id, changed = metadata.remote_log_segment_id.id, {}
    for epoch, start, end in metadata.epoch_ranges():
        before = partition.epochs.get(epoch, LeaderEpoch())
        referenced = list(before.referenced)
        if metadata.state is FINISHED:
            while referenced and referenced[-1][0] >= start and before.highest_offset <= end:
                referenced.pop()
            kept = [entry for entry in referenced if entry[0] != start]
            now = tuple(sorted([*kept, (start, segment_id)]))
            changed[epoch] = LeaderEpoch(now, max(before.highest_offset, end))
        elif (start, segment_id) in referenced:
            referenced.remove((start, segment_id))
            changed[epoch] = replace(before, referenced=tuple(referenced))
    return changed


def _delete(
    partition: Partition, deletion: RemotePartitionDeleteMetadata, context: MutationContext
) -> _Item:
    target, present = deletion.state, partition.delete_state
    if target is MARKED:
        _fence(partition, context.broker_leader_epoch)
    if present is not None and target in (present, MARKED):
        return _repeat(partition, partition.deletion_revisions[target])
    if present is not _DELETION_BEFORE[target]:
        raise InvalidStateTransitionError("out of order")
    states = {stored.metadata.state for stored in partition.segments.values()}
    if target is PARTITION_FINISHED and not states <= {DELETE_FINISHED}:
        raise InvalidStateTransitionError("segments remain")
    _require_expected(context, partition.revision)
    revision = partition.revision + 1
    after = replace(
        partition,
        revision=revision,
        delete_state=target,
        deletion_revisions={**partition.deletion_revisions, target: revision},
    )
    event = Event(
        revision,
        "PARTITION_DELETE",
        None if present is None else present.value,
        target.value,
        None,
        deletion.broker_id,
        context.broker_leader_epoch,
        context.request_id,
        context.reason,
    )
    return after, MutationOutcome(True, revision), event


def _undelete(partition: Partition, context: MutationContext) -> _Item:
    present = partition.delete_state
    if present is PARTITION_FINISHED:
        raise RemoteResourceNotFoundError("deleted")
    if present is None:
        return _repeat(partition, partition.revision)
    if present is not MARKED:
        raise InvalidStateTransitionError("its segments are going already")
    _require_expected(context, partition.revision)
    revision = partition.revision + 1
    event = Event(
        revision,
        "PARTITION_DELETE",
        present.value,
        None,
        None,
        _NO_BROKER,
        context.broker_leader_epoch,
        context.request_id,
        context.reason,
    )
    after = replace(partition, revision=revision, delete_state=None)
    return after, MutationOutcome(True, revision), event


def _reset(partition: Partition, leader_epoch: int | None, context: MutationContext) -> _Item:
    before = partition.highest_broker_leader_epoch
    if partition.delete_state is PARTITION_FINISHED:
        raise RemoteResourceNotFoundError("deleted")
    if before == leader_epoch:
        return _repeat(partition, partition.revision)
    _require_expected(context, partition.revision)
    revision = partition.revision + 1
    event = Event(
        revision,
        "LEADER_EPOCH_RESET",
        None if before is None else str(before),
        None if leader_epoch is None else str(leader_epoch),
        None,
        _NO_BROKER,
        leader_epoch,
        context.request_id,
        context.reason,
    )
    after = replace(partition, revision=revision, highest_broker_leader_epoch=leader_epoch)
    return after, MutationOutcome(True, revision), event


def _raise_log_start(partition: Partition, offset: int, context: MutationContext) -> _Item:
    if partition.delete_state is PARTITION_FINISHED:
        raise RemoteResourceNotFoundError("deleted")
    if offset <= partition.log_start_offset:
        return _repeat(partition, partition.revision)
    _fence(partition, context.broker_leader_epoch)
    _require_expected(context, partition.revision)
    if offset > max([epoch.highest_offset + 1 for epoch in partition.epochs.values()], default=0):
        raise InvalidRangeError("above what was copied")
    revision = partition.revision + 1
    event = Event(
        revision,
        "LOG_START",
        str(partition.log_start_offset),
        str(offset),
        None,
        _NO_BROKER,
        context.broker_leader_epoch,
        context.request_id,
        context.reason,
    )
    after = replace(partition, revision=revision, log_start_offset=offset)
    return after, MutationOutcome(True, revision), event


def _announce(partition: Partition, leader_epoch: int | None, broker_id: int) -> Step:
    highest = _highest(partition, leader_epoch)
    is_news = partition.revision == 0 or highest != partition.highest_broker_leader_epoch
    if partition.delete_state is PARTITION_FINISHED or not is_news:
        return Step(partition, Announced())
    revision = partition.revision + 1
    after = replace(partition, revision=revision, highest_broker_leader_epoch=highest)
    event = Event(revision, "LEADERSHIP", None, None, None, broker_id, leader_epoch, None, "")
    return Step(after, Announced(), (event,))


def _repeat(partition: Partition, revision: int) -> _Item:
    return partition, MutationOutcome(False, revision), None


def _highest(partition: Partition, leader_epoch: int | None) -> int | None:
    known = [e for e in (partition.highest_broker_leader_epoch, leader_epoch) if e is not None]
    return max(known, default=None)


def _fence(partition: Partition, leader_epoch: int | None) -> None:
    if leader_epoch is not None and _highest(partition, leader_epoch) != leader_epoch:
        raise FencedLeaderEpochError("an older leader")


def _require_expected(context: MutationContext, revision: int) -> None:
    if context.expected_revision not in (None, revision):
        raise ConcurrentUpdateError("another revision")


def _require_seen(partition: Partition) -> None:
    """Of mutations that make no partition known; a deleted one they do find."""
    if partition.revision == 0:
        raise RemoteResourceNotFoundError("no such partition")
