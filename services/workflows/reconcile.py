"""Compare the objects in the stores with the metadata, in one pass over both."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias
from uuid import UUID

from services.api.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.operations import MAX_ANOMALIES, Anomaly, AnomalyKind, RunKind, ToolRun
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_objects import (
    CURRENT_LOCATION,
    ObjectQuery,
    SegmentObject,
    SegmentObjects,
    all_multipart_uploads,
    all_segment_objects,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.batches import batches
from services.workflows.coverage import Coverage, Outcome
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
    ReconcileVerdict,
    StoreView,
    missing_objects,
    reconcile_verdicts,
    store_views,
)
from services.workflows.unfinished_copies import CopyKind, UnfinishedCopies, line_about

DEFAULT_GRACE_MS = 24 * 60 * 60 * 1000

SHARDS = 64
"""Parts of the listing that are compared one after the other, to bound a run's memory."""

_BATCH = 500
_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True)
class ReconciliationPlan:
    """The scope of a run, and whether the run deletes.

    Attributes:
        run_id: names the run in RLMM's anomalies.
        now_ms: when the run began; compared with the stores' times.
        grace_ms: ignore objects younger than this; delete only what was first seen before that.
        delete: delete orphans and abort uploads; otherwise only report them.
        locations: the locations whose objects are compared.
        listed_at_ms: when the objects were listed, of an inventory; None if the run lists them.
    """

    run_id: str
    now_ms: int
    grace_ms: int = DEFAULT_GRACE_MS
    delete: bool = False
    locations: Sequence[int] = (CURRENT_LOCATION,)
    listed_at_ms: int | None = None

    @property
    def before_ms(self) -> int:
        """Return the time at which, or before which, something is old."""
        return self.now_ms - self.grace_ms

    def is_old(self, at_ms: int) -> bool:
        return at_ms <= self.before_ms


@dataclass(slots=True)
class Reconciled:
    """The findings and deletions of a run.

    Attributes:
        anomalies: counts by kind; for orphans, of segments.
        copies: counts of the copies that never finished, by kind.
        unread: one line for each object that could not be read, at most MAX_UNREAD.
        unfinished: one line for each of `copies`, at most MAX_UNFINISHED.
        coverage: what was verified of each topic.
    """

    objects: int = 0
    segments: int = 0
    anomalies: Counter[AnomalyKind] = field(default_factory=Counter)
    deletions: Deletions = field(default_factory=Deletions)
    copies: Counter[CopyKind] = field(default_factory=Counter)
    unread: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    MAX_UNREAD = 100
    MAX_UNFINISHED = 100

    def add_unread(self, line: str) -> None:
        if len(self.unread) < self.MAX_UNREAD:
            self.unread.append(line)

    def add_copy(self, kind: CopyKind, line: str) -> None:
        """Count a copy that never finished."""
        self.copies[kind] += 1
        if len(self.unfinished) < self.MAX_UNFINISHED:
            self.unfinished.append(line)


Finding: TypeAlias = Anomaly | Orphan | AbandonedUpload
"""Something wrong; an orphan and an upload may be deleted."""


def anomaly_of(finding: Finding) -> Anomaly:
    return finding if isinstance(finding, Anomaly) else finding.anomaly


def findings_of(verdict: ReconcileVerdict, plan: ReconciliationPlan) -> list[Anomaly | Orphan]:
    """Return what is wrong with a segment's objects, unless they are young."""
    stored, problem = verdict.stored, verdict.problem
    if problem is None or not plan.is_old(stored.modified_ms):
        return []
    if not problem.objects:
        return [_anomaly(stored, problem, stored.manifest)]
    is_committed = stored.manifest in problem.objects
    return [
        Orphan(_anomaly(stored, problem, each), each, verdict.state, is_committed)
        for each in problem.objects
    ]


def outcome_of(verdict: ReconcileVerdict, findings: Sequence[Anomaly | Orphan]) -> Outcome | None:
    """Return the outcome if the segment need not be read: it is reported, or complete."""
    if any(isinstance(each, Anomaly) for each in findings):
        return Outcome.FAILED
    return Outcome.VERIFIED if verdict.is_complete else None


def abandoned_uploads(
    view: MetadataView, objects: SegmentObjects, location_id: int, plan: ReconciliationPlan
) -> Iterator[AbandonedUpload]:
    """Yield the old uploads of a location that belong to no active copy."""
    uploads = (
        each for each in all_multipart_uploads(objects, location_id) if plan.is_old(each.begun_ms)
    )
    for batch in batches(uploads, _BATCH):
        for upload in not_being_copied(view, batch):
            name, where = upload.name, str(upload.location)
            kind = AnomalyKind.ABANDONED_UPLOAD
            anomaly = Anomaly(kind, name.topic_id, name.partition, name.segment_id, where)
            yield AbandonedUpload(anomaly, upload)


