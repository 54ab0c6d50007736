"""RLMM: metadata that something else has kept is taken over."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from services.api.calls import NO_CONTEXT, MutationContext
from services.api.segment_batches import MAX_BATCH
from services.api.segments import RemoteLogSegmentMetadata

MAX_IMPORTED_EPOCHS = 50_000
"""Leader epochs of one SegmentImport together."""
CUSTOM_METADATA_BYTES_PER_IMPORT = 1024 * 1024
"""Of what imports_of puts into one: with it a message stays well below 4 MiB."""


@dataclass(frozen=True, slots=True)
class SegmentImport:
    """Up to MAX_BATCH segments of one partition, as import_remote_log_segments takes them.

    Attributes:
        context: of its fields only reason and plan_id may be set.
    """

    segments: tuple[RemoteLogSegmentMetadata, ...]
    context: MutationContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class ImportedSegments:
    """What an import came to.

    Attributes:
        imported: segments that are there now and were not before.
        repeated: segments that were there with the same content, some of them in a later state.
    """

    imported: int = 0
    repeated: int = 0

    def __add__(self, other: "ImportedSegments") -> "ImportedSegments":
        return ImportedSegments(self.imported + other.imported, self.repeated + other.repeated)


class SegmentImports(Protocol):
    """What takes over metadata; a part of RemoteLogMetadataManager, which says what holds."""

    def import_remote_log_segments(self, imports: Iterable[SegmentImport]) -> ImportedSegments:
        """For administrators: take over segments in any state, with their original times.

        Each item is one transaction and one event for each new segment; `imports` is read item by
        item. Makes partitions known, raises the highest broker leader epoch of each to that of its
        segments, and is not fenced by it. An equal segment is a repeat, within an item too, also
        where it has come to a later state since: what broke is imported again, whatever retention
        did meanwhile.

        All answers are then as if the segments had been added, and had come to their states, in
        this order. What a segment was before its state is not known: only one in
        COPY_SEGMENT_FINISHED counts as finished, for the highest offsets of its epochs too, and
        one in DELETE_SEGMENT_STARTED is taken for a copy that failed. One in
        DELETE_SEGMENT_FINISHED is a tombstone, kept as long as any other.

        One in COPY_SEGMENT_FINISHED that ends below the tier's log start is taken as
        DELETE_SEGMENT_STARTED: retention has deleted it before, or was about to. On a topic on hold
        it is taken as it is. One in COPY_SEGMENT_STARTED has no lease.

        Raises, with what earlier items brought committed and the item itself undone; the message
        ends with the number of the item, from 1 on:
            InvalidRequestError: an item without segments, with too many, with more than
                MAX_IMPORTED_EPOCHS or of several partitions; another field of the context; a topic
                id under another name.
            SegmentAlreadyExistsError: the id is there with other content, or in an earlier state.
            InvalidStateTransitionError: the partition is being deleted or was deleted.
        """
        ...


def imports_of(
    segments: Iterable[RemoteLogSegmentMetadata], context: MutationContext = NO_CONTEXT
) -> Iterator[SegmentImport]:
    """Any number of segments, of any partitions, in their order: as few items as may be, one in
    memory at a time."""
    taken: list[RemoteLogSegmentMetadata] = []
    epochs = custom_metadata_bytes = 0
    for segment in segments:
        own_epochs, own_bytes = (
            len(segment.segment_leader_epochs),
            len(segment.custom_metadata or b""),
        )
        fits = (
            len(taken) < MAX_BATCH
            and epochs + own_epochs <= MAX_IMPORTED_EPOCHS
            and custom_metadata_bytes + own_bytes <= CUSTOM_METADATA_BYTES_PER_IMPORT
        )
        if taken and (taken[0].topic_id_partition != segment.topic_id_partition or not fits):
            yield SegmentImport(tuple(taken), context)
            taken, epochs, custom_metadata_bytes = [], 0, 0
        taken.append(segment)
        epochs += own_epochs
        custom_metadata_bytes += own_bytes
    if taken:
        yield SegmentImport(tuple(taken), context)
