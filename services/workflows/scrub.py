"""Read stored segments at a bounded rate and report damage."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID

from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.operations import (
    MAX_DETAIL_LENGTH,
    MAX_PARTS,
    Anomaly,
    AnomalyKind,
    RunKind,
    ToolRun,
)
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_objects import (
    CURRENT_LOCATION,
    ObjectLocation,
    ObjectQuery,
    SegmentObject,
    SegmentObjects,
    StoredManifest,
    all_segment_objects,
    shard_of,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState, in_location
from services.api.validation import require
from services.common.batches import batches
from services.common.retry import Backoff
from services.workflows.coverage import Coverage, Outcome
from services.workflows.scrub_copy import CopyScrub, UnverifiedError
from services.workflows.segment_repair import LocalFiles, Repaired, SegmentRepair
from services.workflows.segment_views import MetadataView, StoreView, is_adoptable, store_views

DEFAULT_RATE_BYTES_PER_S = 32 * 1024 * 1024

SHARDS = 64
"""Shards of a location's listing; one that fails skips only the rest of its shard."""


_PART = re.compile(r"(\d{1,9})/(\d{1,9})")


def parse_part(text: str) -> tuple[int, int]:
    """Parse the option `--part`, I/N, into the number of the part and that of all parts.

    Raises:
        InvalidRequestError: it is not of this form.
    """
    match = _PART.fullmatch(text)
    if match is None:
        raise InvalidRequestError(
            f"--part: {text!r} is not I/N; for example, 3/28 is the third of 28 parts"
        )
    return int(match[1]), int(match[2])


@dataclass(frozen=True, slots=True)
class ScrubPlan:
    """The segments that a run reads.

    Attributes:
        run_id: names the run in RLMM's anomalies.
        part: which of `parts` to read, from 1. A segment is always in the same part; those of a
            partition are spread over all parts.
        topic_ids: read only these topics; None for all.
        locations: the locations whose objects are read.
        repairs: repair damaged segments whose logs are whole somewhere.
    """

    run_id: str
    part: int = 1
    parts: int = 1
    topic_ids: frozenset[UUID] | None = None
    locations: Sequence[int] = (CURRENT_LOCATION,)
    repairs: bool = False

    def __post_init__(self) -> None:
        require(1 <= self.parts <= MAX_PARTS, "parts", f"must be 1 to {MAX_PARTS}")
        require(1 <= self.part <= self.parts, "part", f"must be 1 to {self.parts}")

    @property
    def run(self) -> ToolRun:
        """Return the run under which RLMM records what was verified."""
        return ToolRun(RunKind.SCRUB, self.run_id, part=self.part, parts=self.parts)

    def has_topic(self, topic_id: UUID) -> bool:
        return self.topic_ids is None or topic_id in self.topic_ids

    def has(self, stored: StoreView) -> bool:
        topic_id, _ = stored.partition
        return self.has_topic(topic_id) and stored.id.int % self.parts == self.part - 1

    def shards(self) -> list[int]:
        """List the shards that may have segments of this plan."""
        if self.topic_ids is None:
            return list(range(SHARDS))
        return sorted({shard_of(topic_id, SHARDS) for topic_id in self.topic_ids})


@dataclass(slots=True)
class Scrubbed:
    """The findings of a run.

    Attributes:
        segments: finished segments; each was verified, damaged, unchecked or gone.
        damaged: segments with at least one anomaly.
        repaired: those of `damaged` that were repaired.
        unchecked: segments that could not be verified, as `reasons` explains.
        gone: segments that were deleted meanwhile.
        unlisted: listings that failed; the segments behind the failure were not read.
        anomalies: counts by kind.
        read_bytes: bytes requested, including repeated reads.
        reasons: one line each, at most MAX_REASONS.
        repairs: one line for each repair that was tried, at most MAX_REASONS.
        is_cut_short: the run ended because the store stayed unreachable.
        coverage: what was verified of each topic.
    """

    segments: int = 0
    verified: int = 0
    damaged: int = 0
    repaired: int = 0
    unchecked: int = 0
    gone: int = 0
    unlisted: int = 0
    anomalies: Counter[AnomalyKind] = field(default_factory=Counter)
    read_bytes: int = 0
    reasons: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    is_cut_short: bool = False
    coverage: Coverage = field(default_factory=Coverage)

    MAX_REASONS = 100

    def add(self, other: "Scrubbed") -> None:
        """Add the findings of another part of the run."""
        self.segments += other.segments
        self.verified += other.verified
        self.damaged += other.damaged
        self.repaired += other.repaired
        self.unchecked += other.unchecked
        self.gone += other.gone
        self.unlisted += other.unlisted
        self.anomalies += other.anomalies
        self.read_bytes += other.read_bytes
        self.reasons = [*self.reasons, *other.reasons][: self.MAX_REASONS]
        self.repairs = [*self.repairs, *other.repairs][: self.MAX_REASONS]
        self.is_cut_short = self.is_cut_short or other.is_cut_short
        self.coverage.merge(other.coverage)

    def add_repair(self, repaired: Repaired) -> None:
        """Count a repair that was tried."""
        self.repaired += repaired.done
        if len(self.repairs) < self.MAX_REASONS:
            self.repairs.append(str(repaired))

    @property
    def is_complete(self) -> bool:
        """Return whether every segment of the plan was checked."""
        return not (self.unchecked or self.unlisted or self.is_cut_short)


