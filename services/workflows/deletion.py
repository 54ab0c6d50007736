"""Delete segments and orphan objects: mark first, then delete objects, then confirm."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    PermissionDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.operations import Anomaly, AnomalyKind, AnomalyQuery, ObjectDeletion
from services.api.remote_log_metadata_manager import (
    MAX_UPDATE_BATCH,
    RemoteLogMetadataManager,
    SegmentUpdate,
    all_anomalies,
)
from services.api.remote_storage_manager import MAX_DELETE_BATCH, RemoteStorageManager
from services.api.retention import Deletion
from services.api.segment_objects import (
    MultipartUpload,
    ObjectToDelete,
    SegmentObject,
    SegmentObjectKind,
    SegmentObjects,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.topic_config import RetentionOwner
from services.common.failpoints import failpoint
from services.workflows.segment_views import MetadataView, PartitionKey

UNKNOWN_BROKER = -1
_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
T = TypeVar("T")

MAX_DELETIONS = 100_000
"""The most objects that one run deletes, and the most uploads; the next run deletes the rest."""
_AT_ONCE = 300
"""Objects in one batch; manifests are compared with the store one by one."""


@dataclass(frozen=True, slots=True)
class Deleter:
    """The party that deletes, for the audit trail and for the rules that may refuse a deletion.

    Attributes:
        broker_id: UNKNOWN_BROKER if no broker deletes.
        retention_owner: whose retention deletes; None counts as the broker until the partition's
            removal has begun.
        plan_id: the plan of the sweep; None if no sweep deletes.
        broker_leader_epoch: the leader epoch that the deleter knows; None if nothing is fenced.
    """

    broker_id: int = UNKNOWN_BROKER
    retention_owner: RetentionOwner | None = None
    plan_id: str | None = None
    broker_leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ExpectedRevisions:
    """The revisions of partition and settings on which the decision to delete is based.

    Attributes:
        partition: None if any revision is accepted.
    """

    partition: int | None
    config: int


@dataclass(frozen=True, slots=True)
class DeletionOutcome:
    """The result of a step for one segment; `error` is None if it is done."""

    segment: RemoteLogSegmentMetadata
    error: RemoteStorageError | None = None


def begin_deletion(
    rlmm: RemoteLogMetadataManager,
    topic_id_partition: TopicIdPartition,
    deletions: Sequence[Deletion],
    log_start_offset: int | None,
    expected: ExpectedRevisions | None,
    deleter: Deleter,
    now_ms: int,
    log_start_reason: str = "retention",
) -> list[DeletionOutcome]:
    """Raise the log start, then mark segments for deletion; return an outcome each, in order.

    Args:
        log_start_offset: None if the log start stays.
        expected: refuse if these revisions changed; None accepts any.
        log_start_reason: for the audit trail.

    Raises:
        ConcurrentUpdateError, DeletionRefusedError, FencedLeaderEpochError: the log start was not
            raised, and nothing was marked.
        RetriableRemoteStorageError: RLMM is unreachable; some segments may be marked.
    """
    revision = None if expected is None else expected.partition
    config_revision = None if expected is None else expected.config
    if log_start_offset is not None:
        context = _context(deleter, log_start_reason, None, revision, config_revision)
        raised = rlmm.raise_log_start_offset(topic_id_partition, log_start_offset, context)
        if revision is not None and raised.applied:
            revision = raised.revision
        failpoint("deletion.log_start_raised")
    outcomes: list[DeletionOutcome] = []
    for batch in _batches(deletions, MAX_UPDATE_BATCH):
        marked, revision = _mark(rlmm, batch, deleter, now_ms, revision, config_revision)
        outcomes += marked
        failpoint("deletion.marked_some")
    return outcomes


def finish_deletion(
    rlmm: RemoteLogMetadataManager,
    rsm: RemoteStorageManager,
    segments: Sequence[RemoteLogSegmentMetadata],
    deleter: Deleter,
    now_ms: int,
) -> Iterator[DeletionOutcome]:
    """Delete the objects of marked segments and confirm each deletion; yield an outcome each, in
    order.

    Raises:
        RetriableRemoteStorageError: RSM or RLMM is unreachable; retry.
    """
    for batch in _batches(segments, MAX_DELETE_BATCH):
        errors = rsm.delete_log_segment_data_batch(batch)
        failpoint("deletion.objects_deleted")
        outcomes = map(DeletionOutcome, batch, errors)
        yield from _confirm(rlmm, list(outcomes), deleter, now_ms)
        failpoint("deletion.confirmed_some")


def _mark(
    rlmm: RemoteLogMetadataManager,
    deletions: Sequence[Deletion],
    deleter: Deleter,
    now_ms: int,
    revision: int | None,
    config_revision: int | None,
) -> tuple[list[DeletionOutcome], int | None]:
    """Mark segments; return outcomes, and the new revision if one was expected."""
    unmarked = [d for d in deletions if d.segment.state is not _STARTED]
    if not unmarked:
        return [DeletionOutcome(d.segment) for d in deletions], revision
    updates = [
        SegmentUpdate(
            _update(d.segment, _STARTED, deleter, now_ms),
            _context(deleter, d.reason.value, d.detail, revision, config_revision),
        )
        for d in unmarked
    ]
    results = rlmm.update_remote_log_segment_metadata_batch(updates)
    applied = [r.revision for r in results if isinstance(r, MutationOutcome) and r.applied]
    errors = {
        d.segment.remote_log_segment_id: result
        for d, result in zip(unmarked, results, strict=True)
        if isinstance(result, RemoteStorageError)
    }
    outcomes = [
        DeletionOutcome(d.segment, errors.get(d.segment.remote_log_segment_id)) for d in deletions
    ]
    return outcomes, None if revision is None else max([revision, *applied])


def _confirm(
    rlmm: RemoteLogMetadataManager,
    outcomes: Sequence[DeletionOutcome],
    deleter: Deleter,
    now_ms: int,
) -> list[DeletionOutcome]:
    gone = [outcome.segment for outcome in outcomes if outcome.error is None]
    if not gone:
        return list(outcomes)
    context = MutationContext(reason="objects deleted", plan_id=deleter.plan_id)
    results = rlmm.update_remote_log_segment_metadata_batch(
        [SegmentUpdate(_update(s, _FINISHED, deleter, now_ms), context) for s in gone]
    )
    errors = {
        segment.remote_log_segment_id: result
        for segment, result in zip(gone, results, strict=True)
        if isinstance(result, RemoteStorageError)
    }
    return [
        DeletionOutcome(o.segment, o.error or errors.get(o.segment.remote_log_segment_id))
        for o in outcomes
    ]


def _update(
    segment: RemoteLogSegmentMetadata,
    state: RemoteLogSegmentState,
    deleter: Deleter,
    now_ms: int,
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment.remote_log_segment_id,
        event_timestamp_ms=now_ms,
        state=state,
        broker_id=deleter.broker_id,
    )


def _context(
    deleter: Deleter,
    reason: str,
    rule_detail: str | None,
    revision: int | None,
    config_revision: int | None,
) -> MutationContext:
    return MutationContext(
        reason=reason,
        rule_detail=rule_detail,
        plan_id=deleter.plan_id,
        broker_leader_epoch=deleter.broker_leader_epoch,
        expected_revision=revision,
        expected_config_revision=config_revision,
        retention_owner=deleter.retention_owner,
    )


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


@dataclass(slots=True)
class Deletions:
    """The deletions and failures of a run.

    Attributes:
        left: orphans and uploads beyond MAX_DELETIONS, for the next run.
        unrecorded: objects without an event, because RLMM does not know their partition; the
            anomalies name them.
        failures: one line for each object or upload that could not be deleted, with the reason;
            at most MAX_FAILURES.
    """

    objects: int = 0
    uploads: int = 0
    left: int = 0
    unrecorded: int = 0
    failures: list[str] = field(default_factory=list)

    MAX_FAILURES = 100

    def count(self, keys: Sequence[str], outcomes: Sequence[RemoteStorageError | None]) -> int:
        """Record failures; return how many of `keys` were deleted."""
        failed = [f"{key}: {e}" for key, e in zip(keys, outcomes, strict=True) if e is not None]
        self.failures += failed[: self.MAX_FAILURES - len(self.failures)]
        return len(keys) - len(failed)


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object that no metadata needs.

    Attributes:
        state: its segment's when it was found; None without metadata.
        is_committed: the whole copy goes, with its manifest.
    """

    anomaly: Anomaly
    stored: SegmentObject
    state: RemoteLogSegmentState | None
    is_committed: bool


