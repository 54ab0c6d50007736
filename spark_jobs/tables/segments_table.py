"""Read the segments that RLMM knows: the table `segments`."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_batches import SegmentScan
from services.api.segments import RemoteLogSegmentState
from spark_jobs.tables.columns import (
    EPOCH,
    EPOCHS,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    kafka_ids,
    micros_of,
)
from spark_jobs.tables.table import Table, TableQuery

_SAME = (
    "topic",
    "partition",
    "start_offset",
    "end_offset",
    "segment_size_in_bytes",
    "state",
    "broker_id",
    "broker_leader_epoch",
    "txn_idx_empty",
    "custom_metadata",
    "plan_id",
    "copy_leased",
)
"""Columns that are as in a scan."""

COLUMNS = pa.schema(
    {
        "topic": STRING,
        "topic_id": STRING,
        "partition": INT,
        "segment_id": STRING,
        "start_offset": LONG,
        "end_offset": LONG,
        "max_timestamp": TIMESTAMP,
        "segment_size_in_bytes": INT,
        "state": STRING,
        "event_timestamp": TIMESTAMP,
        "broker_id": INT,
        "broker_leader_epoch": INT,
        "segment_leader_epochs": EPOCHS,
        "txn_idx_empty": pa.bool_(),
        "custom_metadata": pa.binary(),
        "plan_id": STRING,
        "copy_leased": pa.bool_(),
        "partition_revision": LONG,
        "partition_delete_state": STRING,
    }
)


class SegmentsTable(Table):
    """Every segment in a state before DELETE_SEGMENT_FINISHED, read by RLMM's scans."""

    name = "segments"
    columns = COLUMNS
    filters: ClassVar = ("topic", "state")
    states: ClassVar = tuple(
        state.name
        for state in RemoteLogSegmentState
        if state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
    )

    def tasks(self, rlmm: RemoteLogMetadataManager, query: TableQuery) -> list[Any]:
        states = tuple(RemoteLogSegmentState[name] for name in query.states)
        names = query.topics or ("",)
        each = max(query.shards // len(names), 1)
        return [SegmentScan(shard, each, states, name) for name in names for shard in range(each)]

    def batches(
        self, rlmm: RemoteLogMetadataManager, task: SegmentScan
    ) -> Iterator[pa.RecordBatch]:
        for batch in rlmm.scan_remote_log_segments(task):
            with pa.ipc.open_stream(batch.arrow_ipc) as stream:
                yield from map(as_rows, stream)


def as_rows(scanned: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a batch of a scan to COLUMNS."""
    arrays: dict[str, pa.Array] = {name: scanned.column(name) for name in _SAME}
    topic_ids = scanned.column("topic_id").dictionary_encode()
    arrays["topic_id"] = kafka_ids(topic_ids.dictionary).take(topic_ids.indices)
    arrays["segment_id"] = kafka_ids(scanned.column("segment_id"))
    arrays["max_timestamp"] = micros_of(scanned.column("max_timestamp_ms"))
    arrays["event_timestamp"] = micros_of(scanned.column("event_timestamp_ms"))
    arrays["segment_leader_epochs"] = _epochs(scanned)
    arrays["partition_revision"] = scanned.column("revision")
    arrays["partition_delete_state"] = scanned.column("delete_state")
    return pa.RecordBatch.from_arrays([arrays[name] for name in COLUMNS.names], schema=COLUMNS)


def _epochs(scanned: pa.RecordBatch) -> pa.Array:
    """Join the lists of epochs and of their start offsets to one list of pairs."""
    epochs, starts = scanned.column("leader_epochs"), scanned.column("epoch_start_offsets")
    pairs = pa.StructArray.from_arrays([epochs.flatten(), starts.flatten()], fields=list(EPOCH))
    return pa.ListArray.from_arrays(epochs.offsets, pairs, type=EPOCHS)
