"""The state of one partition, as the model has it: never changed, each step makes a new one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from services.api.calls import MutationContext
from services.api.partitions import RemotePartitionDeleteState
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
PARTITION_STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
PARTITION_FINISHED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED


@dataclass(frozen=True, slots=True)
class Stored:
    """A segment, the revision that brought it into its state, and the one that finished it; whether
    its copy was leased when it began."""

    metadata: RemoteLogSegmentMetadata
    state_revision: int
    finished_revision: int | None = None
    is_leased: bool = False


@dataclass(frozen=True, slots=True)
class LeaderEpoch:
    """Kafka's RemoteLogLeaderEpochState: the finished segments that answer for an epoch's offsets,
    by their first offset in it, ascending; and the highest offset ever finished in it."""

    referenced: tuple[tuple[int, UUID], ...] = ()
    highest_offset: int = -1


Body: TypeAlias = tuple[object, MutationContext]


@dataclass(frozen=True, slots=True)
class Partition:
    """Nobody changes the mappings. A partition of revision 0 is not known.

    Attributes:
        remembered: by request id, what was asked and the revision that did it.
        deletion_revisions: by state of the partition's deletion, the revision that brought it.
    """

    revision: int = 0
    highest_broker_leader_epoch: int | None = None
    delete_state: RemotePartitionDeleteState | None = None
    log_start_offset: int = 0
    segments: Mapping[UUID, Stored] = field(default_factory=dict)
    epochs: Mapping[int, LeaderEpoch] = field(default_factory=dict)
    remembered: Mapping[str, tuple[Body, int]] = field(default_factory=dict)
    deletion_revisions: Mapping[RemotePartitionDeleteState, int] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        return self.revision > 0 and self.delete_state is not PARTITION_FINISHED

    def key(self) -> tuple[object, ...]:
        """Equal for equal states, and hashable."""
        return (
            self.revision,
            self.highest_broker_leader_epoch,
            self.delete_state,
            self.log_start_offset,
            frozenset(self.segments.items()),
            frozenset(self.epochs.items()),
            frozenset(self.remembered.items()),
            frozenset(self.deletion_revisions.items()),
        )
