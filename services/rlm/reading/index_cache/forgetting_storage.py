"""RSM for all parts of RLM: what they delete, the index cache forgets."""

from collections.abc import Iterator, Sequence

from services.api.errors import RemoteStorageError
from services.api.remote_storage_manager import IndexType, LogSegmentData, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.reading.index_cache.cache import RemoteIndexCache


class ForgettingStorage:
    """A RemoteStorageManager; see there.

    Source: RemoteLogManager calls indexCache.remove after a deletion.
    """

    def __init__(self, rsm: RemoteStorageManager, cache: RemoteIndexCache) -> None:
        self._rsm = rsm
        self._cache = cache

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
        self._rsm.delete_log_segment_data(metadata)
        self._cache.forget([metadata.remote_log_segment_id])

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        errors = self._rsm.delete_log_segment_data_batch(metadatas)
        deleted = (m for m, error in zip(metadatas, errors, strict=True) if error is None)
        self._cache.forget(metadata.remote_log_segment_id for metadata in deleted)
        return errors


def _conforms(storage: ForgettingStorage) -> RemoteStorageManager:
    return storage
