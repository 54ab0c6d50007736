"""What RLMM must do, thought of a second time: no database, no concurrency, nothing clever.

Written from Kafka's behaviour, the contract (services.api.remote_log_metadata_manager) and the
declared differences, never from services.rlmm: two that were made apart seldom err alike.

Where several refusals apply at once, the one that is told is, in this order: malformed; not known;
the request id; the partition's deletion; the fence; the state machine; the expected revisions; the
topic's settings or a lease; the range. Only a segment's move asks the state machine before the
fence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    DeletionRefusedError,
    InvalidRangeError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    SegmentAlreadyExistsError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    MAX_UPDATE_BATCH,
    PartitionLeadership,
    RenewOutcome,
    SegmentUpdate,
    UpdateOutcome,
)
from services.api.segment_batches import MAX_BATCH, require_lease, require_may_lease
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.topic_config import StoredTopicConfig, topic_config
from services.api.validation import require, require_int32, require_int64
from tests.deep.model.imports import MAX_CUSTOM_METADATA_BYTES, ReferenceImports
from tests.deep.model.partition import Event, Partition

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
PARTITION_STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
PARTITION_FINISHED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED

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


class ReferenceRemoteLogMetadataManager(ReferenceImports):
    """services.api's RemoteLogMetadataManager without reports, scans and events of its own, for one
    caller at a time. No lease ends."""

    # --- segments -----------------------------------------------------------------------------

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        require_may_lease(lease_ms, metadata.broker_id)
        require(metadata.state is STARTED, "metadata.state", "must be COPY_SEGMENT_STARTED")
        _check_custom_metadata(metadata.custom_metadata)
        partition = self.partition_to_make_known(metadata.topic_id_partition)
        begun = replace(metadata, copy_leased=lease_ms is not None)
        return self.once(partition, metadata, context, lambda: self._add(partition, begun, context))

    def _add(
        self, partition: Partition, metadata: RemoteLogSegmentMetadata, context: MutationContext
    ) -> MutationOutcome:
        segment_id = metadata.remote_log_segment_id.id
        epoch = context.broker_leader_epoch
        if epoch is None:
            epoch = metadata.broker_leader_epoch
        if partition.delete_state is not None:
            raise InvalidStateTransitionError("the partition is being deleted")
        partition.fence(epoch)
        stored = partition.segment(segment_id)
        if stored is not None:
            if stored.state is not STARTED:
                raise InvalidStateTransitionError("the segment is in a later state")
            if stored != metadata:
                raise SegmentAlreadyExistsError("the id is there with other content")
            return MutationOutcome(False, partition.moved_at[segment_id])
        partition.require_expected(context, partition.revision)
        partition.raise_leader_epoch(epoch)
        partition.cache.copy_started(metadata)
        event = Event("SEGMENT", None, STARTED.value, segment_id)
        revision = self.record(metadata.topic_id_partition, partition, event)
        partition.moved_at[segment_id] = revision
        return MutationOutcome(True, revision)

    def renew_copy_leases(
        self, segment_ids: Sequence[RemoteLogSegmentId], lease_ms: int, broker_id: int
    ) -> list[RenewOutcome]:
        require(1 <= len(segment_ids) <= MAX_BATCH, "segments", "must be 1 to 1000")
        require(len(set(segment_ids)) == len(segment_ids), "segments", "a segment comes twice")
        require_lease(lease_ms)
        require_int32(broker_id, "broker_id")
        return [self.renew_item(segment_id, broker_id) for segment_id in segment_ids]

    def renew_item(self, segment_id: RemoteLogSegmentId, broker_id: int) -> RenewOutcome:
        try:
            partition = self.partition_there(segment_id.topic_id_partition)
        except RemoteStorageError as e:
            return e
        stored = partition.segment(segment_id.id)
        if stored is None:
            return RemoteResourceNotFoundError("the segment is not known")
        if stored.state is not STARTED or stored.broker_id != broker_id:
            return InvalidStateTransitionError("its copy is over, or another broker's")
        self.lease(partition, stored)
        return None

    def lease(self, partition: Partition, stored: RemoteLogSegmentMetadata) -> None:
        """From now on to the end of the sequence."""
        segment_id = stored.remote_log_segment_id.id
        partition.cache.segments[segment_id] = replace(stored, copy_leased=True)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        tp = update.remote_log_segment_id.topic_id_partition
        return self._update(update, context, self.partition(tp).revision)

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        require(1 <= len(updates) <= MAX_UPDATE_BATCH, "updates", "must be 1 to 1000")
        ids = [item.update.remote_log_segment_id for item in updates]
        tps = [each.topic_id_partition for each in ids]
        named = {(tp.topic_id, tp.partition, each.id) for tp, each in zip(tps, ids, strict=True)}
        require(len(named) == len(ids), "updates", "a segment comes twice")
        before = {tp: self.partition(tp).revision for tp in tps}
        return [self.update_item(item, before[tp]) for tp, item in zip(tps, updates, strict=True)]

    def update_item(self, item: SegmentUpdate, revision_before: int) -> UpdateOutcome:
        """`revision_before`: of the partition, before the batch."""
        try:
            return self._update(item.update, item.context, revision_before)
        except RemoteStorageError as e:
            return e

    def _update(
        self,
        update: RemoteLogSegmentMetadataUpdate,
        context: MutationContext,
        revision_before: int,
    ) -> MutationOutcome:
        _check_custom_metadata(update.custom_metadata)
        partition = self.partition_there(update.remote_log_segment_id.topic_id_partition)
        return self.once(
            partition,
            update,
            context,
            lambda: self._move(partition, update, context, revision_before),
        )

    def _move(
        self,
        partition: Partition,
        update: RemoteLogSegmentMetadataUpdate,
        context: MutationContext,
        revision_before: int,
    ) -> MutationOutcome:
        segment_id, target = update.remote_log_segment_id.id, update.state
        stored = partition.segment(segment_id)
        if stored is None:
            raise RemoteResourceNotFoundError("the segment is not known")
        if self.is_repeat(stored, update):
            if update.custom_metadata not in (None, stored.custom_metadata):
                raise SegmentAlreadyExistsError("the state is there with other custom metadata")
            return MutationOutcome(False, partition.moved_at[segment_id])
        if (stored.state, target) not in MOVES:
            raise InvalidStateTransitionError(f"{stored.state} to {target}")
        cleans_up_its_own = stored.state is STARTED and stored.broker_id == update.broker_id
        if target is DELETE_STARTED and not cleans_up_its_own:
            partition.fence(context.broker_leader_epoch)
        partition.require_expected(context, revision_before)
        if (stored.state, target) == (FINISHED, DELETE_STARTED):
            partition.require_may_delete(context)
        if target is DELETE_STARTED and not cleans_up_its_own and self.is_leased(stored):
            raise DeletionRefusedError("the copy is leased")
        self.take(partition, self.updated(stored, update))
        event = Event("SEGMENT", stored.state.value, target.value, segment_id)
        revision = self.record(stored.topic_id_partition, partition, event)
        partition.moved_at[segment_id] = revision
        return MutationOutcome(True, revision)

    def is_leased(self, stored: RemoteLogSegmentMetadata) -> bool:
        """Only its own broker may give the copy up."""
        return stored.copy_leased

    def is_repeat(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> bool:
        """What is gone may be deleted again: Kafka's expiration does so (ADR 0002)."""
        is_over = stored.state is DELETE_FINISHED and update.state is DELETE_STARTED
        return stored.state is update.state or is_over

    def updated(
        self, stored: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate
    ) -> RemoteLogSegmentMetadata:
        """Declared difference: Kafka erases custom metadata that the update does not bring."""
        brought = update.custom_metadata
        return replace(
            stored,
            state=update.state,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=stored.custom_metadata if brought is None else brought,
            copy_leased=False,
        )

    def take(self, partition: Partition, segment: RemoteLogSegmentMetadata) -> None:
        """Take the segment, in its new state, into Kafka's cache."""
        if segment.state is FINISHED:
            partition.cache.copy_finished(segment)
        elif segment.state is DELETE_STARTED:
            partition.cache.deletion_started(segment)
        else:
            partition.cache.deletion_finished(segment)
            partition.tombstones[segment.remote_log_segment_id.id] = segment

    # --- partitions and topics ----------------------------------------------------------------

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        tp = metadata.topic_id_partition
        is_first = metadata.state is MARKED
        partition = self.partition_to_make_known(tp) if is_first else self.partition_there(tp)
        return self.once(
            partition, metadata, context, lambda: self._delete(partition, metadata, context)
        )

    def _delete(
        self,
        partition: Partition,
        metadata: RemotePartitionDeleteMetadata,
        context: MutationContext,
    ) -> MutationOutcome:
        present, target = partition.delete_state, metadata.state
        if target is MARKED:
            partition.fence(context.broker_leader_epoch)
        if present is not None and target in (present, MARKED):
            return MutationOutcome(False, partition.moved_at[target])
        if (present, target) not in DELETION_MOVES:
            raise InvalidStateTransitionError(f"{present} to {target}")
        if target is PARTITION_FINISHED and partition.cache.segments:
            raise InvalidStateTransitionError("segments remain")
        partition.require_expected(context, partition.revision)
        if target is PARTITION_STARTED:
            partition.require_no_hold()
        partition.delete_state = target
        event = Event("PARTITION_DELETE", present.value if present else None, target.value)
        revision = self.record(metadata.topic_id_partition, partition, event)
        partition.moved_at[target] = revision
        return MutationOutcome(True, revision)

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
        cluster_id: str | None = None,
    ) -> None:
        require_int32(broker_id, "broker_id", at_least=-1)
        told = [*leaders, *followers]
        names = {topic_id: topic.name for topic_id, topic in self._topics.items()}
        for each in told:
            tp = each.topic_id_partition
            same = names.setdefault(tp.topic_id, tp.topic) == tp.topic
            require(same, "topic", "the topic id has another name")
        # Of a partition that is named twice the higher epoch counts, and is one event.
        for each in sorted(
            told,
            key=lambda each: -1 if each.leader_epoch is None else each.leader_epoch,
            reverse=True,
        ):
            partition = self.partition(each.topic_id_partition)
            if partition.is_deleted:
                continue
            if partition.raise_leader_epoch(each.leader_epoch) or partition.revision == 0:
                self.record(each.topic_id_partition, partition, Event("LEADERSHIP"))

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        require_int32(broker_id, "broker_id", at_least=-1)

    def raise_log_start_offset(
        self,
        topic_id_partition: TopicIdPartition,
        log_start_offset: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        require_int64(log_start_offset, "log_start_offset")
        tp, offset = topic_id_partition, log_start_offset
        partition = self.partition_there(tp)
        return self.once(
            partition,
            (tp, offset),
            context,
            lambda: self._raise_log_start(tp, partition, offset, context),
        )

    def _raise_log_start(
        self, tp: TopicIdPartition, partition: Partition, offset: int, context: MutationContext
    ) -> MutationOutcome:
        if partition.is_deleted:
            raise RemoteResourceNotFoundError("the partition was deleted")
        if offset <= partition.log_start_offset:
            return MutationOutcome(False, partition.revision)
        partition.fence(context.broker_leader_epoch)
        partition.require_expected(context, partition.revision)
        partition.require_may_delete(context)
        if offset > partition.end_offset:
            raise InvalidRangeError("log_start_offset: above what has finished")
        event = Event("LOG_START", str(partition.log_start_offset), str(offset))
        partition.log_start_offset = offset
        partition.forget_lost_below(offset)
        return MutationOutcome(True, self.record(tp, partition, event))

    def put_topic_config(
        self,
        topic_id: UUID,
        entries: Mapping[str, str],
        expected_revision: int | None = None,
        context: MutationContext = NO_CONTEXT,
    ) -> StoredTopicConfig:
        topic_config(entries)  # refuses what no topic can have
        if topic_id not in self._topics:
            raise RemoteResourceNotFoundError("the topic id is not known")
        topic = self._topics[topic_id]
        if topic.entries != dict(entries):
            if expected_revision not in (None, topic.config_revision):
                raise ConcurrentUpdateError("the settings have another revision")
            topic.entries = dict(entries)
            topic.config_revision += 1
        return self.topic_config(topic_id)


def _check_custom_metadata(custom_metadata: bytes | None) -> None:
    if len(custom_metadata or b"") > MAX_CUSTOM_METADATA_BYTES:
        raise CustomMetadataTooLargeError("custom_metadata: too long")
