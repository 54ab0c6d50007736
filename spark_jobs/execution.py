"""Delete marked segments, record each deletion in RLMM, and finish removed partitions."""

from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa
from tenacity import Retrying

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError, ThrottledError
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.workflows.deletion import Deleter, DeletionOutcome, finish_deletion
from services.workflows.removal import finish_removal
from spark_jobs.connections import Services
from spark_jobs.marking import now_ms
from spark_jobs.plan import (
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


def delete_marked(
    batches: Iterable[pa.RecordBatch], services: Services, deleter: Deleter, batch_size: int
) -> Iterator[pa.RecordBatch]:
    """Delete marked segments: rows of segments in MARKED_SCHEMA to DELETED_SCHEMA.

    Safe to run twice: a segment that is already gone counts as deleted.
    """
    with services.connected_rlmm() as rlmm, services.connected_rsm() as rsm:
        retrying, rows = services.retrying(), rows_in(batches)
        while batch := [segment_of(row) for row in islice(rows, batch_size)]:
            outcomes = retrying(_deleted, rlmm, rsm, batch, deleter)
            yield from batches_of(map(_row, outcomes), DELETED_SCHEMA)


def finish_partitions(
    batches: Iterable[pa.RecordBatch], services: Services, deleter: Deleter
) -> Iterator[pa.RecordBatch]:
    """Finish removed partitions: MARKED_SCHEMA to FINISHED_SCHEMA. Safe to run twice."""
    with services.connected_rlmm() as rlmm:
        retrying = services.retrying()
        rows = (_finished(rlmm, retrying, row, deleter) for row in rows_in(batches))
        yield from batches_of(rows, FINISHED_SCHEMA)


def _deleted(
    rlmm: RemoteLogMetadataManager,
    rsm: RemoteStorageManager,
    batch: list[RemoteLogSegmentMetadata],
    deleter: Deleter,
) -> list[DeletionOutcome]:
    return list(finish_deletion(rlmm, rsm, batch, deleter, now_ms()))


def _row(outcome: DeletionOutcome) -> Row:
    return {
        "segment_id": str(outcome.segment.remote_log_segment_id.id),
        "outcome": DELETED if outcome.error is None else FAILED,
        "error": None if outcome.error is None else str(outcome.error),
    }


def _finished(
    rlmm: RemoteLogMetadataManager, retrying: Retrying, row: Row, deleter: Deleter
) -> Row:
    made: Row = {"topic_id": row["topic_id"], "partition": row["partition"]}
    try:
        gone = retrying(finish_removal, rlmm, topic_id_partition_of(row), deleter, now_ms())
    except (RetriableRemoteStorageError, ThrottledError):
        raise
    except RemoteStorageError as e:
        return {**made, "outcome": FAILED, "error": str(e)}
    if gone:
        return {**made, "outcome": DELETED}
    return {**made, "outcome": FAILED, "error": "segments remain; run the sweep again"}