@dataclass(frozen=True, slots=True)
class Pace:
    """Limit the rate of reads.

    Attributes:
        acquire: acquire(size_bytes) returns when this many bytes may be read.
        pause: pause(seconds) is called after a failure.
    """

    acquire: Callable[[int], None]
    pause: Callable[[float], object]


FAILURES_IN_A_ROW = 8
"""Consecutive failures, of a segment or a listing each, after which a run ends."""

_PAUSES = Backoff(initial_s=1.0, max_s=30.0, jitter=0.0)

_BATCH = 100
"""Segments per look-up; at a low rate the last of a batch is read an hour later."""

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class _StoreAwayError(Exception):
    """End a run because the store stays unreachable; never leaves this module."""


@dataclass(eq=False)
class Scrub:
    """Read stored segments once. Several may run at the same time, and each may be killed."""

    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager
    objects: SegmentObjects
    plan: ScrubPlan
    pace: Pace
    on_progress: Callable[[Scrubbed], None] = lambda _: None
    local_files: LocalFiles | None = None
    _done: Scrubbed = field(init=False, default_factory=Scrubbed)
    _failures_in_a_row: int = field(init=False, default=0)
    _has_listed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._repair = SegmentRepair(
            *(self.rlmm, self.rsm, self.objects, self.plan.run_id, self._acquire, self.local_files)
        )

    def run(self) -> Scrubbed:
        """Read every segment of the plan and report damaged and missing ones.

        Records what was verified of each topic whose objects could all be listed.

        Raises:
            InvalidRequestError: a location is not registered.
            RetriableRemoteStorageError: RLMM is unreachable, or the first listing failed; run it
                again.
        """
        view, read = MetadataView(self.rlmm), Counter[int]()
        try:
            for location_id in self.plan.locations:
                for shard in self.plan.shards():
                    unlisted = self._done.unlisted
                    self._scrub(view, self._listed(ObjectQuery(location_id, shard, SHARDS)))
                    read[shard] += self._done.unlisted == unlisted
        except _StoreAwayError:
            self._done.is_cut_short = True
        whole = {shard for shard, times in read.items() if times == len(self.plan.locations)}
        wanted = {
            topic_id
            for topic_id in view.topics()
            if self.plan.has_topic(topic_id) and shard_of(topic_id, SHARDS) in whole
        }
        self._done.coverage.report(self.rlmm, self.plan.run, wanted)
        return self._done

    def run_over(self, listed: Iterable[StoreView]) -> Scrubbed:
        """Read those of these segments that the plan has; a partition's are adjacent.

        Raises:
            RetriableRemoteStorageError: RLMM is unreachable; run it again.
        """
        try:
            self._scrub(MetadataView(self.rlmm), listed)
        except _StoreAwayError:
            self._done.is_cut_short = True
        return self._done

    def _scrub(self, view: MetadataView, listed: Iterable[StoreView]) -> None:
        of_part = (stored for stored in listed if self.plan.has(stored))
        for partition, segments in groupby(of_part, key=lambda stored: stored.partition):
            for batch in batches(segments, _BATCH):
                rows = view.rows(partition, [stored.id for stored in batch])
                for stored in batch:
                    row, manifest = rows.get(stored.id), stored.manifest
                    if row is not None and row.state is _FINISHED and manifest is not None:
                        self._check(view, stored, manifest, row)
                        self.on_progress(self._done)

    def _listed(self, query: ObjectQuery) -> Iterator[StoreView]:
        try:
            for stored in store_views(all_segment_objects(self.objects, query)):
                self._has_listed = True
                yield stored
            self._has_listed = True
        except RemoteStorageError as e:
            # Report the earlier findings in spite of the failure.
            if not self._has_listed:
                raise
            self._done.unlisted += 1
            self._failed(f"location {query.location_id}, shard {query.shard}: not listed: {e}")

    def _check(
        self,
        view: MetadataView,
        stored: StoreView,
        manifest: SegmentObject,
        row: RemoteLogSegmentMetadata,
    ) -> None:
        self._done.segments += 1
        anomalies: list[Anomaly] = []
        reason, is_failure = "", False
        try:
            if is_adoptable(row):
                raise UnverifiedError("imported: no digests of it are known; adopt it first")
            for anomaly in self._anomalies_of(stored, manifest, row):
                anomalies.append(anomaly)
        except UnverifiedError as e:
            reason = str(e)
        except RemoteStorageError as e:
            reason, is_failure = str(e), True
        if anomalies and view.states([manifest.name]) != [_FINISHED]:
            self._done.gone += 1
            return
        if anomalies:
            self.rlmm.report_anomalies(anomalies, self.plan.run_id)
            self._done.anomalies.update(anomaly.kind for anomaly in anomalies)
            self._done.damaged += 1
            outcome = Outcome.FAILED
            if self.plan.repairs:
                repaired = self._repair.attempt(row, manifest, anomalies)
                self._done.add_repair(repaired)
                outcome = Outcome.VERIFIED if repaired.done else outcome
        elif reason:
            self._done.unchecked += 1
            outcome = Outcome.UNREAD
        else:
            self._done.verified += 1
            outcome = Outcome.VERIFIED
        self._done.coverage.count(row, outcome)
        text = f"{row.remote_log_segment_id}: {reason}"
        if is_failure:
            self._failed(text)
        else:
            self._failures_in_a_row = 0
            if reason:
                self._add_reason(text)

    def _anomalies_of(
        self, stored: StoreView, manifest: SegmentObject, row: RemoteLogSegmentMetadata
    ) -> Iterator[Anomaly]:
        def corrupt(where: ObjectLocation | None, detail: str) -> Anomaly:
            name = "" if where is None else str(where)
            text = detail[:MAX_DETAIL_LENGTH]
            return Anomaly(AnomalyKind.CORRUPT_OBJECT, *stored.partition, stored.id, name, text)

        try:
            try:
                content = self._manifest(manifest)
            except CorruptSegmentError as e:
                yield corrupt(manifest.location, str(e))
                return
            # RSM follows the manifest if a segment has no custom metadata.
            if row.custom_metadata is not None and not content.is_of(row.custom_metadata):
                text = (
                    f"the manifest is of attempt {content.attempt}, the metadata is of another copy"
                )
                self._require_same(manifest, content)
                yield corrupt(manifest.location, text)
                return
            where = {
                each.name.kind: each.location
                for each in stored.objects
                if each.name.attempt in (None, content.attempt)
            }
            assert content.digests is not None  # It was read a moment ago.
            here = in_location(row, manifest.location.location_id)
            for damage in CopyScrub(self.rsm, here, content.digests, self._acquire).damages():
                self._require_same(manifest, content)
                yield corrupt(where.get(damage.kind), damage.detail)
        except RemoteResourceNotFoundError as e:
            text = str(e)[:MAX_DETAIL_LENGTH]
            missing = AnomalyKind.MISSING_OBJECTS
            yield Anomaly(missing, *stored.partition, stored.id, detail=text)

    def _manifest(self, manifest: SegmentObject) -> StoredManifest:
        """Read a manifest, and read it again if it is damaged: the network may have changed a
        byte.
        """
        try:
            return self._read(manifest)
        except CorruptSegmentError as first:
            self._read(manifest)
            raise UnverifiedError(
                f"the first read was damaged, the second correct: {first}"
            ) from first

    def _require_same(self, manifest: SegmentObject, content: StoredManifest) -> None:
        """Raise UnverifiedError if the manifest changed since the check began."""
        try:
            is_same = self._read(manifest) == content
        except CorruptSegmentError:
            is_same = False
        if not is_same:
            raise UnverifiedError(
                f"{manifest.location}: the manifest changed during the check; scrub again"
            )

    def _read(self, manifest: SegmentObject) -> StoredManifest:
        self._acquire(manifest.size_bytes)
        return self.objects.read_segment_manifest(manifest.location)

    def _acquire(self, size_bytes: int) -> None:
        self.pace.acquire(size_bytes)
        self._done.read_bytes += size_bytes
        self.on_progress(self._done)

    def _failed(self, reason: str) -> None:
        """Record a failure and pause, because a service may be restarting."""
        self._add_reason(reason)
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= FAILURES_IN_A_ROW:
            raise _StoreAwayError
        self.pace.pause(_PAUSES.delay_s(self._failures_in_a_row))

    def _add_reason(self, reason: str) -> None:
        if len(self._done.reasons) < Scrubbed.MAX_REASONS:
            self._done.reasons.append(reason)
