"""Define the answers of a cluster about its topics, and the interface that requests them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID

from services.api.ids import TopicIdPartition


class ClusterUnreachableError(Exception):
    """The error if answers of the cluster are missing, incomplete or of several clusters."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """The leader and the replicas of a partition.

    Attributes:
        leader: the leading broker; None if there is none now.
        leader_epoch: of that leader; None if unknown.
        replicas: the brokers that the partition is assigned to.
        in_sync: those of them that have all records below the high watermark.
    """

    leader: int | None
    leader_epoch: int | None
    replicas: frozenset[int]
    in_sync: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicView:
    """The partitions of an existing topic, by number."""

    topic_id: UUID
    partitions: Mapping[int, PartitionView]


class NoTopic(Enum):
    """The reason why the answer for a name has no topic.

    UNKNOWN: no topic has this name, and RLM is authorized to describe it. NOT_AUTHORIZED: RLM is
    not authorized to learn whether there is one. FAILED: no answer now.
    """

    UNKNOWN = "UNKNOWN"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The answers of one cluster.

    Attributes:
        topics: by name, for each requested name.
    """

    cluster_id: str
    topics: Mapping[str, TopicView | NoTopic]

    def topic(self, topic_id: UUID, name: str) -> TopicView | None:
        """Return the topic; None if the cluster does not show it, or another one has its name."""
        answer = self.topics.get(name)
        if isinstance(answer, TopicView) and answer.topic_id == topic_id:
            return answer
        return None


@dataclass(frozen=True, slots=True)
class NoPolicy:
    """The reason why a topic's cleanup.policy is not known.

    Attributes:
        is_refused: RLM is not authorized to read it (DESCRIBE_CONFIGS); False if there is no answer
            now.
    """

    reason: str
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class PolicyView:
    """The answer of a broker about topics, and its next answer about their policies.

    Attributes:
        cleanup_policies: by name, as Kafka writes them: "delete", "compact,delete". A topic without
            an answer is missing.
    """

    cluster: ClusterView
    cleanup_policies: Mapping[str, str | NoPolicy]


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The bounds of a log, as consumers see them.

    Attributes:
        log_start_offset: the first offset in the tier or on the leader's disk.
        high_watermark: exclusive.
    """

    log_start_offset: int
    high_watermark: int


class ClusterAdmin(Protocol):
    """The admin API of a cluster."""

    def view(self, topics: Collection[str]) -> ClusterView:
        """Request each of these topics by name.

        A request for all topics would omit those that RLM is not authorized to see. A request
        creates no topic.

        Raises:
            ClusterUnreachableError: if there is no complete answer in bounded time.
        """

    def cleanup_policies(self, topics: Collection[str]) -> PolicyView:
        """Request the cleanup.policy of each of these topics, and their view, from one broker.

        A policy may be the cluster's default.
        """

    def stable_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, int]:
        """Request the last stable offset of each of these partitions from their leader.

        The request is ListOffsets of the latest offset, read_committed. Below this offset, all
        in-sync replicas have every record and the end of every transaction. Partitions without an
        answer are left out, for example if the broker does not lead them under this epoch.

        Args:
            epochs: the leader epoch of the leader, by partition.

        Raises:
            ClusterUnreachableError: if the broker did not answer, or was in no view yet.
        """

    def log_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, LogOffsets]:
        """Request the log start and the high watermark of each of these partitions.

        The requests are ListOffsets of the earliest and the latest offset, read_uncommitted.
        Partitions without both answers are left out.

        Args:
            epochs: the leader epoch of the leader, by partition.
        """
