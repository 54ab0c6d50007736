"""What the model does of imports."""

from collections.abc import Iterable
from dataclasses import replace

from services.api.calls import MutationContext
from services.api.errors import (
    CustomMetadataTooLargeError,
    InvalidStateTransitionError,
    SegmentAlreadyExistsError,
)
from services.api.segment_batches import MAX_BATCH, ImportedSegments, SegmentImport
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.validation import require
from tests.deep.model.partition import Event, Partition
from tests.deep.model.repairs import ReferenceRepairs

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

ORDER = [
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    FINISHED,
    DELETE_STARTED,
    DELETE_FINISHED,
]
CHANGING = ("state", "broker_id", "event_timestamp_ms", "custom_metadata")

MAX_CUSTOM_METADATA_BYTES = 128


class ReferenceImports(ReferenceRepairs):
    """Each segment is added, and comes to its state at once."""

    def import_remote_log_segments(self, imports: Iterable[SegmentImport]) -> ImportedSegments:
        total = ImportedSegments()
        for item in imports:
            total += self.import_item(item)
        return total

    def import_item(self, item: SegmentImport) -> ImportedSegments:
        segments, why = item.segments, item.context
        told = MutationContext(reason=why.reason, plan_id=why.plan_id)
        require(why == told, "context", "only reason and plan_id")
        require(1 <= len(segments) <= MAX_BATCH, "segments", "must be 1 to 1000")
        tp = segments[0].topic_id_partition
        for segment in segments:
            if len(segment.custom_metadata or b"") > MAX_CUSTOM_METADATA_BYTES:
                raise CustomMetadataTooLargeError("custom_metadata")
            require(segment.topic_id_partition == tp, "segments", "of several partitions")
        partition = self.partition_to_make_known(tp)
        if partition.delete_state is not None:
            raise InvalidStateTransitionError("the partition is being deleted")
        seen: dict[object, RemoteLogSegmentMetadata] = {}
        for segment in segments:
            segment_id = segment.remote_log_segment_id.id
            taken = self.as_taken(partition, segment)
            stored = partition.segment(segment_id) or seen.setdefault(segment_id, taken)
            if not self.is_same(stored, segment):
                raise SegmentAlreadyExistsError("the id is there with other content")
        for segment in seen.values():
            self._import(partition, segment)
        return ImportedSegments(len(seen), len(segments) - len(seen))

    def as_taken(
        self, partition: Partition, segment: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        """What retention has deleted before does not come back."""
        is_below = segment.end_offset < partition.log_start_offset
        is_on_hold = partition.topic.entries.get("sediment.hold") == "true"
        if segment.state is FINISHED and is_below and not is_on_hold:
            return replace(segment, state=DELETE_STARTED)
        return segment

    def is_same(self, stored: RemoteLogSegmentMetadata, segment: RemoteLogSegmentMetadata) -> bool:
        """But for what changes with the state, where that is a later one."""
        if ORDER.index(stored.state) <= ORDER.index(segment.state):
            return stored == segment
        changed = {name: getattr(stored, name) for name in CHANGING}
        may_have_become = stored.custom_metadata is not None or segment.custom_metadata is None
        return may_have_become and replace(segment, **changed) == stored

    def _import(self, partition: Partition, segment: RemoteLogSegmentMetadata) -> None:
        segment_id = segment.remote_log_segment_id.id
        partition.raise_leader_epoch(segment.broker_leader_epoch)
        self.take_over(partition, segment)
        event = Event("SEGMENT", None, segment.state.value, segment_id)
        revision = self.record(segment.topic_id_partition, partition, event)
        partition.moved_at[segment_id] = revision

    def take_over(self, partition: Partition, segment: RemoteLogSegmentMetadata) -> None:
        """What is deleted has never finished, as far as anybody knows."""
        if segment.state is DELETE_FINISHED:
            partition.tombstones[segment.remote_log_segment_id.id] = segment
            return
        partition.cache.copy_started(segment)
        if segment.state is FINISHED:
            partition.cache.copy_finished(segment)
        elif segment.state is DELETE_STARTED:
            partition.cache.deletion_started(segment)
