"""Fold records of Kafka's metadata topic into segments to import, and say what is dropped and why.

A fold is of some records of one partition of the topic, in their order, and of the rows that RLMM
has of their segments. By Kafka's transitions each record adds a segment, moves it, or is dropped. A
segment comes out once as copied and once as deleted at most, in the order of their last records:
the states between leave no trace in RLMM.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    predecessors,
)
from services.interop.metadata_values import (
    Metadata,
    MetadataValueError,
    SegmentSnapshot,
    decode_value,
)

_COPIES = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of the topic; of a tombstone `value` is None."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Drop(Enum):
    """Why a record, or what it says, is not imported."""

    ORPHAN = "update of a segment that was never added"
    IMPOSSIBLE = "transition that Kafka's states do not have"
    TWICE = "segment id that was added before"
    GONE = "partition of a topic that the cluster no longer has"
    UNKNOWN = "record of a later version, or with an unknown state"
    NOT_METADATA = "snapshot or tombstone, which says nothing"
    REMOVED = "segment of a partition that was removed"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A record that is dropped.

    Attributes:
        what: the segment or partition, and what was wrong.
    """

    why: Drop
    partition: int
    offset: int
    what: str


class UnreadableRecordError(Exception):
    """A record is damaged, or of a version or with a state that is not known."""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record's metadata, and where it stands."""

    partition: int
    offset: int
    metadata: (
        RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata
    )

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        if isinstance(self.metadata, RemotePartitionDeleteMetadata):
            return self.metadata.topic_id_partition
        return self.metadata.remote_log_segment_id.topic_id_partition


@dataclass(slots=True)
class Fold:
    """What some records come to.

    Attributes:
        segments: as Kafka has them, each in the state of its last record; see the module.
        partition_deletes: the last one of each partition.
        added: segments that the records add.
        not_selected: records of topics that are not imported.
        repeated: records that say again what was so before.
    """

    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    partition_deletes: list[RemotePartitionDeleteMetadata] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    added: int = 0
    not_selected: int = 0
    repeated: int = 0


def read_records(
    records: Iterable[TopicRecord],
    fold: Fold,
    *,
    topics: Collection[str] = (),
    skip_unknown: bool = False,
) -> list[ReadRecord]:
    """Decode records of the topics; record in `fold` what is left out.

    Args:
        topics: only of these; of all if empty.
        skip_unknown: drop what a later version wrote instead of raising.

    Raises:
        UnreadableRecordError: names the partition, the offset and the byte.
    """
    read = []
    for record in records:
        metadata = _metadata(record, fold, skip_unknown=skip_unknown)
        if metadata is None:
            continue
        each = ReadRecord(record.partition, record.offset, metadata)
        if topics and each.topic_id_partition.topic not in topics:
            fold.not_selected += 1
            continue
        read.append(each)
    return read


def _metadata(
    record: TopicRecord, fold: Fold, *, skip_unknown: bool
) -> (
    RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata | None
):
    if record.value is None:
        drop = Dropped(Drop.NOT_METADATA, record.partition, record.offset, "a tombstone")
        fold.dropped.append(drop)
        return None
    try:
        metadata: Metadata = decode_value(record.value).metadata
    except MetadataValueError as e:
        if not (e.is_unknown and skip_unknown):
            hint = "; --skip-unknown counts such records instead" if e.is_unknown else ""
            raise UnreadableRecordError(
                f"partition {record.partition}, offset {record.offset}: {e}{hint}"
            ) from e
        drop = Dropped(Drop.UNKNOWN, record.partition, record.offset, str(e))
        fold.dropped.append(drop)
        return None
    if isinstance(metadata, SegmentSnapshot):
        drop = Dropped(Drop.NOT_METADATA, record.partition, record.offset, "a snapshot")
        fold.dropped.append(drop)
        return None
    return metadata


