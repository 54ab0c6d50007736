"""Resolve the small numbers of operations into the ids of topics, partitions and segments."""

from dataclasses import dataclass
from typing import Self
from uuid import UUID, uuid4

from services.api.ids import RemoteLogSegmentId, TopicIdPartition

RENAMED = 3
"""In a space of two topics: partition 0 of the first, called by a name that is not the topic's."""


@dataclass(frozen=True)
class Space:
    """The partitions of one run, by number: no other run has their topic ids."""

    partitions: tuple[TopicIdPartition, ...]

    @classmethod
    def of_two_topics(cls) -> Self:
        first, second = sorted([uuid4(), uuid4()])
        topic = f"model-{first.hex}"
        return cls(
            (
                TopicIdPartition(first, topic, 0),
                TopicIdPartition(first, topic, 1),
                TopicIdPartition(second, topic, 0),
                TopicIdPartition(first, "renamed", 0),
            )
        )

    @classmethod
    def of_partitions(cls, count: int) -> Self:
        topic_id = uuid4()
        return cls(tuple(TopicIdPartition(topic_id, "histories", n) for n in range(count)))

    def segment_id(self, tp: int, number: int) -> RemoteLogSegmentId:
        """Return the id of a segment; equal numbers in two partitions have equal ids."""
        return RemoteLogSegmentId(self.partitions[tp], UUID(int=number + 1))
