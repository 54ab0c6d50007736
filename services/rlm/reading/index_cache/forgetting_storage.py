"""RSM for all parts of RLM: what they delete is counted, and the index cache forgets it."""

from collections.abc import Iterator, Sequence

from services.api.errors import RemoteStorageError
from services.api.remote_storage_manager import IndexType, LogSegmentData, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.reading.index_cache.cache import RemoteIndexCache
from services.rlm.topic_counts import TopicCounts


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
