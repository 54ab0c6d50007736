"""Reconciliation: what the stores hold against what metadata says, in one pass over both.

    list objects and uploads        what is younger than the grace period is left alone
    look up their segments by id    after the listing: a copy's metadata is there before its objects
    finished segments               must have all of their objects; asked for once more
    report                          to RLMM, which keeps when each anomaly was first seen
    delete, where asked to          orphans that were first seen a grace period ago

Nothing is deleted on one observation, and a complete copy never while no event says that its
deletion finished: a metadata database that was restored must not cost data.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TypeAlias, TypeVar
from uuid import UUID

from services.api.anomalies import MAX_ANOMALIES, Anomaly, AnomalyKind, AnomalyQuery, all_anomalies
from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
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
    DoomedObject,
    MultipartUpload,
    ObjectQuery,
    SegmentObject,
    SegmentObjectKind,
    SegmentObjects,
    StoredManifest,
    all_multipart_uploads,
    all_segment_objects,
    shard_of,
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
MAX_DOOMED = 100_000
"""Objects that a run remembers for deletion, and as many uploads; the next run deletes the rest."""
SHARDS = 64
"""Looked at one after the other: what a run holds is of one of them."""
_BATCH = 500
_DELETIONS_AT_ONCE = 300
"""Of a manifest the store is asked whether it is still the same, one by one."""
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

T = TypeVar("T")
Rows: TypeAlias = dict[UUID, RemoteLogSegmentMetadata]
Identity: TypeAlias = tuple[object, ...]


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
        anomalies: by kind; of orphans the segments.
        left: orphans and uploads that may go, and that this run had no room for.
        failures: what could not be deleted, and why: a line each, at most MAX_FAILURES.
    """

    objects: int = 0
    segments: int = 0
    anomalies: Counter[AnomalyKind] = field(default_factory=Counter)
    deleted_objects: int = 0
    ended_uploads: int = 0
    left: int = 0
    failures: list[str] = field(default_factory=list)

    MAX_FAILURES = 100


