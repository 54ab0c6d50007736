"""Delete marked segments, record each deletion in RLMM, and finish removed partitions."""

from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError, ThrottledError
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.workflows.deletion import Deleter, DeletionOutcome, finish_deletion
from services.workflows.removal import finish_removal
from spark_jobs.connections import Services
from spark_jobs.sweeps.marking import now_ms
from spark_jobs.sweeps.plan import (
    DELETED,
    DELETED_BY_ANOTHER,
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


def delete_marked(
    batches: Iterable[pa.RecordBatch],
    services: Services,
    deleter: Deleter,
    batch_size: int,
    segments_per_s: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """Delete marked segments: rows of segments in MARKED_SCHEMA to DELETED_SCHEMA.

    Safe to run twice: a segment that this plan has deleted already counts as deleted.
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
    with services.connected_rlmm() as rlmm, services.connected_rsm() as rsm:
        ends = (_finished(rlmm, rsm, row, deleter) for row in rows_in(batches))
        yield from batches_of(ends, FINISHED_SCHEMA)


def _row(outcome: DeletionOutcome) -> Row:
    done = DELETED_BY_ANOTHER if outcome.is_repeat else DELETED
    return {
        "segment_id": str(outcome.segment.remote_log_segment_id.id),
        "outcome": done if outcome.error is None else FAILED,
        "error": None if outcome.error is None else str(outcome.error),
    }


def _finished(
    rlmm: RemoteLogMetadataManager, rsm: RemoteStorageManager, row: Row, deleter: Deleter
) -> Row:
    made: Row = {"topic_id": row["topic_id"], "partition": row["partition"]}
    try:
        left = finish_removal(rlmm, rsm, topic_id_partition_of(row), deleter, now_ms())
    except (RetriableRemoteStorageError, ThrottledError):
        raise
    except RemoteStorageError as e:
        left = str(e)
    return {**made, "outcome": FAILED, "error": left} if left else {**made, "outcome": DELETED}
