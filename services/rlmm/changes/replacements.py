"""Replace the bytes of a finished segment: another copy of it is read from then on."""

from dataclasses import dataclass

from services.api.calls import MutationOutcome
from services.api.errors import ConcurrentUpdateError, InvalidStateTransitionError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from services.rlmm.changes.audit import Event
from services.rlmm.changes.batch import (
    Change,
    Move,
    move_segments,
    segment_key,
    stored_segments,
)
from services.rlmm.database.rows import event_key_of
from services.rlmm.guards import unknown_segment

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True)
class SegmentReplacement:
    """The arguments of replace_segment_data, but for the context."""

    segment_id: RemoteLogSegmentId
    expected_custom_metadata: bytes
    new_custom_metadata: bytes

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.segment_id.topic_id_partition


def replace_data(change: Change, replacement: SegmentReplacement) -> MutationOutcome:
    """Replace a segment's custom metadata; see RemoteLogMetadataManager.replace_segment_data."""
    segment_id = replacement.segment_id
    stored = stored_segments(change.connection, [segment_id]).get(segment_key(segment_id))
    if stored is None:
        raise unknown_segment(segment_id)
    if stored.state != _FINISHED.value:
        raise InvalidStateTransitionError(
            f"segment {segment_id} is in {stored.state}; only the bytes of a segment in "
            f"{_FINISHED.value} can be replaced"
        )
    if stored.custom_metadata == replacement.new_custom_metadata:
        return change.repeat(stored.state_revision)
    if stored.custom_metadata != replacement.expected_custom_metadata:
        raise ConcurrentUpdateError(
            f"expected_custom_metadata: segment {segment_id} has other custom metadata; its bytes "
            "were replaced meanwhile: read it again"
        )
    change.locked.require_expected(change.context)
    key = event_key_of(
        replacement.topic_id_partition, stored.end_offset, stored.broker_leader_epoch
    )
    event = Event("SEGMENT", _FINISHED.value, _FINISHED.value, segment_id=segment_id.id, key=key)
    outcome = change.record(event)
    custom = (stored.custom_metadata, replacement.new_custom_metadata)
    change.partition.move_totals(_FINISHED, _FINISHED, stored.segment_size_in_bytes, custom)
    # The broker and the time of the copy stay: the segment is the same, only its bytes moved.
    update = RemoteLogSegmentMetadataUpdate(
        segment_id,
        stored.event_timestamp_ms,
        _FINISHED,
        stored.broker_id,
        replacement.new_custom_metadata,
    )
    move = Move(
        update,
        _FINISHED.value,
        outcome.revision,
        plan_id=None,
        from_custom_metadata=replacement.expected_custom_metadata,
    )
    move_segments(change.connection, [move])()
    return outcome
