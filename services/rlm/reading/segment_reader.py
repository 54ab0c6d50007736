"""Opens one segment at an offset: from the local log, or from the tier."""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

from services.api.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.kafka_log.batches import Batch
from services.rlm.kafka_log.partition_dir import LocalSegment, reading_segment
from services.rlm.kafka_log.windows import FileWindow, StreamWindow
from services.rlm.local_log import LocalLog
from services.rlm.reading.index_cache.cache import RemoteIndexCache
from services.rlm.reading.reader_turns import ReaderTurns
from services.rlm.reading.seek import SegmentBytes, TakesBatch, batches_from, entry_in_file

_LOCAL_READ_AHEAD_BYTES = 256 * 1024
_SKIPPED_AHEAD_BYTES = 64 * 1024


def local_batches(
    log: LocalLog, segment: LocalSegment, offset: int, end_offset: int, takes: TakesBatch
) -> Iterator[Batch]:
    """The batches of a local segment from `offset` on, up to what is whole in it, below
    `end_offset`.

    Raises:
        BatchError: a damaged batch.
        LogFileError: UNREADABLE.
        SegmentVanishedError: the broker deleted it.
    """
    end = segment.size_bytes if segment.is_rolled else log.active_end_position
    path = segment.log_path
    with reading_segment(path), FileWindow(path, _LOCAL_READ_AHEAD_BYTES) as window:
        source = SegmentBytes(window, segment.base_offset, end, end_offset)
        entry = entry_in_file(segment.file(".index"), segment.base_offset, offset)
        yield from batches_from(source, offset, entry, takes)


@dataclass(frozen=True, slots=True)
class RemoteReadLimits:
    """
    Attributes:
        threads: remote reads at once.
        wait_s: how long one waits for its turn, seconds (Kafka: remote.fetch.max.wait.ms).
    """

    threads: int = 10
    wait_s: float = 0.5


class RemoteSegmentReader:
    """Reads segments of the tier. Thread-safe; so many at once, the others wait for their turn."""

    def __init__(
        self,
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        cache: RemoteIndexCache,
        limits: RemoteReadLimits,
    ) -> None:
        self._rsm = rsm
        self._rlmm = rlmm
        self._cache = cache
        self.turns = ReaderTurns(limits.threads, limits.wait_s)

    def find(
        self, name: TopicIdPartition, lineage: Lineage, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment that holds `offset` in this lineage; None in a partition that is not
        known, too. The caller has the turn.

        Raises:
            RetriableRemoteStorageError: RLMM or its database cannot be reached.
        """
        epoch = lineage.epoch_for_offset(offset)
        if epoch is None:
            return None
        try:
            return self._rlmm.remote_log_segment_metadata(name, epoch, offset).value
        except RemoteResourceNotFoundError:
            return None

    def batches(
        self, segment: RemoteLogSegmentMetadata, offset: int, takes: TakesBatch, wanted_bytes: int
    ) -> Generator[Batch, None, None]:
        """The batches of a remote segment from `offset` on; close it to end the read early.

        Args:
            takes: as of batches_from.
            wanted_bytes: about what will be taken; the store is asked for little more.

        Raises:
            BatchError: a damaged batch.
            RemoteResourceNotFoundError: the log or its index is not in the store.
            CorruptSegmentError: the index is not one.
            RetriableRemoteStorageError: the store cannot be reached, or no turn came in time.
            RemoteStorageError: who copied the segment did not say how large it is.
        """
        size = segment.segment_size_in_bytes
        if size < 0:
            raise RemoteStorageError(f"{segment.remote_log_segment_id}: its size is not known")
        with self.turn():
            entry = self._cache.offset_index(segment).lookup(offset)

            def open_range(start_position: int, end_position: int) -> Iterator[bytes]:
                return self._rsm.fetch_log_segment(segment, start_position, end_position)

            window = StreamWindow(open_range, size, wanted_bytes + _SKIPPED_AHEAD_BYTES)
            with closing(window):
                source = SegmentBytes(window, segment.start_offset, size)
                yield from batches_from(source, offset, entry, takes)

    def turn(self) -> AbstractContextManager[None]:
        """Whatever asks store or metadata for a reader does so inside: the threads that are left
        always serve local reads.

        Raises:
            RetriableRemoteStorageError: none came in time.
        """
        return self.turns.turn()
