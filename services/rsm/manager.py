"""RSM itself, over any store of objects."""

from collections.abc import Iterator, Sequence

from services.api.errors import RemoteStorageError
from services.api.remote_storage_manager import MAX_DELETE_BATCH, IndexType, LogSegmentData
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.rsm.copying import SegmentCopier
from services.rsm.deleting import SegmentDeleter
from services.rsm.location import Location
from services.rsm.reading import SegmentReader
from services.rsm.under_way import CopiesUnderWay
from services.rsm.upload import PartBuffers, Uploader


class ObjectRemoteStorageManager:
    """RemoteStorageManager that keeps each segment as three objects (see keys and manifest).

    Stateless but for its threads and part buffers, which all copies share, and for knowing which
    copies are under way.
    """

    def __init__(self, location: Location, buffers: PartBuffers, upload_threads: int) -> None:
        self._backend = location.backend
        self._uploader = Uploader(location.backend, buffers, upload_threads)
        under_way = CopiesUnderWay()
        self._copier = SegmentCopier(location, self._uploader, under_way)
        self._reader = SegmentReader(location)
        self._deleter = SegmentDeleter(location, under_way)

    def check(self) -> None:
        """Return if the store can be used, else raise what is wrong with which store."""
        self._backend.check()

    def close(self) -> None:
        """Wait for the parts under way and stop the upload threads."""
        self._uploader.close()

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        return self._copier.copy(metadata, data)

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes]:
        return self._reader.fetch_log(metadata, start_position, end_position)

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Iterator[bytes]:
        return self._reader.fetch_index(metadata, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        (error,) = self._deleter.delete([metadata])
        if error is not None:
            raise error

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        in_range = 0 < len(metadatas) <= MAX_DELETE_BATCH
        require(in_range, "metadatas", f"must be 1 to {MAX_DELETE_BATCH}, are {len(metadatas)}")
        return self._deleter.delete(metadatas)
