"""Describe the columns of a table, for Spark and for Arrow, and build batches of them."""

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from services.api.segments import SegmentLeaderEpoch

ROWS_PER_BATCH = 1_000
_LAST_MS = (2**63 - 1) // 1_000

_EPOCH_FIELDS = StructType(
    [StructField("leader_epoch", IntegerType()), StructField("start_offset", LongType())]
)
_GAP_FIELDS = StructType(
    [
        StructField("start_offset", LongType()),
        StructField("end_offset", LongType()),
        StructField("kind", StringType()),
    ]
)
ARROW_EPOCH = pa.struct(
    [pa.field("leader_epoch", pa.int32()), pa.field("start_offset", pa.int64())]
)
_ARROW_GAP = pa.struct(
    [
        pa.field("start_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("kind", pa.string()),
    ]
)


class Kind(Enum):
    """The type of a column; the value is its name on the page."""

    STRING = "string"
    INT = "int"
    LONG = "bigint"
    BOOLEAN = "boolean"
    BINARY = "binary"
    TIMESTAMP = "timestamp"
    EPOCHS = "array<struct<leader_epoch:int,start_offset:bigint>>"
    GAPS = "array<struct<start_offset:bigint,end_offset:bigint,kind:string>>"

    @property
    def of_spark(self) -> DataType:
        return _SPARK_TYPES[self]

    @property
    def of_arrow(self) -> pa.DataType:
        return _ARROW_TYPES[self]


_SPARK_TYPES: dict[Kind, DataType] = {
    Kind.STRING: StringType(),
    Kind.INT: IntegerType(),
    Kind.LONG: LongType(),
    Kind.BOOLEAN: BooleanType(),
    Kind.BINARY: BinaryType(),
    Kind.TIMESTAMP: TimestampType(),
    Kind.EPOCHS: ArrayType(_EPOCH_FIELDS),
    Kind.GAPS: ArrayType(_GAP_FIELDS),
}

_ARROW_TYPES: dict[Kind, pa.DataType] = {
    Kind.STRING: pa.string(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.BINARY: pa.binary(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.EPOCHS: pa.list_(pa.field("element", ARROW_EPOCH)),
    Kind.GAPS: pa.list_(pa.field("element", _ARROW_GAP)),
}


@dataclass(frozen=True)
class Columns:
    """The columns of a table, in order; all may be null."""

    kinds: dict[str, Kind]

    @property
    def of_spark(self) -> StructType:
        return StructType([StructField(n, kind.of_spark) for n, kind in self.kinds.items()])

    @property
    def of_arrow(self) -> pa.Schema:
        return pa.schema([pa.field(n, kind.of_arrow) for n, kind in self.kinds.items()])

    def batches(self, rows: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        """Batch rows by column name, some of them in memory at a time."""
        rest, schema = iter(rows), self.of_arrow
        while some := list(islice(rest, ROWS_PER_BATCH)):
            yield pa.RecordBatch.from_pylist(some, schema=schema)


def micros(time_ms: int | None) -> int | None:
    """Convert a time to that of a column; None if there is none, or none that Spark can hold."""
    return None if time_ms is None or not 0 <= time_ms <= _LAST_MS else time_ms * 1_000


def micros_of(times_ms: pa.Array) -> pa.Array:
    """Convert a column of milliseconds as `micros` does."""
    fits = pc.and_(pc.greater_equal(times_ms, 0), pc.less_equal(times_ms, _LAST_MS))
    kept = pc.if_else(fits, times_ms, pa.scalar(None, pa.int64()))
    return pc.multiply(kept, 1_000).cast(Kind.TIMESTAMP.of_arrow)


def kafka_ids(uuids: pa.Array) -> pa.Array:
    """Write a column of UUIDs with hyphens in Kafka's form of 22 characters."""
    return pa.array([_kafka_id(text) for text in uuids.to_pylist()], pa.string())


def _kafka_id(text: str) -> str:
    return urlsafe_b64encode(bytes.fromhex(text.replace("-", "")))[:22].decode("ascii")


def text_or_none(text: str) -> str | None:
    """Return a text; None if it is empty, which means "not set" in RLMM's answers."""
    return text or None


def epoch_rows(epochs: Iterable[SegmentLeaderEpoch]) -> list[dict[str, int]]:
    return [{"leader_epoch": e.leader_epoch, "start_offset": e.start_offset} for e in epochs]
