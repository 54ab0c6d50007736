"""Models with one fault each: what the comparison must find.

Each breaks one rule that a rewrite of RLMM could break; the docstring is the rule.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeAlias
from uuid import UUID

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import RemoteStorageError, SegmentAlreadyExistsError
from services.api.ids import TopicIdPartition
from services.api.operations import ObjectDeletion
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import SegmentUpdate, UpdateOutcome
from services.api.segment_batches import ImportedSegments, SegmentImport
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from tests.deep.model.kafka_cache import (
    DELETE_STARTED,
    FINISHED,
    STARTED,
    offsets_by_epoch,
)
from tests.deep.model.partition import MARKED, Change, Event, Partition
from tests.deep.model.reference import ReferenceRemoteLogMetadataManager as Reference

Fault: TypeAlias = type[Partition] | type[Reference]


class LookUpIgnoresDisplaced(Partition):
    """If Kafka's choice does not hold the offset, another finished segment may."""

    def another_for_offset(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        return None


class LaterFinishAlwaysWins(Partition):
    """Of two that hold the offset, the higher broker leader epoch answers, if both have one."""

    def preferred(
        self, earlier: RemoteLogSegmentMetadata, later: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        return later


class HighestOffsetFalls(Partition):
    """The highest offset survives the deletion of its segment."""

    def highest_offset(self, epoch: int) -> int | None:
        listed = self.listed(epoch, [FINISHED])
        return max((offsets_by_epoch(each)[epoch][1] for each in listed), default=None)


class UpdateErasesCustomMetadata(Partition):
    """Absent custom metadata keeps the stored one."""

    def updated(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> RemoteLogSegmentMetadata:
        return replace(super().updated(stored, update), custom_metadata=update.custom_metadata)


class EmptyCustomMetadataIsAbsent(Partition):
    """Empty custom metadata is not absent custom metadata."""

    def updated(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> RemoteLogSegmentMetadata:
        kept = update.custom_metadata or stored.custom_metadata
        return replace(super().updated(stored, update), custom_metadata=kept)


class ListForgetsDisplaced(Partition):
    """A segment that Kafka drops from the list of the epoch stays listed."""

    def listed(
        self,
        epoch: int | None = None,
        states: Collection[RemoteLogSegmentState] = (),
        min_offset: int = 0,
    ) -> list[RemoteLogSegmentMetadata]:
        found = super().listed(epoch, states, min_offset)
        if epoch is None or epoch not in self.epochs:
            return found
        in_map = {segment_id for _, segment_id in self.epochs[epoch].offset_to_id}
        return [
            each
            for each in found
            if each.state is not FINISHED or each.remote_log_segment_id.id in in_map
        ]


class MinOffsetIsExclusive(Partition):
    """A list from min_offset on holds the segment that ends there."""

    def listed(
        self,
        epoch: int | None = None,
        states: Collection[RemoteLogSegmentState] = (),
        min_offset: int = 0,
    ) -> list[RemoteLogSegmentMetadata]:
        return super().listed(epoch, states, min_offset + 1 if min_offset else 0)


class SizeCountsOnlyFinished(Partition):
    """The size is that of all listed segments."""

    def size_in_bytes(self, epoch: int) -> int:
        listed = self.listed(epoch, [FINISHED])
        return sum(max(0, each.segment_size_in_bytes) for each in listed)


class FenceIsNotThere(Partition):
    """A broker leader epoch below the partition's highest is refused."""

    def fence(self, broker_leader_epoch: int | None) -> None:
        pass


class FenceStopsOwnCleanUp(Partition):
    """An older leader may clean up its own copy."""

    def moved(
        self,
        update: RemoteLogSegmentMetadataUpdate,
        context: MutationContext,
        revision_before: int,
    ) -> Change:
        stored = self.segments.get(update.remote_log_segment_id.id)
        if update.state is DELETE_STARTED and stored is not None and stored.state is STARTED:
            self.fence(context.broker_leader_epoch)
        return super().moved(update, context, revision_before)


class RevisionStaysAtLeadership(Partition):
    """A new leader epoch is a new revision."""

    def announced(self, leader_epoch: int | None, broker_id: int) -> Change:
        change = super().announced(leader_epoch, broker_id)
        if self.revision == 0:
            return change
        return replace(change.partition, revision=self.revision).repeated(self.revision)


class TrailForgetsPreviousState(Partition):
    """The audit trail has the state that a segment came from."""

    def recorded(self, event: Event, **fields: Any) -> Change:
        if event.kind == "SEGMENT":
            event = replace(event, from_state=None)
        return super().recorded(event, **fields)


class TrailForgetsLeaderEpoch(Partition):
    """The audit trail has the broker leader epoch of a segment's move."""

    def recorded(self, event: Event, **fields: Any) -> Change:
        if event.kind == "SEGMENT" and event.from_state is not None:
            event = replace(event, broker_leader_epoch=None)
        return super().recorded(event, **fields)


class RepeatedFinishIsAppliedAgain(Partition):
    """A repeat changes nothing: not which segment answers either."""

    def moved(
        self,
        update: RemoteLogSegmentMetadataUpdate,
        context: MutationContext,
        revision_before: int,
    ) -> Change:
        change = super().moved(update, context, revision_before)
        stored = self.segments[update.remote_log_segment_id.id]
        if change.outcome.applied or stored.state is not FINISHED:
            return change
        return self.taken(stored).repeated(change.outcome.revision)


class RepeatReturnsPresentRevision(Partition):
    """A repeat answers the revision that brought the state."""

    def once(self, body: object, context: MutationContext, change: Callable[[], Change]) -> Change:
        made = super().once(body, context, change)
        return made if made.outcome.applied else self.repeated(self.revision)


class DeletionOfDeletedIsRefused(Partition):
    """DELETE_SEGMENT_STARTED of a segment in DELETE_SEGMENT_FINISHED is a repeat."""

    def is_repeat(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> bool:
        return stored.state is update.state


class RequestIdIsForgotten(Partition):
    """A request id that was answered is answered with the same outcome."""

    def once(self, body: object, context: MutationContext, change: Callable[[], Change]) -> Change:
        return change()


class RequestIdTakesAnotherBody(Partition):
    """A request id with another body is refused."""

    def once(self, body: object, context: MutationContext, change: Callable[[], Change]) -> Change:
        return super().once("whatever", replace(context, reason=""), change)


class RefusalIsRemembered(Reference):
    """A refused call is not remembered."""

    def once(
        self,
        tp: TopicIdPartition,
        partition: Partition,
        body: object,
        context: MutationContext,
        change: Callable[[], Change],
    ) -> MutationOutcome:
        try:
            return super().once(tp, partition, body, context, change)
        except RemoteStorageError:
            if context.request_id is not None:
                requests = {context.request_id: (body, 0), **partition.requests}
                self.keep(tp, replace(partition, requests=requests).repeated(0))
            raise


class BatchExpectsOwnRevisions(Reference):
    """The expected revision of a batch is the partition's before it."""

    def update_item(self, item: SegmentUpdate, revision_before: int) -> UpdateOutcome:
        tp = item.update.remote_log_segment_id.topic_id_partition
        return super().update_item(item, self.partition(tp).revision)


class HoldEndsWithTheMark(Partition):
    """A hold holds the segments of a partition that is being deleted too."""

    def require_no_hold(self) -> None:
        if self.delete_state is None:
            super().require_no_hold()


class AnyoneDeletes(Partition):
    """Only the retention owner deletes."""

    def require_may_delete(self, context: MutationContext) -> None:
        self.require_no_hold()


class LogStartPassesTheEnd(Partition):
    """The log start is never raised above what has finished."""

    @property
    def end_offset(self) -> int:
        return 2**62


class MarkedPartitionIsNotKnown(Partition):
    """A partition is known until DELETE_PARTITION_FINISHED."""

    @property
    def is_known(self) -> bool:
        return super().is_known and self.delete_state is None


class TombstoneIsForgotten(Partition):
    """A segment in DELETE_SEGMENT_FINISHED is still known."""

    def taken(self, segment: RemoteLogSegmentMetadata) -> Self:
        after = super().taken(segment)
        kept = {each.remote_log_segment_id.id: each for each in after.live}
        return replace(after, segments=kept)


class ImportedDeletionCounts(Partition):
    """A segment that is imported in a state of deletion has not finished."""

    def taken(self, segment: RemoteLogSegmentMetadata) -> Self:
        is_new = segment.remote_log_segment_id.id not in self.segments
        if segment.state is DELETE_STARTED and is_new:
            return self.taken(replace(segment, state=FINISHED)).taken(segment)
        return super().taken(segment)


class ImportRestoresBelowTheLogStart(Partition):
    """A segment that ends below the log start is imported as being deleted."""

    def as_taken(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        return segment


class ImportDeletesOnHold(Partition):
    """A topic on hold imports a segment below the log start as it is."""

    def as_taken(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        is_below = segment.end_offset < self.log_start_offset
        is_deleted = segment.state is FINISHED and is_below
        return replace(segment, state=DELETE_STARTED) if is_deleted else segment


class LaterStateIsOtherContent(Partition):
    """A segment that is imported again may be in a later state."""

    def is_same(self, stored: RemoteLogSegmentMetadata, segment: RemoteLogSegmentMetadata) -> bool:
        return stored == segment


class RefusedImportKeepsItsBeginning(Reference):
    """Nothing of a refused message is imported."""

    def import_item(self, item: SegmentImport) -> ImportedSegments:
        try:
            return super().import_item(item)
        except SegmentAlreadyExistsError:
            if len(item.segments) > 1:
                self.import_item(replace(item, segments=item.segments[:1]))
            raise


class ImportRaisesNoLeaderEpoch(Reference):
    """An import raises the highest broker leader epoch to that of its segments."""

    def import_item(self, item: SegmentImport) -> ImportedSegments:
        tps = {segment.topic_id_partition for segment in item.segments}
        before = {tp: self.partition(tp).highest_broker_leader_epoch for tp in tps}
        imported = super().import_item(item)
        for tp, epoch in before.items():
            after = replace(self.partition(tp), highest_broker_leader_epoch=epoch)
            self.keep(tp, after.repeated(after.revision))
        return imported


class LeaseStopsNobody(Partition):
    """While a copy is leased only its broker abandons it."""

    def is_leased(self, stored: RemoteLogSegmentMetadata) -> bool:
        return False


class RepeatedAddLeases(Partition):
    """A repeat of an add leaves the lease as it is."""

    def added(self, metadata: RemoteLogSegmentMetadata, context: MutationContext) -> Change:
        change = super().added(metadata, context)
        if change.outcome.applied or not metadata.copy_leased:
            return change
        leased = self.renewed(metadata.remote_log_segment_id.id, metadata.broker_id)
        return leased.repeated(change.outcome.revision)


class AnyoneRenews(Partition):
    """Only the broker that makes a copy renews its lease."""

    def renewed(self, segment_id: UUID, broker_id: int) -> Self:
        stored = self.segments.get(segment_id)
        return super().renewed(segment_id, stored.broker_id if stored else broker_id)


class LeaseOutlivesItsCopy(Partition):
    """Only a copy under way is leased."""

    def updated(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> RemoteLogSegmentMetadata:
        return replace(super().updated(stored, update), copy_leased=stored.copy_leased)


class GapHidesSegment(Partition):
    """Offsets of a finished segment are no gap."""

    def has_finished(self, offsets: range) -> bool:
        return False


class GapsStayApart(Partition):
    """A repeat of a gap that was joined answers the revision of the whole."""

    def lost_with(self, offsets: range, revision: int) -> Mapping[int, int]:
        return {**self.lost, **dict.fromkeys(offsets, revision)}


class GapsStayBelowTheLogStart(Partition):
    """Gaps begin at the log start."""

    def lost_from(self, offset: int) -> Mapping[int, int]:
        return self.lost


class DeletedObjectsAreOneEvent(Partition):
    """Each object that is about to be deleted is an event."""

    def with_object_deletions(
        self, deletions: Sequence[ObjectDeletion], context: MutationContext
    ) -> Change:
        return super().with_object_deletions(deletions[:1], context)


class StartedDeletionIsUndone(Partition):
    """Only a partition whose removal has not begun is undeleted."""

    def may_come_back(self, present: RemotePartitionDeleteState) -> bool:
        return True


class ResetOnlyRaises(Partition):
    """A reset sets a lower leader epoch too."""

    def reset(self, leader_epoch: int | None, context: MutationContext) -> Change:
        change = super().reset(leader_epoch, context)
        highest = self.highest_with(leader_epoch)
        after = replace(change.partition, highest_broker_leader_epoch=highest)
        return replace(change, partition=after)


class RepeatReturnsFirstMark(Partition):
    """The repeat of a mark that was undone and made again answers the latest revision."""

    def deleted(self, metadata: RemotePartitionDeleteMetadata, context: MutationContext) -> Change:
        change = super().deleted(metadata, context)
        if MARKED not in self.moved_at:
            return change
        moved_at = {**change.partition.moved_at, MARKED: self.moved_at[MARKED]}
        return replace(change, partition=replace(change.partition, moved_at=moved_at))


FAULTS: tuple[Fault, ...] = tuple(
    each
    for each in list(globals().values())
    if isinstance(each, type)
    and issubclass(each, Partition | Reference)
    and each.__module__ == __name__
)
"""Every model of this module."""


def manager_with(fault: Fault) -> Reference:
    return Reference(fault) if issubclass(fault, Partition) else fault()
