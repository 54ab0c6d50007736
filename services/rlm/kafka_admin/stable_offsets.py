"""Up to where the leader of partitions says that they are settled, as messages of Kafka.

Source: ListOffsetsRequest; ReplicaManager.fetchOffset, which answers who reads committed records
with the last stable offset for the latest one.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, OffsetSpec

from services.api.ids import TopicIdPartition

_CONSUMER = -1
"""The id of who is no replica."""
_SINCE = 4
"""The first version of ListOffsets that takes the leader epoch (KIP-320): Kafka 2.1."""
_NO_ERROR = 0
_Topic = ListOffsetsRequest.ListOffsetsTopic


def stable_offsets_of(
    names: Iterable[TopicIdPartition], epochs: Mapping[TopicIdPartition, int], timeout_s: float
) -> Any:
    """The question.

    Args:
        names: of which, in order.
    """
    topics = [
        _Topic(
            name=topic,
            partitions=[
                _Topic.ListOffsetsPartition(
                    partition_index=name.partition,
                    current_leader_epoch=epochs[name],
                    timestamp=OffsetSpec.LATEST,
                )
                for name in some
            ],
        )
        for topic, some in groupby(names, lambda name: name.topic)
    ]
    return ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=IsolationLevel.READ_COMMITTED,
        topics=topics,
        timeout_ms=int(timeout_s * 1000),
        min_version=_SINCE,
    )


def stable_offsets(
    answers: Iterable[Any], asked: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, int]:
    """What ListOffsetsResponses say of the partitions that were asked for."""
    found = {
        (topic.name, partition.partition_index): int(partition.offset)
        for answer in answers
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code == _NO_ERROR and partition.offset >= 0
    }
    told = ((name, found.get((name.topic, name.partition))) for name in asked)
    return {name: offset for name, offset in told if offset is not None}
