"""Reconciliation: what the stores hold against what metadata says, in one pass over both.

    list objects and uploads        what is younger than the grace period is left alone
    look up their segments by id    after the listing: a copy's metadata is there before its objects
    finished segments               must have all of their objects; asked for once more
    report                          to RLMM, which keeps when each anomaly was first seen
    delete, where asked to          orphans that were first seen a grace period ago

Nothing is deleted on one observation, and a complete copy never while no event says that its
deletion finished: a metadata database that was restored must not cost data.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TypeVar
from uuid import UUID

from services.api.anomalies import MAX_ANOMALIES, Anomaly, AnomalyKind, AnomalyQuery, all_anomalies
from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.partition_events import EventQuery
from services.api.partition_queries import all_events, all_partitions
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segment_objects import (
    CURRENT_LOCATION,
    MAX_OBJECTS,
    DoomedObject,
    MultipartUpload,
    ObjectQuery,
    SegmentObject,
    SegmentObjects,
    StoredManifest,
    all_multipart_uploads,
    all_segment_objects,
)
from services.api.segment_queries import all_segments, segments_by_id
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.stored_segments import (
    PartitionKey,
    StoredSegment,
    Verdict,
    judge,
    stored_segments,
)

DEFAULT_GRACE_MS = 24 * 60 * 60 * 1000
MAX_FINDINGS = 100_000
"""That a run reports; it goes on counting."""
_BATCH = 500
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReconciliationPlan:
    """
    Attributes:
        run_id: names the run in RLMM's anomalies.
        now_ms: when it began; compared with the stores' times.
        grace_ms: what was written less than this ago is left alone, and nothing is deleted that was
            first seen less than this ago.
        delete: whether to delete orphans and to end uploads; else they are reported only.
        locations: those whose objects are looked at.
    """

    run_id: str
    now_ms: int
    grace_ms: int = DEFAULT_GRACE_MS
    delete: bool = False
    locations: Sequence[int] = (CURRENT_LOCATION,)


@dataclass(slots=True)
class Reconciled:
    """What a run found and did.

    Attributes:
        anomalies: by kind.
        failures: what could not be deleted, and why: a line each, at most MAX_FAILURES.
    """

    objects: int = 0
    segments: int = 0
    anomalies: Counter[AnomalyKind] = field(default_factory=Counter)
    deleted_objects: int = 0
    ended_uploads: int = 0
    failures: list[str] = field(default_factory=list)

    MAX_FAILURES = 100


class Reconciliation:
    """One run. Any number may run at once, and any may be killed at any point: what it does is
    idempotent, and the next one finds what it left."""

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        rsm: RemoteStorageManager,
        objects: SegmentObjects,
        plan: ReconciliationPlan,
        on_segment: Callable[[Reconciled], None] = lambda _: None,
    ) -> None:
        """`on_segment` is told how far the run is."""
        self._rlmm = rlmm
        self._rsm = rsm
        self._objects = objects
        self._plan = plan
        self._on_segment = on_segment
        self._done = Reconciled()
        self._found: dict[Anomaly, None] = {}
        self._orphans: list[tuple[Anomaly, SegmentObject]] = []
        self._uploads: list[tuple[Anomaly, MultipartUpload]] = []
        self._partitions: dict[PartitionKey, TopicIdPartition] = {}

    def run(self) -> Reconciled:
        """
        Raises:
            RetriableRemoteStorageError: a service cannot be reached; run it again.
        """
        self._partitions = {
            (tp.topic_id, tp.partition): tp
            for tp in (each.topic_id_partition for each in all_partitions(self._rlmm))
        }
        complete: dict[PartitionKey, set[UUID]] = {}
        for location_id in self._plan.locations:
            self._look_at_uploads(location_id)
            listed = stored_segments(all_segment_objects(self._objects, ObjectQuery(location_id)))
            for key, segments in groupby(listed, key=lambda stored: stored.partition):
                complete.setdefault(key, set()).update(self._look_at_partition(key, segments))
        for key, tp in self._partitions.items():
            self._look_for_missing(tp, complete.get(key, set()))
        self._report()
        if self._plan.delete:
            self._delete()
        return self._done

    def _look_at_partition(self, key: PartitionKey, segments: Iterator[StoredSegment]) -> set[UUID]:
        """The ids of which all objects are there."""
        complete = set()
        for batch in _batches(segments, _BATCH):
            states = self._states(key, [stored.id for stored in batch])
            for stored in batch:
                self._done.segments += 1
                self._done.objects += len(stored.objects)
                state = states.get(stored.id)
                manifest = self._manifest(stored, state)
                counting = manifest.attempt if manifest else stored.only_attempt
                if stored.is_complete(counting):
                    complete.add(stored.id)
                if self._is_old(stored.modified_ms):
                    self._note(stored, self._verdict(stored, state, manifest, counting))
                self._on_segment(self._done)
        return complete

    def _states(self, key: PartitionKey, ids: Sequence[UUID]) -> dict[UUID, RemoteLogSegmentState]:
        tp = self._partitions.get(key)
        if tp is None:
            return {}
        try:
            found = list(segments_by_id(self._rlmm, tp, ids))
        except RemoteResourceNotFoundError:
            return {}  # removed meanwhile
        return {each.remote_log_segment_id.id: each.state for each in found}

    def _manifest(
        self, stored: StoredSegment, state: RemoteLogSegmentState | None
    ) -> StoredManifest | None:
        """What it says, where more is to be known than the names of the objects tell."""
        if stored.manifest is None or (state is not None and stored.only_attempt is not None):
            return None
        try:
            return self._objects.read_segment_manifest(stored.manifest.location)
        except (RemoteResourceNotFoundError, CorruptSegmentError):
            return None  # gone meanwhile, or for a scrub to tell

    def _verdict(
        self,
        stored: StoredSegment,
        state: RemoteLogSegmentState | None,
        manifest: StoredManifest | None,
        counting: str | None,
    ) -> Verdict | None:
        if stored.manifest is not None and state is None and manifest is None:
            return None  # whether it is complete, and whose it is, cannot be told
        was_deleted = state is None and manifest is not None and self._was_deleted(manifest)
        return judge(stored, state, counting, was_deleted=was_deleted)

    def _was_deleted(self, manifest: StoredManifest) -> bool:
        segment_id = manifest.metadata.remote_log_segment_id
        query = EventQuery(segment_id.topic_id_partition, segment_id=segment_id.id)
        try:
            return any(each.to_state == _DELETED.name for each in all_events(self._rlmm, query))
        except RemoteStorageError:
            return False  # of a topic that RLMM does not know, or knows under another name

    def _note(self, stored: StoredSegment, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        topic_id, partition = stored.partition
        self._done.anomalies[verdict.kind] += 1
        if not verdict.objects:
            anomaly = Anomaly(verdict.kind, topic_id, partition, stored.id, detail=verdict.detail)
            self._keep(anomaly)
        for each in verdict.objects:
            key = each.location.key
            anomaly = Anomaly(verdict.kind, topic_id, partition, stored.id, key, verdict.detail)
            if self._keep(anomaly):
                self._orphans.append((anomaly, each))

    def _keep(self, anomaly: Anomaly) -> bool:
        """Of more than a run holds, the next one tells once these are put right."""
        if len(self._found) >= MAX_FINDINGS:
            return False
        self._found[anomaly] = None
        return True

    def _look_at_uploads(self, location_id: int) -> None:
        for upload in all_multipart_uploads(self._objects, location_id):
            name = upload.name
            key = name.topic_id, name.partition
            if not self._is_old(upload.begun_ms):
                continue
            state = self._states(key, [name.segment_id]).get(name.segment_id)
            if state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                continue
            self._done.anomalies[AnomalyKind.ABANDONED_UPLOAD] += 1
            anomaly = Anomaly(
                AnomalyKind.ABANDONED_UPLOAD, *key, name.segment_id, upload.location.key
            )
            if self._keep(anomaly):
                self._uploads.append((anomaly, upload))

    def _look_for_missing(self, tp: TopicIdPartition, complete: set[UUID]) -> None:
        for metadata in all_segments(self._rlmm, tp, states=(_FINISHED,)):
            if metadata.remote_log_segment_id.id in complete:
                continue
            missing = self._missing_of(metadata)
            if missing and self._is_finished_still(metadata):
                self._done.anomalies[AnomalyKind.MISSING_OBJECTS] += 1
                segment_id = metadata.remote_log_segment_id.id
                kind = AnomalyKind.MISSING_OBJECTS
                self._keep(Anomaly(kind, tp.topic_id, tp.partition, segment_id, detail=missing))

    def _missing_of(self, metadata: RemoteLogSegmentMetadata) -> str:
        """What of it cannot be read; it may be in a location that was not looked at."""
        try:
            next(self._rsm.fetch_log_segment(metadata, 0, 0), None)
            b"".join(self._rsm.fetch_index(metadata, IndexType.OFFSET))
        except (RemoteResourceNotFoundError, CorruptSegmentError) as e:
            return str(e)[:1000]
        return ""

    def _is_finished_still(self, metadata: RemoteLogSegmentMetadata) -> bool:
        segment_id = metadata.remote_log_segment_id
        tp = segment_id.topic_id_partition
        states = self._states((tp.topic_id, tp.partition), [segment_id.id])
        return states.get(segment_id.id) is _FINISHED

    def _is_old(self, at_ms: int) -> bool:
        return at_ms <= self._plan.now_ms - self._plan.grace_ms

    def _report(self) -> None:
        for batch in _batches(iter(self._found), MAX_ANOMALIES):
            self._rlmm.report_anomalies(batch, self._plan.run_id)

    def _delete(self) -> None:
        due = self._due()
        orphans = [found for anomaly, found in self._orphans if _identity(anomaly) in due]
        for batch in _batches(iter(orphans), MAX_OBJECTS):
            doomed = [DoomedObject(each.location, each.etag) for each in batch]
            outcomes = self._objects.delete_segment_objects(doomed)
            self._done.deleted_objects += self._count(
                [each.location.key for each in batch], outcomes
            )
        uploads = [found for anomaly, found in self._uploads if _identity(anomaly) in due]
        for some in _batches(iter(uploads), MAX_OBJECTS):
            outcomes = self._objects.abort_multipart_uploads(
                [(each.location, each.upload_id) for each in some]
            )
            self._done.ended_uploads += self._count([each.location.key for each in some], outcomes)

    def _due(self) -> set[tuple[object, ...]]:
        """What an earlier run has seen too, a grace period ago."""
        query = AnomalyQuery((AnomalyKind.ORPHAN_OBJECTS, AnomalyKind.ABANDONED_UPLOAD))
        return {
            _identity(seen.anomaly)
            for seen in all_anomalies(self._rlmm, query)
            if seen.times_seen > 1
            and seen.last_seen_ms - seen.first_seen_ms >= self._plan.grace_ms
            and seen.run_id == self._plan.run_id
        }

    def _count(self, keys: Sequence[str], outcomes: Sequence[RemoteStorageError | None]) -> int:
        failed = [f"{key}: {e}" for key, e in zip(keys, outcomes, strict=True) if e is not None]
        room = Reconciled.MAX_FAILURES - len(self._done.failures)
        self._done.failures += failed[:room]
        return len(keys) - len(failed)


def _identity(anomaly: Anomaly) -> tuple[object, ...]:
    """All of it but its detail, as RLMM tells one from another."""
    return (
        anomaly.kind,
        anomaly.topic_id,
        anomaly.partition,
        anomaly.segment_id,
        anomaly.object_key,
    )


def _batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(islice(items, size)):
        yield batch
