"""Delete marked segments, record each deletion in RLMM, and finish removed partitions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from uuid import UUID

import pyarrow as pa

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError, ThrottledError
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_objects import (
    MAX_OBJECT_SHARDS,
    ObjectQuery,
    SegmentObjects,
    all_segment_objects,
    shard_of,
)
from services.workflows.deletion import Deleter, DeletionOutcome, finish_deletion
from services.workflows.removal import finish_removal
from spark_jobs.connections import Services
from spark_jobs.sweeps.marking import now_ms
from spark_jobs.sweeps.plan import (
    DELETED,
    DELETED_SCHEMA,
    FAILED,
    FINISHED_SCHEMA,
    Row,
    batches_of,
    rows_in,
    segment_of,
    topic_id_partition_of,
)
from spark_jobs.sweeps.waves import Pace

_LEFT = (
    "the store still has objects of the partition, such as {}; run the sweep again, then "
    "`sediment reconcile` if they stay"
)


def delete_marked(
    batches: Iterable[pa.RecordBatch],
    services: Services,
    deleter: Deleter,
    batch_size: int,
    segments_per_s: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """Delete marked segments: rows of segments in MARKED_SCHEMA to DELETED_SCHEMA.

    Safe to run twice: a segment that is already gone counts as deleted.
    """
    pace = Pace(segments_per_s)
    # No more at once than fit into a second.
    size = batch_size if segments_per_s is None else min(batch_size, max(1, int(segments_per_s)))
    with services.connected_rlmm() as rlmm, services.connected_rsm() as rsm:
        rows = rows_in(batches)
        while batch := [segment_of(row) for row in islice(rows, size)]:
            pace.wait_for(len(batch))
            outcomes = finish_deletion(rlmm, rsm, batch, deleter, now_ms())
            yield from batches_of(map(_row, outcomes), DELETED_SCHEMA)


def finish_partitions(
    batches: Iterable[pa.RecordBatch], services: Services, deleter: Deleter
) -> Iterator[pa.RecordBatch]:
    """Finish removed partitions: MARKED_SCHEMA to FINISHED_SCHEMA. Safe to run twice.

    Lists the store first: a partition is finished only if none of its objects is left.
    """
    rows = list(rows_in(batches))
    with services.connected_rlmm() as rlmm, services.connected_objects() as objects:
        left = _objects_left(objects, rows)
        ends = (_finished(rlmm, row, left, deleter) for row in rows)
        yield from batches_of(ends, FINISHED_SCHEMA)


def _objects_left(objects: SegmentObjects, rows: Sequence[Row]) -> Mapping[tuple[UUID, int], str]:
    """List the objects of partitions; return one of each partition that has any.

    RSM lists whole shards of topics: one listing for all partitions of a shard.
    """
    wanted = {(UUID(row["topic_id"]), row["partition"]) for row in rows}
    left: dict[tuple[UUID, int], str] = {}
    for shard in sorted({shard_of(topic_id, MAX_OBJECT_SHARDS) for topic_id, _ in wanted}):
        query = ObjectQuery(shard=shard, shards=MAX_OBJECT_SHARDS)
        for each in all_segment_objects(objects, query):
            key = (each.name.topic_id, each.name.partition)
            if key in wanted:
                left.setdefault(key, str(each.location))
    return left


def _row(outcome: DeletionOutcome) -> Row:
    return {
        "segment_id": str(outcome.segment.remote_log_segment_id.id),
        "outcome": DELETED if outcome.error is None else FAILED,
        "error": None if outcome.error is None else str(outcome.error),
    }


def _finished(
    rlmm: RemoteLogMetadataManager,
    row: Row,
    left: Mapping[tuple[UUID, int], str],
    deleter: Deleter,
) -> Row:
    made: Row = {"topic_id": row["topic_id"], "partition": row["partition"]}
    found = left.get((UUID(row["topic_id"]), row["partition"]))
    if found is not None:
        return {**made, "outcome": FAILED, "error": _LEFT.format(found)}
    try:
        gone = finish_removal(rlmm, topic_id_partition_of(row), deleter, now_ms())
    except (RetriableRemoteStorageError, ThrottledError):
        raise
    except RemoteStorageError as e:
        return {**made, "outcome": FAILED, "error": str(e)}
    if gone:
        return {**made, "outcome": DELETED}
    return {**made, "outcome": FAILED, "error": "segments remain; run the sweep again"}
