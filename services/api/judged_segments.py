"""What is amiss with segments that a store lists: names first, then metadata, then manifests.

    metadata    of all of them, in one question
    manifests   one by one, only where names and metadata do not tell which copy counts
    events      of those with a manifest and without metadata: whether they were deleted

Metadata is asked after the listing, so that what began meanwhile is known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.api.anomalies import MAX_DETAIL_LENGTH, AnomalyKind
from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.known_segments import KnownSegments
from services.api.segment_objects import SegmentObject, SegmentObjects
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.stored_segments import PartitionKey, StoredSegment, Verdict, judge


@dataclass(frozen=True, slots=True)
class Judged:
    """
    Attributes:
        state: of its metadata, read after it was listed; None: there was none.
        verdict: None: nothing is amiss.
        is_complete: all objects of the copy that counts are there, and it is known which counts.
        unread: why its manifest could not be read, so that nobody knows what is amiss; "": it was,
            or need not be.
    """

    stored: StoredSegment
    state: RemoteLogSegmentState | None
    verdict: Verdict | None
    is_complete: bool
    unread: str = ""


def judged_segments(
    objects: SegmentObjects,
    known: KnownSegments,
    partition: PartitionKey,
    listed: Sequence[StoredSegment],
) -> Iterator[Judged]:
    """Each of the segments of one partition, in order."""
    rows = known.rows(partition, [stored.id for stored in listed])
    manifests = {
        stored.id: _read(objects, stored.manifest)
        for stored in listed
        if stored.manifest is not None and (stored.id not in rows or stored.only_attempt is None)
    }
    deleted = known.deleted(
        manifest.segment_id
        for id, manifest in manifests.items()
        if id not in rows and manifest.segment_id is not None
    )
    for stored in listed:
        manifest = manifests.get(stored.id)
        was_deleted = manifest is not None and manifest.segment_id in deleted
        yield _judged(stored, rows.get(stored.id), manifest, was_deleted=was_deleted)


@dataclass(frozen=True, slots=True)
class _Manifest:
    """What is under a manifest's key; without `segment_id` none is: `problem` says what instead,
    `unread` why nobody knows, both "" that there is nothing any more."""

    segment_id: RemoteLogSegmentId | None = None
    attempt: str | None = None
    custom_metadata: bytes | None = None
    problem: str = ""
    unread: str = ""


def _read(objects: SegmentObjects, manifest: SegmentObject) -> _Manifest:
    try:
        told = objects.read_segment_manifest(manifest.location)
    except RemoteResourceNotFoundError:
        return _Manifest()
    except CorruptSegmentError as e:
        return _Manifest(problem=str(e)[:MAX_DETAIL_LENGTH])
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as e:
        # One object that the store gives to nobody, as an archived one, must not end each run.
        return _Manifest(unread=f"{manifest.location}: {e}")
    segment = told.metadata
    return _Manifest(segment.remote_log_segment_id, told.attempt, segment.custom_metadata)


def _judged(
    stored: StoredSegment,
    row: RemoteLogSegmentMetadata | None,
    manifest: _Manifest | None,
    *,
    was_deleted: bool,
) -> Judged:
    state = None if row is None else row.state
    is_known = manifest is not None
    if manifest is None:
        counting = stored.only_attempt
        is_known = _names_attempt(row, counting)
    elif manifest.segment_id is None:
        verdict = _corrupt(manifest.problem) if manifest.problem else None
        return Judged(stored, state, verdict, is_complete=False, unread=manifest.unread)
    elif row is not None and _names_another_copy(row, manifest):
        text = f"the manifest tells of attempt {manifest.attempt}, the metadata of another copy"
        return Judged(stored, state, _corrupt(text), is_complete=False)
    else:
        counting = manifest.attempt
    verdict = judge(stored, state, counting, was_deleted=was_deleted)
    return Judged(stored, state, verdict, is_known and stored.is_complete(counting))


def _names_attempt(row: RemoteLogSegmentMetadata | None, attempt: str | None) -> bool:
    """Whether metadata is of this copy for certain; custom metadata is RSM's own, but has the
    attempt somewhere in it, and an attempt is 8 random bytes. False costs one look at the store."""
    if row is None or row.custom_metadata is None or attempt is None:
        return False
    return bytes.fromhex(attempt) in row.custom_metadata


def _names_another_copy(row: RemoteLogSegmentMetadata, manifest: _Manifest) -> bool:
    is_finished = row.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return is_finished and row.custom_metadata != manifest.custom_metadata


def _corrupt(detail: str) -> Verdict:
    return Verdict(AnomalyKind.CORRUPT_OBJECT, (), detail)
