"""Compare the store's view of segments, their objects, with the metadata's view."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import TypeAlias
from uuid import UUID

from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.imported_segments import is_imported
from services.api.operations import MAX_DETAIL_LENGTH, AnomalyKind
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_events,
    all_kept_segments,
    all_partitions,
    segments_by_id,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segment_objects import (
    SegmentObject,
    SegmentObjectKind,
    SegmentObjectName,
    SegmentObjects,
    StoredManifest,
    shard_of,
)
from services.api.segments import (
    UNKNOWN_SIZE,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    has_replaced,
    indexes_size_of,
    is_transformed,
)

_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_FEW = 20
"""RLMM searches the events of fewer segments; for more it sends the whole audit trail."""

REPLACED = "replaced by another copy"
"""The detail of orphans that readers with an earlier look-up may still read."""

PartitionKey: TypeAlias = tuple[UUID, int]
"""Topic id and partition; object keys have no topic name."""


@dataclass(frozen=True, slots=True)
class StoreView:
    """All objects of one segment id in one location, from one listing."""

    objects: tuple[SegmentObject, ...]

    @property
    def partition(self) -> PartitionKey:
        name = self.objects[0].name
        return name.topic_id, name.partition

    @property
    def id(self) -> UUID:
        return self.objects[0].name.segment_id

    @property
    def modified_ms(self) -> int:
        """Return when the newest object was written."""
        return max(each.modified_ms for each in self.objects)

    @property
    def manifest(self) -> SegmentObject | None:
        for each in self.objects:
            if each.name.kind is SegmentObjectKind.MANIFEST:
                return each
        return None

    def complete_attempts(self) -> set[str]:
        """Return the attempts that have log and indexes; the manifest names the one that counts."""
        kinds: dict[str, set[SegmentObjectKind]] = {}
        for each in self.objects:
            if each.name.attempt is not None:
                kinds.setdefault(each.name.attempt, set()).add(each.name.kind)
        return {attempt for attempt, of_attempt in kinds.items() if len(of_attempt) == 2}

    @property
    def only_attempt(self) -> str | None:
        """Return the attempt of all objects but the manifest; None if there are several, or none.

        If there is one, the manifest need not be read.
        """
        attempts = {each.name.attempt for each in self.objects} - {None}
        return attempts.pop() if len(attempts) == 1 else None

    def is_complete(self, counting_attempt: str | None) -> bool:
        return self.manifest is not None and counting_attempt in self.complete_attempts()


def store_views(objects: Iterable[SegmentObject]) -> Iterator[StoreView]:
    """Group objects by segment and location; the objects are in the order of their keys."""
    for _, of_segment in groupby(
        objects, key=lambda each: (each.name.topic_id, each.name.partition, each.name.segment_id)
    ):
        in_order = sorted(of_segment, key=lambda each: each.location.location_id)
        for _, there in groupby(in_order, key=lambda each: each.location.location_id):
            yield StoreView(tuple(there))


@dataclass(frozen=True, slots=True)
class Problem:
    """The problem of a segment; `objects` are those that nothing needs."""

    kind: AnomalyKind
    objects: Sequence[SegmentObject]
    detail: str


def find_problem(
    stored: StoreView,
    state: RemoteLogSegmentState | None,
    counting_attempt: str | None,
    *,
    was_deleted: bool,
) -> Problem | None:
    """Compare a segment's objects with its state; return None if nothing is wrong.

    Args:
        state: the state in the metadata, read after the objects were listed; None if there is no
            metadata. A segment that is being copied or deleted is never wrong.
        counting_attempt: the attempt that the manifest names, and the metadata too if the copy
            finished; None if there is no manifest.
        was_deleted: an event records that the segment's deletion finished.
    """
    if state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
        if stored.manifest is None:
            return Problem(AnomalyKind.MISSING_OBJECTS, (), "the manifest")
        rest = [
            each
            for each in stored.objects
            if counting_attempt is not None and each.name.attempt not in (None, counting_attempt)
        ]
        return _orphans(rest, "left by a copy that does not count") if rest else None
    if state in (
        RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    ):
        return None
    if state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED or was_deleted:
        return _orphans(stored.objects, "left by a deletion that finished")
    if stored.is_complete(counting_attempt):
        text = "a complete copy that no metadata names; never deleted, a rebuild can take it over"
        return Problem(AnomalyKind.UNREFERENCED_COMPLETE, (), text)
    return _orphans(stored.objects, "left by a copy that never finished")


def _orphans(objects: Sequence[SegmentObject], detail: str) -> Problem:
    return Problem(AnomalyKind.ORPHAN_OBJECTS, objects, detail)


Rows: TypeAlias = dict[UUID, RemoteLogSegmentMetadata]


class MetadataView:
    """Read the metadata of segments by the keys of their objects.

    Covers the partitions that RLMM knew when this object was made. Object keys have no topic name;
    RLMM's name for the topic id is used. Every method raises RetriableRemoteStorageError if RLMM is
    unreachable.
    """

    def __init__(self, rlmm: RemoteLogMetadataManager) -> None:
        self._rlmm = rlmm
        known = (each.topic_id_partition for each in all_partitions(rlmm))
        # Partitions that were removed may have kept segments, whose objects are no orphans.
        names = chain(known, (each.topic_id_partition for each in all_kept_segments(rlmm)))
        self._partitions = {(tp.topic_id, tp.partition): tp for tp in names}

    def partitions(self, shard: int, shards: int) -> Iterator[TopicIdPartition]:
        """Yield the partitions whose objects are in this shard's listing."""
        return (tp for tp in self._partitions.values() if shard_of(tp.topic_id, shards) == shard)

    def topics(self, names: Collection[str] = ()) -> set[UUID]:
        """Return the ids of the topics, or of those that have one of these names."""
        known = self._partitions.values()
        return {tp.topic_id for tp in known if not names or tp.topic in names}

    def named(self, partition: PartitionKey) -> TopicIdPartition | None:
        """Return the partition with its topic's name; None if RLMM did not know it."""
        return self._partitions.get(partition)

    def rows(self, partition: PartitionKey, ids: Sequence[UUID]) -> Rows:
        """Return the metadata of a partition's segments, in any state."""
        tp = self._partitions.get(partition)
        if tp is None:
            return {}
        try:
            segments = list(segments_by_id(self._rlmm, tp, ids))
        except RemoteResourceNotFoundError:
            return {}  # The partition was removed meanwhile.
        return {each.remote_log_segment_id.id: each for each in segments}

    def states(self, names: Sequence[SegmentObjectName]) -> list[RemoteLogSegmentState | None]:
        """Return the present state of each object's segment, in order; None without metadata.

        Sends one request per partition.
        """
        ids: dict[PartitionKey, dict[UUID, None]] = defaultdict(dict)
        for name in names:
            ids[name.topic_id, name.partition][name.segment_id] = None
        rows = {partition: self.rows(partition, list(wanted)) for partition, wanted in ids.items()}
        of_each = (rows[name.topic_id, name.partition].get(name.segment_id) for name in names)
        return [None if row is None else row.state for row in of_each]

    def deleted(self, segments: Iterable[RemoteLogSegmentId]) -> set[RemoteLogSegmentId]:
        """Return the segments whose deletion finished according to the audit trail.

        Removed partitions are covered too. No index leads from a segment to its events. For few
        segments RLMM searches the partition's audit trail for each; for many, the trail is read
        once until all are found.
        """
        wanted: dict[TopicIdPartition, set[UUID]] = defaultdict(set)
        for each in segments:
            wanted[each.topic_id_partition].add(each.id)
        deleted = ((tp, self._deleted(tp, ids)) for tp, ids in wanted.items())
        return {RemoteLogSegmentId(tp, id) for tp, ids in deleted for id in ids}

    def _deleted(self, tp: TopicIdPartition, ids: set[UUID]) -> set[UUID]:
        found: set[UUID] = set()
        of_each = [EventQuery(tp, segment_id=id) for id in ids]
        try:
            for query in of_each if len(ids) < _FEW else [EventQuery(tp)]:
                for event in all_events(self._rlmm, query):
                    if event.segment_id in ids and event.to_state == _DELETED.name:
                        found.add(event.segment_id)
                        if query.segment_id is not None or found == ids:
                            break
        except (RemoteResourceNotFoundError, InvalidRequestError):
            pass  # RLMM does not know the topic, or knows it under another name.
        return found