def ids_to_look_up(records: Iterable[ReadRecord]) -> list[RemoteLogSegmentId]:
    """Return the segments that are updated and not added among the records."""
    added, wanted = set[RemoteLogSegmentId](), dict[RemoteLogSegmentId, None]()
    for record in records:
        metadata = record.metadata
        if isinstance(metadata, RemoteLogSegmentMetadata):
            added.add(metadata.remote_log_segment_id)
        elif (
            isinstance(metadata, RemoteLogSegmentMetadataUpdate)
            and metadata.remote_log_segment_id not in added
        ):
            wanted[metadata.remote_log_segment_id] = None
    return list(wanted)


def fold_records(
    records: Sequence[ReadRecord],
    fold: Fold,
    stored: Mapping[RemoteLogSegmentId, RemoteLogSegmentMetadata],
    has_topic: Callable[[UUID], bool],
) -> None:
    """Fold records, in their order, into `fold`.

    Args:
        stored: RLMM's rows of the segments, with the custom metadata that Kafka has of them.
        has_topic: whether the cluster has the topic, or RLMM has rows of it.
    """
    folding = _Folding(fold, stored, has_topic)
    for record in records:
        folding.add(record)
    fold.segments += folding.changed.values()
    fold.partition_deletes += folding.deletes.values()


class _Folding:
    """Fold one record after another.

    Attributes:
        changed: what comes out, by segment and whether it is deleted; the last changed last.
    """

    def __init__(
        self,
        fold: Fold,
        stored: Mapping[RemoteLogSegmentId, RemoteLogSegmentMetadata],
        has_topic: Callable[[UUID], bool],
    ) -> None:
        self._fold = fold
        self._has_topic = has_topic
        self._present = dict(stored)
        self.changed: dict[tuple[RemoteLogSegmentId, bool], RemoteLogSegmentMetadata] = {}
        self.deletes: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}

    def add(self, record: ReadRecord) -> None:
        tp, metadata = record.topic_id_partition, record.metadata
        if not self._has_topic(tp.topic_id):
            self._drop(Drop.GONE, record, str(tp))
        elif isinstance(metadata, RemoteLogSegmentMetadata):
            self._add_segment(record, metadata)
        elif isinstance(metadata, RemoteLogSegmentMetadataUpdate):
            self._move(record, metadata)
        else:
            self.deletes.pop(tp, None)
            self.deletes[tp] = metadata

    def _add_segment(self, record: ReadRecord, added: RemoteLogSegmentMetadata) -> None:
        id = added.remote_log_segment_id
        if id in self._present:
            self._drop(Drop.TWICE, record, f"segment {id}: the first one stays")
        elif added.state is not _COPIES[0]:
            self._drop(Drop.IMPOSSIBLE, record, f"segment {id} begins in {added.state.value}")
        else:
            self._fold.added += 1
            self._put(added)

    def _move(self, record: ReadRecord, update: RemoteLogSegmentMetadataUpdate) -> None:
        id = update.remote_log_segment_id
        present = self._present.get(id)
        if present is None:
            self._drop(Drop.ORPHAN, record, f"segment {id} to {update.state.value}")
        elif present.state is update.state:
            self._fold.repeated += 1
        elif present.state not in predecessors(update.state):
            states = f"{present.state.value} to {update.state.value}"
            self._drop(Drop.IMPOSSIBLE, record, f"segment {id} from {states}")
        else:
            if present.state is _COPIES[0]:
                self.changed.pop((id, False), None)
            self._put(present.updated(update))

    def _put(self, segment: RemoteLogSegmentMetadata) -> None:
        id = segment.remote_log_segment_id
        key = id, segment.state not in _COPIES
        self.changed.pop(key, None)
        self._present[id] = self.changed[key] = segment

    def _drop(self, why: Drop, record: ReadRecord, what: str) -> None:
        self._fold.dropped.append(Dropped(why, record.partition, record.offset, what))
