"""Scrub one partition, and find its segments without objects."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.operations import Anomaly, AnomalyKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_objects import (
    MAX_OBJECT_SHARDS,
    ObjectQuery,
    SegmentObjects,
    all_segment_objects,
    shard_of,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.workflows.scrub import Pace, Scrub, Scrubbed, ScrubPlan
from services.workflows.segment_views import StoreView, missing_objects, store_views

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True)
class PartitionScrubbed:
    """The findings of a scrub of one partition.

    Attributes:
        missing: start offsets of finished segments without objects.
        elsewhere: those of segments with objects in a location that was not read.
        run_id: names the run in RLMM's anomalies.
    """

    scrubbed: Scrubbed
    missing: Sequence[int]
    elsewhere: Sequence[int]
    run_id: str = ""

    @property
    def has_damage(self) -> bool:
        return bool(self.scrubbed.damaged or self.missing)

    @property
    def is_complete(self) -> bool:
        """Return whether every finished segment was checked."""
        return self.scrubbed.is_complete and not self.elsewhere


def scrub_partition(
    tp: TopicIdPartition,
    locations: Sequence[int],
    rlmm: RemoteLogMetadataManager,
    rsm: RemoteStorageManager,
    objects: SegmentObjects,
    pace: Pace,
    on_progress: Callable[[Scrubbed], None],
) -> PartitionScrubbed:
    """Read the segments of a partition once, and report damaged and missing ones to RLMM.

    Raises:
        InvalidRequestError: a location is not registered.
        RetriableRemoteStorageError: RLMM or the listing is unreachable; run it again.
    """
    plan = ScrubPlan(uuid4().hex, topic_ids=frozenset({tp.topic_id}), locations=locations)
    scrub = Scrub(rlmm, rsm, objects, plan, pace, on_progress)
    wanted, listed = _finished(rlmm, tp), set[UUID]()
    done = scrub.run_over(_stored(tp, locations, objects, listed))
    unlisted = {id: each for id, each in wanted.items() if id not in listed}
    absent = set[UUID]()
    for id, each in unlisted.items():
        try:
            absent |= {id} if missing_objects(rsm, each) else set()
        except RetriableRemoteStorageError:
            raise
        except RemoteStorageError as e:
            done.unchecked += 1
            done.reasons.append(f"{each.remote_log_segment_id}: {e}")
    # A segment may have been deleted since it was listed.
    known = _finished(rlmm, tp).keys() if unlisted else set()
    missing = [id for id in unlisted if id in absent & known]
    if missing:
        kind = AnomalyKind.MISSING_OBJECTS
        anomalies = [Anomaly(kind, tp.topic_id, tp.partition, id) for id in missing]
        rlmm.report_anomalies(anomalies, plan.run_id)
    elsewhere = [each.start_offset for id, each in unlisted.items() if id in known - absent]
    starts = [unlisted[id].start_offset for id in missing]
    return PartitionScrubbed(done, starts, elsewhere, plan.run_id)


def _finished(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
) -> dict[UUID, RemoteLogSegmentMetadata]:
    segments = all_segments(rlmm, tp, states=[_FINISHED])
    return {each.remote_log_segment_id.id: each for each in segments}


def _stored(
    tp: TopicIdPartition, locations: Sequence[int], objects: SegmentObjects, listed: set[UUID]
) -> Iterator[StoreView]:
    """Yield the segments of the partition that have a manifest; add their ids to `listed`."""
    shard = shard_of(tp.topic_id, MAX_OBJECT_SHARDS)
    for location_id in locations:
        query = ObjectQuery(location_id, shard, MAX_OBJECT_SHARDS)
        for view in store_views(all_segment_objects(objects, query)):
            if view.partition == (tp.topic_id, tp.partition) and view.manifest is not None:
                listed.add(view.id)
                yield view
