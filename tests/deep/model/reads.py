"""What the model answers to RLMM's reads."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar
from uuid import UUID

from services.api.calls import AtRevision
from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.partitions import PartitionState, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    DEFAULT_PAGE_SIZE,
    MAX_PAGE_SIZE,
    PartitionPage,
    PartitionSummary,
    SegmentPage,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import StoredTopicConfig
from services.api.validation import require, require_int32, require_int64
from tests.deep.model.partition import Partition, Topic


class ReferenceReads:
    """Topics and partitions, and the reads of them."""

    partition_class: ClassVar[type[Partition]] = Partition

    def __init__(self) -> None:
        self._topics: dict[UUID, Topic] = {}
        self._partitions: dict[tuple[UUID, int], Partition] = {}

    def partition(self, tp: TopicIdPartition) -> Partition:
        """All that is known of it; what nobody named yet is empty, at revision 0."""
        topic = self._topics.get(tp.topic_id) or Topic(tp.topic)
        partition = self._partitions.get((tp.topic_id, tp.partition))
        return partition or self.partition_class(topic)

    def known_partition(self, tp: TopicIdPartition) -> Partition:
        """One that reads answer for."""
        partition = self.partition(tp)
        if not partition.is_known:
            raise RemoteResourceNotFoundError(f"partition {tp} is not known")
        require(partition.topic.name == tp.topic, "topic", "the topic id has another name")
        return partition

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch_for_offset, "epoch_for_offset")
        require_int64(offset, "offset")
        partition = self.known_partition(topic_id_partition)
        found = partition.cache.segment_for_offset(epoch_for_offset, offset)
        return AtRevision(found, partition.revision)

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        require_int32(epoch, "epoch")
        require_int64(offset, "offset")
        partition = self.known_partition(topic_id_partition)
        found = partition.cache.next_with_txn_index(epoch, offset)
        return AtRevision(found, partition.revision)

    def highest_offset_for_epoch(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int | None]:
        require_int32(leader_epoch, "leader_epoch")
        partition = self.known_partition(topic_id_partition)
        return AtRevision(partition.cache.highest_offset(leader_epoch), partition.revision)

    def remote_log_size(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int
    ) -> AtRevision[int]:
        require_int32(leader_epoch, "leader_epoch")
        partition = self.known_partition(topic_id_partition)
        return AtRevision(partition.cache.size_in_bytes(leader_epoch), partition.revision)

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
        found = [
            each
            for each in partition.cache.listed(leader_epoch)
            if (not states or each.state in states) and each.end_offset >= (min_offset or 0)
        ]
        page = SegmentPage(
            tuple(found[begin:end]),
            str(end) if end < len(found) else "",
            partition.revision,
            log_start_offset=partition.log_start_offset,
        )
        if if_revision_not == partition.revision:
            return replace(page, segments=(), next_page_token="", not_modified=True)
        return page

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
            )
            for (topic_id, number), each in sorted(self._partitions.items(), key=lambda it: it[0])
            if each.is_known
            and topic in ("", each.topic.name)
            and (not delete_states or each.delete_state in delete_states)
        ]
        return PartitionPage(tuple(found[begin:end]), str(end) if end < len(found) else "")

    def topic_config(self, topic_id: UUID) -> StoredTopicConfig:
        if topic_id not in self._topics:
            raise RemoteResourceNotFoundError("the topic id is not known")
        topic = self._topics[topic_id]
        return StoredTopicConfig(topic_id, topic.name, dict(topic.entries), topic.config_revision)

    def partition_state(self, topic_id_partition: TopicIdPartition) -> AtRevision[PartitionState]:
        """As where nobody has reported."""
        partition = self.known_partition(topic_id_partition)
        state = PartitionState(partition.log_start_offset, gaps=partition.gaps)
        return AtRevision(state, partition.revision)

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        return True


def _page(page_size: int, page_token: str) -> tuple[int, int]:
    require(page_size >= 0, "page_size", "must not be negative")
    begin = int(page_token or 0)
    return begin, begin + min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
