"""Scrub: what the stores hold, read through once and held against what was copied.

    list objects                    by their manifests: without one there is nothing to go by
    look up their segments by id    only what is finished is read
    read the manifest               it must tell of the copy that metadata names
    fetch log and indexes           through RSM, at a bounded rate, as a reader gets them
    ask for the state again         what is damaged may be going right now
    report                          to RLMM, at once: a run takes hours and may be killed

Changes nothing but anomalies. What it could not read is told apart from what is damaged.
"""

from collections.abc import Callable, Iterator
from itertools import groupby, islice

from services.api.anomalies import MAX_DETAIL_LENGTH, Anomaly, AnomalyKind
from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.known_segments import KnownSegments
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.scrub_copy import CopyScrub, UnverifiedError
from services.api.scrub_plan import SHARDS, Pace, Scrubbed, ScrubPlan
from services.api.segment_objects import (
    ObjectLocation,
    ObjectQuery,
    SegmentObject,
    SegmentObjects,
    StoredManifest,
    all_segment_objects,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.stored_segments import StoredSegment, stored_segments

FAILURES_IN_A_ROW = 8
"""So many, of one segment or listing each, and the store is taken to be away."""
_LONGEST_PAUSE_S = 30.0
_BATCH = 100
"""Segments looked up at once: at a low rate their last one is read an hour later."""
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class _StoreAwayError(Exception):
    """Ends a run; never leaves here."""


class Scrub:
    """One run. Any number may run at once, and any may be killed at any point."""

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        rsm: RemoteStorageManager,
        objects: SegmentObjects,
        plan: ScrubPlan,
        pace: Pace,
        on_progress: Callable[[Scrubbed], None] = lambda _: None,
    ) -> None:
        """`on_progress` is told how far the run is."""
        self._rlmm = rlmm
        self._rsm = rsm
        self._objects = objects
        self._plan = plan
        self._pace = pace
        self._on_progress = on_progress
        self._done = Scrubbed()
        self._failures_in_a_row = 0
        self._has_listed = False

    def run(self) -> Scrubbed:
        """
        Raises:
            InvalidRequestError: a location that is not registered.
            RetriableRemoteStorageError: RLMM cannot be reached, or the first listing failed; run it
                again.
        """
        known = KnownSegments(self._rlmm)
        try:
            for location_id in self._plan.locations:
                for shard in self._plan.shards():
                    self._scrub_shard(known, ObjectQuery(location_id, shard, SHARDS))
        except _StoreAwayError:
            self._done.is_cut_short = True
        return self._done

    def _scrub_shard(self, known: KnownSegments, query: ObjectQuery) -> None:
        of_part = (stored for stored in self._listed(query) if self._plan.has(stored))
        for partition, found in groupby(of_part, key=lambda stored: stored.partition):
            while batch := list(islice(found, _BATCH)):
                rows = known.rows(partition, [stored.id for stored in batch])
                for stored in batch:
                    row, manifest = rows.get(stored.id), stored.manifest
                    if row is not None and row.state is _FINISHED and manifest is not None:
                        self._look_at(known, stored, manifest, row)
                        self._on_progress(self._done)

    def _listed(self, query: ObjectQuery) -> Iterator[StoredSegment]:
        try:
            for stored in stored_segments(all_segment_objects(self._objects, query)):
                self._has_listed = True
                yield stored
            self._has_listed = True
        except RemoteStorageError as e:
            # What was found until now is told all the same.
            if not self._has_listed:
                raise
            self._done.unlisted += 1
            self._failed(f"location {query.location_id}, shard {query.shard}: not listed: {e}")

    def _look_at(
        self,
        known: KnownSegments,
        stored: StoredSegment,
        manifest: SegmentObject,
        row: RemoteLogSegmentMetadata,
    ) -> None:
        self._done.segments += 1
        found: list[Anomaly] = []
        reason, is_failure = "", False
        try:
            for anomaly in self._anomalies_of(stored, manifest, row):
                found.append(anomaly)
        except UnverifiedError as e:
            reason = str(e)
        except RemoteStorageError as e:
            reason, is_failure = str(e), True
        if found and known.states([manifest.name]) != [_FINISHED]:
            self._done.gone += 1
            return
        if found:
            self._rlmm.report_anomalies(found, self._plan.run_id)
            self._done.anomalies.update(anomaly.kind for anomaly in found)
            self._done.damaged += 1
        elif reason:
            self._done.unchecked += 1
        else:
            self._done.verified += 1
        text = f"{row.remote_log_segment_id}: {reason}"
        if is_failure:
            self._failed(text)
        else:
            self._failures_in_a_row = 0
            if reason:
                self._tell(text)

    def _anomalies_of(
        self, stored: StoredSegment, manifest: SegmentObject, row: RemoteLogSegmentMetadata
    ) -> Iterator[Anomaly]:
        def corrupt(where: ObjectLocation | None, detail: str) -> Anomaly:
            name = "" if where is None else str(where)
            text = detail[:MAX_DETAIL_LENGTH]
            return Anomaly(AnomalyKind.CORRUPT_OBJECT, *stored.partition, stored.id, name, text)

        try:
            try:
                told = self._manifest(manifest)
            except CorruptSegmentError as e:
                yield corrupt(manifest.location, str(e))
                return
            # Without custom metadata RSM goes by the manifest.
            if row.custom_metadata not in (None, told.metadata.custom_metadata):
                text = f"the manifest tells of attempt {told.attempt}, the metadata of another copy"
                self._require_same(manifest, told)
                yield corrupt(manifest.location, text)
                return
            if told.digests is None:
                raise UnverifiedError("RSM is of a release that does not tell digests; upgrade it")
            where = {
                each.name.kind: each.location
                for each in stored.objects
                if each.name.attempt in (None, told.attempt)
            }
            for damage in CopyScrub(self._rsm, row, told.digests, self._take).damages():
                self._require_same(manifest, told)
                yield corrupt(where.get(damage.kind), damage.detail)
        except RemoteResourceNotFoundError as e:
            text = str(e)[:MAX_DETAIL_LENGTH]
            missing = AnomalyKind.MISSING_OBJECTS
            yield Anomaly(missing, *stored.partition, stored.id, detail=text)

    def _manifest(self, manifest: SegmentObject) -> StoredManifest:
        """Read once more where it is none, as a byte may have changed on its way."""
        try:
            return self._read(manifest)
        except CorruptSegmentError as first:
            self._read(manifest)
            raise UnverifiedError(
                f"read in two ways, wrong first and then right: {first}"
            ) from first

    def _require_same(self, manifest: SegmentObject, told: StoredManifest) -> None:
        """Raise UnverifiedError unless it still tells what its copy was held against."""
        try:
            is_same = self._read(manifest) == told
        except CorruptSegmentError:
            is_same = False
        if not is_same:
            raise UnverifiedError(f"{manifest.location}: the manifest was read in two ways")

    def _read(self, manifest: SegmentObject) -> StoredManifest:
        self._take(manifest.size_bytes)
        return self._objects.read_segment_manifest(manifest.location)

    def _take(self, size_bytes: int) -> None:
        self._pace.take(size_bytes)
        self._done.read_bytes += size_bytes
        self._on_progress(self._done)

    def _failed(self, reason: str) -> None:
        """Waits a little: a service may be starting again."""
        self._tell(reason)
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= FAILURES_IN_A_ROW:
            raise _StoreAwayError
        self._pace.pause(min(2.0 ** (self._failures_in_a_row - 1), _LONGEST_PAUSE_S))

    def _tell(self, reason: str) -> None:
        if len(self._done.reasons) < Scrubbed.MAX_REASONS:
            self._done.reasons.append(reason)
