"""One partition of RLMM, one change after another: the state, what refuses a change, what it does.

States never change; each change gives the next state, which is comparable and, by its key,
hashable. So that the history checker can search for an order of changes.

Written from Kafka's behaviour, the contract (services.api.remote_log_metadata_manager) and the
declared differences, never from services.rlmm: two that were written independently rarely have the
same error.

If several refusals apply, the first of this order is raised: malformed; not known; the request id;
the partition's deletion; the fence; the state machine; the expected revisions; the topic's settings
or a lease; the range. Only a segment's move checks the state machine before the fence.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import UUID

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRangeError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.operations import ObjectDeletion
from services.api.partitions import (
    OffsetGap,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.topic_config import RetentionOwner
from services.api.validation import INT64_MAX, require
from tests.deep.histories.kafka_cache import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    STARTED,
    KafkaCache,
)

MARKED, PARTITION_STARTED, PARTITION_FINISHED = RemotePartitionDeleteState
NO_BROKER = -1
KEPT = 1
"""The kept_until_ms of a kept segment, which stands for any time; it never passes."""

MOVES = {
    (STARTED, FINISHED),
    (STARTED, DELETE_STARTED),
    (FINISHED, DELETE_STARTED),
    (DELETE_STARTED, DELETE_FINISHED),
}
DELETION_MOVES = {
    (None, MARKED),
    (MARKED, PARTITION_STARTED),
    (PARTITION_STARTED, PARTITION_FINISHED),
}
ORDER = list(RemoteLogSegmentState)
CHANGING = ("state", "broker_id", "event_timestamp_ms", "custom_metadata")


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the audit trail, without its time, its actor and its count of repeats."""

    revision: int
    kind: str
    from_state: str | None
    to_state: str | None
    segment_id: UUID | None
    broker_id: int
    broker_leader_epoch: int | None
    request_id: str | None
    reason: str
    object_key: str = ""


