"""Keep from retention what an export has yet to read, while it runs."""

import time
from collections.abc import Callable, Sequence

from services.api.errors import RemoteResourceNotFoundError
from services.api.holds import Hold, HoldKind
from services.api.ids import TopicIdPartition
from spark_jobs.records.tier import TierReader


class Leases:
    """The leases of one run on the positions of its partitions.

    The run has all of them from its beginning on, and reads one partition after the other.
    """

    def __init__(
        self,
        tier: TierReader,
        name: str,
        lease_ms: int,
        partitions: Sequence[TopicIdPartition],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Acquire leases of `lease_ms` for the export `name`; of 0 ms: none."""
        self._tier = tier
        self._name = name
        self._lease_ms = lease_ms
        self._waiting = list(partitions)
        self._now_s = now_s
        self._renewed_s = now_s()

    def begin(self) -> None:
        """Acquire all leases.

        A position that an earlier run has stored stays: a lower one only renews its lease.
        """
        for tp in self._waiting:
            self._store_if_known(tp)

    def turn(self, tp: TopicIdPartition, position: int) -> None:
        """Keep the offsets of the partition that is read next, from the position on."""
        self._waiting.remove(tp)
        self._set_position(tp, position)

    def committed(self, tp: TopicIdPartition, position: int) -> None:
        """Raise the position of the partition that is read, and renew those of later ones."""
        self._set_position(tp, position)
        if self._now_s() - self._renewed_s < self._lease_ms / 4000:
            return
        for each in self._waiting:
            self._store_if_known(each)
        self._renewed_s = self._now_s()

    def _store_if_known(self, tp: TopicIdPartition) -> None:
        """Renew a lease; a partition that has been removed is reported when its turn comes."""
        try:
            self._set_position(tp, 0)
        except RemoteResourceNotFoundError:
            return

    def _set_position(self, tp: TopicIdPartition, position: int) -> None:
        if self._lease_ms > 0:
            hold = Hold(self._name, HoldKind.EXPORT, tp.topic_id, tp.topic, tp.partition, position)
            self._tier.rlmm.set_hold(hold, self._lease_ms)