UNSEALED = (
    "the manifest has no seal, and RSM has a ring of keys: nothing vouches for the copy; if you "
    "trust the bucket, rebuild with an RSM without [keys], then run `sediment keys rewrap`"
)


@dataclass(frozen=True, slots=True)
class ReconcileVerdict:
    """The result of comparing a segment's objects with its metadata and manifest.

    Attributes:
        state: the state in the metadata, read after the objects were listed; None if there was
            no metadata.
        problem: None if nothing is wrong.
        is_complete: all objects of the copy that counts exist, and it is known which copy counts.
        unread: why the manifest could not be read, so that nothing was compared; "" if it was read
            or need not be.
    """

    stored: StoreView
    state: RemoteLogSegmentState | None
    problem: Problem | None
    is_complete: bool
    unread: str = ""


def reconcile_verdicts(
    objects: SegmentObjects,
    view: MetadataView,
    partition: PartitionKey,
    listed: Sequence[StoreView],
) -> Iterator[ReconcileVerdict]:
    """Compare the segments of one partition with their metadata, in order."""
    rows = view.rows(partition, [stored.id for stored in listed])
    # By the view, not by the id: another location may have objects of the id, too.
    known = {stored: verdict_without_manifest(stored, rows.get(stored.id)) for stored in listed}
    manifests = {
        stored: read_manifest(objects, stored.manifest)
        for stored in listed
        if stored.manifest is not None and known[stored] is None
    }
    deleted = view.deleted(
        manifest.segment_id
        for stored, manifest in manifests.items()
        if stored.id not in rows and manifest.segment_id is not None
    )
    for stored in listed:
        verdict, manifest = known[stored], manifests.get(stored)
        if verdict is None and manifest is not None:
            was_deleted = manifest.segment_id in deleted
            row = rows.get(stored.id)
            verdict = verdict_with_manifest(stored, row, manifest, was_deleted=was_deleted)
        if verdict is not None:
            yield verdict


