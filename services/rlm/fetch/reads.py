"""Serve all reads of the RLM of one broker: the one door to the modules of this folder."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import (
    RemoteStorageManager,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.common.fair_queue import QuotaLimit
from services.rlm.fetch.chunk_cache import FILLS_AHEAD, MIB, ChunkCache
from services.rlm.fetch.chunk_cache import LogSource as LogSource
from services.rlm.fetch.fetcher import Fetcher
from services.rlm.fetch.index_cache import RemoteIndexCache
from services.rlm.fetch.index_files import IndexFileLimits, IndexFiles
from services.rlm.fetch.offset_finder import OffsetFinder
from services.rlm.fetch.purgatory import FetchPurgatory
from services.rlm.fetch.records_deletion import RecordsDeletion
from services.rlm.fetch.replicas import AuxStateBuilder
from services.rlm.fetch.segment_reader import MetadataAges, RemoteSegmentReader
from services.rlm.fetch.tier_calls import TierCalls
from services.rlm.metrics import TopicCounts
from services.rlm.partition import Partition
from services.rlm.reporting import Reporter


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits of reads.

    Attributes:
        threads: remote reads at once.
        wait_s: how long a read waits for a free slot, and for the store's next bytes, seconds
            (Kafka: remote.fetch.max.wait.ms).
        max_waiting: reads that wait for a slot (Kafka: remote.log.reader.max.pending.tasks).
        recent_s: how old metadata may be with which consumers read known segments.
        stale_s: how old it may be while RLMM is unreachable.
        max_delayed_fetches: fetches that hold a thread of the server while they wait for records;
            others are answered at once.
        index_files: None to keep indexes in memory only.
    """

    threads: int = 10
    wait_s: float = 0.5
    max_waiting: int = 100
    quota: QuotaLimit = field(default_factory=QuotaLimit)
    recent_s: float = 1.0
    stale_s: float = 300.0
    list_offsets_timeout_s: float = 30.0
    max_delayed_fetches: int = 8
    chunk_memory_bytes: int = 64 * MIB
    index_memory_bytes: int = 32 * MIB
    index_files: IndexFileLimits | None = None


class Reads:
    """Serve the reads of RemoteLogManager, from the logs of this broker and from the tier.

    Args:
        partition_of: returns the partition that RLM knows by a name, or creates it.
        logs: reads logs of the tier; None if `rsm` does.

    Attributes:
        storage: `rsm`, for the tasks that delete segments; the caches drop what they delete.
        fetch, list_offsets, offsets_for_leader_epochs, delete_records, build_remote_log_aux_state:
            as of RemoteLogManager.
        end_waits: lets fetches that wait for records answer now, and later ones at once.
        maintain: removes files of the index cache that are old or too many.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        partition_of: Callable[[TopicIdPartition], Partition],
        broker_id: int,
        reporter: Reporter,
        counts: TopicCounts,
        limits: ReadLimits,
        clock: Callable[[], float] = time.monotonic,
        logs: LogSource | None = None,
    ) -> None:
        files = IndexFiles(limits.index_files, clock) if limits.index_files else None
        indexes = RemoteIndexCache(rsm, limits.index_memory_bytes, files, limits.wait_s)
        # One for each reader, and as many for readers that did not wait for theirs.
        max_fills = 2 * limits.threads + FILLS_AHEAD
        self._chunks = ChunkCache(logs or rsm, limits.chunk_memory_bytes, max_fills, clock)
        self.storage = CacheInvalidatingStorage(rsm, indexes, self._chunks, counts)
        self.calls = TierCalls(limits.threads, limits.wait_s, limits.max_waiting)
        remote = RemoteSegmentReader(
            rlmm,
            indexes,
            self._chunks,
            clock,
            calls=self.calls,
            quota=limits.quota,
            ages=MetadataAges(limits.recent_s, limits.stale_s),
        )
        purgatory = FetchPurgatory(partition_of, remote, limits.max_delayed_fetches, clock)
        offsets = OffsetFinder(partition_of, remote, rlmm, limits.list_offsets_timeout_s)
        self.fetch = Fetcher(partition_of, remote, counts, purgatory).fetch
        self.list_offsets = offsets.list_offsets
        self.offsets_for_leader_epochs = offsets.offsets_for_leader_epochs
        self.delete_records = RecordsDeletion(partition_of, rlmm, broker_id, reporter).delete_all
        self.build_remote_log_aux_state = AuxStateBuilder(
            partition_of, remote, rlmm, purgatory, counts, clock
        ).build
        self.end_waits = purgatory.end_waits
        self.maintain = indexes.maintain

    def close(self) -> None:
        """Request nothing more from RLMM and RSM. Idempotent."""
        self._chunks.close()
        self.calls.close()


class CacheInvalidatingStorage:
    """Forward calls to RSM; remove deleted segments from the caches and count deletions.

    Source: RemoteLogManager calls indexCache.remove after a deletion.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        indexes: RemoteIndexCache,
        chunks: ChunkCache,
        counts: TopicCounts,
    ) -> None:
        self._rsm = rsm
        self.copy_log_segment_data = rsm.copy_log_segment_data
        self.fetch_log_segment = rsm.fetch_log_segment
        self.open_log_segment = rsm.open_log_segment
        self.fetch_index = rsm.fetch_index
        self.find_partition_object = rsm.find_partition_object
        self._indexes = indexes
        self._chunks = chunks
        self._counts = counts

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        try:
            self._rsm.delete_log_segment_data(metadata)
        except RemoteStorageError as e:
            self._counts.add_deletion(metadata, e)
            raise
        self._counts.add_deletion(metadata, None)
        self._remove([metadata])

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        try:
            errors = self._rsm.delete_log_segment_data_batch(metadatas)
        except RemoteStorageError as e:
            for metadata in metadatas:
                self._counts.add_deletion(metadata, e)
            raise
        for metadata, error in zip(metadatas, errors, strict=True):
            self._counts.add_deletion(metadata, error)
        self._remove([m for m, error in zip(metadatas, errors, strict=True) if error is None])
        return errors

    def _remove(self, deleted: Sequence[RemoteLogSegmentMetadata]) -> None:
        names = [metadata.remote_log_segment_id for metadata in deleted]
        self._indexes.remove(names)
        self._chunks.remove(names)
