"""Managers with one fault each: what the comparison must find.

Each is the reference with a rule broken that a rewrite of RLMM could break; the docstring is the
rule.
"""

from collections.abc import Callable
from dataclasses import replace

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.errors import RemoteStorageError, SegmentAlreadyExistsError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    RenewOutcome,
    SegmentPage,
    SegmentUpdate,
    UpdateOutcome,
)
from services.api.segment_batches import ImportedSegments, SegmentImport
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tests.deep.model.kafka_cache import offsets_by_epoch
from tests.deep.model.partition import Event, Partition
from tests.deep.model.reference import DELETE_FINISHED, DELETE_STARTED, FINISHED, MARKED, STARTED
from tests.deep.model.reference import ReferenceRemoteLogMetadataManager as Reference


class LookUpIgnoresDisplaced(Reference):
    """Where Kafka's choice does not hold the offset, another finished segment may."""

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        found = super().remote_log_segment_metadata(topic_id_partition, epoch_for_offset, offset)
        epoch = self.partition(topic_id_partition).cache.epochs.get(epoch_for_offset)
        floor = epoch.floor(offset) if epoch else None
        is_kafkas = found.value is not None and found.value.remote_log_segment_id.id == floor
        return found if is_kafkas else replace(found, value=None)


class LaterFinishAlwaysWins(Reference):
    """Of two that hold the offset, the higher broker leader epoch answers, where both have one."""

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        found = super().remote_log_segment_metadata(topic_id_partition, epoch_for_offset, offset)
        cache = self.partition(topic_id_partition).cache
        epoch = cache.epochs.get(epoch_for_offset)
        if found.value is None or epoch is None:
            return found
        if epoch.floor(offset) == found.value.remote_log_segment_id.id:
            return found
        holders = [
            each
            for each in cache.segments.values()
            if each.state is FINISHED and _holds(each, epoch_for_offset, offset)
        ]
        return replace(found, value=holders[-1])


class HighestOffsetFalls(Reference):
    """The highest offset survives the deletion of its segment."""

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        answer = super().highest_offset_for_epoch(topic_id_partition, leader_epoch)
        listed = self.partition(topic_id_partition).cache.listed(leader_epoch)
        ends = [offsets_by_epoch(each)[leader_epoch][1] for each in listed if _is_finished(each)]
        return replace(answer, value=max(ends, default=None))


