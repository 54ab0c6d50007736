"""Define the answers of a cluster about its topics, and the interface that requests them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID

from services.api.ids import TopicIdPartition


class ClusterUnreachableError(Exception):
    """The cluster did not answer, or its answers are incomplete or of several clusters."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Who leads and replicates a partition.

    Attributes:
        leader: the leading broker; None: there is none now.
        leader_epoch: of that leader; None: unknown.
        replicas: the brokers that the partition is assigned to.
    """

    leader: int | None
    leader_epoch: int | None
    replicas: frozenset[int]


@dataclass(frozen=True, slots=True)
class TopicView:
    """An existing topic, by partition."""

    topic_id: UUID
    partitions: Mapping[int, PartitionView]


class NoTopic(Enum):
    """Why the answer for a name is no topic.

    UNKNOWN: no topic has this name, and RLM may describe it. NOT_AUTHORIZED: RLM may not know
    whether there is one. FAILED: no answer now.
    """

    UNKNOWN = "UNKNOWN"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Answers of one cluster.

    Attributes:
        topics: by name, for each requested name.
    """

    cluster_id: str
    topics: Mapping[str, TopicView | NoTopic]


@dataclass(frozen=True, slots=True)
class NoPolicy:
    """Why a topic's cleanup.policy is not known.

    Attributes:
        is_refused: RLM may not know it (DESCRIBE_CONFIGS); False: no answer now.
    """

    reason: str
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class PolicyView:
    """A broker's answer about topics, and its answer right after that about their policies.

    Attributes:
        cleanup_policies: by name, as Kafka writes them: "delete", "compact,delete". Missing ones
            were not answered.
    """

    cluster: ClusterView
    cleanup_policies: Mapping[str, str | NoPolicy]


class ClusterAdmin(Protocol):
    """The admin API of a cluster."""

    def view(self, topics: Collection[str]) -> ClusterView:
        """Request each of these topics by name, and never all of them: that answer would leave out
        what RLM may not see. A request creates no topic.

        Raises:
            ClusterUnreachableError: no complete answer in bounded time.
        """
        ...

    def cleanup_policies(self, topics: Collection[str]) -> PolicyView:
        """Request the cleanup.policy of each of these topics, including the cluster's default, and
        what `view` requests, from one broker.

        Raises:
            ClusterUnreachableError: as `view`.
        """
        ...

    def stable_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, int]:
        """Request the last stable offset of each of these partitions from the broker that leads
        them (ListOffsets of the latest offset, read_committed).

        Below it all in-sync replicas have every record, and the end of every transaction.
        Partitions without an answer are left out, such as those that the broker does not lead under
        this epoch.

        Args:
            epochs: by partition, the leader epoch in which its leader was seen.

        Raises:
            ClusterUnreachableError: the broker did not answer, or no view has named it yet.
        """
        ...
