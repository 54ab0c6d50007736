"""Announce this RLM in RLMM, and choose the RLM that serves the readers of each partition."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from uuid import uuid4

from services.api.endpoints import RlmEndpoint
from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rlm.kafka_admin.cluster_view import (
    ClusterAdmin,
    ClusterUnreachableError,
    NoTopic,
    TopicView,
)
from services.rlm.kafka_log.log_dir import BrokerIdentity

LEASE_MS = 10_000
"""Renewed three times as often."""

RECENT_S = 1.0
"""How old the cluster's answer may be for a client that looks for a leader."""

UNREACHABLE_S = 3.0
"""How long a cluster that did not answer is not called for readers."""

FORGOTTEN_AFTER_S = 60.0
"""How long the leaders of a topic are read without readers."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leader:
    """The RLM that serves the readers of a partition.

    Attributes:
        node_id: its broker; None if no live RLM can serve it now.
        leader_epoch: None if it is unknown; then consumers do not compare epochs.
        stands_in: it serves an in-sync follower's log, because the leader's RLM is dead.
    """

    node_id: int | None
    leader_epoch: int | None
    stands_in: bool = False


@dataclass(slots=True)
class _Seen:
    """A topic as the cluster last showed it; None if it did not."""

    topic: TopicView | None
    at_s: float
    used_s: float


class Readers:
    """Know the live RLMs of a broker's cluster, and the leaders of its partitions. Thread-safe.

    Without the cluster's answers it knows no leaders. While RLMM is away, the RLMs that lived last
    count as alive.

    Args:
        rlmm, identity: None if the log directories have none; then nothing is announced.
        admin: of the broker's cluster; None without bootstrap servers.
        clock: monotonic seconds.

    Attributes:
        live: the RLMs whose lease lasts, this one included once it is announced.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager | None = None,
        identity: BrokerIdentity | None = None,
        admin: ClusterAdmin | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.live: tuple[RlmEndpoint, ...] = ()
        self._rlmm = rlmm
        self._admin = admin if identity is not None else None
        self._clock = clock
        self._instance_id = uuid4()
        self._own: RlmEndpoint | None = None
        self._announcing = threading.Lock()
        self._refused = ""
        self._reading = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        self._calls_from_s = 0.0

    def serve_at(self, address: str, listener: str | None) -> None:
        """Announce these addresses, HOST:PORT, from the next renewal on."""
        if self.identity is not None:
            broker = self.identity
            self._own = RlmEndpoint(
                broker.cluster_id, broker.directory_id, broker.broker_id, address, listener
            )

    def renew(self) -> None:
        """Renew the lease, and read the leaders of topics that have readers."""
        with self._announcing:
            self._announce(LEASE_MS)
        with self._reading:
            used_from_s = self._clock() - FORGOTTEN_AFTER_S
            self._seen = {n: s for n, s in self._seen.items() if s.used_s >= used_from_s}
            topics = list(self._seen)
        self._read(topics, RECENT_S, for_readers=False)

    def withdraw(self) -> None:
        """End the lease, so that other RLMs take this one's readers at once. Idempotent."""
        with self._announcing:
            self._announce(0)
            self._own = None

    def _announce(self, lease_ms: int) -> None:
        if self._own is None or self._rlmm is None:
            return
        reason = ""
        try:
            live = self._rlmm.announce_endpoint(self._own, self._instance_id, lease_ms)
            self.live = tuple(live)
        except RemoteStorageError as e:
            reason = str(e)
        if reason and reason != self._refused:
            _log.warning("readers are not sent to this RLM: it cannot be announced: %s", reason)
        self._refused = reason

    def leaders(
        self,
        names: Iterable[TopicIdPartition],
        nodes: Collection[int],
        max_age_s: float | None = RECENT_S,
    ) -> dict[TopicIdPartition, Leader]:
        """Return the RLMs that serve these partitions; those that any RLM may serve are left out.

        Args:
            nodes: the brokers whose RLMs may be chosen.
            max_age_s: of what the cluster answered about a topic; None: as it is known.
        """
        if self._admin is None:
            return {}
        names = list(names)
        self._read({name.topic for name in names}, max_age_s)
        chosen = ((name, self._choose(name, nodes)) for name in names)
        return {name: leader for name, leader in chosen if leader is not None}

    def _choose(self, name: TopicIdPartition, nodes: Collection[int]) -> Leader | None:
        seen = self._seen.get(name.topic)
        topic = None if seen is None else seen.topic
        if topic is None or topic.topic_id != name.topic_id:
            return None  # Only the tier has it, as far as is known.
        found = topic.partitions.get(name.partition)
        if found is None or found.leader is None:
            return None
        if found.leader in nodes:
            return Leader(found.leader, found.leader_epoch)
        in_sync = sorted(found.in_sync & set(nodes))
        if not in_sync:
            return Leader(None, found.leader_epoch)
        # Every RLM chooses the same one, and not one for all partitions.
        node_id = in_sync[name.partition % len(in_sync)]
        return Leader(node_id, found.leader_epoch, stands_in=True)

    def _read(
        self, topics: Collection[str], max_age_s: float | None, *, for_readers: bool = True
    ) -> None:
        """Read the leaders of topics of which the last answer is older; keep it after a failure."""
        if self._admin is None or self.identity is None:
            return
        now = self._clock()
        for name in topics if for_readers else ():
            if (seen := self._seen.get(name)) is not None:
                seen.used_s = now
        if not any(self._is_due(name, now, max_age_s) for name in topics):
            return
        with self._reading:
            now = self._clock()
            due = [name for name in topics if self._is_due(name, now, max_age_s)]
            if not due or now < self._calls_from_s:
                return
            try:
                view = self._admin.view(due)
            except ClusterUnreachableError as e:
                _log.info("the leaders of partitions stay as they were last known: %s", e)
                self._calls_from_s = self._clock() + UNREACHABLE_S
                return
            if view.cluster_id != self.identity.cluster_id:
                return  # The poller logs it.
            for name in due:
                answer, before = view.topics.get(name, NoTopic.FAILED), self._seen.get(name)
                topic = answer if isinstance(answer, TopicView) else None
                if answer is NoTopic.FAILED and before is not None:
                    topic = before.topic
                self._seen[name] = _Seen(topic, now, now if before is None else before.used_s)

    def _is_due(self, name: str, now_s: float, max_age_s: float | None) -> bool:
        seen = self._seen.get(name)
        return seen is None or (max_age_s is not None and now_s - seen.at_s >= max_age_s)
