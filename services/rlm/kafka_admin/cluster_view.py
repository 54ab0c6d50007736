"""What a cluster has answered about topics, and how it cleans them up."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID

from services.api.ids import TopicIdPartition


class ClusterUnreachableError(Exception):
    """The cluster did not answer, or not as one cluster; nothing is known of now."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """
    Attributes:
        leader: the leading broker; None: there is none now.
        leader_epoch: of that leader; None: not known now.
        replicas: the brokers that the partition is assigned to.
    """

    leader: int | None
    leader_epoch: int | None
    replicas: frozenset[int]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic that there is, by partition."""

    topic_id: UUID
    partitions: Mapping[int, PartitionView]


class NoTopic(Enum):
    """Why a name was not answered with a topic.

    UNKNOWN: who may describe it asked for it by name, and there is none of this name.
    NOT_AUTHORIZED: whether there is one is not told. FAILED: no answer now.
    """

    UNKNOWN = "UNKNOWN"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Answers of one cluster.

    Attributes:
        topics: by name, each name that was asked for.
    """

    cluster_id: str
    topics: Mapping[str, TopicView | NoTopic]


@dataclass(frozen=True, slots=True)
class NoPolicy:
    """Why a topic's cleanup.policy was not told.

    Attributes:
        is_refused: who asks may not know it (DESCRIBE_CONFIGS); False: no answer now.
    """

    reason: str
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class PolicyView:
    """What a broker answered of topics, and right after that of how they are cleaned up.

    Attributes:
        cleanup_policies: by name, as Kafka writes them: "delete", "compact,delete". What is not
            here was not answered.
    """

    cluster: ClusterView
    cleanup_policies: Mapping[str, str | NoPolicy]


class ClusterAdmin(Protocol):
    """The admin API of a cluster."""

    def view(self, topics: Collection[str]) -> ClusterView:
        """Ask for each of these topics, by name; never for a list of all, which leaves out what
        the asker may not see. Asking creates no topic.

        Raises:
            ClusterUnreachableError: no whole answer; it comes in bounded time.
        """
        ...

    def cleanup_policies(self, topics: Collection[str]) -> PolicyView:
        """Ask how each of these topics is cleaned up (cleanup.policy, the cluster's default
        included), and for what `view` asks, of one broker.

        Raises:
            ClusterUnreachableError: as `view`.
        """
        ...

    def stable_offsets(
        self, leader: int, epochs: Mapping[TopicIdPartition, int]
    ) -> Mapping[TopicIdPartition, int]:
        """The last stable offset of each of these partitions, asked of the broker that leads them
        (ListOffsets of the latest offset, read_committed): below it all in-sync replicas have every
        record, and the end of every transaction. Left out are those of which it says nothing, as
        where it does not lead one under this leader epoch.

        Args:
            epochs: by partition, the leader epoch that its leader was seen in.

        Raises:
            ClusterUnreachableError: the broker did not answer, or no view has named it yet.
        """
        ...
