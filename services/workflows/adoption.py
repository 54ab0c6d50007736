"""Adopt segments that another tiered storage wrote: copy them into the own layout."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from uuid import UUID

from services.api.calls import MutationContext
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.imported_segments import imported_custom_metadata, is_imported
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.remote_storage_manager import (
    MAX_DELETE_BATCH,
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    SegmentFile,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.batches import batches
from services.common.failpoints import failpoint
from services.workflows.copy_segments import GoneError
from services.workflows.segment_views import missing_objects

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class Adoption:
    """The target of an adoption: RSM's current location, and rows that name it."""

    def __init__(
        self, rlmm: RemoteLogMetadataManager, rsm: RemoteStorageManager, run_id: str
    ) -> None:
        self._rlmm = rlmm
        self._rsm = rsm
        self._context = MutationContext(reason="adopted", rule_detail=f"copy {run_id}")

    def wants(self, row: RemoteLogSegmentMetadata) -> bool:
        return is_imported(row.custom_metadata)

    def write(
        self, row: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> RemoteLogSegmentMetadata:
        custom = self._rsm.copy_log_segment_data(replace(row, custom_metadata=None), data)
        failpoint("replacement.copied")
        return replace(row, custom_metadata=custom)

    def read(
        self, copied: RemoteLogSegmentMetadata, file: SegmentFile
    ) -> Iterator[bytes | memoryview]:
        if file is not SegmentFile.LOG:
            return self._rsm.fetch_index(copied, IndexType[file.name], as_stored=True)
        if copied.segment_size_in_bytes == 0:
            return iter(())
        return self._rsm.fetch_log_segment(copied, 0)

    def finish(self, row: RemoteLogSegmentMetadata, copied: RemoteLogSegmentMetadata) -> None:
        """Switch the row to the copy; its deletion may have come before the copy's objects."""
        before, after = row.custom_metadata or b"", copied.custom_metadata or b""
        segment_id = row.remote_log_segment_id
        try:
            self._rlmm.replace_segment_data(segment_id, before, after, self._context)
        except ConcurrentUpdateError as e:
            raise GoneError from e  # Another run was faster; its copy is this one.
        except (InvalidStateTransitionError, RemoteResourceNotFoundError) as e:
            self._rsm.delete_log_segment_data(copied)
            raise GoneError from e


def delete_sources(
    rlmm: RemoteLogMetadataManager,
    rsm: RemoteStorageManager,
    location_id: int,
    topics: Mapping[UUID, str],
) -> Iterator[RemoteStorageError | None]:
    """Delete what adopted segments have in a location; yield an outcome for each segment.

    No reader may have a look-up from before the adoption. Idempotent: rows do not say whether they
    were adopted, so the location is asked to delete the objects of every one that has its own copy.

    Raises:
        DeletionRefusedError: the location is read-only, where RSM deletes nothing.
    """
    source = imported_custom_metadata(location_id, None)
    for partition in all_partitions(rlmm):
        tp = partition.topic_id_partition
        if topics and tp.topic_id not in topics:
            continue
        rows = all_segments(rlmm, tp, states=(_FINISHED,))
        own = (row for row in rows if row.custom_metadata and not is_imported(row.custom_metadata))
        for batch in batches(own, MAX_DELETE_BATCH):
            sources = [replace(row, custom_metadata=source) for row in batch]
            errors = rsm.delete_log_segment_data_batch(sources)
            for each, error in zip(sources, errors, strict=True):
                if error is None and not missing_objects(rsm, each):
                    segment_id = each.remote_log_segment_id
                    raise DeletionRefusedError(
                        f"{segment_id} is still there: location {location_id} is read-only"
                    )
                yield error
