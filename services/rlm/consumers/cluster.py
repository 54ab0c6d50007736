"""Name the nodes that consumers see, and the node that serves each partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.api.ids import TopicIdPartition
from services.rlm.partition import ServedPartition


@dataclass(frozen=True, slots=True)
class Node:
    """An RLM under the id of its broker, at its listener's advertised address."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Leader:
    """The node that serves a partition.

    Attributes:
        node_id: None if no live RLM can serve it now.
        leader_epoch: None if it is unknown; then consumers do not compare epochs.
    """

    node_id: int | None
    leader_epoch: int | None


class ReaderCluster(Protocol):
    """The RLMs of one cluster, as consumers see them. Thread-safe.

    Attributes:
        own: the node of this RLM.
        cluster_id: None if it is unknown.
    """

    own: Node
    cluster_id: str | None

    def nodes(self) -> Sequence[Node]:
        """Return the live RLMs that have a listener, with this one always. No network call."""
        ...

    def leaders_of(
        self, partitions: Sequence[ServedPartition]
    ) -> Mapping[TopicIdPartition, Leader]:
        """Return the node that serves each of these partitions, none left out."""
        ...


class OneReader:
    """Serve every partition from this RLM alone."""

    def __init__(self, own: Node, cluster_id: str | None = None) -> None:
        self.own = own
        self.cluster_id = cluster_id

    def nodes(self) -> Sequence[Node]:
        return (self.own,)

    def leaders_of(
        self, partitions: Sequence[ServedPartition]
    ) -> Mapping[TopicIdPartition, Leader]:
        return {p.topic_id_partition: Leader(self.own.id, p.leader_epoch) for p in partitions}
