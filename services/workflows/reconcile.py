"""Compare the objects in the stores with the metadata, in one pass over both."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TypeVar
from uuid import UUID

from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import MAX_ANOMALIES, MAX_DETAIL_LENGTH, Anomaly, AnomalyKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.remote_storage_manager import (
    CURRENT_LOCATION,
    IndexType,
    ObjectQuery,
    RemoteStorageManager,
    SegmentObject,
    SegmentObjects,
    all_multipart_uploads,
    all_segment_objects,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.workflows.deletion import (
    AbandonedUpload,
    Deletions,
    Orphan,
    OrphanDeletion,
    not_being_copied,
)
from services.workflows.segment_views import (
    MetadataView,
    PartitionKey,
    Problem,
    StoreView,
    reconcile_verdicts,
    store_views,
)

DEFAULT_GRACE_MS = 24 * 60 * 60 * 1000

SHARDS = 64
"""Parts of the listing that are compared one after the other, to bound a run's memory."""

_BATCH = 500
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReconciliationPlan:
    """The scope of a run, and whether the run deletes.

    Attributes:
        run_id: names the run in RLMM's anomalies.
        now_ms: when the run began; compared with the stores' times.
        grace_ms: ignore objects younger than this; delete only what was first seen before that.
        delete: delete orphans and abort uploads; otherwise only report them.
        locations: the locations whose objects are compared.
    """

    run_id: str
    now_ms: int
    grace_ms: int = DEFAULT_GRACE_MS
    delete: bool = False
    locations: Sequence[int] = (CURRENT_LOCATION,)

    def is_old(self, at_ms: int) -> bool:
        return at_ms <= self.now_ms - self.grace_ms


@dataclass(slots=True)
class Reconciled:
    """The findings and deletions of a run.

    Attributes:
        anomalies: counts by kind; for orphans, of segments.
        unread: one line for each object that could not be read, at most MAX_UNREAD.
    """

    objects: int = 0
    segments: int = 0
    anomalies: Counter[AnomalyKind] = field(default_factory=Counter)
    deletions: Deletions = field(default_factory=Deletions)
    unread: list[str] = field(default_factory=list)

    MAX_UNREAD = 100

    def note_unread(self, line: str) -> None:
        if len(self.unread) < self.MAX_UNREAD:
            self.unread.append(line)


