"""The index cache as readers see it.

Source: RemoteIndexCache; what differs is in docs/adr/0038.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from cachetools import LRUCache

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import RemoteLogSegmentId
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.kafka_log.indexes import OffsetIndex
from services.rlm.reading.index_cache.checks import check_index
from services.rlm.reading.index_cache.index_file import name_of
from services.rlm.reading.index_cache.index_files import IndexFiles
from services.rlm.reading.index_cache.metrics import HITS, MISSES
from services.rlm.single_flight import SingleFlight

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
