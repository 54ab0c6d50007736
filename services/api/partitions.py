"""The deletion of a whole partition: MARKED, STARTED, FINISHED."""

from dataclasses import dataclass
from enum import Enum

from services.api.ids import TopicIdPartition
from services.api.validation import require_int32, require_int64


class RemotePartitionDeleteState(Enum):
    """Kafka: RemotePartitionDeleteState. Each state follows the one above it, none other."""

    DELETE_PARTITION_MARKED = "DELETE_PARTITION_MARKED"
    DELETE_PARTITION_STARTED = "DELETE_PARTITION_STARTED"
    DELETE_PARTITION_FINISHED = "DELETE_PARTITION_FINISHED"


_ORDER = tuple(RemotePartitionDeleteState)


def delete_predecessor(target: RemotePartitionDeleteState) -> RemotePartitionDeleteState | None:
    """The one state from which a partition may move to `target`; None: not yet being deleted.

    Source: RemotePartitionDeleteState.isValidTransition, which Kafka's own store does not
    enforce and ours does (a declared difference).
    """
    place = _ORDER.index(target)
    return _ORDER[place - 1] if place else None


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """One event of a partition's deletion (Kafka: RemotePartitionDeleteMetadata)."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int

    def __post_init__(self) -> None:
        require_int64(self.event_timestamp_ms, "event_timestamp_ms")
        require_int32(self.broker_id, "broker_id", at_least=-1)