@dataclass(frozen=True, slots=True)
class ManifestView:
    """The content under a manifest's key.

    If `content` is None there is no valid manifest: `damage` describes what is wrong, `unread`
    explains a failed read, and both are "" if the object is missing.
    """

    content: StoredManifest | None = None
    damage: str = ""
    unread: str = ""

    @property
    def segment_id(self) -> RemoteLogSegmentId | None:
        return None if self.content is None else self.content.metadata.remote_log_segment_id


def read_manifest(objects: SegmentObjects, manifest: SegmentObject) -> ManifestView:
    """Read what is under a manifest's key, without the digests of the copied files.

    Raises:
        RetriableRemoteStorageError: RSM or the store is unreachable.
    """
    try:
        content = objects.read_segment_manifest(manifest.location)
    except RemoteResourceNotFoundError:
        return ManifestView()
    except CorruptSegmentError as e:
        return ManifestView(damage=str(e)[:MAX_DETAIL_LENGTH])
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as e:
        # One object that the store does not return, such as an archived one, must not end each run.
        return ManifestView(unread=f"{manifest.location}: {e}")
    return ManifestView(replace(content, digests=None))


def missing_objects(rsm: RemoteStorageManager, metadata: RemoteLogSegmentMetadata) -> str:
    """Read the begin of a finished segment's log, and its leader epochs; return what is missing.

    Raises:
        RemoteStorageError: a read failed although nothing may be missing.
    """
    try:
        next(rsm.fetch_log_segment(metadata, 0, 0), None)
        # The leader epoch index is the one index that is never empty.
        for _ in rsm.fetch_index(metadata, IndexType.LEADER_EPOCH, as_stored=True):
            pass
    except (RemoteResourceNotFoundError, CorruptSegmentError, InvalidRequestError) as e:
        return str(e)[:MAX_DETAIL_LENGTH]
    return ""


def verdict_without_manifest(
    stored: StoreView, row: RemoteLogSegmentMetadata | None
) -> ReconcileVerdict | None:
    """Compare a segment's objects with its row; return None if its manifest must be read."""
    if stored.manifest is not None and (row is None or stored.only_attempt is None):
        return None
    counting = stored.only_attempt
    return _verdict(stored, row, counting, is_known=names_attempt(row, counting))