def find_missing(
    view: MetadataView, rsm: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> tuple[Anomaly | None, str]:
    """Read a finished segment, maybe from another location.

    Returns:
        what is missing, and one line if its objects cannot be read.
    """
    try:
        missing = missing_objects(rsm, metadata)
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as e:
        return None, f"{metadata.remote_log_segment_id}: {e}"
    if not missing:
        return None, ""
    segment_id = metadata.remote_log_segment_id
    tp = segment_id.topic_id_partition
    row = view.rows((tp.topic_id, tp.partition), [segment_id.id]).get(segment_id.id)
    if row is None or row.state is not _FINISHED:
        return None, ""  # It was deleted meanwhile.
    kind = AnomalyKind.MISSING_OBJECTS
    return Anomaly(kind, tp.topic_id, tp.partition, segment_id.id, detail=missing), ""


@dataclass(eq=False)
class Recording:
    """Count what a run finds, report it to RLMM, and delete if the plan says so."""

    rlmm: RemoteLogMetadataManager
    objects: SegmentObjects
    plan: ReconciliationPlan
    _unreported: list[Anomaly] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._deletion = OrphanDeletion(self.rlmm, self.objects)
        self.done = Reconciled(deletions=self._deletion.done)

    def add(self, finding: Finding, *, counts: bool = True) -> None:
        """Add a finding; only the first of the orphans of a segment counts."""
        if not isinstance(finding, Anomaly):
            self._deletion.add(finding)
        if counts:
            self.done.anomalies[anomaly_of(finding).kind] += 1
        self._unreported.append(anomaly_of(finding))
        if len(self._unreported) == MAX_ANOMALIES:
            self._report()

    def finish(self, topic_ids: Collection[UUID]) -> Reconciled:
        """Report what is left and was verified of these topics, then delete if the plan allows it.

        Raises:
            RetriableRemoteStorageError: a service is unreachable; run it again.
        """
        self._report()
        run = ToolRun(RunKind.RECONCILE, self.plan.run_id, listed_at_ms=self.plan.listed_at_ms)
        self.done.coverage.report(self.rlmm, run, topic_ids)
        if self.plan.delete:
            self._deletion.delete(self.plan.run_id, self.plan.grace_ms)
        return self.done

    def _report(self) -> None:
        if self._unreported:
            self.rlmm.report_anomalies(self._unreported, self.plan.run_id)
            self._unreported = []


@dataclass(eq=False)
class Reconciliation:
    """Compare stores and metadata once.

    Several runs may be active at the same time, and each may be killed: every step is idempotent,
    and the next run finds what is left.
    """

    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager
    objects: SegmentObjects
    plan: ReconciliationPlan
    on_segment: Callable[[Reconciled], None] = lambda _: None

    def __post_init__(self) -> None:
        self._recording = Recording(self.rlmm, self.objects, self.plan)
        self._done = self._recording.done

    def run(self) -> Reconciled:
        """Compare every location, report the anomalies, and delete if the plan allows it.

        Raises:
            RetriableRemoteStorageError: a service is unreachable; run it again.
        """
        view = MetadataView(self.rlmm)
        for location_id in self.plan.locations:
            for upload in abandoned_uploads(view, self.objects, location_id, self.plan):
                self._recording.add(upload)
        for shard in range(SHARDS):
            self._check_shard(view, shard)
        return self._recording.finish(view.topics())

    def _check_shard(self, view: MetadataView, shard: int) -> None:
        settled: dict[PartitionKey, dict[UUID, Outcome]] = defaultdict(dict)
        for location_id in self.plan.locations:
            query = ObjectQuery(location_id, shard, SHARDS)
            listed = store_views(all_segment_objects(self.objects, query))
            for partition, segments in groupby(listed, key=lambda stored: stored.partition):
                for batch in batches(segments, _BATCH):
                    settled[partition] |= self._check_batch(view, partition, batch)
        for tp in view.partitions(shard, SHARDS):
            self._check_missing(view, tp, settled[tp.topic_id, tp.partition])

    def _check_batch(
        self, view: MetadataView, partition: PartitionKey, batch: Sequence[StoreView]
    ) -> dict[UUID, Outcome]:
        """Compare a batch; return the outcomes of the ids that need no further check."""
        settled: dict[UUID, Outcome] = {}
        for verdict in reconcile_verdicts(self.objects, view, partition, batch):
            self._done.segments += 1
            self._done.objects += len(verdict.stored.objects)
            if verdict.unread:
                self._done.add_unread(verdict.unread)
            findings = findings_of(verdict, self.plan)
            for each in findings:
                self._recording.add(each, counts=each is findings[0])
            if outcome := outcome_of(verdict, findings):
                settled[verdict.stored.id] = outcome
            self.on_segment(self._done)
        return settled

    def _check_missing(
        self, view: MetadataView, tp: TopicIdPartition, settled: dict[UUID, Outcome]
    ) -> None:
        copies = UnfinishedCopies(self.plan.before_ms)
        try:
            for metadata in all_segments(self.rlmm, tp, states=(_STARTED, _FINISHED)):
                copies.add(metadata)
                if metadata.state is _FINISHED:
                    outcome = settled.get(metadata.remote_log_segment_id.id)
                    outcome = outcome or self._check_read(view, metadata)
                    self._done.coverage.count(metadata, outcome)
        except RemoteResourceNotFoundError:
            return  # The partition was removed meanwhile.
        for kind, each in copies.unfinished():
            self._done.add_copy(kind, line_about(kind, each))

    def _check_read(self, view: MetadataView, metadata: RemoteLogSegmentMetadata) -> Outcome:
        missing, unread = find_missing(view, self.rsm, metadata)
        if unread:
            self._done.add_unread(unread)
            return Outcome.UNREAD
        if missing is not None:
            self._recording.add(missing)
            return Outcome.FAILED
        return Outcome.VERIFIED


def _anomaly(stored: StoreView, problem: Problem, about: SegmentObject | None) -> Anomaly:
    topic_id, partition = stored.partition
    where = "" if about is None else str(about.location)
    return Anomaly(problem.kind, topic_id, partition, stored.id, where, problem.detail)
