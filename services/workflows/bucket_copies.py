"""Describe the complete copies of a partition in the bucket, and rank those of the same offsets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from services.api.segment_objects import SegmentObjectKind, StoredManifest
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.superseded import covers
from services.workflows.segment_views import StoreView

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class BucketCopy:
    """A complete copy, of which all objects exist.

    Attributes:
        segment: as RLMM has it, or would have it, in COPY_SEGMENT_FINISHED.
        written_at_ms: when its manifest was written.
        is_known: RLMM has it as finished.
    """

    segment: RemoteLogSegmentMetadata
    written_at_ms: int
    is_known: bool = False

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Return the rank among copies of the same offsets: what RLMM has, then the leader epoch,
        then the time.
        """
        epoch = self.segment.broker_leader_epoch
        return self.is_known, _NO_EPOCH if epoch is None else epoch, self.written_at_ms


def copy_of(manifest: StoredManifest) -> BucketCopy:
    """Return the copy that a manifest describes; its event is the writing of the manifest."""
    written_at_ms = manifest.written_at_ms
    segment = replace(manifest.metadata, state=_FINISHED, event_timestamp_ms=written_at_ms)
    return BucketCopy(segment, written_at_ms)


def damage_of(stored: StoreView, manifest: StoredManifest) -> str:
    """Compare a manifest with its key and with the objects that it names; "" if they agree."""
    name, metadata = stored.objects[0].name, manifest.metadata
    tp, id = metadata.topic_id_partition, metadata.remote_log_segment_id.id
    named = name.topic_id, name.partition, name.segment_id, name.start_offset
    if named != (tp.topic_id, tp.partition, id, metadata.start_offset):
        return f"the manifest is of another segment, {metadata.remote_log_segment_id}"
    expected = {
        SegmentObjectKind.LOG: manifest.log_size_bytes,
        SegmentObjectKind.INDEXES: manifest.indexes_size_bytes,
    }
    sizes = {
        each.name.kind: each.size_bytes
        for each in stored.objects
        if each.name.attempt == manifest.attempt
    }
    for kind, size in expected.items():
        if kind not in sizes:
            return f"the {kind.name.lower()} of attempt {manifest.attempt} is missing"
        if sizes[kind] != size:
            what = f"the {kind.name.lower()} of attempt {manifest.attempt}"
            return f"{what} has {sizes[kind]} bytes, the manifest says {size}"
    return ""


def superseded(copies: Sequence[BucketCopy]) -> Mapping[int, BucketCopy]:
    """Return the best copy for each that it makes superfluous, by the latter's place in `copies`.

    A better copy has a higher rank, or comes first at the same rank, and has every offset of the
    other one under the same leader epoch. Copies that overlap in part supersede none: each has
    records that the other one has not.
    """
    in_order = sorted(range(len(copies)), key=lambda place: copies[place].segment.start_offset)
    best: dict[int, int] = {}
    before: list[int] = []
    for place in in_order:
        start = copies[place].segment.start_offset
        before = [other for other in before if copies[other].segment.end_offset >= start]
        for other in before:
            better, worse = (place, other) if _is_better(copies, place, other) else (other, place)
            is_best = worse not in best or _is_better(copies, better, best[worse])
            if is_best and covers(copies[better].segment, copies[worse].segment):
                best[worse] = better
        before.append(place)
    return {worse: copies[place] for worse, place in best.items() if not copies[worse].is_known}


def _is_better(copies: Sequence[BucketCopy], place: int, other: int) -> bool:
    return (copies[place].rank, -place) > (copies[other].rank, -other)