class Reconciliation:
    """Compare stores and metadata once.

    Several runs may be active at the same time, and each may be killed: every step is idempotent,
    and the next run finds what is left.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        rsm: RemoteStorageManager,
        objects: SegmentObjects,
        plan: ReconciliationPlan,
        on_segment: Callable[[Reconciled], None] = lambda _: None,
    ) -> None:
        """Prepare a run, which reports its progress to `on_segment`."""
        self._rlmm = rlmm
        self._rsm = rsm
        self._objects = objects
        self._plan = plan
        self._on_segment = on_segment
        self._deletion = OrphanDeletion(rlmm, objects)
        self._done = Reconciled(deletions=self._deletion.done)
        self._unreported: list[Anomaly] = []

    def run(self) -> Reconciled:
        """Compare every location, report the anomalies, and delete if the plan allows it.

        Raises:
            RetriableRemoteStorageError: a service is unreachable; run it again.
        """
        view = MetadataView(self._rlmm)
        for location_id in self._plan.locations:
            self._check_uploads(view, location_id)
        for shard in range(SHARDS):
            self._check_shard(view, shard)
        self._report()
        if self._plan.delete:
            self._deletion.delete(self._plan.run_id, self._plan.grace_ms)
        return self._done

    def _check_uploads(self, view: MetadataView, location_id: int) -> None:
        uploads = (
            each
            for each in all_multipart_uploads(self._objects, location_id)
            if self._plan.is_old(each.begun_ms)
        )
        for batch in _batches(uploads):
            for upload in not_being_copied(view, batch):
                name, kind = upload.name, AnomalyKind.ABANDONED_UPLOAD
                anomaly = Anomaly(
                    kind, name.topic_id, name.partition, name.segment_id, str(upload.location)
                )
                self._done.anomalies[kind] += 1
                self._add(anomaly)
                self._deletion.keep_upload(AbandonedUpload(anomaly, upload))

    def _check_shard(self, view: MetadataView, shard: int) -> None:
        settled: dict[PartitionKey, set[UUID]] = defaultdict(set)
        for location_id in self._plan.locations:
            query = ObjectQuery(location_id, shard, SHARDS)
            listed = store_views(all_segment_objects(self._objects, query))
            for partition, segments in groupby(listed, key=lambda stored: stored.partition):
                for batch in _batches(segments):
                    settled[partition] |= self._check_batch(view, partition, batch)
        for tp in view.partitions(shard, SHARDS):
            self._check_missing(view, tp, settled[tp.topic_id, tp.partition])

    def _check_batch(
        self, view: MetadataView, partition: PartitionKey, batch: Sequence[StoreView]
    ) -> set[UUID]:
        """Compare a batch; return the ids whose objects need no further check."""
        settled = set()
        for verdict in reconcile_verdicts(self._objects, view, partition, batch):
            stored, problem = verdict.stored, verdict.problem
            self._done.segments += 1
            self._done.objects += len(stored.objects)
            is_reported = False
            if verdict.unread:
                self._done.note_unread(verdict.unread)
            if problem is not None and self._plan.is_old(stored.modified_ms):
                self._note(stored, problem, verdict.state)
                is_reported = problem.kind is not AnomalyKind.ORPHAN_OBJECTS
            if verdict.is_complete or is_reported:
                settled.add(stored.id)
            self._on_segment(self._done)
        return settled

    def _note(
        self, stored: StoreView, problem: Problem, state: RemoteLogSegmentState | None
    ) -> None:
        self._done.anomalies[problem.kind] += 1
        if not problem.objects:
            self._add(_anomaly(stored, problem, stored.manifest))
        is_committed = stored.manifest in problem.objects
        for each in problem.objects:
            anomaly = _anomaly(stored, problem, each)
            self._add(anomaly)
            self._deletion.keep_orphan(Orphan(anomaly, each, state, is_committed))

    def _check_missing(self, view: MetadataView, tp: TopicIdPartition, settled: set[UUID]) -> None:
        try:
            for metadata in all_segments(self._rlmm, tp, states=(_FINISHED,)):
                if metadata.remote_log_segment_id.id not in settled:
                    self._check_objects_of(view, metadata)
        except RemoteResourceNotFoundError:
            return  # The partition was removed meanwhile.

    def _check_objects_of(self, view: MetadataView, metadata: RemoteLogSegmentMetadata) -> None:
        missing, segment_id = self._missing_of(metadata), metadata.remote_log_segment_id
        tp = segment_id.topic_id_partition
        if not missing:
            return
        row = view.rows((tp.topic_id, tp.partition), [segment_id.id]).get(segment_id.id)
        if row is not None and row.state is _FINISHED:
            kind = AnomalyKind.MISSING_OBJECTS
            self._done.anomalies[kind] += 1
            self._add(Anomaly(kind, tp.topic_id, tp.partition, segment_id.id, detail=missing))

    def _missing_of(self, metadata: RemoteLogSegmentMetadata) -> str:
        """Try to read a segment, maybe from another location; return what failed or ""."""
        try:
            next(self._rsm.fetch_log_segment(metadata, 0, 0), None)
            # The leader epoch index is the one index that is never empty.
            for _ in self._rsm.fetch_index(metadata, IndexType.LEADER_EPOCH):
                pass
        except (RemoteResourceNotFoundError, CorruptSegmentError, InvalidRequestError) as e:
            return str(e)[:MAX_DETAIL_LENGTH]
        except RetriableRemoteStorageError:
            raise
        except RemoteStorageError as e:
            self._done.note_unread(f"{metadata.remote_log_segment_id}: {e}")
        return ""

    def _add(self, anomaly: Anomaly) -> None:
        self._unreported.append(anomaly)
        if len(self._unreported) == MAX_ANOMALIES:
            self._report()

    def _report(self) -> None:
        if self._unreported:
            self._rlmm.report_anomalies(self._unreported, self._plan.run_id)
            self._unreported = []


def _anomaly(stored: StoreView, problem: Problem, about: SegmentObject | None) -> Anomaly:
    topic_id, partition = stored.partition
    where = "" if about is None else str(about.location)
    return Anomaly(problem.kind, topic_id, partition, stored.id, where, problem.detail)


def _batches(items: Iterator[T]) -> Iterator[list[T]]:
    while batch := list(islice(items, _BATCH)):
        yield batch
