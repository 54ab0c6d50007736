"""Build the state with which a replica begins its log behind the tier."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from services.api.errors import (
    FencedLeaderEpochError,
    InvalidRangeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage, parse_checkpoint
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import IndexType
from services.api.replicas import AuxStateQuery, RemoteLogAuxState
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.fetch.errors import FencedReaderError, ReadTimeoutError, UnknownLeaderEpochError
from services.rlm.fetch.partition_view import PartitionView
from services.rlm.fetch.purgatory import FetchPurgatory
from services.rlm.fetch.segment_reader import RemoteSegmentReader
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError
from services.rlm.metrics import AUX_STATE_ERRORS, AUX_STATE_REQUESTS, TopicCounts
from services.rlm.partition import Partition

_log = logging.getLogger(__name__)


class _NotThereYetError(Exception):
    """The error while the tier does not have the segment."""


@dataclass(frozen=True, slots=True)
class AuxStateBuilder:
    """Build states of the partitions that `partition_of` knows or creates. Thread-safe.

    A state costs two reads of RLMM and two of RSM, however many segments the partition has.
    """

    partition_of: Callable[[TopicIdPartition], Partition]
    remote: RemoteSegmentReader
    rlmm: RemoteLogMetadataManager
    purgatory: FetchPurgatory
    counts: TopicCounts
    clock: Callable[[], float] = time.monotonic

    def build(self, query: AuxStateQuery) -> RemoteLogAuxState:
        """Build as ReplicaService.build_remote_log_aux_state."""
        topic = query.topic_id_partition.topic
        self.counts.add(AUX_STATE_REQUESTS, topic)
        try:
            return self._build(query)
        except (FencedLeaderEpochError, InvalidRangeError):
            raise
        except RemoteStorageError:
            self.counts.add(AUX_STATE_ERRORS, topic)
            raise

    def _build(self, query: AuxStateQuery) -> RemoteLogAuxState:
        view = PartitionView(self.partition_of(query.topic_id_partition), self.remote)
        until_s = self.clock() + query.max_wait_ms / 1000
        while True:
            before = self.purgatory.tier_state(view.partition)
            try:
                return self._read(view, query)
            except ReadTimeoutError as e:  # No slot for reads was free in time.
                raise RetriableRemoteStorageError(str(e)) from e
            except _NotThereYetError as e:
                if not self.purgatory.wait_for_change(
                    lambda: self.purgatory.tier_state(view.partition),
                    before,
                    until_s - self.clock(),
                ):
                    raise RetriableRemoteStorageError(str(e)) from e

    def _read(self, view: PartitionView, query: AuxStateQuery) -> RemoteLogAuxState:
        name, last_offset = query.topic_id_partition, query.offset - 1
        leader = _lineage_of_leader(view)
        _check_leader_epoch(view, query.current_leader_epoch)
        with view.calls.slot():
            try:
                state = self.rlmm.partition_state(name).value
            except RemoteResourceNotFoundError as e:
                raise _NotThereYetError(f"{name} is not in the tier yet; retry: {e}") from e
            start = state.log_start_offset
            if query.offset < start:
                raise InvalidRangeError(
                    f"offset: {query.offset} is below the tier's log start {start} of {name}; read "
                    "the leader's local log start again"
                )
            lineage = state.lineage if leader is None else state.lineage.merged_with_report(leader)
            epoch = query.leader_epoch
            if epoch is None:
                epoch = lineage.epoch_for_offset(last_offset)
            segment = None if epoch is None else self._segment(name, epoch, last_offset)
            if segment is None or (leader is not None and not _is_of(lineage, segment)):
                raise _NotThereYetError(
                    f"{name}: offset {last_offset} of leader epoch {epoch} is not in a finished "
                    "segment yet; retry when its copy has finished, or give leader_epoch"
                )
            epochs = self.remote.indexes.index(segment, IndexType.LEADER_EPOCH)
            snapshot = self.remote.indexes.index(segment, IndexType.PRODUCER_SNAPSHOT)
        following = segment.end_offset + 1
        lineage = parse_checkpoint(epochs.decode("ascii")).before(following).from_offset(start)
        _log.info("%s: a replica begins at offset %d, by %s", name, following, segment)
        return RemoteLogAuxState(following, start, lineage, snapshot, segment.remote_log_segment_id)

    def _segment(
        self, name: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        try:
            return self.rlmm.remote_log_segment_metadata(name, epoch, offset).value
        except RemoteResourceNotFoundError:
            return None


def _lineage_of_leader(view: PartitionView) -> Lineage | None:
    """Read the leader's lineage, if this broker leads; the log of a follower may be overruled."""
    try:
        view.read_log()
    except (LogFileError, SegmentVanishedError) as e:
        raise RetriableRemoteStorageError(f"the log here cannot be read now; retry: {e}") from e
    if view.log is None or not view.partition.role.is_leader or not view.log.lineage.entries:
        return None
    return view.log.lineage


def _check_leader_epoch(view: PartitionView, epoch: int | None) -> None:
    try:
        view.check_leader_epoch(epoch)
    except FencedReaderError as e:
        raise FencedLeaderEpochError(f"current_leader_epoch: {e}") from e
    except UnknownLeaderEpochError as e:
        raise RetriableRemoteStorageError(f"current_leader_epoch: {e}; retry") from e


def _is_of(lineage: Lineage, segment: RemoteLogSegmentMetadata) -> bool:
    """Return whether the segment has the leader's records: a deposed leader may have copied it."""
    own = Lineage(segment.segment_leader_epochs)
    # The lineage begins at the log start, which may be within the segment.
    first = max(own.entries[0].start_offset, lineage.entries[0].start_offset)
    following = segment.end_offset + 1
    return lineage.between(first, following) == own.between(first, following)
