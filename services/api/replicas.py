"""Define the part of RLM's contract that builds replicas of a partition from the tier."""

from dataclasses import dataclass
from typing import Protocol

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.lineage import Lineage
from services.api.offset_queries import OffsetService
from services.api.remote_log_manager import MAX_FETCH_WAIT_MS
from services.api.validation import require_between, require_int32, require_int64


@dataclass(frozen=True, slots=True)
class AuxStateQuery:
    """The place at which a replica's log is to begin.

    Attributes:
        offset: the first offset in the leader's own log.
        leader_epoch: of the offset before it; None for that of the leader here, or as reported.
        current_leader_epoch: the partition's, as the replica knows it; None if it does not.
        max_wait_ms: how long to wait for the segment's metadata; 0: not at all.
    """

    topic_id_partition: TopicIdPartition
    offset: int
    leader_epoch: int | None = None
    current_leader_epoch: int | None = None
    max_wait_ms: int = 0

    def __post_init__(self) -> None:
        require_int64(self.offset, "offset", at_least=1)
        for field in ("leader_epoch", "current_leader_epoch"):
            epoch = getattr(self, field)
            if epoch is not None:
                require_int32(epoch, field)
        require_between(self.max_wait_ms, "max_wait_ms", 0, MAX_FETCH_WAIT_MS)


@dataclass(frozen=True, slots=True)
class RemoteLogAuxState:
    """What a replica's log begins with.

    Attributes:
        next_offset: the replica's next fetch offset, and the base offset of its empty log.
        log_start_offset: the tier's.
        lineage: the leader epochs from log_start_offset to next_offset.
        producer_snapshot: of next_offset, as the broker wrote it.
        segment_id: of the segment from which it was read, the last one before next_offset.
    """

    next_offset: int
    log_start_offset: int
    lineage: Lineage
    producer_snapshot: bytes
    segment_id: RemoteLogSegmentId


class ReplicaService(OffsetService, Protocol):
    """Build replicas, beside reads and offsets. Thread-safe."""

    def build_remote_log_aux_state(self, query: AuxStateQuery) -> RemoteLogAuxState:
        """Build the state of a replica whose log begins behind the tier (Kafka: TierStateMachine).

        The offset before the query's must be in a finished segment of its leader epoch; the call
        waits until it is.

        Raises:
            InvalidRangeError: the offset is below the tier's log start.
            FencedLeaderEpochError: current_leader_epoch is over.
            RetriableRemoteStorageError: the segment is not in the tier yet, current_leader_epoch is
                not known here yet, or the store or RLMM cannot be reached.
            CorruptSegmentError: an index of the segment is damaged.
            RemoteResourceNotFoundError: an index of a finished segment is not in the store.
        """
