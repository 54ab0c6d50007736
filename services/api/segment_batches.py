"""Define the items and outcomes of bulk calls: additions, look-ups, scans, bins and imports."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.validation import require, require_between, require_int32, require_int64

MIN_LEASE_MS = 1_000
MAX_LEASE_MS = 3_600_000

MAX_BATCH = 1000
"""The most items of a batch of additions, updates, look-ups or renewals, and ids of one call."""
MAX_REVISIONS = 10_000
"""The most partitions of one call of partition_revisions."""
MAX_BINS = 2_000
MAX_HOLES = 200
"""The most ranges without a segment that an answer has, the longest first."""
MAX_IMPORTED_EPOCHS = 50_000
"""The most leader epochs of one SegmentImport in total."""
MAX_CLUSTER_ID_LENGTH = 255
"""In characters; Kafka's own ids have 22."""
CUSTOM_METADATA_BYTES_PER_IMPORT = 1024 * 1024
"""The most custom metadata that imports_of puts into one message, well below 4 MiB."""


def require_lease(lease_ms: int) -> None:
    """Raise InvalidRequestError if the lease is too short or too long."""
    require_between(lease_ms, "lease_ms", MIN_LEASE_MS, MAX_LEASE_MS)


def require_may_lease(lease_ms: int | None, broker_id: int) -> None:
    """Check the lease of a copy that begins; None if it has no lease.

    Raises:
        InvalidRequestError: if the lease is out of bounds, or the broker is unknown.
    """
    if lease_ms is not None:
        require_lease(lease_ms)
        require(broker_id >= 0, "lease_ms", "a copy with a lease needs its broker_id, which is -1")


@dataclass(frozen=True, slots=True)
class SegmentAddition:
    """The arguments of add_remote_log_segment_metadata, as an item of a batch."""

    metadata: RemoteLogSegmentMetadata
    context: MutationContext = NO_CONTEXT
    lease_ms: int | None = None

    def __post_init__(self) -> None:
        require_may_lease(self.lease_ms, self.metadata.broker_id)


@dataclass(frozen=True, slots=True)
class SegmentLookup:
    """The arguments of remote_log_segment_metadata, as an item of a batch."""

    topic_id_partition: TopicIdPartition
    epoch_for_offset: int
    offset: int

    def __post_init__(self) -> None:
        require_int32(self.epoch_for_offset, "epoch_for_offset")
        require_int64(self.offset, "offset")


AddOutcome: TypeAlias = MutationOutcome | RemoteStorageError
LookupOutcome: TypeAlias = AtRevision[RemoteLogSegmentMetadata | None] | RemoteStorageError
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
    ("kept_until_ms", "int64"),
)
"""Name and Arrow type of each column of a scan, in order; the contract of ScanRemoteLogSegments.

Ids are UUIDs in the usual form with hyphens. `revision` and `delete_state` are the partition's;
`plan_id` is the id of the sweep that marked the segment; `copy_leased` has its value at the time of
the read. delete_state, broker_leader_epoch, custom_metadata, plan_id and kept_until_ms are null if
there is none.
"""

_COLUMN_NAMES = tuple(name for name, _ in SCAN_COLUMNS)


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """Select the segments of the known partitions of shard `shard` of `shards`.

    Attributes:
        states: only these; all but DELETE_SEGMENT_FINISHED if empty.
        topic: only of topics with this name; of all if "".
        delete_states: only of partitions in one of these; of all partitions if empty.
        partition: only of partitions of this number, which needs `topic`; of all if None.
        columns: names of the SCAN_COLUMNS to read; all if empty. They come in the order of
            SCAN_COLUMNS.
    """

    shard: int = 0
    shards: int = 1
    states: Sequence[RemoteLogSegmentState] = ()
    topic: str = ""
    delete_states: Sequence[RemotePartitionDeleteState] = ()
    partition: int | None = None
    columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        require_between(self.shards, "shards", 1, MAX_SHARDS)
        require_between(self.shard, "shard", 0, self.shards - 1)
        gone = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
        require(gone not in self.states, "states", "DELETE_SEGMENT_FINISHED is never listed")
        if self.partition is not None:
            require_int32(self.partition, "partition")
            require(self.topic != "", "partition", "needs topic: name its topic as well")
        known = ", ".join(_COLUMN_NAMES)
        unknown = ", ".join(sorted(set(self.columns) - set(_COLUMN_NAMES)))
        require(not unknown, "columns", f"must be some of {known}; unknown: {unknown[:64]!r}")

    def column_names(self) -> list[str]:
        """Return the names of the columns to read, in the order of SCAN_COLUMNS."""
        return [name for name in _COLUMN_NAMES if name in self.columns or not self.columns]


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """The next rows of a scan.

    Attributes:
        arrow_ipc: one Arrow IPC stream, schema and one record batch, with the scan's columns.
        rows: the number of rows.
        began_at_ms: when the scan began, by the database's clock.
    """

    arrow_ipc: bytes
    rows: int
    began_at_ms: int


class SegmentAxis(Enum):
    """What the bins divide."""

    OFFSET = "OFFSET"
    TIME = "TIME"


