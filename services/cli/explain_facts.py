"""What `sediment explain` tells of: read from RLMM, nothing judged."""

from dataclasses import dataclass
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.partition_events import EventQuery, PartitionEvent
from services.api.partition_queries import (
    PartitionSummary,
    all_events,
    all_partitions,
    latest_event,
)
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.retention_explained import RetentionCase
from services.api.segment_queries import segments_by_id
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import StoredTopicConfig
from services.cli.retention import read_partition

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.value
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED.value


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A known partition at one revision.

    Attributes:
        log_start_raised: the last event that did; None: none that is kept.
    """

    name: TopicIdPartition
    topic: StoredTopicConfig
    summary: PartitionSummary
    revision: int
    case: RetentionCase
    log_start_raised: PartitionEvent | None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment that RLMM knows, or has known.

    Attributes:
        metadata: None: purged; what is left of it are its events.
        events: ascending by revision; those that are kept.
    """

    id: UUID
    metadata: RemoteLogSegmentMetadata | None
    events: tuple[PartitionEvent, ...]

    @property
    def deletion(self) -> PartitionEvent | None:
        """The event that decided it: the first mark."""
        return next((e for e in self.events if e.to_state == _DELETING), None)

    @property
    def since(self) -> PartitionEvent | None:
        """The event that brought it into the state that it has."""
        state = None if self.metadata is None else self.metadata.state.value
        return next((e for e in self.events if e.to_state == state), None)


def partition_facts(manager: RemoteLogMetadataManager, name: TopicIdPartition) -> PartitionFacts:
    """Read a partition at one revision.

    Raises:
        RemoteResourceNotFoundError: it is not known, or not any more.
        ConcurrentUpdateError: it changes faster than it can be read.
    """
    topic, snapshot = read_partition(manager, name)
    known = (s for s in all_partitions(manager, topic=name.topic) if s.topic_id_partition == name)
    summary = next(known, None)
    case = RetentionCase(
        segments=snapshot.segments,
        state=snapshot.state,
        config=topic.config,
        now_ms=snapshot.state.read_at_ms,
        being_copied=frozenset(s.remote_log_segment_id.id for s in snapshot.young_copies()),
    )
    return PartitionFacts(
        name=name,
        topic=topic,
        summary=summary or PartitionSummary(name, None, snapshot.revision),
        revision=snapshot.revision,
        case=case,
        log_start_raised=latest_event(
            manager, EventQuery(name), snapshot.revision, lambda event: event.kind == "LOG_START"
        ),
    )


def segment_facts(
    manager: RemoteLogMetadataManager, name: TopicIdPartition, id: UUID
) -> SegmentFacts | None:
    """Also of a segment, or a whole partition, that is gone; None: nothing is known of the segment.

    Raises:
        RemoteResourceNotFoundError: there never was such a partition.
    """
    events = tuple(all_events(manager, EventQuery(name, segment_id=id)))
    try:
        metadata = next(segments_by_id(manager, name, [id]), None)
    except RemoteResourceNotFoundError:
        metadata = None
    return SegmentFacts(id, metadata, events) if metadata is not None or events else None


def deletions_of_partition(
    manager: RemoteLogMetadataManager, name: TopicIdPartition
) -> list[PartitionEvent]:
    """The events of its own deletion.

    Raises:
        RemoteResourceNotFoundError: there never was such a partition.
    """
    found = all_events(manager, EventQuery(name))
    return [event for event in found if event.kind == "PARTITION_DELETE"]


def deleted_segment_at(
    manager: RemoteLogMetadataManager, name: TopicIdPartition, offset: int
) -> UUID | None:
    """Of the finished segments that were deleted, the one that ends first at or after `offset`; of
    several the last to go. Reads the whole audit trail."""
    best: tuple[int, UUID] | None = None
    for event in all_events(manager, EventQuery(name)):
        if event.segment_id is None or (event.from_state, event.to_state) != (_FINISHED, _DELETING):
            continue
        end_offset = int(event.key.split(":")[2])
        if end_offset >= offset and (best is None or end_offset <= best[0]):
            best = end_offset, event.segment_id
    return None if best is None else best[1]
