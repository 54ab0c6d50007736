"""Implement RSM over any object store."""

from collections.abc import Iterator, Sequence
from functools import partial

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.imported_segments import is_imported
from services.api.remote_storage_manager import (
    MAX_DELETE_BATCH,
    IndexType,
    LogSegmentData,
    OpenedLogSegment,
)
from services.api.segment_objects import SegmentObjects
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require, within
from services.rsm.active_copies import ActiveCopies, Waiter
from services.rsm.copy import SegmentCopier
from services.rsm.deadline import DEFAULT_LIMITS, ByteRate, Limits
from services.rsm.delete import DeletePace, ObjectDeletes, SegmentDeleter
from services.rsm.direct import DirectReads
from services.rsm.fetch import SegmentReader
from services.rsm.foreign import ForeignReader
from services.rsm.index_cache import IndexCache
from services.rsm.layout import require_fits
from services.rsm.locations import Locations
from services.rsm.probe import StoreProbe, StoreRule
from services.rsm.segment_objects import StoredSegmentObjects
from services.rsm.startup import StartUp
from services.rsm.upload import PartBuffers, Uploader
from services.rsm.verification import ReadVerification


class ObjectRemoteStorageManager:
    """The RemoteStorageManager that keeps each segment as three objects (see SegmentKeys).

    Imported segments are read and deleted where another tiered storage wrote them.

    `objects` lists and deletes the objects of the stores, with or without metadata.

    Stateless except for threads and part buffers, which all copies share, the set of active copies,
    and caches of digests and indexes.
    """

    def __init__(
        self,
        locations: Locations,
        buffers: PartBuffers,
        upload_threads: int,
        verification: ReadVerification | None = None,
        limits: Limits = DEFAULT_LIMITS,
        start_up: StartUp | None = None,
        waiter: Waiter | None = None,
        direct_read_s: int = 0,
        *,
        verify_writes: bool = False,
    ) -> None:
        """Set up the manager without a request to the store.

        Args:
            verification: None: verify only indexes.
            start_up: None: check the store, but serve calls before that.
            waiter: the same as the backends'.
            verify_writes: check that the store has each object before a copy is acknowledged.
            direct_read_s: for how long URLs of OpenLogSegment are valid, s; 0: none are given.
        """
        location = locations.current
        self._locations = locations
        self._start_up = start_up or StartUp(locations, StoreProbe)
        require_open, deployment_id = self._start_up.require_open, self._start_up.deployment_id
        self._waiter = waiter or Waiter()
        self._uploader = Uploader(location.backend, buffers, upload_threads, self._waiter)
        pace = DeletePace(limits.delete_rate_keys_per_s, self._waiter)
        index_cache = IndexCache()
        deletes = ObjectDeletes(
            pace, limits.delete_retries, self._waiter, on_delete=index_cache.drop
        )
        upload_rate = ByteRate(limits.upload_rate_bytes_per_s, self._waiter)
        self._fetch_rate = ByteRate(limits.fetch_rate_bytes_per_s, self._waiter)
        active_copies = ActiveCopies(self._waiter)
        self._copiers = {
            each: SegmentCopier(
                each,
                self._uploader.to(each.backend),
                deletes,
                upload_rate,
                active_copies,
                partial(self._start_up.require_written, each),
                deployment_id,
                verify_writes=verify_writes,
            )
            for each in locations.written
        }
        self._verification = verification or ReadVerification("off", cache_bytes=0)
        self._reader = SegmentReader(locations, self._verification, index_cache, self._fetch_rate)
        self._foreign_reader = ForeignReader(locations)
        self._direct_reads = DirectReads(locations, direct_read_s, self._fetch_rate)
        self._deleter = SegmentDeleter(locations, deletes, active_copies)
        self._objects = StoredSegmentObjects(
            locations, deletes, active_copies, require_open, deployment_id
        )

    @property
    def objects(self) -> SegmentObjects:
        return self._objects

    @property
    def store_rules(self) -> Sequence[StoreRule]:
        """Return what the stores do by themselves with our objects."""
        return self._start_up.rules

    def check(self) -> None:
        """Check that the store can be used (see StartUp)."""
        self._start_up.check()

    def stop_waiting(self) -> None:
        """End every wait for a limit or for a retry. Idempotent."""
        self._waiter.close()

    def close(self) -> None:
        """Stop waiting, finish the parts that are being sent, and stop all threads."""
        self.stop_waiting()
        self._uploader.close()
        self._verification.close()

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        self._start_up.require_open()
        location = self._locations.to_copy_to(metadata, replaces=data.replaces)
        self._start_up.require_written(location)
        require_fits(metadata, data.files[0].size_bytes)
        return self._copiers[location].copy(metadata, data)

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes]:
        self._start_up.require_open()
        reader = self._reader_of(metadata)
        chunks = reader.fetch_log(metadata, start_position, end_position)
        return self._fetch_rate.limited(chunks)

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedLogSegment:
        self._start_up.require_open()
        return self._direct_reads.open(metadata)

    def fetch_index(
        self,
        metadata: RemoteLogSegmentMetadata,
        index_type: IndexType,
        *,
        as_stored: bool = False,
    ) -> Iterator[bytes]:
        self._start_up.require_open()
        reader = self._reader_of(metadata)
        index = reader.fetch_index(metadata, index_type, as_stored=as_stored)
        return self._fetch_rate.limited(index)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._start_up.require_open()
        (error,) = self._deleter.delete([metadata])
        if error is not None:
            with within("metadata"):
                raise error

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        self._start_up.require_open()
        in_range = 0 < len(metadatas) <= MAX_DELETE_BATCH
        require(in_range, "metadatas", f"must be 1 to {MAX_DELETE_BATCH}, are {len(metadatas)}")
        return self._deleter.delete(metadatas)

    def _reader_of(self, metadata: RemoteLogSegmentMetadata) -> SegmentReader | ForeignReader:
        return self._foreign_reader if is_imported(metadata.custom_metadata) else self._reader

    def find_partition_object(self, topic_id_partition: TopicIdPartition) -> str | None:
        self._start_up.require_open()
        return self._objects.one_of_partition(topic_id_partition)