@dataclass(frozen=True, slots=True)
class BinQuery:
    """Select a part of a partition.

    A segment has only the time of its latest record: on the axis of time it begins at the latest
    record of the segments before it, by start offset. Time never runs back there.

    Attributes:
        first, last: the range on the axis, both inclusive; None: to the end.
        bins: join the segments of the range if they are more; then the most bins for each state.
    """

    topic_id_partition: TopicIdPartition
    axis: SegmentAxis = SegmentAxis.OFFSET
    first: int | None = None
    last: int | None = None
    bins: int = 1_000

    def __post_init__(self) -> None:
        for value, field in ((self.first, "first"), (self.last, "last")):
            if value is not None:
                require_int64(value, field)
        require_between(self.bins, "bins", 1, MAX_BINS)
        if self.first is not None and self.last is not None:
            is_range = self.first <= self.last
            require(is_range, "first", f"must not be above last: {self.first} > {self.last}")


@dataclass(frozen=True, slots=True)
class SegmentBin:
    """One segment, or several of one state that begin close to each other.

    Attributes:
        first, last: what it covers on the axis, both inclusive.
        start_offset, end_offset: the lowest and the highest offset.
        lowest_leader_epoch, highest_leader_epoch: of all leader epochs.
        segment_id: None if there are several segments.
    """

    state: RemoteLogSegmentState
    segments: int
    first: int
    last: int
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    size_bytes: int
    lowest_leader_epoch: int
    highest_leader_epoch: int
    segment_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A range of offsets, both inclusive."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class BinnedSegments:
    """A part of a partition.

    Attributes:
        segments: of the whole partition, in any state but DELETE_SEGMENT_FINISHED.
        first, last: what they cover on the axis; None if there are none.
        segments_in_range: those that `bins` are made of.
        bins: ascending by start offset.
        holes: the longest ranges between finished segments that no finished segment holds,
            ascending; at most MAX_HOLES. None on the axis of time.
    """

    segments: int
    first: int | None
    last: int | None
    segments_in_range: int
    bins: tuple[SegmentBin, ...]
    holes: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """How far one partition of another system's metadata topic has been imported.

    Attributes:
        topic_id, partition: of the metadata topic. A topic that is created again has another id.
        next_offset: of the first record that has not been imported.
    """

    cluster_id: str
    topic_id: UUID
    partition: int
    next_offset: int

    def __post_init__(self) -> None:
        most = MAX_CLUSTER_ID_LENGTH
        require(1 <= len(self.cluster_id) <= most, "cluster_id", f"must be 1 to {most} characters")
        require_int32(self.partition, "partition")
        require_int64(self.next_offset, "next_offset")


@dataclass(frozen=True, slots=True)
class SegmentImport:
    """The item of import_remote_log_segments.

    Attributes:
        segments: up to MAX_BATCH. Of one partition, unless there is a position.
        context: only its reason and plan_id may be set.
        partition_deletes: of the source, after those of the segments; as many at most.
        position: of the source, after this item.
        previous_position: the stored one before this item; None if there is none.
    """

    segments: tuple[RemoteLogSegmentMetadata, ...]
    context: MutationContext = NO_CONTEXT
    partition_deletes: tuple[RemotePartitionDeleteMetadata, ...] = ()
    position: SourcePosition | None = None
    previous_position: SourcePosition | None = None


@dataclass(frozen=True, slots=True)
class ImportedSegments:
    """The result of an import.

    Attributes:
        imported: new segments.
        repeated: segments that existed with the same content, perhaps in a later state.
        moved: segments, and deletions of partitions, that were moved to a later state.
        of_removed_partitions: segments that were left out: their partition was removed.
    """

    imported: int = 0
    repeated: int = 0
    moved: int = 0
    of_removed_partitions: int = 0

    def __add__(self, other: "ImportedSegments") -> "ImportedSegments":
        return ImportedSegments(
            self.imported + other.imported,
            self.repeated + other.repeated,
            self.moved + other.moved,
            self.of_removed_partitions + other.of_removed_partitions,
        )


def imports_of(
    segments: Iterable[RemoteLogSegmentMetadata], context: MutationContext = NO_CONTEXT
) -> Iterator[SegmentImport]:
    """Group segments, in their order, into as few items as possible; yield one at a time."""
    taken: list[RemoteLogSegmentMetadata] = []
    epochs = custom_metadata_bytes = 0
    for segment in segments:
        own_epochs, own_bytes = (
            len(segment.segment_leader_epochs),
            len(segment.custom_metadata or b""),
        )
        fits = (
            len(taken) < MAX_BATCH
            and epochs + own_epochs <= MAX_IMPORTED_EPOCHS
            and custom_metadata_bytes + own_bytes <= CUSTOM_METADATA_BYTES_PER_IMPORT
        )
        if taken and (taken[0].topic_id_partition != segment.topic_id_partition or not fits):
            yield SegmentImport(tuple(taken), context)
            taken, epochs, custom_metadata_bytes = [], 0, 0
        taken.append(segment)
        epochs += own_epochs
        custom_metadata_bytes += own_bytes
    if taken:
        yield SegmentImport(tuple(taken), context)
