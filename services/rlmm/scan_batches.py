"""Segments in columns: from what the database hands over to Arrow IPC streams."""

import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from services.api.segment_scan import SCAN_COLUMNS

_TYPES = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "binary": pa.binary(),
    "list<int32>": pa.list_(pa.int32()),
    "list<int64>": pa.list_(pa.int64()),
}
SCHEMA = pa.schema([(name, _TYPES[type_name]) for name, type_name in SCAN_COLUMNS])

_INT4_ELEMENT = struct.Struct(">ii")
_INT8_ELEMENT = struct.Struct(">iq")
"""An element of PostgreSQL's array_send: its length, its value."""


class SegmentColumns:
    """Columns that grow by a chunk of one partition's segments at a time."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name, _ in SCAN_COLUMNS}
        self._epoch_counts: list[int] = []

    @property
    def rows(self) -> int:
        return len(self._epoch_counts)

    def add(
        self, of_partition: dict[str, Any], of_segments: dict[str, Any], epoch_counts: Sequence[int]
    ) -> None:
        """Add some segments of a partition.

        Args:
            of_partition: a value for each column that all of them share.
            of_segments: a list of values for each other column; for the two lists of epochs, the
                elements of all rows, each as array_send writes it.
            epoch_counts: how many epochs each segment has.
        """
        for name, value in of_partition.items():
            self._columns[name] += [value] * len(epoch_counts)
        epochs = _INT4_ELEMENT.iter_unpack(of_segments.pop("leader_epochs"))
        starts = _INT8_ELEMENT.iter_unpack(of_segments.pop("epoch_start_offsets"))
        self._columns["leader_epochs"] += [epoch for _, epoch in epochs]
        self._columns["epoch_start_offsets"] += [start for _, start in starts]
        for name, values in of_segments.items():
            self._columns[name] += values
        self._epoch_counts += epoch_counts

    def to_ipc(self) -> bytes:
        """One Arrow IPC stream: the schema and one record batch."""
        ends = pa.array(chain([0], accumulate(self._epoch_counts)), pa.int32())
        arrays = []
        for field in SCHEMA:
            values = self._columns[field.name]
            if pa.types.is_list(field.type):
                elements = pa.array(values, field.type.value_type)
                arrays.append(pa.ListArray.from_arrays(ends, elements))
            else:
                arrays.append(pa.array(values, field.type))
        batch = pa.record_batch(arrays, schema=SCHEMA)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_batch(batch)
        stream: bytes = sink.getvalue().to_pybytes()
        return stream
