"""Read the segments that RLMM knows: the table `segments`."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa

from services.api.segment_batches import SegmentBatch, SegmentScan
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require
from spark_jobs.tables.columns import ARROW_EPOCH, Columns, Kind, kafka_ids, micros_of
from spark_jobs.tables.conditions import Condition, Relation, allowed_values
from spark_jobs.tables.table import (
    PARTITION_OPTIONS,
    Connected,
    Table,
    check_names,
    known_partitions,
    members,
)

_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

_SAME = {
    "topic": Kind.STRING,
    "partition": Kind.INT,
    "start_offset": Kind.LONG,
    "end_offset": Kind.LONG,
    "segment_size_in_bytes": Kind.INT,
    "state": Kind.STRING,
    "broker_id": Kind.INT,
    "broker_leader_epoch": Kind.INT,
    "txn_idx_empty": Kind.BOOLEAN,
    "custom_metadata": Kind.BINARY,
    "plan_id": Kind.STRING,
    "copy_leased": Kind.BOOLEAN,
}
"""Columns that are as in a scan."""

COLUMNS = Columns(
    {
        "topic": Kind.STRING,
        "topic_id": Kind.STRING,
        "partition": Kind.INT,
        "segment_id": Kind.STRING,
        "start_offset": Kind.LONG,
        "end_offset": Kind.LONG,
        "max_timestamp": Kind.TIMESTAMP,
        "segment_size_in_bytes": Kind.INT,
        "state": Kind.STRING,
        "event_timestamp": Kind.TIMESTAMP,
        "broker_id": Kind.INT,
        "broker_leader_epoch": Kind.INT,
        "segment_leader_epochs": Kind.EPOCHS,
        "txn_idx_empty": Kind.BOOLEAN,
        "custom_metadata": Kind.BINARY,
        "plan_id": Kind.STRING,
        "copy_leased": Kind.BOOLEAN,
        "partition_revision": Kind.LONG,
        "partition_delete_state": Kind.STRING,
    }
)


class SegmentsTable(Table):
    """Every segment in a state before DELETE_SEGMENT_FINISHED, read by RLMM's scans."""

    name = "segments"
    columns = COLUMNS
    option_columns: ClassVar = {
        **PARTITION_OPTIONS,
        "state": ("state", Relation.IN),
        "fromOffset": ("end_offset", Relation.AT_LEAST),
        "toOffset": ("start_offset", Relation.AT_MOST),
        "fromTime": ("max_timestamp", Relation.AT_LEAST),
        "toTime": ("max_timestamp", Relation.AT_MOST),
    }

    def check_states(self, states: Sequence[str]) -> None:
        check_names(states, RemoteLogSegmentState)
        reason = f"{_GONE.name} is never listed; the table events has when it was reached"
        require(_GONE.name not in states, "option state", reason)

    def tasks(
        self, connected: Connected, conditions: Sequence[Condition], shards: int
    ) -> list[Any]:
        states = members(conditions, "state", RemoteLogSegmentState)
        topics = self._topics(connected, conditions)
        wanted = [state for state in states or () if state is not _GONE]
        if topics == [] or (states is not None and not wanted):
            return []
        names = [""] if topics is None else topics
        each = max(shards // len(names), 1)
        return [SegmentScan(shard, each, wanted, name) for name in names for shard in range(each)]

    def _topics(self, connected: Connected, conditions: Sequence[Condition]) -> list[str] | None:
        """Return the names of the topics to scan; None for all."""
        topics = allowed_values(conditions, "topic")
        if topics is not None:
            return sorted(map(str, topics - {None, ""}))
        if allowed_values(conditions, "topic_id") is None:
            return None
        # A scan takes names only.
        found = known_partitions(connected, conditions)
        return sorted({summary.topic_id_partition.topic for summary in found})

    def batches(
        self, connected: Connected, task: SegmentScan, conditions: Sequence[Condition]
    ) -> Iterator[pa.RecordBatch]:
        """Read one scan; retry only its beginning, because rows cannot be taken back."""

        def begun() -> Iterator[SegmentBatch]:
            batches = connected.rlmm.scan_remote_log_segments(task)
            first = next(batches, None)
            return iter(()) if first is None else chain([first], batches)

        for batch in connected.call(begun):
            with pa.ipc.open_stream(batch.arrow_ipc) as stream:
                yield from map(as_rows, stream)


def as_rows(scanned: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a batch of a scan to COLUMNS.

    A column that the RLMM of another release does not send is null.
    """
    known = set(scanned.schema.names)
    arrays: dict[str, pa.Array] = {
        name: scanned.column(name) if name in known else pa.nulls(scanned.num_rows, kind.of_arrow)
        for name, kind in _SAME.items()
    }
    topic_ids = scanned.column("topic_id").dictionary_encode()
    arrays["topic_id"] = kafka_ids(topic_ids.dictionary).take(topic_ids.indices)
    arrays["segment_id"] = kafka_ids(scanned.column("segment_id"))
    arrays["max_timestamp"] = micros_of(scanned.column("max_timestamp_ms"))
    arrays["event_timestamp"] = micros_of(scanned.column("event_timestamp_ms"))
    arrays["segment_leader_epochs"] = _epochs(scanned)
    arrays["partition_revision"] = scanned.column("revision")
    arrays["partition_delete_state"] = scanned.column("delete_state")
    schema = COLUMNS.of_arrow
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _epochs(scanned: pa.RecordBatch) -> pa.Array:
    """Join the lists of epochs and of their start offsets to one list of pairs."""
    epochs, starts = scanned.column("leader_epochs"), scanned.column("epoch_start_offsets")
    pairs = pa.StructArray.from_arrays(
        [epochs.flatten(), starts.flatten()], fields=list(ARROW_EPOCH)
    )
    return pa.ListArray.from_arrays(epochs.offsets, pairs, type=Kind.EPOCHS.of_arrow)
