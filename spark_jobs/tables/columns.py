"""Build the columns of tables, and batches of their rows, in Arrow."""

from base64 import urlsafe_b64encode
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from services.api.segments import SegmentLeaderEpoch
from services.records.columns import LAST_MS

STRING, INT, LONG = pa.string(), pa.int32(), pa.int64()
TIMESTAMP = pa.timestamp("us", tz="UTC")
EPOCH = pa.struct({"leader_epoch": INT, "start_offset": LONG})
EPOCHS = pa.list_(pa.field("element", EPOCH))


def micros(time_ms: int | None) -> int | None:
    """Convert a time to that of a column; None without one that Spark can represent."""
    return None if time_ms is None or not 0 <= time_ms <= LAST_MS else time_ms * 1_000


def micros_of(times_ms: pa.Array) -> pa.Array:
    """Convert a column of milliseconds as `micros` does."""
    fits = pc.and_(pc.greater_equal(times_ms, 0), pc.less_equal(times_ms, LAST_MS))
    valid_ms = pc.if_else(fits, times_ms, pa.scalar(None, pa.int64()))
    return pc.multiply(valid_ms, 1_000).cast(TIMESTAMP)


def kafka_ids(uuids: pa.Array) -> pa.Array:
    """Write a column of UUIDs with hyphens in Kafka's form of 22 characters."""
    return pa.array([_kafka_id(text) for text in uuids.to_pylist()], pa.string())


def _kafka_id(text: str) -> str:
    return urlsafe_b64encode(bytes.fromhex(text.replace("-", "")))[:22].decode("ascii")


def epoch_rows(epochs: Iterable[SegmentLeaderEpoch]) -> list[dict[str, int]]:
    return [{"leader_epoch": e.leader_epoch, "start_offset": e.start_offset} for e in epochs]