@dataclass(frozen=True, slots=True)
class _Orphan:
    """`state`: of its segment's metadata when it was judged; None: there was none."""

    anomaly: Anomaly
    stored: SegmentObject
    state: RemoteLogSegmentState | None

    @property
    def partition(self) -> PartitionKey:
        return self.stored.name.topic_id, self.stored.name.partition


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
        self._unreported: list[Anomaly] = []
        self._orphans: list[_Orphan] = []
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
        for location_id in self._plan.locations:
            self._look_at_uploads(location_id)
        for shard in range(SHARDS):
            self._look_at_shard(shard)
        self._report()
        if self._plan.delete:
            self._delete()
        return self._done

    def _look_at_shard(self, shard: int) -> None:
        complete: dict[PartitionKey, set[UUID]] = defaultdict(set)
        for location_id in self._plan.locations:
            query = ObjectQuery(location_id, shard, SHARDS)
            listed = stored_segments(all_segment_objects(self._objects, query))
            for key, segments in groupby(listed, key=lambda stored: stored.partition):
                complete[key] |= self._look_at_partition(key, segments)
        for key, tp in self._partitions.items():
            if shard_of(tp.topic_id, SHARDS) == shard:
                self._look_for_missing(tp, complete[key])

    def _look_at_partition(self, key: PartitionKey, segments: Iterator[StoredSegment]) -> set[UUID]:
        """The ids of which all objects are there, or are known not to be."""
        judged = set()
        for batch in _batches(segments, _BATCH):
            rows = self._rows(key, [stored.id for stored in batch])
            for stored in batch:
                self._done.segments += 1
                self._done.objects += len(stored.objects)
                row = rows.get(stored.id)
                verdict, is_complete = self._judged(stored, row)
                is_told = False
                if verdict is not None and self._is_old(stored.modified_ms):
                    self._note(stored, verdict, row)
                    is_told = verdict.kind is not AnomalyKind.ORPHAN_OBJECTS
                if is_complete or is_told:
                    judged.add(stored.id)
                self._on_segment(self._done)
        return judged

    def _rows(self, key: PartitionKey, ids: Sequence[UUID]) -> Rows:
        tp = self._partitions.get(key)
        if tp is None:
            return {}
        try:
            found = list(segments_by_id(self._rlmm, tp, ids))
        except RemoteResourceNotFoundError:
            return {}  # removed meanwhile
        return {each.remote_log_segment_id.id: each for each in found}

    def _judged(
        self, stored: StoredSegment, row: RemoteLogSegmentMetadata | None
    ) -> tuple[Verdict | None, bool]:
        """What is amiss, and whether all objects of the copy that counts are there."""
        counting, was_deleted = stored.only_attempt, False
        # Where the names of the objects do not tell all that is to be known.
        if stored.manifest is not None and (row is None or counting is None):
            try:
                told = self._objects.read_segment_manifest(stored.manifest.location)
            except RemoteResourceNotFoundError:
                return None, False  # deleted since it was listed
            except CorruptSegmentError as e:
                return Verdict(AnomalyKind.CORRUPT_OBJECT, (), str(e)[:1000]), False
            if row is not None and _names_another_copy(row, told):
                text = f"the manifest tells of attempt {told.attempt}, the metadata of another copy"
                return Verdict(AnomalyKind.CORRUPT_OBJECT, (), text), False
            counting = told.attempt
            was_deleted = row is None and self._was_deleted(told)
        state = None if row is None else row.state
        verdict = judge(stored, state, counting, was_deleted=was_deleted)
        return verdict, stored.is_complete(counting)

    def _was_deleted(self, manifest: StoredManifest) -> bool:
        segment_id = manifest.metadata.remote_log_segment_id
        query = EventQuery(segment_id.topic_id_partition, segment_id=segment_id.id)
        try:
            return any(each.to_state == _DELETED.name for each in all_events(self._rlmm, query))
        except (RemoteResourceNotFoundError, InvalidRequestError):
            return False  # of a topic that RLMM does not know, or knows under another name

    def _note(
        self, stored: StoredSegment, verdict: Verdict, row: RemoteLogSegmentMetadata | None
    ) -> None:
        topic_id, partition = stored.partition
        self._done.anomalies[verdict.kind] += 1
        if not verdict.objects:
            anomaly = Anomaly(verdict.kind, topic_id, partition, stored.id, detail=verdict.detail)
            self._tell(anomaly)
        for each in verdict.objects:
            key = each.location.key
            anomaly = Anomaly(verdict.kind, topic_id, partition, stored.id, key, verdict.detail)
            self._tell(anomaly)
            self._keep(self._orphans, _Orphan(anomaly, each, None if row is None else row.state))

    def _tell(self, anomaly: Anomaly) -> None:
        self._unreported.append(anomaly)
        if len(self._unreported) == MAX_ANOMALIES:
            self._report()

    def _report(self) -> None:
        if self._unreported:
            # The same object may be listed in two locations that have one prefix.
            distinct = {_identity(anomaly): anomaly for anomaly in self._unreported}
            self._rlmm.report_anomalies(list(distinct.values()), self._plan.run_id)
            self._unreported.clear()

    def _keep(self, doomed: list[T], one: T) -> None:
        if len(doomed) < MAX_DOOMED:
            doomed.append(one)
        else:
            self._done.left += 1

    def _look_at_uploads(self, location_id: int) -> None:
        for upload in all_multipart_uploads(self._objects, location_id):
            name = upload.name
            key = name.topic_id, name.partition
            if not self._is_old(upload.begun_ms) or self._is_copied(key, name.segment_id):
                continue
            self._done.anomalies[AnomalyKind.ABANDONED_UPLOAD] += 1
            anomaly = Anomaly(
                AnomalyKind.ABANDONED_UPLOAD, *key, name.segment_id, upload.location.key
            )
            self._tell(anomaly)
            self._keep(self._uploads, (anomaly, upload))

    def _is_copied(self, key: PartitionKey, segment_id: UUID) -> bool:
        row = self._rows(key, [segment_id]).get(segment_id)
        return row is not None and row.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED

    def _look_for_missing(self, tp: TopicIdPartition, judged: set[UUID]) -> None:
        try:
            for metadata in all_segments(self._rlmm, tp, states=(_FINISHED,)):
                if metadata.remote_log_segment_id.id not in judged:
                    self._look_for_objects_of(metadata)
        except RemoteResourceNotFoundError:
            return  # the partition was removed meanwhile

    def _look_for_objects_of(self, metadata: RemoteLogSegmentMetadata) -> None:
        missing, segment_id = self._missing_of(metadata), metadata.remote_log_segment_id
        tp = segment_id.topic_id_partition
        if not missing:
            return
        row = self._rows((tp.topic_id, tp.partition), [segment_id.id]).get(segment_id.id)
        if row is not None and row.state is _FINISHED:
            kind = AnomalyKind.MISSING_OBJECTS
            self._done.anomalies[kind] += 1
            self._tell(Anomaly(kind, tp.topic_id, tp.partition, segment_id.id, detail=missing))

    def _missing_of(self, metadata: RemoteLogSegmentMetadata) -> str:
        """What of it cannot be read; it may be in a location that was not looked at."""
        try:
            next(self._rsm.fetch_log_segment(metadata, 0, 0), None)
            # The one index that is never empty.
            b"".join(self._rsm.fetch_index(metadata, IndexType.LEADER_EPOCH))
        except (RemoteResourceNotFoundError, CorruptSegmentError, InvalidRequestError) as e:
            return str(e)[:1000]
        return ""

    def _is_old(self, at_ms: int) -> bool:
        return at_ms <= self._plan.now_ms - self._plan.grace_ms

    def _delete(self) -> None:
        due = self._due()
        keys = Counter(each.stored.location.key for each in self._orphans)
        orphans = [
            each
            for each in self._orphans
            # Of two under one key nobody knows which of them an earlier run has seen.
            if _identity(each.anomaly) in due and keys[each.stored.location.key] == 1
        ]
        for batch in _batches(iter(orphans), _DELETIONS_AT_ONCE):
            self._delete_objects(self._still_orphans(batch))
        uploads = [found for anomaly, found in self._uploads if _identity(anomaly) in due]
        for some in _batches(iter(uploads), _DELETIONS_AT_ONCE):
            self._end_uploads(
                [
                    each
                    for each in some
                    if not self._is_copied(
                        (each.name.topic_id, each.name.partition), each.name.segment_id
                    )
                ]
            )

    def _still_orphans(self, orphans: Sequence[_Orphan]) -> list[SegmentObject]:
        """Those of whose segments metadata says the same at this moment: a database may have been
        restored since they were judged, or an import been made."""
        still = []
        for key, of_partition in groupby(orphans, key=lambda each: each.partition):
            found = list(of_partition)
            rows = self._rows(key, list({each.stored.name.segment_id for each in found}))
            for each in found:
                row = rows.get(each.stored.name.segment_id)
                if (None if row is None else row.state) is each.state:
                    still.append(each.stored)
        return still

    def _delete_objects(self, orphans: Sequence[SegmentObject]) -> None:
        if not orphans:
            return
        doomed = [
            # What a copy wrote is never written again under its key; a manifest may be.
            DoomedObject(
                each.location,
                each.etag if each.name.kind is SegmentObjectKind.MANIFEST else None,
            )
            for each in orphans
        ]
        outcomes = self._objects.delete_segment_objects(doomed)
        keys = [each.location.key for each in orphans]
        self._done.deleted_objects += self._count(keys, outcomes)

    def _end_uploads(self, uploads: Sequence[MultipartUpload]) -> None:
        if not uploads:
            return
        outcomes = self._objects.abort_multipart_uploads(
            [(each.location, each.upload_id) for each in uploads]
        )
        keys = [each.location.key for each in uploads]
        self._done.ended_uploads += self._count(keys, outcomes)

    def _due(self) -> set[Identity]:
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


def _names_another_copy(row: RemoteLogSegmentMetadata, manifest: StoredManifest) -> bool:
    is_finished = row.state is _FINISHED
    return is_finished and row.custom_metadata != manifest.metadata.custom_metadata


def _identity(anomaly: Anomaly) -> Identity:
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
