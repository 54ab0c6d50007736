"""Offset indexes of remote segments, kept in memory up to a number of bytes."""

import threading
from concurrent.futures import Future

from cachetools import LRUCache

from services.api.errors import CorruptSegmentError
from services.api.ids import RemoteLogSegmentId
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.kafka_log.indexes import OffsetIndex

_ENTRY_OVERHEAD_BYTES = 512


class RemoteIndexCache:
    """The least recently used one goes first. Thread-safe; readers that miss the same index at
    once cause one fetch.

    Source: RemoteIndexCache, remote.log.index.file.cache.total.size.bytes.
    """

    def __init__(self, rsm: RemoteStorageManager, max_bytes: int) -> None:
        self._rsm = rsm
        self._lock = threading.Lock()
        self._cached: LRUCache[RemoteLogSegmentId, OffsetIndex] = LRUCache(
            max_bytes, getsizeof=lambda index: index.size_bytes + _ENTRY_OVERHEAD_BYTES
        )
        self._under_way: dict[RemoteLogSegmentId, Future[OffsetIndex]] = {}

    def offset_index(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
        """The segment's offset index, checked.

        Raises:
            RemoteResourceNotFoundError: it is not in the store.
            CorruptSegmentError: it is not an index of this segment.
            RetriableRemoteStorageError: the store cannot be reached.
        """
        key = segment.remote_log_segment_id
        with self._lock:
            cached = self._cached.get(key)
            if cached is not None:
                return cached
            others = self._under_way.get(key)
            mine: Future[OffsetIndex] = Future()
            if others is None:
                self._under_way[key] = mine
        if others is not None:
            return others.result()
        return self._fetch(segment, mine)

    def _fetch(
        self, segment: RemoteLogSegmentMetadata, future: "Future[OffsetIndex]"
    ) -> OffsetIndex:
        key = segment.remote_log_segment_id
        try:
            index = self._read(segment)
        except BaseException as e:
            with self._lock:
                del self._under_way[key]
            future.set_exception(e)
            raise
        with self._lock:
            del self._under_way[key]
            if index.size_bytes + _ENTRY_OVERHEAD_BYTES <= self._cached.maxsize:
                self._cached[key] = index
        future.set_result(index)
        return index

    def _read(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
        data = b"".join(self._rsm.fetch_index(segment, IndexType.OFFSET))
        try:
            return OffsetIndex(data, segment.start_offset, segment.segment_size_in_bytes)
        except ValueError as e:
            name = segment.remote_log_segment_id
            raise CorruptSegmentError(f"{name}: OFFSET index: {e}") from e