class UpdateErasesCustomMetadata(Reference):
    """Absent custom metadata keeps the stored one."""

    def updated(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> RemoteLogSegmentMetadata:
        return replace(super().updated(stored, update), custom_metadata=update.custom_metadata)


class EmptyCustomMetadataIsAbsent(Reference):
    """Empty custom metadata is not absent custom metadata."""

    def updated(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> RemoteLogSegmentMetadata:
        kept = update.custom_metadata or stored.custom_metadata
        return replace(super().updated(stored, update), custom_metadata=kept)


class ListForgetsDisplaced(Reference):
    """What Kafka's quirk drops from the list of the epoch stays listed."""

    def list_remote_log_segments(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None = None,
        **query: object,
    ) -> SegmentPage:
        page = super().list_remote_log_segments(
            topic_id_partition,
            leader_epoch,
            **query,  # type: ignore[arg-type]  # as it came
        )
        epoch = self.partition(topic_id_partition).cache.epochs.get(leader_epoch or 0)
        if leader_epoch is None or epoch is None:
            return page
        referenced = set(epoch.offset_to_id.values())
        kept = [
            each
            for each in page.segments
            if not _is_finished(each) or each.remote_log_segment_id.id in referenced
        ]
        return replace(page, segments=tuple(kept))


class MinOffsetIsExclusive(Reference):
    """A list from min_offset on holds the segment that ends there."""

    def list_remote_log_segments(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None = None,
        **query: object,
    ) -> SegmentPage:
        if query.get("min_offset") is not None:
            query["min_offset"] = int(str(query["min_offset"])) + 1
        return super().list_remote_log_segments(
            topic_id_partition,
            leader_epoch,
            **query,  # type: ignore[arg-type]  # as it came
        )


class SizeCountsOnlyFinished(Reference):
    """The size is that of all segments that the list names."""

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        answer = super().remote_log_size(topic_id_partition, leader_epoch)
        listed = self.partition(topic_id_partition).cache.listed(leader_epoch)
        sizes = [max(0, each.segment_size_in_bytes) for each in listed if _is_finished(each)]
        return replace(answer, value=sum(sizes))


class _Unfenced(Partition):
    def fence(self, broker_leader_epoch: int | None) -> None:
        pass


class FenceIsNotThere(Reference):
    """A broker leader epoch below the partition's highest is refused."""

    partition_class = _Unfenced


class FenceStopsOwnCleanUp(Reference):
    """An older leader may clean up its own copy."""

    def once(
        self,
        partition: Partition,
        body: object,
        context: MutationContext,
        change: Callable[[], MutationOutcome],
    ) -> MutationOutcome:
        def fenced_change() -> MutationOutcome:
            if isinstance(body, RemoteLogSegmentMetadataUpdate) and body.state is DELETE_STARTED:
                stored = partition.segment(body.remote_log_segment_id.id)
                if stored is not None and stored.state is STARTED:
                    partition.fence(context.broker_leader_epoch)
            return change()

        return super().once(partition, body, context, fenced_change)


class RevisionStaysAtLeadership(Reference):
    """A new leader epoch is a new revision."""

    def record(self, tp: TopicIdPartition, partition: Partition, event: Event) -> int:
        if event.kind == "LEADERSHIP" and partition.revision > 0:
            return partition.revision
        return super().record(tp, partition, event)


class TrailForgetsWhere(Reference):
    """The audit trail has the state that a segment came from."""

    def record(self, tp: TopicIdPartition, partition: Partition, event: Event) -> int:
        if event.kind == "SEGMENT":
            event = replace(event, from_state=None)
        return super().record(tp, partition, event)


class RepeatedFinishIsAppliedAgain(Reference):
    """A repeat changes nothing: not which segment answers either."""

    def is_repeat(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> bool:
        is_repeat = super().is_repeat(stored, update)
        if is_repeat and stored.state is FINISHED:
            self.take(self.partition(stored.topic_id_partition), stored)
        return is_repeat


class RepeatTellsPresentRevision(Reference):
    """A repeat answers the revision that brought the state."""

    def once(
        self,
        partition: Partition,
        body: object,
        context: MutationContext,
        change: Callable[[], MutationOutcome],
    ) -> MutationOutcome:
        outcome = super().once(partition, body, context, change)
        return outcome if outcome.applied else replace(outcome, revision=partition.revision)


class DeletionOfWhatIsGoneIsRefused(Reference):
    """DELETE_SEGMENT_STARTED of what is DELETE_SEGMENT_FINISHED is a repeat."""

    def is_repeat(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> bool:
        return stored.state is update.state


class RequestIdIsForgotten(Reference):
    """A request id that was answered is answered with the same outcome."""

    def once(
        self,
        partition: Partition,
        body: object,
        context: MutationContext,
        change: Callable[[], MutationOutcome],
    ) -> MutationOutcome:
        return change()


class RequestIdTakesAnotherBody(Reference):
    """A request id with another body is refused."""

    def once(
        self,
        partition: Partition,
        body: object,
        context: MutationContext,
        change: Callable[[], MutationOutcome],
    ) -> MutationOutcome:
        return super().once(partition, "whatever", replace(context, reason=""), change)


class RefusalIsRemembered(Reference):
    """A refused call is not remembered."""

    def once(
        self,
        partition: Partition,
        body: object,
        context: MutationContext,
        change: Callable[[], MutationOutcome],
    ) -> MutationOutcome:
        try:
            return super().once(partition, body, context, change)
        except RemoteStorageError:
            if context.request_id is not None:
                partition.requests.setdefault(context.request_id, (body, 0))
            raise


class BatchExpectsWhatItMakes(Reference):
    """The expected revision of a batch is the partition's before it."""

    def update_item(self, item: SegmentUpdate, revision_before: int) -> UpdateOutcome:
        tp = item.update.remote_log_segment_id.topic_id_partition
        return super().update_item(item, self.partition(tp).revision)


class _Held(Partition):
    def require_no_hold(self) -> None:
        if self.delete_state is None:
            super().require_no_hold()


class HoldEndsWithTheMark(Reference):
    """A hold holds the segments of a partition that is being deleted too."""

    partition_class = _Held


class _Anybodys(Partition):
    def require_may_delete(self, context: MutationContext) -> None:
        self.require_no_hold()


class AnybodyDeletes(Reference):
    """Only the retention owner deletes."""

    partition_class = _Anybodys


class _Endless(Partition):
    @property
    def end_offset(self) -> int:
        return 2**62


class LogStartPassesTheEnd(Reference):
    """The log start is never raised above what has finished."""

    partition_class = _Endless


class MarkedPartitionIsGone(Reference):
    """A partition is known until DELETE_PARTITION_FINISHED."""

    def known_partition(self, tp: TopicIdPartition) -> Partition:
        partition = super().known_partition(tp)
        if partition.delete_state is not None:
            return super().known_partition(replace(tp, partition=99))
        return partition


class TombstoneIsForgotten(Reference):
    """A segment that is DELETE_SEGMENT_FINISHED is known still."""

    def take(self, partition: Partition, segment: RemoteLogSegmentMetadata) -> None:
        super().take(partition, segment)
        if segment.state is DELETE_FINISHED:
            partition.tombstones.clear()


class ImportedDeletionCounts(Reference):
    """What is imported in a state of deletion has not finished."""

    def take_over(self, partition: Partition, segment: RemoteLogSegmentMetadata) -> None:
        if segment.state is DELETE_STARTED:
            super().take_over(partition, replace(segment, state=FINISHED))
            self.take(partition, segment)
        else:
            super().take_over(partition, segment)


class ImportBringsBackWhatIsBelowTheLogStart(Reference):
    """What ends below the log start is taken as being deleted."""

    def as_taken(
        self, partition: Partition, segment: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        return segment


class ImportDeletesOnHold(Reference):
    """A topic on hold takes what ends below the log start as it is."""

    def as_taken(
        self, partition: Partition, segment: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        is_below = segment.end_offset < partition.log_start_offset
        if segment.state is FINISHED and is_below:
            return replace(segment, state=DELETE_STARTED)
        return segment


class LaterStateIsOtherContent(Reference):
    """What is imported again may have come to a later state since."""

    def is_same(self, stored: RemoteLogSegmentMetadata, segment: RemoteLogSegmentMetadata) -> bool:
        return stored == segment


class RefusedImportLeavesWhatCameBefore(Reference):
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
            self.partition(tp).highest_broker_leader_epoch = epoch
        return imported


class LeaseStopsNobody(Reference):
    """While a copy is leased nobody but its broker gives it up."""

    def is_leased(self, stored: RemoteLogSegmentMetadata) -> bool:
        return False


class RepeatedAddLeases(Reference):
    """A repeat of an add leaves the lease as it is."""

    def _add(
        self, partition: Partition, metadata: RemoteLogSegmentMetadata, context: MutationContext
    ) -> MutationOutcome:
        outcome = super()._add(partition, metadata, context)
        if metadata.copy_leased:
            self.lease(partition, metadata)
        return outcome


class AnybodyRenews(Reference):
    """Only the broker that makes a copy renews its lease."""

    def renew_item(self, segment_id: RemoteLogSegmentId, broker_id: int) -> RenewOutcome:
        stored = self.partition(segment_id.topic_id_partition).segment(segment_id.id)
        return super().renew_item(segment_id, stored.broker_id if stored else broker_id)


class LeaseOutlivesItsCopy(Reference):
    """Only a copy under way is leased."""

    def updated(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> RemoteLogSegmentMetadata:
        return replace(super().updated(stored, update), copy_leased=stored.copy_leased)


class _HeldByNothing(Partition):
    def has_finished(self, offsets: range) -> bool:
        return False


class GapHidesSegment(Reference):
    """What a finished segment holds is no gap."""

    partition_class = _HeldByNothing


class _Apart(Partition):
    def lose(self, offsets: range, revision: int) -> None:
        self.lost |= dict.fromkeys(offsets, revision)


class GapsStayApart(Reference):
    """A repeat of what was joined tells the revision of the whole."""

    partition_class = _Apart


class _Kept(Partition):
    def forget_lost_below(self, offset: int) -> None:
        pass


class GapsStayBelowTheLogStart(Reference):
    """A gap is told of from the log start on."""

    partition_class = _Kept


class WhatIsGoingComesBack(Reference):
    """Only a partition whose removal has not begun is undeleted."""

    def may_come_back(self, present: RemotePartitionDeleteState) -> bool:
        return True


class _OnlyHigher(Partition):
    def reset_leader_epoch(self, leader_epoch: int | None) -> None:
        self.raise_leader_epoch(leader_epoch)


class ResetOnlyRaises(Reference):
    """A reset sets a lower leader epoch too."""

    partition_class = _OnlyHigher


class RepeatTellsFirstMark(Reference):
    """A mark that was taken back and made again is told of by its latest revision."""

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        moved_at = self.partition(metadata.topic_id_partition).moved_at
        first = moved_at.get(MARKED)
        outcome = super().put_remote_partition_delete_metadata(metadata, context)
        if first is not None:
            moved_at[MARKED] = first
        return outcome


FAULTS: tuple[type[Reference], ...] = (
    LookUpIgnoresDisplaced,
    LaterFinishAlwaysWins,
    HighestOffsetFalls,
    UpdateErasesCustomMetadata,
    EmptyCustomMetadataIsAbsent,
    ListForgetsDisplaced,
    MinOffsetIsExclusive,
    SizeCountsOnlyFinished,
    FenceIsNotThere,
    FenceStopsOwnCleanUp,
    RevisionStaysAtLeadership,
    TrailForgetsWhere,
    RepeatedFinishIsAppliedAgain,
    RepeatTellsPresentRevision,
    DeletionOfWhatIsGoneIsRefused,
    RequestIdIsForgotten,
    RequestIdTakesAnotherBody,
    RefusalIsRemembered,
    BatchExpectsWhatItMakes,
    HoldEndsWithTheMark,
    AnybodyDeletes,
    LogStartPassesTheEnd,
    MarkedPartitionIsGone,
    TombstoneIsForgotten,
    ImportedDeletionCounts,
    ImportBringsBackWhatIsBelowTheLogStart,
    ImportDeletesOnHold,
    LaterStateIsOtherContent,
    RefusedImportLeavesWhatCameBefore,
    ImportRaisesNoLeaderEpoch,
    GapHidesSegment,
    GapsStayApart,
    GapsStayBelowTheLogStart,
    WhatIsGoingComesBack,
    ResetOnlyRaises,
    RepeatTellsFirstMark,
    LeaseStopsNobody,
    RepeatedAddLeases,
    AnybodyRenews,
    LeaseOutlivesItsCopy,
)


def _is_finished(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is FINISHED


def _holds(segment: RemoteLogSegmentMetadata, epoch: int, offset: int) -> bool:
    start, end = offsets_by_epoch(segment).get(epoch, (0, -1))
    return start <= offset <= end
