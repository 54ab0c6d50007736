"""Asks the tier once more, as a reader would, for what is about to leave the local log."""

from collections.abc import Sequence

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlm.kafka_log.batches import HEADER_BYTES
from services.rlm.kafka_log.partition_dir import LocalSegment, reading_segment


class NotInTierError(Exception):
    """What should be in the tier is not found there, or is something else."""


class TierCheck:
    """By look-ups in RLMM, and by the first bytes of what they find, from the store: a store that
    is away, or has lost the segment, is found out while the local copy is still there."""

    def __init__(
        self, rsm: RemoteStorageManager, rlmm: RemoteLogMetadataManager, name: TopicIdPartition
    ) -> None:
        self._rsm = rsm
        self._rlmm = rlmm
        self._name = name

    def require(self, segment: LocalSegment, epoch_ranges: Sequence[tuple[int, int, int]]) -> None:
        """
        Args:
            epoch_ranges: (leader epoch, first offset, last offset) of what must be there.

        Raises:
            NotInTierError: a fetch would not find it.
            LogFileError, SegmentVanishedError: the local segment cannot be read.
            RemoteStorageError: RLMM or the store cannot be asked.
        """
        if not epoch_ranges:
            raise NotInTierError(f"{segment.log_path}: in which leader epochs it lies is not known")
        seen: set[object] = set()
        for epoch, first, last in epoch_ranges:
            offset = first
            while offset <= last:
                found = self._find(epoch, offset)
                if found.remote_log_segment_id not in seen:
                    seen.add(found.remote_log_segment_id)
                    self._require_bytes(segment, found)
                offset = _end_of_epoch(found, epoch) + 1

    def _find(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata:
        found = self._rlmm.remote_log_segment_metadata(self._name, epoch, offset).value
        if (
            found is None
            or found.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            or not found.start_offset <= offset <= _end_of_epoch(found, epoch)
        ):
            raise NotInTierError(f"no finished segment holds offset {offset} of epoch {epoch}")
        return found

    def _require_bytes(self, segment: LocalSegment, found: RemoteLogSegmentMetadata) -> None:
        try:
            head = b"".join(self._rsm.fetch_log_segment(found, 0, HEADER_BYTES - 1))
        except RemoteResourceNotFoundError as e:
            raise NotInTierError(
                f"{found.remote_log_segment_id} ({found.start_offset} to {found.end_offset}) is "
                "not in the store"
            ) from e
        if found.start_offset != segment.base_offset:
            return
        if found.end_offset == segment.end_offset and (
            found.segment_size_in_bytes != segment.size_bytes
        ):
            raise NotInTierError(
                f"{found.remote_log_segment_id} ({found.start_offset} to {found.end_offset}) has "
                f"{found.segment_size_in_bytes} bytes, and here it has {segment.size_bytes}"
            )
        if head != _head_of(segment):
            raise NotInTierError(
                f"{found.remote_log_segment_id} begins at offset {found.start_offset} with another "
                f"batch than {segment.log_path}"
            )


def _end_of_epoch(segment: RemoteLogSegmentMetadata, epoch: int) -> int:
    return max((last for of, _, last in segment.epoch_ranges() if of == epoch), default=-1)


def _head_of(segment: LocalSegment) -> bytes:
    with reading_segment(segment.log_path), segment.log_path.open("rb") as file:
        return file.read(HEADER_BYTES)