@dataclass(frozen=True)
class Topic:
    name: str = ""
    entries: Mapping[str, str] = field(default_factory=dict)
    config_revision: int = 0
    at_once: Mapping[str, str] = field(default_factory=dict)
    """The latest settings that were put at once; no version grows as old as the delay here."""
    is_confirmed: bool = False
    holds: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """The partition after a call, and the answer. Without events the call was a repeat."""

    partition: "Partition"
    outcome: MutationOutcome
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Partition(KafkaCache):
    """A partition, also after its deletion; not known at revision 0. No lease ends.

    Attributes:
        moved_at: the revision that brought a segment, or the partition's deletion, to its state.
        plans: the plan that brought a segment to its state of deletion.
        lost: the offsets of recorded gaps, each with the revision that made its gap what it is.
        requests: by request id, the body of the call and the revision that it made.
        holds: by name, the first and last offset of those of this partition alone.
    """

    topic: Topic = field(default_factory=Topic)
    revision: int = 0
    moved_at: Mapping[UUID | RemotePartitionDeleteState, int] = field(default_factory=dict)
    delete_state: RemotePartitionDeleteState | None = None
    highest_broker_leader_epoch: int | None = None
    log_start_offset: int = 0
    plans: Mapping[UUID, str | None] = field(default_factory=dict)
    lost: Mapping[int, int] = field(default_factory=dict)
    requests: Mapping[str, tuple[object, int]] = field(default_factory=dict)
    holds: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def key(self) -> tuple[object, ...]:
        """Return what is equal for equal states, and hashable; the topic's settings and the
        holds are left out, which do not change in a history."""
        return (
            self.revision,
            self.highest_broker_leader_epoch,
            self.delete_state,
            self.log_start_offset,
            frozenset(self.segments.items()),
            frozenset(key for key, each in self.segments.items() if each.copy_leased),
            frozenset(key for key, each in self.segments.items() if each.kept_until_ms),
            frozenset(self.epochs.items()),
            frozenset(self.moved_at.items()),
            frozenset(self.plans.items()),
            frozenset(self.lost.items()),
            frozenset(self.requests.items()),
        )

    @property
    def is_known(self) -> bool:
        """Whether reads find it."""
        return self.revision > 0 and self.delete_state is not PARTITION_FINISHED

    @property
    def end_offset(self) -> int:
        """Exclusive, of all that ever finished."""
        highest = [epoch.highest_offset for epoch in self.epochs.values()]
        return max((end + 1 for end in highest if end is not None), default=0)

    # --- what every change goes through -------------------------------------------------------

    def once(self, body: object, context: MutationContext, change: Callable[[], Change]) -> Change:
        """Make the change, unless its request id is known.

        A request id stands for one change of a partition; a refusal is not remembered, and the
        expectations may differ from call to call.
        """
        request_id = context.request_id
        if request_id is not None and request_id in self.requests:
            same = self.requests[request_id][0] == _essence(body, context)
            require(same, "context.request_id", "came with another body before")
            return Change(self, MutationOutcome(True, self.requests[request_id][1]))
        made = change()
        if request_id is None or not made.outcome.applied:
            return made
        remembered = {request_id: (_essence(body, context), made.outcome.revision)}
        requests = {**self.requests, **remembered}
        return replace(made, partition=replace(made.partition, requests=requests))

    def event(
        self,
        context: MutationContext,
        kind: str,
        from_state: str | None,
        to_state: str | None,
        *,
        leader_epoch: int | None,
        segment_id: UUID | None = None,
        broker_id: int = NO_BROKER,
    ) -> Event:
        return Event(
            self.revision + 1,
            kind,
            from_state,
            to_state,
            segment_id,
            broker_id,
            leader_epoch,
            context.request_id,
            context.reason,
        )

    def recorded(self, event: Event, **fields: Any) -> Change:
        """Return the partition with these fields, one revision later."""
        after = replace(self, revision=event.revision, **fields)
        return Change(after, MutationOutcome(True, event.revision), (event,))

    def repeated(self, revision: int) -> Change:
        return Change(self, MutationOutcome(False, revision))

    # --- what refuses a change ----------------------------------------------------------------

    def fence(self, broker_leader_epoch: int | None) -> None:
        highest = self.highest_broker_leader_epoch
        if broker_leader_epoch is None or highest is None:
            return
        if broker_leader_epoch < highest:
            raise FencedLeaderEpochError(f"{broker_leader_epoch} is below {highest}")

    def require_expected(self, context: MutationContext, revision_before: int) -> None:
        if context.expected_revision not in (None, revision_before):
            raise ConcurrentUpdateError("the partition has another revision")
        if context.expected_config_revision not in (None, self.topic.config_revision):
            raise ConcurrentUpdateError("the topic's settings have another revision")

    def require_not_deleted(self) -> None:
        if self.delete_state is PARTITION_FINISHED:
            raise RemoteResourceNotFoundError("the partition was deleted")

    def is_held(self, start: int, end: int) -> bool:
        """Whether a hold is over one of the offsets."""
        held = [*self.topic.holds.values(), *self.holds.values()]
        return any(first <= end and start <= last for first, last in held)

    def require_no_hold(self, start: int = 0, end: int = INT64_MAX) -> None:
        if self.is_held(start, end):
            raise DeletionRefusedError("a hold keeps it")

    def require_owner(self, context: MutationContext) -> None:
        """Only the retention owner deletes, except from a partition that is being removed."""
        if self.delete_state not in (None, MARKED):
            return
        entries = self.topic.entries
        caller = context.retention_owner or RetentionOwner.BROKER
        if entries.get("sediment.retention.owner", caller.value) != caller.value:
            raise DeletionRefusedError("the topic has another retention owner")

    # --- segments -----------------------------------------------------------------------------

    def added(self, metadata: RemoteLogSegmentMetadata, context: MutationContext) -> Change:
        """Begin a copy, leased if `metadata.copy_leased`."""
        segment_id, epoch = metadata.remote_log_segment_id.id, context.broker_leader_epoch
        if epoch is None:
            epoch = metadata.broker_leader_epoch
        if self.delete_state is not None:
            raise InvalidStateTransitionError("the partition is being deleted")
        self.fence(epoch)
        stored = self.segments.get(segment_id)
        if stored is not None:
            if stored.state is not STARTED:
                raise InvalidStateTransitionError("the segment is in a later state")
            if stored != metadata:
                raise SegmentAlreadyExistsError("the segment exists with other content")
            return self.repeated(self.moved_at[segment_id])
        self.require_expected(context, self.revision)
        return self._with_segment(metadata, None, context, epoch)

    def moved(
        self,
        update: RemoteLogSegmentMetadataUpdate,
        context: MutationContext,
        revision_before: int,
    ) -> Change:
        """Move a segment to another state.

        Args:
            revision_before: of the partition before the whole batch, which expectations are about.
        """
        segment_id, target = update.remote_log_segment_id.id, update.state
        stored = self.segments.get(segment_id)
        if stored is None:
            raise RemoteResourceNotFoundError("the segment is not known")
        if self.is_repeat(stored, update):
            if update.custom_metadata not in (None, stored.custom_metadata):
                raise SegmentAlreadyExistsError("the state was reached with other custom metadata")
            self.require_not_kept(stored, target, context)
            is_own = context.plan_id is not None and context.plan_id == self.plans.get(segment_id)
            return Change(self, MutationOutcome(is_own, self.moved_at[segment_id]))
        if (stored.state, target) not in MOVES:
            raise InvalidStateTransitionError(f"{stored.state} to {target}")
        cleans_up_its_own = stored.state is STARTED and stored.broker_id == update.broker_id
        if target is DELETE_STARTED and not cleans_up_its_own:
            self.fence(context.broker_leader_epoch)
        self.require_expected(context, revision_before)
        kept_until_ms = stored.kept_until_ms
        if (stored.state, target) == (FINISHED, DELETE_STARTED):
            self.require_no_hold(stored.start_offset, stored.end_offset)
            self.require_owner(context)
            kept_until_ms = KEPT if self.keeps(context) else None
        if target is DELETE_STARTED and not cleans_up_its_own and stored.copy_leased:
            raise DeletionRefusedError("the copy is leased")
        epoch = context.broker_leader_epoch
        if epoch is None:
            epoch = stored.broker_leader_epoch
        updated = replace(self.updated(stored, update), kept_until_ms=kept_until_ms)
        return self._with_segment(updated, stored.state, context, epoch)

    def keeps(self, context: MutationContext) -> bool:
        """Return whether the objects of a finished segment stay when it is marked."""
        has_grace = self.topic.entries.get("sediment.delete.grace.ms") != "0"
        return has_grace and context.retention_owner is RetentionOwner.BROKER

    def require_not_kept(
        self,
        stored: RemoteLogSegmentMetadata,
        target: RemoteLogSegmentState,
        context: MutationContext,
    ) -> None:
        """Refuse to forget the objects of a tombstone."""
        may_forget = context.retention_owner in (RetentionOwner.RLM, RetentionOwner.SWEEP)
        if target is DELETE_FINISHED and may_forget and stored.kept_until_ms is not None:
            raise DeletionRefusedError("its objects are kept")

    def _with_segment(
        self,
        segment: RemoteLogSegmentMetadata,
        before: RemoteLogSegmentState | None,
        context: MutationContext,
        leader_epoch: int | None,
    ) -> Change:
        """Take the segment, in its new state. A new one raises the highest leader epoch."""
        segment_id = segment.remote_log_segment_id.id
        event = self.event(
            context,
            "SEGMENT",
            before and before.value,
            segment.state.value,
            leader_epoch=leader_epoch,
            segment_id=segment_id,
            broker_id=segment.broker_id,
        )
        highest = self.highest_with(leader_epoch if before is None else None)
        is_deletion = segment.state in (DELETE_STARTED, DELETE_FINISHED)
        plan = self.plans.get(segment_id) if context.plan_id is None else context.plan_id
        plans = {**self.plans, segment_id: plan} if is_deletion else self.plans
        return self.taken(segment).recorded(
            event,
            highest_broker_leader_epoch=highest,
            plans=plans,
            moved_at={**self.moved_at, segment_id: event.revision},
        )

    def is_repeat(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> bool:
        """A deleted segment may be deleted again: Kafka's expiration does so (ADR 0002)."""
        is_over = stored.state is DELETE_FINISHED and update.state is DELETE_STARTED
        return stored.state is update.state or is_over

    def updated(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> RemoteLogSegmentMetadata:
        """Declared difference: Kafka erases custom metadata that the update does not have."""
        new = update.custom_metadata
        return replace(
            stored,
            state=update.state,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=stored.custom_metadata if new is None else new,
            copy_leased=False,
        )

    def replaced(
        self, segment_id: UUID, expected: bytes, new: bytes, context: MutationContext
    ) -> Change:
        """Give a finished segment other custom metadata; look-ups prefer it as before."""
        stored = self.segments.get(segment_id)
        if stored is None:
            raise RemoteResourceNotFoundError("the segment is not known")
        if stored.state is not FINISHED:
            raise InvalidStateTransitionError("the segment is not finished")
        if stored.custom_metadata == new:
            return self.repeated(self.moved_at[segment_id])
        if stored.custom_metadata != expected:
            raise ConcurrentUpdateError("the segment has other custom metadata")
        self.require_expected(context, self.revision)
        event = self.event(
            context,
            "SEGMENT",
            FINISHED.value,
            FINISHED.value,
            leader_epoch=None,
            segment_id=segment_id,
        )
        segments = {**self.segments, segment_id: replace(stored, custom_metadata=new)}
        moved_at = {**self.moved_at, segment_id: event.revision}
        return self.recorded(event, segments=segments, moved_at=moved_at)

    def renewed(self, segment_id: UUID, broker_id: int) -> Self:
        """Lease a copy, or renew its lease."""
        stored = self.segments.get(segment_id)
        if stored is None:
            raise RemoteResourceNotFoundError("the segment is not known")
        if stored.state is not STARTED or stored.broker_id != broker_id:
            raise InvalidStateTransitionError("the copy is over, or another broker's")
        leased = {segment_id: replace(stored, copy_leased=True)}
        return replace(self, segments={**self.segments, **leased})

    # --- imports ------------------------------------------------------------------------------

    def imported(
        self, segments: Sequence[RemoteLogSegmentMetadata], context: MutationContext
    ) -> Change:
        """Add each new segment in its state, move each earlier one to it; an event for each."""
        if self.delete_state is not None:
            raise InvalidStateTransitionError("the partition is being deleted")
        after, events = self, list[Event]()
        for segment in segments:
            stored = after.segments.get(segment.remote_log_segment_id.id)
            if stored is not None and self.is_same(stored, segment):
                continue
            if stored is not None and stored.state is segment.state:
                raise SegmentAlreadyExistsError("the segment exists with other content")
            if stored is not None and not self.is_same(segment, stored):
                raise SegmentAlreadyExistsError("the segment exists with other content")
            before = None if stored is None else stored.state
            kept_until_ms = None if stored is None else stored.kept_until_ms
            taken = replace(self.as_taken(segment), kept_until_ms=kept_until_ms)
            change = after._with_segment(taken, before, context, segment.broker_leader_epoch)
            after, events = change.partition, [*events, *change.events]
        return Change(after, MutationOutcome(bool(events), after.revision), tuple(events))

    def as_taken(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """A finished segment below the log start is imported as one that is being deleted."""
        is_below = segment.end_offset < self.log_start_offset
        is_held = self.is_held(segment.start_offset, segment.end_offset)
        if segment.state is FINISHED and is_below and not is_held:
            return replace(segment, state=DELETE_STARTED)
        return segment

    def is_same(self, stored: RemoteLogSegmentMetadata, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether the stored segment is the imported one, in the same state or a later one."""
        if ORDER.index(stored.state) <= ORDER.index(segment.state):
            return stored == segment
        changed = {name: getattr(stored, name) for name in CHANGING}
        may_have_become = stored.custom_metadata is not None or segment.custom_metadata is None
        return may_have_become and replace(segment, **changed) == stored

    # --- the partition's deletion, its leader, its log start ----------------------------------

    def deleted(self, metadata: RemotePartitionDeleteMetadata, context: MutationContext) -> Change:
        present, target = self.delete_state, metadata.state
        if target is MARKED:
            self.fence(context.broker_leader_epoch)
        if present is not None and target in (present, MARKED):
            return self.repeated(self.moved_at[target])
        if (present, target) not in DELETION_MOVES:
            raise InvalidStateTransitionError(f"{present} to {target}")
        if target is PARTITION_FINISHED and self.live:
            raise InvalidStateTransitionError("segments remain")
        self.require_expected(context, self.revision)
        if target is PARTITION_STARTED:
            self.require_no_hold()
        event = self.event(
            context,
            "PARTITION_DELETE",
            present and present.value,
            target.value,
            leader_epoch=context.broker_leader_epoch,
            broker_id=metadata.broker_id,
        )
        moved_at = {**self.moved_at, target: event.revision}
        return self.recorded(event, delete_state=target, moved_at=moved_at)

    def undeleted(self, context: MutationContext) -> Change:
        self.require_not_deleted()
        present = self.delete_state
        if present is None:
            return self.repeated(self.revision)
        if present is not MARKED:
            raise InvalidStateTransitionError("the deletion of its segments has begun")
        self.require_expected(context, self.revision)
        epoch = context.broker_leader_epoch
        event = self.event(context, "PARTITION_DELETE", present.value, None, leader_epoch=epoch)
        return self.recorded(event, delete_state=None)

    def highest_with(self, leader_epoch: int | None) -> int | None:
        """Return the highest leader epoch, if there is this one too."""
        known = [e for e in (self.highest_broker_leader_epoch, leader_epoch) if e is not None]
        return max(known, default=None)

    def announced(self, leader_epoch: int | None, broker_id: int) -> Change:
        highest = self.highest_with(leader_epoch)
        is_new = self.revision == 0 or highest != self.highest_broker_leader_epoch
        if self.delete_state is PARTITION_FINISHED or not is_new:
            return self.repeated(self.revision)
        event = self.event(
            NO_CONTEXT, "LEADERSHIP", None, None, leader_epoch=leader_epoch, broker_id=broker_id
        )
        return self.recorded(event, highest_broker_leader_epoch=highest)

    def reset(self, leader_epoch: int | None, context: MutationContext) -> Change:
        """Set the highest leader epoch, also to a lower one."""
        self.require_not_deleted()
        before = self.highest_broker_leader_epoch
        if before == leader_epoch:
            return self.repeated(self.revision)
        self.require_expected(context, self.revision)
        old, new = (None if epoch is None else str(epoch) for epoch in (before, leader_epoch))
        event = self.event(context, "LEADER_EPOCH_RESET", old, new, leader_epoch=leader_epoch)
        return self.recorded(event, highest_broker_leader_epoch=leader_epoch)

    def with_log_start(self, offset: int, context: MutationContext) -> Change:
        self.require_not_deleted()
        if offset <= self.log_start_offset:
            return self.repeated(self.revision)
        self.fence(context.broker_leader_epoch)
        self.require_expected(context, self.revision)
        self.require_no_hold(self.log_start_offset, offset - 1)
        self.require_owner(context)
        if offset > self.end_offset:
            raise InvalidRangeError("log_start_offset: above what has finished")
        old, epoch = str(self.log_start_offset), context.broker_leader_epoch
        event = self.event(context, "LOG_START", old, str(offset), leader_epoch=epoch)
        return self.recorded(event, log_start_offset=offset, lost=self.lost_from(offset))

    def with_object_deletions(
        self, deletions: Sequence[ObjectDeletion], context: MutationContext
    ) -> Change:
        """Record an event for each object; of a deleted partition too, which has leftovers."""
        self.require_expected(context, self.revision)
        self.require_no_hold()
        after, events = self, list[Event]()
        for each in deletions:
            event = after.event(
                context,
                "OBJECT_DELETION",
                None,
                None,
                leader_epoch=None,
                segment_id=each.segment_id,
            )
            change = after.recorded(replace(event, object_key=each.object_key))
            after, events = change.partition, [*events, *change.events]
        return Change(after, MutationOutcome(True, after.revision), tuple(events))

    # --- gaps: lost offsets are a set, and a gap is a run of it -------------------------------

    @property
    def gaps(self) -> tuple[OffsetGap, ...]:
        """The runs of lost offsets, ascending."""
        firsts = [offset for offset in sorted(self.lost) if offset - 1 not in self.lost]
        lasts = [offset for offset in sorted(self.lost) if offset + 1 not in self.lost]
        return tuple(OffsetGap(*ends) for ends in zip(firsts, lasts, strict=True))

    def with_gap(self, gap: OffsetGap, broker_id: int, context: MutationContext) -> Change:
        self.require_not_deleted()
        offsets = range(max(gap.start_offset, self.log_start_offset), gap.end_offset + 1)
        if not offsets:
            return self.repeated(self.revision)
        if all(offset in self.lost for offset in offsets):
            return self.repeated(self.lost[offsets[0]])
        self.fence(context.broker_leader_epoch)
        if self.has_finished(offsets):
            raise InvalidStateTransitionError("a finished segment holds one of the offsets")
        self.require_expected(context, self.revision)
        event = self.event(
            context,
            "GAP",
            None,
            f"{gap.kind} {gap.start_offset}-{gap.end_offset}",
            leader_epoch=context.broker_leader_epoch,
            broker_id=broker_id,
        )
        return self.recorded(event, lost=self.lost_with(offsets, event.revision))

    def lost_with(self, offsets: range, revision: int) -> Mapping[int, int]:
        """Add lost offsets; their whole run is of this revision."""
        first, last = offsets[0], offsets[-1]
        while first - 1 in self.lost:
            first -= 1
        while last + 1 in self.lost:
            last += 1
        return {**self.lost, **dict.fromkeys(range(first, last + 1), revision)}

    def lost_from(self, offset: int) -> Mapping[int, int]:
        return {lost: revision for lost, revision in self.lost.items() if lost >= offset}

    def has_finished(self, offsets: range) -> bool:
        """Whether a finished segment, of whatever epochs, has one of them."""
        return any(
            segment.state is FINISHED
            and segment.start_offset <= offsets[-1]
            and offsets[0] <= segment.end_offset
            for segment in self.segments.values()
        )


def _essence(body: object, context: MutationContext) -> object:
    """Return what a request id stands for."""
    return body, replace(
        context, request_id=None, expected_revision=None, expected_config_revision=None
    )
