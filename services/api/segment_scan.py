"""Bulk reads of segments: columns instead of messages, whole partitions to a shard."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.partitions import RemotePartitionDeleteState
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require

MAX_SHARDS = 10_000

SCAN_COLUMNS: tuple[tuple[str, str], ...] = (
    ("topic_id", "string"),
    ("topic", "string"),
    ("partition", "int32"),
    ("revision", "int64"),
    ("delete_state", "string"),
    ("segment_id", "string"),
    ("start_offset", "int64"),
    ("end_offset", "int64"),
    ("max_timestamp_ms", "int64"),
    ("broker_id", "int32"),
    ("broker_leader_epoch", "int32"),
    ("event_timestamp_ms", "int64"),
    ("leader_epochs", "list<int32>"),
    ("epoch_start_offsets", "list<int64>"),
    ("segment_size_in_bytes", "int32"),
    ("custom_metadata", "binary"),
    ("state", "string"),
    ("txn_idx_empty", "bool"),
    ("plan_id", "string"),
    ("copy_leased", "bool"),
)
"""Name and Arrow type of each column of a scan, in order; the contract of ScanRemoteLogSegments.

Ids are UUIDs in the usual form with hyphens. `revision` and `delete_state` are the partition's;
`plan_id` is that of the sweep that marked the segment; `copy_leased` as it was when the row was
read. Null: delete_state, broker_leader_epoch,
custom_metadata and plan_id where there is none.
"""


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """Which segments: those of the known partitions of shard `shard` of `shards`.

    Attributes:
        states: only these; empty: all but DELETE_SEGMENT_FINISHED.
        topic: only of topics of this name; "": of all.
        delete_states: only of partitions in one of these; empty: in any or in none.
    """

    shard: int = 0
    shards: int = 1
    states: Sequence[RemoteLogSegmentState] = ()
    topic: str = ""
    delete_states: Sequence[RemotePartitionDeleteState] = ()

    def __post_init__(self) -> None:
        require(1 <= self.shards <= MAX_SHARDS, "shards", f"must be 1 to {MAX_SHARDS}")
        require(0 <= self.shard < self.shards, "shard", f"must be 0 to {self.shards - 1}")
        gone = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
        require(gone not in self.states, "states", "DELETE_SEGMENT_FINISHED is never listed")


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """Some rows of a scan.

    Attributes:
        arrow_ipc: one Arrow IPC stream, schema and one record batch, with SCAN_COLUMNS.
        rows: how many.
        began_at_ms: when the scan began, by the database's clock.
    """

    arrow_ipc: bytes
    rows: int
    began_at_ms: int
