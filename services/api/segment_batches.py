"""The items of batches, and what becomes of each."""

from dataclasses import dataclass
from typing import TypeAlias

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.copy_leases import require_may_lease
from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require_int32, require_int64

MAX_BATCH = 1000
"""Items of a batch of additions, updates, look-ups or renewals, and ids of one call."""
MAX_REVISIONS = 10_000
"""Partitions of one call of partition_revisions."""


@dataclass(frozen=True, slots=True)
class SegmentAddition:
    """A copy that begins, why and with what lease; as add_remote_log_segment_metadata has it."""

    metadata: RemoteLogSegmentMetadata
    context: MutationContext = NO_CONTEXT
    lease_ms: int | None = None

    def __post_init__(self) -> None:
        require_may_lease(self.lease_ms, self.metadata.broker_id)


@dataclass(frozen=True, slots=True)
class SegmentLookup:
    """An offset in a lineage, as remote_log_segment_metadata takes it."""

    topic_id_partition: TopicIdPartition
    epoch_for_offset: int
    offset: int

    def __post_init__(self) -> None:
        require_int32(self.epoch_for_offset, "epoch_for_offset")
        require_int64(self.offset, "offset")


AddOutcome: TypeAlias = MutationOutcome | RemoteStorageError
LookupOutcome: TypeAlias = AtRevision[RemoteLogSegmentMetadata | None] | RemoteStorageError
