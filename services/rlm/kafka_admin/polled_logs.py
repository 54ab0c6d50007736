"""Report the logs that brokers tier by themselves: Kafka's bounds and the tier's lineage."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from services.api.errors import (
    InvalidRequestError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage, parse_checkpoint
from services.api.partitions import PolledLog
from services.api.remote_log_metadata_manager import (
    MAX_REPORTED_EPOCHS,
    MAX_REPORTS,
    RemoteLogMetadataManager,
    all_segments,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segment_batches import MAX_REVISIONS
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlm.kafka_admin.cluster_view import ClusterAdmin, ClusterUnreachableError, LogOffsets
from services.workflows.deletion import batches

_log = logging.getLogger(__name__)

RENEW_S = 300.0
"""The interval at which an unchanged log is reported again, so that its age shows a stopped RLM."""


@dataclass(frozen=True, slots=True)
class Led:
    """The leader of a partition and its epoch, by the latest view."""

    broker_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class _TierLineage:
    """The lineage of a partition's newest finished segment.

    Attributes:
        revision: of the partition when its segments were listed.
        newest: None if no segment is finished.
    """

    revision: int
    newest: UUID | None
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class _Sent:
    log: PolledLog
    at_s: float


class PolledLogs:
    """Report the polled logs of partitions to RLMM, if they changed or get old. Not thread-safe.

    A partition costs a share of two ListOffsets requests and of one of its revision. Its segments
    are listed only if its revision has changed, and an index is fetched only from a new newest
    segment.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self,
        admin: ClusterAdmin,
        rlmm: RemoteLogMetadataManager,
        rsm: RemoteStorageManager,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._rlmm = rlmm
        self._rsm = rsm
        self._clock = clock
        self._lineages: dict[TopicIdPartition, _TierLineage] = {}
        self._sent: dict[TopicIdPartition, _Sent] = {}

    def report(self, led: dict[TopicIdPartition, Led]) -> list[Exception]:
        """Poll and report these partitions; return the failures, which stop no other partition.

        Without RLMM none is reported; without a broker none that it leads; without RSM the lineage
        that was read last is reported.

        Args:
            led: all partitions to report; the state of others is dropped.
        """
        for cache in (self._lineages, self._sent):
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
            for batch in _batches([log for log in logs if self._is_due(log)]):
                self._rlmm.report_partition_state([], batch)
                at_s = self._clock()
                self._sent |= {log.topic_id_partition: _Sent(log, at_s) for log in batch}
        except RemoteStorageError as e:
            failures.append(e)
        return failures

    def _offsets(
        self, led: dict[TopicIdPartition, Led], failures: list[Exception]
    ) -> dict[TopicIdPartition, LogOffsets]:
        by_leader: dict[int, dict[TopicIdPartition, int]] = defaultdict(dict)
        for name, leader in led.items():
            by_leader[leader.broker_id][name] = leader.leader_epoch
        found: dict[TopicIdPartition, LogOffsets] = {}
        for broker_id, epochs in sorted(by_leader.items()):
            try:
                found |= self._admin.log_offsets(broker_id, epochs)
            except ClusterUnreachableError as e:
                failures.append(e)
        return found

    def _revisions(self, names: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, int]:
        """Return the revisions of the partitions that RLMM knows."""
        found: dict[TopicIdPartition, int] = {}
        for some in batches(names, MAX_REVISIONS):
            found |= zip(some, self._rlmm.partition_revisions(some), strict=True)
        return {name: revision for name, revision in found.items() if revision}

    def _lineage(self, name: TopicIdPartition, revision: int, failures: list[Exception]) -> Lineage:
        known = self._lineages.get(name)
        if known is not None and known.revision == revision:
            return known.lineage
        try:
            known = self._lineages[name] = self._read_lineage(name, revision, known)
        except RetriableRemoteStorageError as e:
            failures.append(e)  # The next poll reads it again.
        except RemoteStorageError as e:
            _log.warning("%s: cannot read the tier's lineage: %s", name, e)
            # Until the revision changes: the reason rarely disappears before.
            last = Lineage() if known is None else known.lineage
            known = self._lineages[name] = _TierLineage(revision, None, last)
        return Lineage() if known is None else known.lineage

    def _read_lineage(
        self, name: TopicIdPartition, revision: int, known: _TierLineage | None
    ) -> _TierLineage:
        newest = newest_finished(all_segments(self._rlmm, name))
        if newest is None:
            return _TierLineage(revision, None, Lineage())
        id = newest.remote_log_segment_id.id
        if known is not None and known.newest == id:
            return _TierLineage(revision, id, known.lineage)
        data = b"".join(self._rsm.fetch_index(newest, IndexType.LEADER_EPOCH))
        try:
            return _TierLineage(revision, id, parse_checkpoint(data.decode("ascii")))
        except UnicodeDecodeError as e:
            raise InvalidRequestError(f"leader epochs: {e}") from e

    def _is_due(self, log: PolledLog) -> bool:
        sent = self._sent.get(log.topic_id_partition)
        return sent is None or sent.log != log or self._clock() - sent.at_s >= RENEW_S


def newest_finished(
    segments: Iterator[RemoteLogSegmentMetadata],
) -> RemoteLogSegmentMetadata | None:
    """Return the finished segment with the latest epoch; of several, the one that ends last."""
    finished = (s for s in segments if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    return max(
        finished,
        key=lambda s: (s.segment_leader_epochs[-1].leader_epoch, s.end_offset),
        default=None,
    )


def _batches(logs: Sequence[PolledLog]) -> Iterator[list[PolledLog]]:
    """Split the logs into batches, one per call."""
    batch: list[PolledLog] = []
    epochs = 0
    for log in logs:
        more = len(log.lineage.entries)
        if batch and (len(batch) == MAX_REPORTS or epochs + more > MAX_REPORTED_EPOCHS):
            yield batch
            batch, epochs = [], 0
        batch.append(log)
        epochs += more
    if batch:
        yield batch
