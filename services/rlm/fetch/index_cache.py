"""Cache indexes of remote segments, in memory and in files."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.lineage import parse_checkpoint
from services.api.remote_storage_manager import IndexType, LogSegmentData, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.fetch.index_files import IndexFiles, name_of
from services.rlm.kafka_log.indexes import TIME_ENTRY, OffsetIndex
from services.rlm.kafka_log.partition_dir import open_transactions
from services.rlm.kafka_log.transactions import parse_aborted_txns
from services.rlm.metrics import HITS, MISSES
from services.rlm.topic_configs import SingleFlight
from services.rlm.topic_metrics import TopicCounts


def check_index(segment: RemoteLogSegmentMetadata, kind: IndexType, data: bytes) -> None:
    """
    Raises:
        CorruptSegmentError: it is not an index of this kind, or not of this segment.
    """
    try:
        _check(segment, kind, data)
    except (ValueError, InvalidRequestError) as e:
        name = segment.remote_log_segment_id
        raise CorruptSegmentError(f"{name}: {kind.value} index: {e}") from e


def _check(segment: RemoteLogSegmentMetadata, kind: IndexType, data: bytes) -> None:
    match kind:
        case IndexType.OFFSET:
            OffsetIndex(data, segment.start_offset, segment.segment_size_in_bytes)
        case IndexType.TIMESTAMP:
            _check_times(data, segment.end_offset - segment.start_offset)
        case IndexType.TRANSACTION:
            parse_aborted_txns(data)
        case IndexType.PRODUCER_SNAPSHOT:
            open_transactions(data)
        case IndexType.LEADER_EPOCH:
            parse_checkpoint(data.decode("ascii"))


def _check_times(data: bytes, last_relative_offset: int) -> None:
    """Less than of an index that is copied: who copied it may have been a broker."""
    if len(data) % TIME_ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not whole entries of {TIME_ENTRY.size}")
    before = (-1, -1)
    for entry in TIME_ENTRY.iter_unpack(data):
        if entry[0] < before[0] or entry[1] < before[1]:
            raise ValueError(f"entry {entry} stands behind {before}")
        before = entry[0], entry[1]
    if before[1] > last_relative_offset:
        raise ValueError(f"relative offset {before[1]} is beyond the segment")


_ENTRY_OVERHEAD_BYTES = 512
_IN_MEMORY, _IN_FILE = HITS.labels("memory"), HITS.labels("file")


@dataclass(frozen=True, slots=True)
class _Loaded:
    index: bytes
    is_fetched: bool


class RemoteIndexCache:
    """In memory the most recently used, in files more of them, and those outlive the process.
    Thread-safe; readers that miss the same index at once cause one fetch.

    Args:
        files: None: memory only.
        wait_s: how long a reader waits for the fetch of another.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        memory_bytes: int,
        files: IndexFiles | None = None,
        wait_s: float = 0.5,
    ) -> None:
        self._rsm = rsm
        self._files = files
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._memory: LRUCache[str, bytes] = LRUCache(
            memory_bytes, getsizeof=lambda index: len(index) + _ENTRY_OVERHEAD_BYTES
        )
        self._flights: SingleFlight[str, _Loaded] = SingleFlight()

    def offset_index(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
        """The segment's offset index; raises as `index` does."""
        return OffsetIndex(self.index(segment, IndexType.OFFSET), segment.start_offset)

    def index(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        """An index of the segment, checked; empty: a segment without transaction index.

        Raises:
            RemoteResourceNotFoundError: it is not in the store.
            CorruptSegmentError: what is there is not an index of this segment.
            RetriableRemoteStorageError: the store cannot be reached, or the fetch of another reader
                takes long.
        """
        if kind is IndexType.TRANSACTION and segment.txn_idx_empty:
            return b""
        name = name_of(segment.remote_log_segment_id.id, kind)
        index = self._remembered(name)
        if index is not None:
            return index
        try:
            loaded, is_mine = self._flights.run(
                name, lambda: self._load(name, segment, kind), self._wait_s
            )
        except RemoteResourceNotFoundError:
            if kind is not IndexType.TRANSACTION:
                raise
            # As Kafka has it. Not remembered: only the metadata can say that there is none.
            return b""
        # Not before those who wait have it: the disk may be slow.
        if loaded.is_fetched and is_mine and self._files is not None:
            self._files.write(name, loaded.index)
        return loaded.index

    def forget(self, segments: Iterable[RemoteLogSegmentId]) -> None:
        """They are deleted: nobody will ask again."""
        names = [name_of(segment.id, kind) for segment in segments for kind in IndexType]
        with self._lock:
            for name in names:
                self._memory.pop(name, None)
        if self._files is not None:
            self._files.remove(names)

    def maintain(self) -> None:
        """Once in a while, as IndexFiles.maintain."""
        if self._files is not None:
            self._files.maintain()

    def close(self) -> None:
        if self._files is not None:
            self._files.close()

    def _remembered(self, name: str) -> bytes | None:
        with self._lock:
            index: bytes | None = self._memory.get(name)
        if index is None:
            return None
        _IN_MEMORY.inc()
        if self._files is not None:
            # Else what is read most often would be the first file to go.
            self._files.use(name)
        return index

    def _load(self, name: str, segment: RemoteLogSegmentMetadata, kind: IndexType) -> _Loaded:
        # Whoever fetched it last may have been done just before this.
        index = self._remembered(name)
        if index is not None:
            return _Loaded(index, is_fetched=False)
        if self._files is not None:
            index = self._files.read(name)
        is_fetched = index is None
        if index is None:
            MISSES.inc()
            index = b"".join(self._rsm.fetch_index(segment, kind))
            check_index(segment, kind, index)
        else:
            _IN_FILE.inc()
        with self._lock:
            if len(index) + _ENTRY_OVERHEAD_BYTES <= self._memory.maxsize:
                self._memory[name] = index
        return _Loaded(index, is_fetched)


class ForgettingStorage:
    """A RemoteStorageManager; see there.

    Source: RemoteLogManager calls indexCache.remove after a deletion.
    """

    def __init__(
        self, rsm: RemoteStorageManager, cache: RemoteIndexCache, counts: TopicCounts
    ) -> None:
        self._rsm = rsm
        self._cache = cache
        self._counts = counts

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        return self._rsm.copy_log_segment_data(metadata, data)

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes]:
        return self._rsm.fetch_log_segment(metadata, start_position, end_position)

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Iterator[bytes]:
        return self._rsm.fetch_index(metadata, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        try:
            self._rsm.delete_log_segment_data(metadata)
        except RemoteStorageError as e:
            self._counts.add_deletion(metadata, e)
            raise
        self._counts.add_deletion(metadata, None)
        self._cache.forget([metadata.remote_log_segment_id])

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
        deleted = (m for m, error in zip(metadatas, errors, strict=True) if error is None)
        self._cache.forget(metadata.remote_log_segment_id for metadata in deleted)
        return errors


def _conforms(storage: ForgettingStorage) -> RemoteStorageManager:
    return storage
