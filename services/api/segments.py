"""Define remote log segments, their states and content."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from services.api.errors import InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.validation import INT32_MAX, require, require_int32, require_int64

MAX_SEGMENT_SIZE_IN_BYTES = INT32_MAX
CUSTOM_METADATA_VERSION = 1
REPLACING_VERSION = 2
"""Of the custom metadata of a copy that replaced another one, whose objects may still exist."""
TRANSFORMED_VERSION = 3
"""Of a copy whose objects do not have the files' own bytes: its manifest says how to read them."""
TRANSFORMED_REPLACING_VERSION = 4
CUSTOM_METADATA_VERSIONS = range(CUSTOM_METADATA_VERSION, TRANSFORMED_REPLACING_VERSION + 1)
CUSTOM_METADATA_FORM = struct.Struct(">BH8si5i16s")
"""RSM's custom metadata: version, location id, attempt, size of the log, size of each index file or
-1 if it is absent, digest of the manifest."""
TRANSFORMED_FORM = struct.Struct(f"{CUSTOM_METADATA_FORM.format}I")
"""That of a transformed copy: the size of its log's object follows."""
UNKNOWN_SIZE = -1


class RemoteLogSegmentState(Enum):
    """The state of a segment (Kafka: RemoteLogSegmentState).

    The values are the names; Kafka's byte ids are not part of any contract.

    +----------------------+
    | COPY_SEGMENT_STARTED |---------------+  failed copy
    +----------+-----------+               |
               v                           v
    +-----------------------+   +------------------------+
    | COPY_SEGMENT_FINISHED |-->| DELETE_SEGMENT_STARTED |
    +-----------------------+   +-----------+------------+
                                            v
                                +-------------------------+
                                | DELETE_SEGMENT_FINISHED |
                                +-------------------------+
    """

    COPY_SEGMENT_STARTED = "COPY_SEGMENT_STARTED"
    COPY_SEGMENT_FINISHED = "COPY_SEGMENT_FINISHED"
    DELETE_SEGMENT_STARTED = "DELETE_SEGMENT_STARTED"
    DELETE_SEGMENT_FINISHED = "DELETE_SEGMENT_FINISHED"


_S = RemoteLogSegmentState

_PREDECESSORS: dict[RemoteLogSegmentState, frozenset[RemoteLogSegmentState]] = {
    _S.COPY_SEGMENT_STARTED: frozenset(),
    _S.COPY_SEGMENT_FINISHED: frozenset({_S.COPY_SEGMENT_STARTED}),
    _S.DELETE_SEGMENT_STARTED: frozenset({_S.COPY_SEGMENT_STARTED, _S.COPY_SEGMENT_FINISHED}),
    _S.DELETE_SEGMENT_FINISHED: frozenset({_S.DELETE_SEGMENT_STARTED}),
}


def predecessors(target: RemoteLogSegmentState) -> frozenset[RemoteLogSegmentState]:
    """Return the states from which a segment may move to `target`, without `target` itself.

    Only COPY_SEGMENT_STARTED may be a segment's first state.

    Source: RemoteLogSegmentState.isValidTransition.
    """
    return _PREDECESSORS[target]