def verdict_with_manifest(
    stored: StoreView,
    row: RemoteLogSegmentMetadata | None,
    manifest: ManifestView,
    *,
    was_deleted: bool,
) -> ReconcileVerdict:
    """Compare a segment's objects with its row and what is under its manifest's key."""
    state, content = None if row is None else row.state, manifest.content
    if content is None:
        problem = _corrupt(manifest.damage) if manifest.damage else None
        return ReconcileVerdict(stored, state, problem, is_complete=False, unread=manifest.unread)
    if row is not None and names_another_copy(row, content):
        text = f"the manifest is of attempt {content.attempt}, the metadata is of another copy"
        return ReconcileVerdict(stored, state, _corrupt(text), is_complete=False)
    verdict = _verdict(stored, row, content.attempt, is_known=True, was_deleted=was_deleted)
    if content.is_unsealed and not is_vouched(row, content):
        return ReconcileVerdict(stored, state, _corrupt(UNSEALED), is_complete=False)
    other = content.other_deployment_id
    if other and verdict.problem and verdict.problem.kind is AnomalyKind.UNREFERENCED_COMPLETE:
        text = (
            f"a complete copy that the deployment {other} wrote; never deleted: leave it to that "
            "deployment, or rebuild with an RSM without RSM_DEPLOYMENT_ID to take it over"
        )
        return replace(verdict, problem=replace(verdict.problem, detail=text))
    return verdict


def _verdict(
    stored: StoreView,
    row: RemoteLogSegmentMetadata | None,
    counting: str | None,
    *,
    is_known: bool,
    was_deleted: bool = False,
) -> ReconcileVerdict:
    state = None if row is None else row.state
    if row is not None and (row.kept_until_ms is not None or is_adoptable(row)):
        return ReconcileVerdict(stored, state, None, is_complete=False)
    is_complete = is_known and stored.is_complete(counting)
    problem = _wrong_size(stored, row, counting) if row is not None and is_complete else None
    if problem is None:
        problem = find_problem(stored, state, counting, was_deleted=was_deleted)
    if problem is not None and problem.objects and row is not None and _has_replaced(row):
        problem = replace(problem, detail=REPLACED)
    return ReconcileVerdict(stored, state, problem, is_complete)


def _has_replaced(row: RemoteLogSegmentMetadata) -> bool:
    """Return whether a finished segment is read from a copy that replaced another one."""
    is_finished = row.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return is_finished and has_replaced(row.custom_metadata)


def _wrong_size(
    stored: StoreView, row: RemoteLogSegmentMetadata, counting: str | None
) -> Problem | None:
    """Compare the sizes of a finished segment's log and indexes with its metadata.

    Only a manifest has the sizes of transformed objects: rebuild compares them, scrub reads all.
    """
    is_finished = row.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    if not is_finished or is_transformed(row.custom_metadata):
        return None
    expected = {
        SegmentObjectKind.LOG: row.segment_size_in_bytes,
        SegmentObjectKind.INDEXES: indexes_size_of(row.custom_metadata or b""),
    }
    for each in stored.objects:
        size = expected.get(each.name.kind, UNKNOWN_SIZE)
        if each.name.attempt == counting and size not in (UNKNOWN_SIZE, each.size_bytes):
            what = f"the {each.name.kind.name.lower()} object has {each.size_bytes} bytes"
            return _corrupt(f"{what}, by its metadata {size}")
    return None


def names_attempt(row: RemoteLogSegmentMetadata | None, attempt: str | None) -> bool:
    """Return whether the metadata certainly belongs to this copy.

    RSM's custom metadata contains the attempt, 8 random bytes. False costs one request to the
    store.
    """
    if row is None or row.custom_metadata is None or attempt is None:
        return False
    return bytes.fromhex(attempt) in row.custom_metadata


def names_another_copy(row: RemoteLogSegmentMetadata, manifest: StoredManifest) -> bool:
    """Return whether a finished segment's metadata is of another copy than the manifest."""
    is_finished = row.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return is_finished and not (is_adoptable(row) or manifest.is_of(row.custom_metadata or b""))


def is_vouched(row: RemoteLogSegmentMetadata | None, manifest: StoredManifest) -> bool:
    """Return whether a segment's metadata names this very manifest."""
    return row is not None and manifest.is_of(row.custom_metadata or b"")


def is_adoptable(row: RemoteLogSegmentMetadata) -> bool:
    """Return whether a finished segment is read from where another storage wrote it.

    Objects of ours under its id are of an adoption that runs or was cut short; `sediment copy
    --adopt` continues it.
    """
    is_finished = row.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return is_finished and is_imported(row.custom_metadata)


def _corrupt(detail: str) -> Problem:
    return Problem(AnomalyKind.CORRUPT_OBJECT, (), detail)
