"""Name the nodes that consumers see, and the node that serves each partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchError
from services.common.addresses import split_address
from services.rlm.partition import ServedPartition
from services.rlm.partition_readers import RECENT_S, Leader, Readers


@dataclass(frozen=True, slots=True)
class Node:
    """An RLM under the id of its broker, at its listener's advertised address."""

    id: int
    host: str
    port: int


class ReaderCluster:
    """The live RLMs of one cluster that have a listener, as consumers see them. Thread-safe.

    Attributes:
        own: the node of this RLM.
        cluster_id: None if it is unknown.
    """

    def __init__(self, own: Node, readers: Readers) -> None:
        self.own = own
        self.cluster_id = readers.identity.cluster_id if readers.identity else None
        self._readers = readers

    def nodes(self) -> Sequence[Node]:
        """Return them, with this one always. No network call."""
        found = {
            each.broker_id: Node(each.broker_id, *split_address(each.listener))
            for each in self._readers.live
            if each.listener is not None
        }
        found[self.own.id] = self.own
        return [found[id] for id in sorted(found)]

    def leaders_of(
        self, partitions: Sequence[ServedPartition]
    ) -> Mapping[TopicIdPartition, Leader]:
        """Return the node that serves each of these partitions, none left out."""
        names = [each.topic_id_partition for each in partitions]
        found = self._leaders(names, RECENT_S)
        here = {p.topic_id_partition: Leader(self.own.id, p.leader_epoch) for p in partitions}
        return here | found

    def check(
        self, epochs: Mapping[TopicIdPartition, int | None]
    ) -> Mapping[TopicIdPartition, FetchError]:
        """Return NONE, or why this node does not serve a consumer, as a broker answers (KIP-320).

        Partitions that any node may serve are left out.

        Args:
            epochs: the leader epochs that the consumer knows; None: not compared.
        """
        found = self._leaders(list(epochs), None)
        # The consumer may know a later leader, or come too late: both read the cluster's answer.
        doubtful = [tp for tp, leader in found.items() if self._refusal(leader, epochs[tp])]
        if doubtful:
            found = found | self._leaders(doubtful, RECENT_S)
        refusals = {tp: self._refusal(leader, epochs[tp]) for tp, leader in found.items()}
        return {tp: refusal or FetchError.NONE for tp, refusal in refusals.items()}

    def has_end_of(self, tp: TopicIdPartition) -> bool:
        """Return whether an offset beyond the end of the log here is out of range.

        It may exist if another node leads the partition.
        """
        leader = self._leaders([tp], RECENT_S).get(tp)
        return leader is None or (leader.node_id == self.own.id and not leader.stands_in)

    def _leaders(
        self, names: Sequence[TopicIdPartition], max_age_s: float | None
    ) -> dict[TopicIdPartition, Leader]:
        return self._readers.leaders(names, {node.id for node in self.nodes()}, max_age_s)

    def _refusal(self, leader: Leader, epoch: int | None) -> FetchError | None:
        if leader.node_id != self.own.id:
            return FetchError.NOT_LEADER_OR_FOLLOWER
        if epoch is None or leader.leader_epoch is None or epoch == leader.leader_epoch:
            return None
        is_late = epoch < leader.leader_epoch
        return FetchError.FENCED_LEADER_EPOCH if is_late else FetchError.UNKNOWN_LEADER_EPOCH