@dataclass(frozen=True, slots=True)
class SegmentLeaderEpoch:
    """The first offset, inclusive, of a segment's records of one leader epoch."""

    leader_epoch: int
    start_offset: int

    def __post_init__(self) -> None:
        require_int32(self.leader_epoch, "leader_epoch")
        require_int64(self.start_offset, "start_offset")


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """The metadata of one copied segment (Kafka: RemoteLogSegmentMetadata).

    Attributes:
        start_offset: base offset of the segment file; may precede its first surviving record.
        end_offset: inclusive; the next segment's base offset minus one.
        max_timestamp_ms: the largest record timestamp; -1 if there is none.
        broker_id: the broker that made the latest event.
        broker_leader_epoch: the leader epoch under which the copy was made; None if the client
            does not know it (Kafka's plugin interface has no such value).
        event_timestamp_ms: the time of the latest event, by the clock of the event's sender.
        segment_leader_epochs: at least one; epochs ascend, start offsets do not descend, none is
            beyond end_offset. As in Kafka, the first may begin before start_offset.
        segment_size_in_bytes: of the .log file alone; -1 if unknown.
        custom_metadata: the bytes that RSM returned for the copy; None and b"" differ.
        txn_idx_empty: True if there is no transaction index; False if there may be one.
        copy_leased: in answers of RLMM: neither the copy nor its lease had ended when the segment
            was read. Not part of the metadata: it is not compared, and additions ignore it.
        kept_until_ms: in answers of RLMM: a broker deletes or has deleted the segment, and its
            objects stay at least until then, by the database's clock. The client that finishes the
            deletion leaves them; only what deletes kept segments deletes them later. Not compared.
    """

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_leader_epochs: tuple[SegmentLeaderEpoch, ...]
    segment_size_in_bytes: int
    custom_metadata: bytes | None = None
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    txn_idx_empty: bool = False
    broker_leader_epoch: int | None = None
    # Not in the repr either, because the digests of stored request ids are made of it.
    copy_leased: bool = field(default=False, compare=False, repr=False)
    kept_until_ms: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Texts are made only for an error, because a list makes thousands of these objects.
        require_int64(self.start_offset, "start_offset")
        if self.end_offset < self.start_offset:
            raise InvalidRequestError(
                f"end_offset: must not be below start_offset {self.start_offset}, "
                f"is {self.end_offset}"
            )
        require_int64(self.end_offset, "end_offset")
        require_int64(self.max_timestamp_ms, "max_timestamp_ms", at_least=-1)
        require_int32(self.broker_id, "broker_id", at_least=-1)
        require_int64(self.event_timestamp_ms, "event_timestamp_ms")
        require_int32(self.segment_size_in_bytes, "segment_size_in_bytes", at_least=-1)
        if self.broker_leader_epoch is not None:
            require_int32(self.broker_leader_epoch, "broker_leader_epoch")
        self._check_leader_epochs()

    def _check_leader_epochs(self) -> None:
        field, epochs = "segment_leader_epochs", self.segment_leader_epochs
        require(len(epochs) > 0, field, "must not be empty")
        for earlier, later in pairwise(epochs):
            ascending = (
                earlier.leader_epoch < later.leader_epoch
                and earlier.start_offset <= later.start_offset
            )
            if not ascending:
                raise InvalidRequestError(
                    f"{field}: must ascend, {earlier.leader_epoch}:{earlier.start_offset} stands "
                    f"before {later.leader_epoch}:{later.start_offset}"
                )
        last = epochs[-1].start_offset
        if last > self.end_offset:
            raise InvalidRequestError(f"{field}: epoch start {last} is beyond end_offset")

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.remote_log_segment_id.topic_id_partition

    def epoch_ranges(self) -> tuple[tuple[int, int, int], ...]:
        """Return (leader epoch, first offset, last offset) of each epoch, both inclusive.

        Source: kafka-storage RemoteLogMetadataCache: an epoch ends at the start of the next one.
        """
        starts = [e.start_offset for e in self.segment_leader_epochs]
        ends = [start - 1 for start in starts[1:]] + [self.end_offset]
        epochs = [e.leader_epoch for e in self.segment_leader_epochs]
        return tuple(zip(epochs, starts, ends, strict=True))

    def updated(self, update: "RemoteLogSegmentMetadataUpdate") -> "RemoteLogSegmentMetadata":
        """Return this segment after `update`; without custom metadata it keeps the present one.

        A declared difference: Kafka's createWithUpdates erases it, and then the objects cannot be
        found.

        Raises:
            InvalidRequestError: if the update names another segment.
        """
        same = update.remote_log_segment_id == self.remote_log_segment_id
        require(same, "remote_log_segment_id", "the update is for another segment")
        kept = self.custom_metadata if update.custom_metadata is None else update.custom_metadata
        return replace(
            self,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=kept,
            state=update.state,
            copy_leased=False,
        )


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """The change of a segment's state (Kafka: RemoteLogSegmentMetadataUpdate).

    `state` is never COPY_SEGMENT_STARTED: adding a segment sets that state.
    """

    remote_log_segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    broker_id: int
    custom_metadata: bytes | None = None

    def __post_init__(self) -> None:
        if self.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise InvalidRequestError("state: an update cannot be to COPY_SEGMENT_STARTED")
        require_int64(self.event_timestamp_ms, "event_timestamp_ms")
        require_int32(self.broker_id, "broker_id", at_least=-1)


def segment_leader_epochs(pairs: Sequence[tuple[int, int]]) -> tuple[SegmentLeaderEpoch, ...]:
    """Make leader epochs of (leader epoch, start offset) pairs."""
    return tuple(SegmentLeaderEpoch(epoch, start) for epoch, start in pairs)


def indexes_size_of(custom_metadata: bytes) -> int:
    """Return the size of a copy's indexes; UNKNOWN_SIZE if the form of the bytes is not known."""
    if not _has_known_form(custom_metadata):
        return UNKNOWN_SIZE
    _, _, _, _, *sizes, _ = CUSTOM_METADATA_FORM.unpack_from(custom_metadata)
    return sum(max(0, size) for size in sizes)


def saved_bytes_of(custom_metadata: bytes | None) -> int:
    """Return by how much a log is longer than its object; below 0 if encryption made it longer."""
    if custom_metadata is None or not is_transformed(custom_metadata):
        return 0
    if not _has_known_form(custom_metadata):
        return 0
    _, _, _, size_bytes, *_, stored_bytes = TRANSFORMED_FORM.unpack(custom_metadata)
    return int(size_bytes - stored_bytes)


def location_id_of(custom_metadata: bytes) -> int | None:
    """Return the number of a copy's location; None if the form of the bytes is not known."""
    if not _has_known_form(custom_metadata):
        return None
    return int(CUSTOM_METADATA_FORM.unpack_from(custom_metadata)[1])


def _has_known_form(custom_metadata: bytes) -> bool:
    form = TRANSFORMED_FORM if is_transformed(custom_metadata) else CUSTOM_METADATA_FORM
    return len(custom_metadata) == form.size and custom_metadata[0] in CUSTOM_METADATA_VERSIONS


def has_replaced(custom_metadata: bytes | None) -> bool:
    """Return whether a copy replaced another one, by its custom metadata."""
    versions = (REPLACING_VERSION, TRANSFORMED_REPLACING_VERSION)
    return (custom_metadata or b"\0")[0] in versions


def in_location(metadata: RemoteLogSegmentMetadata, location_id: int) -> RemoteLogSegmentMetadata:
    """Return a segment that RSM has copied, to be read from a location that has the same objects.

    One whose custom metadata has not RSM's form is returned as it is.
    """
    data = metadata.custom_metadata
    if data is None or not _has_known_form(data):
        return metadata
    version, _, *rest = CUSTOM_METADATA_FORM.unpack_from(data)
    moved = CUSTOM_METADATA_FORM.pack(version, location_id, *rest)
    return replace(metadata, custom_metadata=moved + data[CUSTOM_METADATA_FORM.size :])


def is_transformed(custom_metadata: bytes | None) -> bool:
    """Return whether a copy's objects have other bytes and sizes than the files."""
    versions = (TRANSFORMED_VERSION, TRANSFORMED_REPLACING_VERSION)
    return (custom_metadata or b"\0")[0] in versions
