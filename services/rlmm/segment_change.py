"""A change of one segment: it is added, or moves to another state."""

from typing import TypeAlias

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.segment_batches import SegmentAddition
from services.api.segment_changes import SegmentUpdate

SegmentChange: TypeAlias = SegmentAddition | SegmentUpdate


def segment_id_of(change: SegmentChange) -> RemoteLogSegmentId:
    if isinstance(change, SegmentAddition):
        return change.metadata.remote_log_segment_id
    return change.update.remote_log_segment_id


def tp_of(change: SegmentChange) -> TopicIdPartition:
    return segment_id_of(change).topic_id_partition


def rows_of(change: SegmentChange) -> int:
    """Of the table that has most of them: one for each leader epoch."""
    if isinstance(change, SegmentAddition):
        return len(change.metadata.segment_leader_epochs)
    return 1
