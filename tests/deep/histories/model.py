"""Model RLMM: partitions side by side, for one caller at a time, in memory.

What a change does to its partition is in tests.deep.histories.partition.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias
from uuid import UUID

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.holds import Hold
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.operations import MAX_OBJECT_DELETIONS, ObjectDeletion
from services.api.partitions import (
    GAP_KINDS,
    OffsetGap,
    PartitionState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_metadata_manager import (
    DEFAULT_PAGE_SIZE,
    MAX_PAGE_SIZE,
    MAX_UPDATE_BATCH,
    PartitionLeadership,
    PartitionPage,
    PartitionSummary,
    RemoteLogMetadataManager,
    RenewOutcome,
    SegmentPage,
    SegmentUpdate,
    UpdateOutcome,
)
from services.api.segment_batches import (
    MAX_BATCH,
    ImportedSegments,
    SegmentImport,
    require_lease,
    require_may_lease,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.topic_config import (
    StoredTopicConfig,
    check_change,
    deletes_more,
    topic_config,
)
from services.api.validation import INT64_MAX, require, require_int32, require_int64
from tests.deep.histories.kafka_cache import DELETE_STARTED, STARTED
from tests.deep.histories.partition import MARKED, Change, Event, Partition, Topic
from tests.harness.invariants import counted

MAX_CUSTOM_METADATA_BYTES = 128


class Model:
    """services.api's RemoteLogMetadataManager without reports, scans and watched events."""

    def __init__(self, partition_class: type[Partition] = Partition) -> None:
        self._partition_class = partition_class
        self._topics: dict[UUID, Topic] = {}
        self._partitions: dict[tuple[UUID, int], Partition] = {}
        self._trails: dict[tuple[UUID, int], list[Event]] = {}

    # --- the partitions -----------------------------------------------------------------------

    def partition(self, tp: TopicIdPartition) -> Partition:
        """Return all that is known of it; empty and at revision 0 if it is not known."""
        found = self._partitions.get((tp.topic_id, tp.partition))
        topic = self._topics.get(tp.topic_id) or Topic(tp.topic)
        return found or self._partition_class(topic=topic)

    def trail(self, tp: TopicIdPartition) -> Sequence[Event]:
        return self._trails.get((tp.topic_id, tp.partition), ())

    def put_partition(self, tp: TopicIdPartition, partition: Partition) -> None:
        """Put a partition in the place of the one that is known.

        Of one at revision 0 only the topic is put, if it has holds: they make a topic known.
        """
        if partition.revision > 0 or partition.topic.holds:
            self._topics.setdefault(tp.topic_id, partition.topic)
        if partition.revision > 0:
            self._partitions[tp.topic_id, tp.partition] = partition

    def store(self, tp: TopicIdPartition, change: Change) -> MutationOutcome:
        """Replace the partition by what the change made of it, and extend the audit trail."""
        self.put_partition(tp, change.partition)
        self._trails.setdefault((tp.topic_id, tp.partition), []).extend(change.events)
        return change.outcome

    def require_name(self, partition: Partition, tp: TopicIdPartition) -> None:
        require(partition.topic.name == tp.topic, "topic", "the topic id has another name")

    def partition_to_add(self, tp: TopicIdPartition) -> Partition:
        """Return the partition, for changes that make one known."""
        partition = self.partition(tp)
        self.require_name(partition, tp)
        return partition

    def stored_partition(self, tp: TopicIdPartition) -> Partition:
        """Return the partition, for changes that make none known; a deleted one is found."""
        if self.partition(tp).revision == 0:
            raise RemoteResourceNotFoundError(f"partition {tp} is not known")
        return self.partition_to_add(tp)

    def known_partition(self, tp: TopicIdPartition) -> Partition:
        """Return the partition, for reads."""
        if not self.partition(tp).is_known:
            raise RemoteResourceNotFoundError(f"partition {tp} is not known")
        return self.partition_to_add(tp)

    def once(
        self,
        tp: TopicIdPartition,
        body: object,
        context: MutationContext,
        change: Callable[[Partition], Change],
        *,
        adds: bool = False,
    ) -> MutationOutcome:
        """Make the change unless its request id is known. `adds`: the partition may be new."""
        partition = self.partition_to_add(tp) if adds else self.stored_partition(tp)
        return self.store(tp, partition.once(body, context, lambda: change(partition)))

    # --- changes of segments ------------------------------------------------------------------

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
        begun = replace(metadata, copy_leased=lease_ms is not None)
        tp = metadata.topic_id_partition
        return self.once(tp, metadata, context, lambda it: it.added(begun, context), adds=True)

    def renew_copy_leases(
        self, segment_ids: Sequence[RemoteLogSegmentId], lease_ms: int, broker_id: int
    ) -> list[RenewOutcome]:
        require(1 <= len(segment_ids) <= MAX_BATCH, "segments", "must be 1 to 1000")
        require(len(set(segment_ids)) == len(segment_ids), "segments", "a segment comes twice")
        require_lease(lease_ms)
        require_int32(broker_id, "broker_id")
        return [self._renew(segment_id, broker_id) for segment_id in segment_ids]

    def _renew(self, segment_id: RemoteLogSegmentId, broker_id: int) -> RenewOutcome:
        tp = segment_id.topic_id_partition
        try:
            renewed = self.stored_partition(tp).renewed(segment_id.id, broker_id)
        except RemoteStorageError as e:
            return e
        self.store(tp, renewed.repeated(renewed.revision))
        return None

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
        segment_id = update.remote_log_segment_id
        tp = segment_id.topic_id_partition
        moved = self.once(
            tp, update, context, lambda it: it.moved(update, context, revision_before)
        )
        segment = self.partition(tp).segments[segment_id.id]
        moved = replace(moved, kept_until_ms=segment.kept_until_ms)
        if update.state is not DELETE_STARTED:
            return moved
        return replace(moved, custom_metadata=segment.custom_metadata)

    def replace_segment_data(
        self,
        segment_id: RemoteLogSegmentId,
        expected_custom_metadata: bytes,
        new_custom_metadata: bytes,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        _check_custom_metadata(new_custom_metadata)
        expected, new = expected_custom_metadata, new_custom_metadata
        body = (segment_id, expected, new)
        return self.once(
            segment_id.topic_id_partition,
            body,
            context,
            lambda it: it.replaced(segment_id.id, expected, new, context),
        )

    def import_remote_log_segments(self, imports: Iterable[SegmentImport]) -> ImportedSegments:
        total = ImportedSegments()
        for item in imports:
            total += self.import_item(item)
        return total

    def import_item(self, item: SegmentImport) -> ImportedSegments:
        segments, context = item.segments, item.context
        allowed = MutationContext(reason=context.reason, plan_id=context.plan_id)
        require(context == allowed, "context", "only reason and plan_id")
        require(1 <= len(segments) <= MAX_BATCH, "segments", "must be 1 to 1000")
        tp = segments[0].topic_id_partition
        for segment in segments:
            _check_custom_metadata(segment.custom_metadata)
            require(segment.topic_id_partition == tp, "segments", "of several partitions")
        change = self.partition_to_add(tp).imported(segments, context)
        self.store(tp, change)
        moved = sum(event.from_state is not None for event in change.events)
        changed = len(change.events)
        return ImportedSegments(changed - moved, len(segments) - changed, moved)

    # --- changes of partitions and topics -----------------------------------------------------

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        tp, adds = metadata.topic_id_partition, metadata.state is MARKED
        return self.once(tp, metadata, context, lambda it: it.deleted(metadata, context), adds=adds)

    def undelete_partition(
        self, topic_id_partition: TopicIdPartition, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        return self.once(topic_id_partition, "undelete", context, lambda it: it.undeleted(context))

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
        cluster_id: str | None = None,
    ) -> None:
        """Announce them; of a partition that is named twice the higher epoch is one event."""
        require_int32(broker_id, "broker_id", at_least=-1)
        announced = sorted([*leaders, *followers], key=_leader_epoch, reverse=True)
        names: dict[UUID, str] = {}
        for tp in (each.topic_id_partition for each in announced):
            self.partition_to_add(tp)
            same = names.setdefault(tp.topic_id, tp.topic) == tp.topic
            require(same, "topic", "the topic id has another name")
        for each in announced:
            tp = each.topic_id_partition
            self.store(tp, self.partition(tp).announced(each.leader_epoch, broker_id))

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        require_int32(broker_id, "broker_id", at_least=-1)

    def reset_leader_epoch(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        require_int32(leader_epoch or 0, "leader_epoch")
        tp, body = topic_id_partition, ("reset", leader_epoch)
        return self.once(tp, body, context, lambda it: it.reset(leader_epoch, context))

    def raise_log_start_offset(
        self,
        topic_id_partition: TopicIdPartition,
        log_start_offset: int,
        context: MutationContext = NO_CONTEXT,
        *,
        restores: bool = False,
    ) -> MutationOutcome:
        assert not restores, "the model has no rebuild"
        require_int64(log_start_offset, "log_start_offset")
        tp, offset = topic_id_partition, log_start_offset
        return self.once(tp, offset, context, lambda it: it.with_log_start(offset, context))

    def record_gap(
        self,
        topic_id_partition: TopicIdPartition,
        gap: OffsetGap,
        broker_id: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        require(gap.kind in GAP_KINDS, "gap.kind", "is not known")
        require_int32(broker_id, "broker_id", at_least=-1)
        tp, body = topic_id_partition, (gap, broker_id)
        return self.once(tp, body, context, lambda it: it.with_gap(gap, broker_id, context))

    def record_object_deletions(
        self,
        topic_id_partition: TopicIdPartition,
        deletions: Sequence[ObjectDeletion],
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        require(1 <= len(deletions) <= MAX_OBJECT_DELETIONS, "deletions", "none or too many")
        tp, body = topic_id_partition, tuple(deletions)
        return self.once(tp, body, context, lambda it: it.with_object_deletions(body, context))

    def put_topic_config(
        self,
        topic_id: UUID,
        entries: Mapping[str, str],
        expected_revision: int | None = None,
        context: MutationContext = NO_CONTEXT,
        *,
        now: bool = False,
    ) -> StoredTopicConfig:
        config = topic_config(entries)  # refuses what no topic can have
        before = self.topic_config(topic_id)
        if before.entries != dict(entries) or (now and before.waits_until_ms is not None):
            if expected_revision not in (None, before.revision):
                raise ConcurrentUpdateError("the settings have another revision")
            check_change(before.config, config, now=now)
            at_once = dict(entries) if now else self._topics[topic_id].at_once
            topic = replace(self._topics[topic_id], entries=dict(entries), at_once=at_once)
            topic = replace(topic, config_revision=before.revision + 1, is_confirmed=False)
            self._put_topic(topic_id, topic)
        return self.topic_config(topic_id)

    def confirm_deletions(
        self,
        topic_id: UUID,
        expected_config_revision: int,
        context: MutationContext = NO_CONTEXT,
    ) -> StoredTopicConfig:
        require_int64(expected_config_revision, "expected_config_revision")
        if self.topic_config(topic_id).revision != expected_config_revision:
            raise ConcurrentUpdateError("the settings have another revision")
        self._topics[topic_id] = replace(self._topics[topic_id], is_confirmed=True)
        return self.topic_config(topic_id)

    def set_hold(self, hold: Hold, lease_ms: int | None = None) -> Hold:
        """Only those of people, of a topic or a partition, until they are ended."""
        assert hold.topic_id is not None
        topic = self._topic_of(hold)
        last = INT64_MAX if hold.last_offset is None else hold.last_offset
        held = {hold.name: (hold.first_offset, last)}
        if hold.partition is None:
            self._put_topic(hold.topic_id, replace(topic, holds={**topic.holds, **held}))
            return hold
        tp = TopicIdPartition(hold.topic_id, hold.topic, hold.partition)
        partition = self.known_partition(tp)
        self.put_partition(tp, replace(partition, holds={**partition.holds, **held}))
        return hold

    def end_hold(self, hold: Hold, context: MutationContext = NO_CONTEXT) -> Hold | None:
        assert hold.topic_id is not None
        topic = self._topic_of(hold)
        tp = TopicIdPartition(hold.topic_id, hold.topic, hold.partition or 0)
        partition = self._partitions.get((tp.topic_id, tp.partition))
        holds = dict(
            topic.holds if hold.partition is None else partition.holds if partition else {}
        )
        ended = holds.pop(hold.name, None)
        if ended is None:
            return None
        if hold.partition is None:
            self._put_topic(hold.topic_id, replace(topic, holds=holds))
        elif partition is not None:
            self.put_partition(tp, replace(partition, holds=holds))
        first, last = ended
        last_offset = None if last == INT64_MAX else last
        return replace(hold, first_offset=first, last_offset=last_offset)

    def _topic_of(self, hold: Hold) -> Topic:
        assert hold.topic_id is not None
        self.topic_config(hold.topic_id)
        topic = self._topics[hold.topic_id]
        require(topic.name == hold.topic, "hold.topic", "has another name")
        return topic

    def _put_topic(self, topic_id: UUID, topic: Topic) -> None:
        self._topics[topic_id] = topic
        for key, partition in self._partitions.items():
            if key[0] == topic_id:
                self._partitions[key] = replace(partition, topic=topic)

    # --- reads --------------------------------------------------------------------------------

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch_for_offset, "epoch_for_offset")
        require_int64(offset, "offset")
        partition = self.known_partition(topic_id_partition)
        found = partition.segment_for_offset(epoch_for_offset, offset)
        return AtRevision(found, partition.revision)

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch, "epoch")
        require_int64(offset, "offset")
        partition = self.known_partition(topic_id_partition)
        return AtRevision(partition.next_with_txn_index(epoch, offset), partition.revision)

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        require_int32(leader_epoch, "leader_epoch")
        partition = self.known_partition(topic_id_partition)
        return AtRevision(partition.highest_offset(leader_epoch), partition.revision)

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        require_int32(leader_epoch, "leader_epoch")
        partition = self.known_partition(topic_id_partition)
        return AtRevision(partition.size_in_bytes(leader_epoch), partition.revision)

    def list_remote_log_segments(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None = None,
        *,
        states: Sequence[RemoteLogSegmentState] = (),
        min_offset: int | None = None,
        if_revision_not: int | None = None,
        page_size: int = 0,
        page_token: str = "",
    ) -> SegmentPage:
        """A page token is the place in the whole list, which must not change meanwhile."""
        require_int32(leader_epoch or 0, "leader_epoch")
        require_int64(min_offset or 0, "min_offset")
        require_int64(if_revision_not or 0, "if_revision_not")
        begin, end = _page(page_size, page_token)
        partition = self.known_partition(topic_id_partition)
        revision, log_start = partition.revision, partition.log_start_offset
        if if_revision_not == revision:
            return SegmentPage((), "", revision, not_modified=True, log_start_offset=log_start)
        found = partition.listed(leader_epoch, states, min_offset or 0)
        following = str(end) if end < len(found) else ""
        return SegmentPage(tuple(found[begin:end]), following, revision, log_start_offset=log_start)

    def list_partitions(
        self,
        *,
        topic: str = "",
        delete_states: Sequence[RemotePartitionDeleteState] = (),
        cluster_id: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> PartitionPage:
        """Without the times of the database's clock."""
        begin, end = _page(page_size, page_token)
        found = [
            PartitionSummary(
                TopicIdPartition(topic_id, each.topic.name, number),
                each.delete_state,
                each.revision,
                totals=counted(each.segments.values()),
            )
            for (topic_id, number), each in sorted(self._partitions.items(), key=lambda it: it[0])
            if topic in ("", each.topic.name)
            # A removed partition is listed to who asks for its state.
            and (each.delete_state in delete_states if delete_states else each.is_known)
        ]
        return PartitionPage(tuple(found[begin:end]), str(end) if end < len(found) else "")

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        if topic_id not in self._topics:
            raise RemoteResourceNotFoundError("the topic id is not known")
        topic = self._topics[topic_id]
        stored = StoredTopicConfig(topic_id, topic.name, dict(topic.entries), topic.config_revision)
        earlier = topic_config(topic.at_once)
        if topic.is_confirmed:
            stored = replace(stored, deletions_confirmed_by="somebody")
        if stored.config.retention_change_delay_ms == 0 or not deletes_more(stored.config, earlier):
            return stored
        return replace(stored, waits_until_ms=0, earlier=topic.at_once)

    def partition_state(self, topic_id_partition: TopicIdPartition) -> AtRevision[PartitionState]:
        """As if no broker reported."""
        partition = self.known_partition(topic_id_partition)
        state = PartitionState(partition.log_start_offset, gaps=partition.gaps)
        return AtRevision(state, partition.revision)

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        return True


Manager: TypeAlias = RemoteLogMetadataManager | Model
"""RLMM or its model, which has only the modelled part of the contract."""


def _check_custom_metadata(custom_metadata: bytes | None) -> None:
    if len(custom_metadata or b"") > MAX_CUSTOM_METADATA_BYTES:
        raise CustomMetadataTooLargeError("custom_metadata: too long")


def _leader_epoch(leadership: PartitionLeadership) -> int:
    return -1 if leadership.leader_epoch is None else leadership.leader_epoch


def _page(page_size: int, page_token: str) -> tuple[int, int]:
    require(page_size >= 0, "page_size", "must not be negative")
    begin = int(page_token or 0)
    return begin, begin + min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
