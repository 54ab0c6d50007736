"""Provide the base class and the helpers of the RLMM contract's tests."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, random_uuid, tail_uuid
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
PARTITION_STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
PARTITION_FINISHED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED

BROKER = 1
OTHER_BROKER = 2


class RlmmContractPart:
    """Gives each test a partition of its own, so that the database need not be empty.

    The module of a complete suite provides the implementation as its fixture `rlmm`. The methods do
    to that partition what the functions of their names do to any.
    """

    rlmm: RemoteLogMetadataManager
    tp: TopicIdPartition

    @pytest.fixture(autouse=True)
    def use_own_partition(self, rlmm: RemoteLogMetadataManager) -> None:
        self.rlmm, self.tp = rlmm, TopicIdPartition(random_uuid(), "orders", 0)

    def segment(
        self, start: int, end: int, epochs: Mapping[int, int] | None = None, **fields: Any
    ) -> RemoteLogSegmentMetadata:
        return segment(self.tp, start, end, epochs, **fields)

    def add(
        self, metadata: RemoteLogSegmentMetadata, *states: RemoteLogSegmentState
    ) -> RemoteLogSegmentMetadata:
        return add(self.rlmm, metadata, *states)

    def finished(
        self, start: int, end: int, epochs: Mapping[int, int] | None = None, **fields: Any
    ) -> RemoteLogSegmentMetadata:
        return finished(self.rlmm, self.tp, start, end, epochs, **fields)

    def move(
        self,
        metadata: RemoteLogSegmentMetadata,
        *states: RemoteLogSegmentState,
        context: MutationContext = NO_CONTEXT,
        **fields: Any,
    ) -> MutationOutcome:
        return move(self.rlmm, metadata, *states, context=context, **fields)

    def put_deletion(
        self, *states: RemotePartitionDeleteState, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        return put_deletion(self.rlmm, self.tp, *states, context=context)

    def id_at(self, epoch: int, offset: int) -> UUID | None:
        return id_at(self.rlmm, self.tp, epoch, offset)

    def ids(self, epoch: int | None = None) -> list[UUID]:
        return ids(self.rlmm, self.tp, epoch)

    def revision(self) -> int:
        return revision_of(self.rlmm, self.tp)


def segment(
    tp: TopicIdPartition,
    start: int,
    end: int,
    epochs: Mapping[int, int] | None = None,
    **fields: Any,
) -> RemoteLogSegmentMetadata:
    """Return a copy that begins; all its offsets are in epoch 0 unless `epochs` differs."""
    values: dict[str, Any] = {
        "max_timestamp_ms": 1_000,
        "broker_id": BROKER,
        "event_timestamp_ms": 5_000,
        "segment_size_in_bytes": 1_048_576,
        **fields,
    }
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(tp, random_uuid()),
        start_offset=start,
        end_offset=end,
        segment_leader_epochs=segment_leader_epochs(sorted((epochs or {0: start}).items())),
        **values,
    )


def tail(tp: TopicIdPartition, start: int, end: int) -> RemoteLogSegmentMetadata:
    """Return the copy of a tail that begins."""
    whole = segment(tp, start, end)
    return replace(whole, remote_log_segment_id=RemoteLogSegmentId(tp, tail_uuid()))


def update_to(
    metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, **fields: Any
) -> RemoteLogSegmentMetadataUpdate:
    values: dict[str, Any] = {"event_timestamp_ms": 6_000, "broker_id": BROKER, **fields}
    return RemoteLogSegmentMetadataUpdate(metadata.remote_log_segment_id, state=state, **values)


def move(
    rlmm: RemoteLogMetadataManager,
    metadata: RemoteLogSegmentMetadata,
    *states: RemoteLogSegmentState,
    context: MutationContext = NO_CONTEXT,
    **fields: Any,
) -> MutationOutcome:
    """Move the segment through `states`; return the outcome of the last step."""
    for state in states:
        update = update_to(metadata, state, **fields)
        outcome = rlmm.update_remote_log_segment_metadata(update, context)
    return outcome


def add(
    rlmm: RemoteLogMetadataManager,
    metadata: RemoteLogSegmentMetadata,
    *states: RemoteLogSegmentState,
) -> RemoteLogSegmentMetadata:
    """Add the segment, move it through `states`, and return it as it was added."""
    rlmm.add_remote_log_segment_metadata(metadata)
    if states:
        move(rlmm, metadata, *states)
    return metadata


def finished(
    rlmm: RemoteLogMetadataManager,
    tp: TopicIdPartition,
    start: int,
    end: int,
    epochs: Mapping[int, int] | None = None,
    **fields: Any,
) -> RemoteLogSegmentMetadata:
    return add(rlmm, segment(tp, start, end, epochs, **fields), FINISHED)


def put_deletion(
    rlmm: RemoteLogMetadataManager,
    tp: TopicIdPartition,
    *states: RemotePartitionDeleteState,
    context: MutationContext = NO_CONTEXT,
) -> MutationOutcome:
    for state in states:
        event = RemotePartitionDeleteMetadata(tp, state, event_timestamp_ms=7_000, broker_id=BROKER)
        outcome = rlmm.put_remote_partition_delete_metadata(event, context)
    return outcome


def id_at(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, epoch: int, offset: int
) -> UUID | None:
    found = rlmm.remote_log_segment_metadata(tp, epoch, offset).value
    return None if found is None else id_of(found)


def id_of(metadata: RemoteLogSegmentMetadata) -> UUID:
    return metadata.remote_log_segment_id.id


def ids(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, epoch: int | None = None
) -> list[UUID]:
    return [id_of(each) for each in all_segments(rlmm, tp, epoch)]


def revision_of(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> int:
    return rlmm.list_remote_log_segments(tp, page_size=1).revision
