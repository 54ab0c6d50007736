"""Report the logs that brokers tier by themselves: Kafka's bounds and the tier's lineage."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.api.errors import (
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import PolledLog
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_batches import MAX_REVISIONS
from services.common.batches import batches
from services.rlm.kafka_admin.cluster_view import ClusterAdmin, ClusterUnreachableError, LogOffsets
from services.rlm.reporting import report_batches
from services.rlm.tier_state import TierState

_log = logging.getLogger(__name__)

RENEW_S = 300.0
"""The interval at which an unchanged log is reported again, so that its age shows a stopped RLM."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition and its epoch, by the latest view."""

    broker_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class _SentLog:
    log: PolledLog
    at_s: float


@dataclass(eq=False)
class PolledLogs:
    """Report the polled logs of partitions to RLMM, if they changed or get old. Not thread-safe.

    A partition costs a share of two ListOffsets requests and of one of its revision. Its segments
    are listed only if its revision has changed, and an index is fetched only from a new newest
    segment.

    Attributes:
        clock: monotonic seconds.
    """

    admin: ClusterAdmin
    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager
    clock: Callable[[], float] = time.monotonic
    _tiers: dict[TopicIdPartition, TierState] = field(init=False, default_factory=dict)
    _sent: dict[TopicIdPartition, _SentLog] = field(init=False, default_factory=dict)

    def report(self, led: dict[TopicIdPartition, Leader]) -> list[Exception]:
        """Poll and report these partitions; return the failures, which stop no other partition.

        Without RLMM none is reported; without a broker none that it leads; without RSM the lineage
        that was read last is reported.

        Args:
            led: all partitions to report; the state of others is dropped.
        """
        for cache in (self._tiers, self._sent):
            for name in cache.keys() - led.keys():
                del cache[name]
        failures: list[Exception] = []
        offsets = self._offsets(led, failures)
        try:
            revisions = self._revisions(sorted(offsets))
            logs = [
                PolledLog(
                    name,
                    led[name].broker_id,
                    led[name].leader_epoch,
                    self._lineage(name, revision, failures),
                    offsets[name].log_start_offset,
                    offsets[name].high_watermark,
                )
                for name, revision in revisions.items()
            ]
            due = filter(self._is_due, logs)
            for batch in report_batches(due, lambda log: len(log.lineage.entries)):
                self.rlmm.report_partition_state([], batch)
                at_s = self.clock()
                self._sent |= {log.topic_id_partition: _SentLog(log, at_s) for log in batch}
        except RemoteStorageError as e:
            failures.append(e)
        return failures

    def _offsets(
        self, led: dict[TopicIdPartition, Leader], failures: list[Exception]
    ) -> dict[TopicIdPartition, LogOffsets]:
        by_leader: dict[int, dict[TopicIdPartition, int]] = defaultdict(dict)
        for name, leader in led.items():
            by_leader[leader.broker_id][name] = leader.leader_epoch
        found: dict[TopicIdPartition, LogOffsets] = {}
        for broker_id, epochs in sorted(by_leader.items()):
            try:
                found |= self.admin.log_offsets(broker_id, epochs)
            except ClusterUnreachableError as e:
                failures.append(e)
        return found

    def _revisions(self, names: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, int]:
        """Return the revisions of the partitions that RLMM knows."""
        found: dict[TopicIdPartition, int] = {}
        for some in batches(names, MAX_REVISIONS):
            found |= zip(some, self.rlmm.partition_revisions(some), strict=True)
        return {name: revision for name, revision in found.items() if revision}

    def _lineage(self, name: TopicIdPartition, revision: int, failures: list[Exception]) -> Lineage:
        state = self._tiers.setdefault(name, TierState(self.rsm, self.rlmm, name))
        try:
            if state.cached.revision != revision:
                state.refresh()
            return state.lineage.of(state.cached)
        except RetriableRemoteStorageError as e:
            failures.append(e)  # The next poll reads it again.
        except RemoteStorageError as e:
            _log.warning("%s: cannot read the tier's lineage: %s", name, e)
        return state.lineage.last_read

    def _is_due(self, log: PolledLog) -> bool:
        sent = self._sent.get(log.topic_id_partition)
        return sent is None or sent.log != log or self.clock() - sent.at_s >= RENEW_S
