"""Fill an empty or restored RLMM from the manifests in the bucket, and report the differences."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import merge
from itertools import groupby
from uuid import UUID

from services.api.calls import MutationContext
from services.api.errors import RemoteResourceNotFoundError, RemoteStorageError
from services.api.holds import Hold, HoldKind
from services.api.ids import TopicIdPartition
from services.api.operations import MAX_DETAIL_LENGTH
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    SegmentUpdate,
    all_events,
    all_segments,
)
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_batches import MAX_BATCH, SegmentImport, imports_of
from services.api.segment_objects import (
    CURRENT_LOCATION,
    ObjectQuery,
    SegmentObjects,
    StoredManifest,
    all_segment_objects,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.common.batches import batches
from services.workflows.bucket_copies import BucketCopy, copy_of, damage_of, superseded
from services.workflows.deployment_state import ERRORS_OF_RUN
from services.workflows.rebuild_report import Difference, DifferenceKind, Rebuilt
from services.workflows.segment_views import (
    UNSEALED,
    ManifestView,
    MetadataView,
    PartitionKey,
    Rows,
    StoreView,
    is_vouched,
    missing_objects,
    names_another_copy,
    names_attempt,
    read_manifest,
    store_views,
)

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

HOLD = Hold("rebuild", HoldKind.REBUILD, reason="rebuild")
"""The hold of a run; it lasts until `sediment db confirm-rebuild`."""

READERS = 8
"""Manifests that are read at the same time."""

_MANIFESTS_PER_BATCH = 500


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """The scope of a run, and whether it changes RLMM.

    Attributes:
        run_id: the plan id of the imported segments in the audit trail.
        locations: the locations whose manifests are read.
        only_listed: compare no partition that has no objects there.
    """

    run_id: str
    apply: bool = False
    locations: Sequence[int] = (CURRENT_LOCATION,)
    only_listed: bool = False


@dataclass(frozen=True, slots=True)
class EarlierChanges:
    """The segments of a partition that an attempt of the same run, which failed, has changed."""

    imported: frozenset[UUID] = frozenset()
    finished: frozenset[UUID] = frozenset()

    def undone(self, rows: Rows) -> Rows:
        """Return the metadata as it was before that attempt."""
        return {
            id: replace(row, state=_STARTED) if id in self.finished else row
            for id, row in rows.items()
            if id not in self.imported
        }


NO_CHANGES = EarlierChanges()


def earlier_changes(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, run_id: str
) -> EarlierChanges:
    """Find in the audit trail what a run has already changed in a partition."""
    imported, finished = set[UUID](), set[UUID]()
    for event in all_events(rlmm, EventQuery(tp, plan_id=run_id)):
        if event.segment_id is not None:
            (finished if event.from_state else imported).add(event.segment_id)
    return EarlierChanges(frozenset(imported), frozenset(finished))


def begin(rlmm: RemoteLogMetadataManager, plan: RebuildPlan) -> Hold | None:
    """Hold all topics if the plan changes RLMM; must be done before any partition is compared."""
    return rlmm.set_hold(HOLD) if plan.apply else None


@dataclass(eq=False)
class Rebuild:
    """Compare manifests and metadata once, and import what RLMM does not have if the plan says so.

    May be killed at any point and run again: what was imported is the same the next time.
    """

    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager
    objects: SegmentObjects
    plan: RebuildPlan
    on_progress: Callable[[Rebuilt], None] = lambda _: None
    _done: Rebuilt = field(init=False, default_factory=Rebuilt)

    def __post_init__(self) -> None:
        self._context = MutationContext(reason="rebuild", plan_id=self.plan.run_id)

    def run(self) -> Rebuilt:
        """Hold all topics if the plan changes RLMM; then compare and import each partition.

        Raises:
            RetriableRemoteStorageError, ThrottledError: a service is away or busy; run it again.
            PermissionDeniedError: the caller lacks a role.
        """
        self._done.freeze = begin(self.rlmm, self.plan)
        view, visited = MetadataView(self.rlmm), set[PartitionKey]()
        with ThreadPoolExecutor(READERS) as readers:
            for partition, listed in groupby(self._listed(), key=lambda each: each.partition):
                visited.add(partition)
                self.compare(view, partition, list(listed), readers)
                self.on_progress(self._done)
        for tp in view.partitions(0, 1):
            if (tp.topic_id, tp.partition) not in visited and not self.plan.only_listed:
                self.check_missing(tp)
        return self._done

    def _listed(self) -> Iterator[StoreView]:
        """Yield the segments of all locations, those of a partition one after the other."""
        listings = [
            store_views(all_segment_objects(self.objects, ObjectQuery(location_id)))
            for location_id in dict.fromkeys(self.plan.locations)
        ]
        # The order of the keys in each location.
        return merge(*listings, key=lambda each: (each.partition[0].hex, str(each.partition[1])))

    def compare(
        self,
        view: MetadataView,
        partition: PartitionKey,
        listed: Sequence[StoreView],
        readers: ThreadPoolExecutor,
        earlier: EarlierChanges = NO_CHANGES,
    ) -> Rebuilt:
        """Compare and import one partition; return the run's results so far.

        Args:
            listed: all its segments in the stores, by start offset.
            earlier: counted as if this attempt had made these changes.
        """
        self._done.segments += len(listed)
        rows = earlier.undone(view.rows(partition, [stored.id for stored in listed]))
        copies = [
            BucketCopy(row, row.event_timestamp_ms, is_known=True)
            for stored in listed
            if (row := rows.get(stored.id)) is not None and _is_whole(stored, row)
        ]
        whole = {each.segment.remote_log_segment_id.id for each in copies}
        self._done.same += len(copies)
        unsettled = [stored for stored in listed if stored.id not in whole]
        read = self._read(view, partition, unsettled, rows, readers)
        whole |= {each.segment.remote_log_segment_id.id for each in read if each.is_known}
        self._import(self._best([*copies, *read]), rows, earlier)
        tp = view.named(partition)
        if tp is not None:
            self.check_missing(tp, whole | earlier.imported | earlier.finished)
        return self._done

    def _read(
        self,
        view: MetadataView,
        partition: PartitionKey,
        listed: Sequence[StoreView],
        rows: dict[UUID, RemoteLogSegmentMetadata],
        readers: ThreadPoolExecutor,
    ) -> list[BucketCopy]:
        """Read manifests; return the copies that are complete, and record what is wrong."""
        copies = []
        with_manifest = [stored for stored in listed if stored.manifest is not None]
        self._done.incomplete += len(listed) - len(with_manifest)
        read = partial(read_manifest, self.objects)
        for batch in batches(with_manifest, _MANIFESTS_PER_BATCH):
            manifests = readers.map(read, [each.manifest for each in batch if each.manifest])
            for stored, manifest in zip(batch, manifests, strict=True):
                copy = self._judge(view.named(partition), stored, manifest, rows.get(stored.id))
                if copy is not None:
                    copies.append(copy)
            self.on_progress(self._done)
        segment_ids = [
            each.segment.remote_log_segment_id
            for each in copies
            if each.segment.remote_log_segment_id.id not in rows
        ]
        deleted = view.deleted(segment_ids)
        for copy in copies:
            if copy.segment.remote_log_segment_id in deleted:
                self._add(DifferenceKind.DELETED, copy.segment, "its deletion is an event")
        return [each for each in copies if each.segment.remote_log_segment_id not in deleted]

    def _judge(
        self,
        tp: TopicIdPartition | None,
        stored: StoreView,
        manifest: ManifestView,
        row: RemoteLogSegmentMetadata | None,
    ) -> BucketCopy | None:
        """Return the copy if it counts, or record why it does not."""
        if manifest.content is None:
            kind = DifferenceKind.DAMAGED if manifest.damage else DifferenceKind.REFUSED
            if detail := manifest.damage or manifest.unread:
                self._add_stored(kind, tp, stored, detail)
            return None  # Without a detail the manifest is gone meanwhile.
        other = manifest.content.other_deployment_id
        if row is None and other:
            text = (
                f"the deployment {other} wrote the manifest: leave it to that deployment, or "
                "rebuild with an RSM without RSM_DEPLOYMENT_ID to take it over"
            )
            self._add_stored(DifferenceKind.REFUSED, tp, stored, text)
            return None
        if manifest.content.is_unsealed and not is_vouched(row, manifest.content):
            self._add_stored(DifferenceKind.REFUSED, tp, stored, UNSEALED)
            return None
        copy = copy_of(manifest.content)
        detail = damage_of(stored, manifest.content) or _mismatch(tp, row, manifest.content)
        if detail:
            self._add_stored(DifferenceKind.DAMAGED, tp, stored, detail)
            return None
        if row is None:
            return copy
        if row.state is _FINISHED:
            self._done.same += 1
            return BucketCopy(row, copy.written_at_ms, is_known=True)
        if row.state is _DELETED:
            self._add(DifferenceKind.DELETED, row, "its metadata is in DELETE_SEGMENT_FINISHED")
            return None
        if row.state is _STARTED and not row.copy_leased:
            return copy
        self._done.same += 1  # In progress: a copy, or a deletion.
        return None

    def _best(self, copies: Sequence[BucketCopy]) -> list[BucketCopy]:
        """Return the copies to import, the best one last."""
        worse = superseded(copies)
        for place, better in worse.items():
            by = better.segment.remote_log_segment_id
            self._add(DifferenceKind.SUPERSEDED, copies[place].segment, f"by {by}")
        best = [
            each for place, each in enumerate(copies) if place not in worse and not each.is_known
        ]
        return sorted(best, key=lambda each: (each.rank, each.segment.start_offset))

    def _import(self, copies: Sequence[BucketCopy], rows: Rows, earlier: EarlierChanges) -> None:
        new: list[RemoteLogSegmentMetadata] = []
        begun: list[RemoteLogSegmentMetadata] = []
        for each in copies:
            id = each.segment.remote_log_segment_id.id
            is_begun = id in rows
            if id in earlier.imported:
                self._done.imported += 1
            elif id in earlier.finished:
                self._done.finished += 1
            else:
                (begun if is_begun else new).append(each.segment)
            kind = DifferenceKind.NOT_FINISHED if is_begun else DifferenceKind.ONLY_IN_BUCKET
            self._add(kind, each.segment)
        if not self.plan.apply:
            return
        for item in imports_of(new, self._context):
            self._import_item(item)
            self.on_progress(self._done)
        for batch in batches(begun, MAX_BATCH):
            self._finish(batch)

    def _import_item(self, item: SegmentImport) -> None:
        try:
            self._done.imported += self.rlmm.import_remote_log_segments([item]).imported
        except ERRORS_OF_RUN:
            raise
        except RemoteStorageError as e:
            if len(item.segments) == 1:
                self._add(DifferenceKind.REFUSED, item.segments[0], str(e))
                return
            for segment in item.segments:
                self._import_item(SegmentImport((segment,), item.context))

    def _finish(self, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
        updates = [SegmentUpdate(_finished(segment), self._context) for segment in segments]
        outcomes = self.rlmm.update_remote_log_segment_metadata_batch(updates)
        for segment, outcome in zip(segments, outcomes, strict=True):
            if isinstance(outcome, RemoteStorageError):
                self._add(DifferenceKind.REFUSED, segment, str(outcome))
            else:
                self._done.finished += outcome.applied

    def check_missing(self, tp: TopicIdPartition, whole: Collection[UUID] = frozenset()) -> Rebuilt:
        """Record the finished segments that are not in `whole` and cannot be read."""
        try:
            for metadata in all_segments(self.rlmm, tp, states=(_FINISHED,)):
                if metadata.remote_log_segment_id.id in whole:
                    continue
                try:
                    if missing := missing_objects(self.rsm, metadata):
                        self._add(DifferenceKind.ONLY_IN_METADATA, metadata, missing)
                except ERRORS_OF_RUN:
                    raise
                except RemoteStorageError as e:
                    self._add(DifferenceKind.REFUSED, metadata, str(e))
        except RemoteResourceNotFoundError:
            pass  # The partition was removed meanwhile.
        return self._done

    def _add(
        self, kind: DifferenceKind, segment: RemoteLogSegmentMetadata, detail: str = ""
    ) -> None:
        id, tp = segment.remote_log_segment_id.id, segment.topic_id_partition
        offsets = segment.start_offset, segment.end_offset
        place = tp.topic_id, tp.topic, tp.partition
        self._done.record(Difference(kind, *place, id, *offsets, detail[:MAX_DETAIL_LENGTH]))

    def _add_stored(
        self, kind: DifferenceKind, tp: TopicIdPartition | None, stored: StoreView, detail: str
    ) -> None:
        topic_id, partition = stored.partition
        topic = "" if tp is None else tp.topic
        start, text = stored.objects[0].name.start_offset, detail[:MAX_DETAIL_LENGTH]
        self._done.record(
            Difference(kind, topic_id, topic, partition, stored.id, start, None, text)
        )


def _is_whole(stored: StoreView, row: RemoteLogSegmentMetadata) -> bool:
    """Return whether all objects of a finished segment are listed, without reading its manifest."""
    attempt = stored.only_attempt
    return row.state is _FINISHED and names_attempt(row, attempt) and stored.is_complete(attempt)


def _mismatch(
    tp: TopicIdPartition | None, row: RemoteLogSegmentMetadata | None, manifest: StoredManifest
) -> str:
    """Compare a manifest with RLMM's name of its topic and with its segment's metadata; "" if they
    agree.
    """
    topic = manifest.metadata.topic_id_partition.topic
    if tp is not None and topic != tp.topic:
        return f"the manifest is of topic {topic}, RLMM knows this topic id as {tp.topic}"
    if row is None:
        return ""
    if row.state is _STARTED:
        copied = copy_of(manifest).segment
        is_other = row.updated(_finished(copied)) != copied
    else:
        is_other = names_another_copy(row, manifest)
    return "the manifest is of another copy than the metadata" if is_other else ""


def _finished(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment.remote_log_segment_id,
        segment.event_timestamp_ms,
        _FINISHED,
        segment.broker_id,
        segment.custom_metadata,
    )
