"""What of a partition is rolled and not in the tier yet: Kafka's copy lag."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.kafka_log.timestamps import largest_timestamp_ms


@dataclass(frozen=True, slots=True)
class Uncopied:
    """
    Attributes:
        segments, size_bytes: of the rolled segments that are not copied, whatever keeps them.
        oldest_timestamp_ms: the largest timestamp of the first of them; None: there is none, or it
            cannot be read.
        local_retention_ms: how old that may get before the broker deletes the segment; None: that
            is not known.
    """

    segments: int = 0
    size_bytes: int = 0
    oldest_timestamp_ms: int | None = None
    local_retention_ms: int | None = None

    @property
    def deleted_at_ms(self) -> int | None:
        """When retention.ms of the broker takes the first of them; None: it is not known."""
        if self.oldest_timestamp_ms is None or self.local_retention_ms is None:
            return None
        return self.oldest_timestamp_ms + self.local_retention_ms


def uncopied_of(segments: Sequence[LocalSegment], local_retention_ms: int | None) -> Uncopied:
    """
    Args:
        segments: earliest first.
    """
    oldest_ms = largest_timestamp_ms(segments[0]) if segments else None
    size_bytes = sum(segment.size_bytes for segment in segments)
    return Uncopied(len(segments), size_bytes, oldest_ms, local_retention_ms)
