"""Remove what the caches have of a segment when it is deleted from the store."""

from collections.abc import Iterator, Sequence

from services.api.errors import RemoteStorageError
from services.api.remote_storage_manager import (
    IndexType,
    LogSegmentData,
    OpenedLogSegment,
    RemoteStorageManager,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.fetch.chunk_cache import ChunkCache
from services.rlm.fetch.index_cache import RemoteIndexCache
from services.rlm.metrics import TopicCounts


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
        self._indexes = indexes
        self._chunks = chunks
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
    ) -> Iterator[bytes | memoryview]:
        return self._rsm.fetch_log_segment(metadata, start_position, end_position)

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedLogSegment:
        return self._rsm.open_log_segment(metadata)

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


def _conforms(storage: CacheInvalidatingStorage) -> RemoteStorageManager:
    return storage