@dataclass(frozen=True, slots=True)
class AbandonedUpload:
    anomaly: Anomaly
    upload: MultipartUpload


class OrphanDeletion:
    """Collect the orphans and abandoned uploads of a run, and delete those that are due."""

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

    def _keep(self, chosen: list[T], one: T) -> None:
        if len(chosen) < MAX_DELETIONS:
            chosen.append(one)
        else:
            self.done.left += 1

    def delete(self, run_id: str, grace_ms: int) -> None:
        """Delete the orphans and uploads that are due. Idempotent.

        Call it after all anomalies of the run `run_id` are reported.

        Raises:
            RetriableRemoteStorageError: a service is unreachable; the next run continues.
        """
        due = self._due(run_id, grace_ms)
        # Read again: an import may have added partitions since the run began.
        view = MetadataView(self._rlmm)
        for orphans in _orphan_batches(
            [each for each in self._orphans if each.anomaly.identity in due]
        ):
            self._delete_objects(view, run_id, orphans)
        for uploads in _orphan_batches(
            [each for each in self._uploads if each.anomaly.identity in due]
        ):
            self._end_uploads(view, run_id, uploads)

    def _due(self, run_id: str, grace_ms: int) -> set[Anomaly]:
        query = AnomalyQuery((AnomalyKind.ORPHAN_OBJECTS, AnomalyKind.ABANDONED_UPLOAD))
        return {
            seen.anomaly.identity
            for seen in all_anomalies(self._rlmm, query)
            if seen.times_seen > 1
            and seen.last_seen_ms - seen.first_seen_ms >= grace_ms
            and seen.run_id == run_id
        }

    def _record(self, view: MetadataView, run_id: str, anomalies: Iterable[Anomaly]) -> None:
        """Record objects and uploads in the audit trails of their partitions, before they go."""
        found: dict[tuple[PartitionKey, str], list[ObjectDeletion]] = defaultdict(list)
        for each in anomalies:
            deletion = ObjectDeletion(each.segment_id, each.object_key)
            found[(each.topic_id, each.partition), each.detail].append(deletion)
        for (partition, detail), deletions in found.items():
            tp = view.named(partition)
            context = MutationContext(
                reason="no metadata needs it", rule_detail=detail or None, plan_id=run_id
            )
            if tp is None or not self._is_recorded(tp, deletions, context):
                self.done.unrecorded += len(deletions)

    def _is_recorded(
        self, tp: TopicIdPartition, deletions: Sequence[ObjectDeletion], context: MutationContext
    ) -> bool:
        try:
            self._rlmm.record_object_deletions(tp, deletions, context)
        except RemoteResourceNotFoundError:
            return False  # The partition was removed meanwhile.
        return True

    def _delete_objects(self, view: MetadataView, run_id: str, orphans: Sequence[Orphan]) -> None:
        states = view.states([each.stored.name for each in orphans])
        still = [
            # An import or a restored database may have changed the state since.
            each
            for each, state in zip(orphans, states, strict=True)
            if state is each.state
        ]
        self._record(view, run_id, (each.anomaly for each in still))
        for is_committed in (False, True):
            chosen = [each.stored for each in still if each.is_committed is is_committed]
            if chosen:
                outcomes = self._delete_if_allowed(chosen, is_committed)
                keys = [str(each.location) for each in chosen]
                self.done.objects += self.done.count(keys, outcomes)

    def _delete_if_allowed(
        self, chosen: Sequence[SegmentObject], is_committed: bool
    ) -> list[RemoteStorageError | None]:
        """Delete objects; what this run has no role for stays, and the rest still goes."""
        try:
            return self._objects.delete_segment_objects(
                list(map(_as_it_was, chosen)), committed_copies=is_committed
            )
        except PermissionDeniedError as e:
            return [e] * len(chosen)

    def _end_uploads(
        self, view: MetadataView, run_id: str, uploads: Sequence[AbandonedUpload]
    ) -> None:
        still = list(not_being_copied(view, [each.upload for each in uploads]))
        if not still:
            return
        self._record(view, run_id, (each.anomaly for each in uploads if each.upload in still))
        outcomes = self._objects.abort_multipart_uploads(
            [(each.location, each.upload_id) for each in still]
        )
        self.done.uploads += self.done.count([str(each.location) for each in still], outcomes)


def _as_it_was(stored: SegmentObject) -> ObjectToDelete:
    """Name an object to be deleted; a copy never writes a key twice, except the manifest."""
    is_manifest = stored.name.kind is SegmentObjectKind.MANIFEST
    return ObjectToDelete(stored.location, stored.etag if is_manifest else None)


def not_being_copied(
    view: MetadataView, uploads: Sequence[MultipartUpload]
) -> Iterator[MultipartUpload]:
    """Yield the uploads that belong to no active copy according to their current metadata."""
    states = view.states([each.name for each in uploads])
    for upload, state in zip(uploads, states, strict=True):
        if state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            yield upload


def _orphan_batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[first : first + _AT_ONCE] for first in range(0, len(items), _AT_ONCE))


def batches(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the items in order, at most `size` at a time."""
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch
