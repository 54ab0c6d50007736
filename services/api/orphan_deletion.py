"""Deleting what nobody needs: orphans and abandoned uploads, kept while a run finds them.

    keep        what the run found, at most MAX_DOOMED of each
    due         of them what an earlier run has seen too, a grace period ago
    ask again   metadata must say of its segment, at this moment, what it said when it was found
    delete      objects; end uploads

Which object an anomaly is of says its key with its location: of two under one key each is seen, and
waits, by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from services.api.anomalies import Anomaly, AnomalyKind, AnomalyQuery, all_anomalies
from services.api.errors import RemoteStorageError
from services.api.known_segments import KnownSegments
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_objects import (
    DoomedObject,
    MultipartUpload,
    SegmentObject,
    SegmentObjectKind,
    SegmentObjects,
)
from services.api.segments import RemoteLogSegmentState

MAX_DOOMED = 100_000
"""Objects that a run remembers for deletion, and as many uploads; the next run deletes the rest."""
_AT_ONCE = 300
"""Of a manifest the store is asked whether it is still the same, one by one."""

T = TypeVar("T")


@dataclass(slots=True)
class Deletions:
    """What a run deleted.

    Attributes:
        left: orphans and uploads that may go, and that this run had no room for.
        failures: what could not be deleted, and why: a line each, at most MAX_FAILURES.
    """

    objects: int = 0
    uploads: int = 0
    left: int = 0
    failures: list[str] = field(default_factory=list)

    MAX_FAILURES = 100

    def count(self, keys: Sequence[str], outcomes: Sequence[RemoteStorageError | None]) -> int:
        """How many of `keys` are gone; the rest are failures."""
        failed = [f"{key}: {e}" for key, e in zip(keys, outcomes, strict=True) if e is not None]
        self.failures += failed[: self.MAX_FAILURES - len(self.failures)]
        return len(keys) - len(failed)


@dataclass(frozen=True, slots=True)
class Orphan:
    """`state`: of its segment's metadata when it was found; None: there was none."""

    anomaly: Anomaly
    stored: SegmentObject
    state: RemoteLogSegmentState | None


@dataclass(frozen=True, slots=True)
class AbandonedUpload:
    anomaly: Anomaly
    upload: MultipartUpload


class OrphanDeletion:
    """What one run found that may go."""

    def __init__(self, rlmm: RemoteLogMetadataManager, objects: SegmentObjects) -> None:
        self._rlmm = rlmm
        self._objects = objects
        self._orphans: list[Orphan] = []
        self._uploads: list[AbandonedUpload] = []
        self.done = Deletions()

    def keep_orphan(self, orphan: Orphan) -> None:
        self._keep(self._orphans, orphan)

    def keep_upload(self, upload: AbandonedUpload) -> None:
        self._keep(self._uploads, upload)

    def _keep(self, doomed: list[T], one: T) -> None:
        if len(doomed) < MAX_DOOMED:
            doomed.append(one)
        else:
            self.done.left += 1

    def delete(self, run_id: str, grace_ms: int) -> None:
        """Delete what is due, once all anomalies of the run `run_id` are reported. Idempotent.

        Raises:
            RetriableRemoteStorageError: a service cannot be reached; the next run goes on.
        """
        due = self._due(run_id, grace_ms)
        # Made anew: partitions may have become known since the run began, as by an import.
        known = KnownSegments(self._rlmm)
        for orphans in _batches([each for each in self._orphans if each.anomaly.identity in due]):
            self._delete_objects(known, orphans)
        for uploads in _batches([each for each in self._uploads if each.anomaly.identity in due]):
            self._end_uploads(known, [each.upload for each in uploads])

    def _due(self, run_id: str, grace_ms: int) -> set[Anomaly]:
        query = AnomalyQuery((AnomalyKind.ORPHAN_OBJECTS, AnomalyKind.ABANDONED_UPLOAD))
        return {
            seen.anomaly.identity
            for seen in all_anomalies(self._rlmm, query)
            if seen.times_seen > 1
            and seen.last_seen_ms - seen.first_seen_ms >= grace_ms
            and seen.run_id == run_id
        }

    def _delete_objects(self, known: KnownSegments, orphans: Sequence[Orphan]) -> None:
        states = known.states([each.stored.name for each in orphans])
        still = [
            # A database may have been restored since, or an import been made.
            each.stored
            for each, state in zip(orphans, states, strict=True)
            if state is each.state
        ]
        if not still:
            return
        doomed = [
            # What a copy wrote is never written again under its key; a manifest may be.
            DoomedObject(
                each.location,
                each.etag if each.name.kind is SegmentObjectKind.MANIFEST else None,
            )
            for each in still
        ]
        outcomes = self._objects.delete_segment_objects(doomed)
        self.done.objects += self.done.count([str(each.location) for each in still], outcomes)

    def _end_uploads(self, known: KnownSegments, uploads: Sequence[MultipartUpload]) -> None:
        still = list(not_being_copied(known, uploads))
        if not still:
            return
        outcomes = self._objects.abort_multipart_uploads(
            [(each.location, each.upload_id) for each in still]
        )
        self.done.uploads += self.done.count([str(each.location) for each in still], outcomes)


def not_being_copied(
    known: KnownSegments, uploads: Sequence[MultipartUpload]
) -> Iterator[MultipartUpload]:
    """Those that belong to no copy that is under way by what metadata says at this moment."""
    states = known.states([each.name for each in uploads])
    for upload, state in zip(uploads, states, strict=True):
        if state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            yield upload


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[first : first + _AT_ONCE] for first in range(0, len(items), _AT_ONCE))
