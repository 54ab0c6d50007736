"""Delete segments and orphan objects: mark first, then delete objects, then confirm."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    DeletionRefusedError,
    PermissionDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.holds import Mark, keeping_hold
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.operations import Anomaly, AnomalyKind, AnomalyQuery, ObjectDeletion
from services.api.remote_log_metadata_manager import (
    MAX_UPDATE_BATCH,
    RemoteLogMetadataManager,
    SegmentUpdate,
    UpdateOutcome,
    all_anomalies,
    all_holds,
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
from services.common.batches import batches
from services.common.failpoints import failpoint
from services.workflows.segment_views import REPLACED, MetadataView, PartitionKey

UNKNOWN_BROKER = -1
_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

MAX_DELETIONS = 100_000
"""The most objects that one run deletes, and the most uploads; the next run deletes the rest."""
REPLACED_STAY_MS = 60 * 60 * 1000
"""How long replaced objects stay at least, whatever the grace is; look-ups are cached for less."""
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
    """The result of a step for one segment.

    Attributes:
        segment: of a marked one, with the custom metadata that names the objects to delete.
        error: None if it is done.
        is_repeat: another call had done it, of another plan if there is one.
    """

    segment: RemoteLogSegmentMetadata
    error: RemoteStorageError | None = None
    is_repeat: bool = False


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
    for batch in batches(deletions, MAX_UPDATE_BATCH):
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
    """Delete the objects of marked segments and confirm each deletion; yield an outcome each.

    Leaves the objects of kept segments to services.workflows.kept_segments.

    Args:
        segments: as begin_deletion returned them, or as RLMM listed them when they were marked.

    Raises:
        RetriableRemoteStorageError: RSM or RLMM is unreachable; retry.
    """
    context = MutationContext(reason="objects deleted", plan_id=deleter.plan_id)
    for batch in batches(segments, MAX_DELETE_BATCH):
        left = [DeletionOutcome(each) for each in batch if each.kept_until_ms is not None]
        gone = [each for each in batch if each.kept_until_ms is None]
        errors = rsm.delete_log_segment_data_batch(gone) if gone else []
        failpoint("deletion.objects_deleted")
        outcomes = [*left, *map(DeletionOutcome, gone, errors)]
        yield from confirm_deletion(rlmm, outcomes, context, deleter.broker_id, now_ms)
        failpoint("deletion.confirmed_some")


def confirm_deletion(
    rlmm: RemoteLogMetadataManager,
    outcomes: Sequence[DeletionOutcome],
    context: MutationContext,
    broker_id: int,
    now_ms: int,
) -> list[DeletionOutcome]:
    """Confirm the deletions that have no error in RLMM; return all outcomes, in order."""
    ids = [o.segment.remote_log_segment_id for o in outcomes if o.error is None]
    updates = [RemoteLogSegmentMetadataUpdate(id, now_ms, _FINISHED, broker_id) for id in ids]
    results = _sent(rlmm, [SegmentUpdate(update, context) for update in updates])
    return [o if o.error else _outcome(o.segment, results) for o in outcomes]


def _mark(
    rlmm: RemoteLogMetadataManager,
    deletions: Sequence[Deletion],
    deleter: Deleter,
    now_ms: int,
    revision: int | None,
    config_revision: int | None,
) -> tuple[list[DeletionOutcome], int | None]:
    """Mark segments; return outcomes, and the new revision if one was expected."""
    updates = [
        SegmentUpdate(
            RemoteLogSegmentMetadataUpdate(
                d.segment.remote_log_segment_id, now_ms, _STARTED, deleter.broker_id
            ),
            _context(deleter, d.reason.value, d.detail, revision, config_revision),
        )
        for d in deletions
        if d.segment.state is not _STARTED
    ]
    results = _sent(rlmm, updates)
    outcomes = [_outcome(d.segment, results) for d in deletions]
    applied = [r.revision for r in results.values() if isinstance(r, MutationOutcome) and r.applied]
    return outcomes, None if revision is None else max([revision, *applied])


_Results: TypeAlias = Mapping[RemoteLogSegmentId, UpdateOutcome]


def _sent(rlmm: RemoteLogMetadataManager, updates: Sequence[SegmentUpdate]) -> _Results:
    """Send updates, if there are any; return the outcome of each by its segment."""
    if not updates:
        return {}
    outcomes = rlmm.update_remote_log_segment_metadata_batch(updates)
    ids = [each.update.remote_log_segment_id for each in updates]
    return dict(zip(ids, outcomes, strict=True))


def _outcome(segment: RemoteLogSegmentMetadata, results: _Results) -> DeletionOutcome:
    result = results.get(segment.remote_log_segment_id)
    if isinstance(result, RemoteStorageError):
        return DeletionOutcome(segment, result)
    if result is None:
        return DeletionOutcome(segment)
    if result.custom_metadata is not None:
        # The segment's bytes may have been replaced after it was read.
        segment = replace(segment, custom_metadata=result.custom_metadata)
    # A broker may have marked it since it was listed.
    known = replace(segment, kept_until_ms=result.kept_until_ms)
    return DeletionOutcome(known, is_repeat=not result.applied)


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


@dataclass(slots=True)
class Deletions:
    """The deletions and failures of a run.

    Attributes:
        left: orphans and uploads beyond MAX_DELETIONS, for the next run.
        held: objects and uploads that a hold keeps.
        unrecorded: objects without an event, because RLMM does not know their partition; the
            anomalies name them.
        failures: one line for each object or upload that could not be deleted, with the reason;
            at most MAX_FAILURES.
    """

    objects: int = 0
    uploads: int = 0
    left: int = 0
    unrecorded: int = 0
    held: int = 0
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
        state: its segment's when the objects were compared; None without metadata.
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

    def add(self, one: Orphan | AbandonedUpload) -> None:
        """Add an orphan or upload, or count it as left if there are MAX_DELETIONS of its kind."""
        if isinstance(one, Orphan) and len(self._orphans) < MAX_DELETIONS:
            self._orphans.append(one)
        elif isinstance(one, AbandonedUpload) and len(self._uploads) < MAX_DELETIONS:
            self._uploads.append(one)
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
        for orphans in batches((o for o in self._orphans if o.anomaly.identity in due), _AT_ONCE):
            self._delete_objects(view, run_id, orphans)
        for uploads in batches((u for u in self._uploads if u.anomaly.identity in due), _AT_ONCE):
            self._end_uploads(view, run_id, uploads)

    def _due(self, run_id: str, grace_ms: int) -> set[Anomaly]:
        query = AnomalyQuery((AnomalyKind.ORPHAN_OBJECTS, AnomalyKind.ABANDONED_UPLOAD))
        return {
            each.anomaly.identity
            for each in all_anomalies(self._rlmm, query)
            if each.times_seen > 1
            and each.last_seen_ms - each.first_seen_ms
            >= max(grace_ms, _least_grace_ms(each.anomaly))
            and each.run_id == run_id
        }

    def _record(
        self, view: MetadataView, run_id: str, anomalies: Iterable[Anomaly]
    ) -> Collection[Anomaly]:
        """Record objects and uploads in the audit trails of their partitions, before they go.

        Returns:
            Those that no hold keeps.
        """
        recorded: dict[tuple[PartitionKey, str], list[Anomaly]] = defaultdict(list)
        for each in anomalies:
            recorded[(each.topic_id, each.partition), each.detail].append(each)
        due = set[Anomaly]()
        for (partition, detail), found in recorded.items():
            deletions = [ObjectDeletion(each.segment_id, each.object_key) for each in found]
            tp = view.named(partition)
            context = MutationContext(
                reason="no metadata needs it", rule_detail=detail or None, plan_id=run_id
            )
            try:
                if tp is None or not self._is_recorded(tp, deletions, context):
                    self._require_not_held(partition)
                    self.done.unrecorded += len(deletions)
                due.update(found)
            except DeletionRefusedError:
                self.done.held += len(deletions)
        return due

    def _is_recorded(
        self, tp: TopicIdPartition, deletions: Sequence[ObjectDeletion], context: MutationContext
    ) -> bool:
        try:
            self._rlmm.record_object_deletions(tp, deletions, context)
        except RemoteResourceNotFoundError:
            return False  # The partition was removed meanwhile.
        return True

    def _require_not_held(self, partition: PartitionKey) -> None:
        """Raise DeletionRefusedError if a hold is over a partition that RLMM does not know."""
        holds = (hold for hold in all_holds(self._rlmm) if hold.covers(*partition))
        if (hold := keeping_hold(holds, Mark.OBJECTS)) is not None:
            raise DeletionRefusedError(str(hold))

    def _delete_objects(self, view: MetadataView, run_id: str, orphans: Sequence[Orphan]) -> None:
        states = view.states([each.stored.name for each in orphans])
        still = [
            # An import or a restored database may have changed the state since.
            each
            for each, state in zip(orphans, states, strict=True)
            if state is each.state
        ]
        due = self._record(view, run_id, (each.anomaly for each in still))
        still = [each for each in still if each.anomaly in due]
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
        idle = list(not_being_copied(view, [each.upload for each in uploads]))
        due = self._record(view, run_id, (each.anomaly for each in uploads if each.upload in idle))
        still = [each.upload for each in uploads if each.anomaly in due]
        if not still:
            return
        outcomes = self._objects.abort_multipart_uploads(
            [(each.location, each.upload_id) for each in still]
        )
        self.done.uploads += self.done.count([str(each.location) for each in still], outcomes)


def _least_grace_ms(anomaly: Anomaly) -> int:
    return REPLACED_STAY_MS if anomaly.detail == REPLACED else 0


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
