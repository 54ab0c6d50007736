"""Write RLMM's metadata into a topic that Kafka's own RemoteLogMetadataManager reads; follow it.

The topic is its own position: `begin` reads what it has, and each run writes the differences to
RLMM, by transitions that Kafka accepts. So a run may be killed at any point. In a keyed topic
(KIP-1266, not merged) a deleted segment's keys get tombstones.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias
from uuid import UUID

from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.imported_segments import is_imported, read_imported
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.segment_batches import MAX_BATCH
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    location_id_of,
    predecessors,
)
from services.interop.metadata_fold import Fold, TopicRecord, read_records
from services.interop.metadata_import import as_kafka_has
from services.interop.metadata_topic import (
    MetadataKey,
    decode_key,
    encode_key,
    metadata_partition,
)
from services.interop.metadata_values import (
    KEYED_VERSION,
    MetadataValue,
    SegmentSnapshot,
    encode_value,
)

_STARTED, _FINISHED, _DELETE_STARTED, _DELETE_FINISHED = RemoteLogSegmentState
_DELETE_STATES = tuple(RemotePartitionDeleteState)
_RECORDS_PER_WRITE = 1_000
_NO_BROKER = -1

Record: TypeAlias = tuple[int, bytes | None, bytes | None]
"""Partition, key and value of a record to write."""


class Target(Protocol):
    """The cluster with the topic to write."""

    def ranges(self) -> Mapping[int, tuple[int, int]]:
        """Return the first offset and the end of each partition of the topic, as they are now."""

    def records(self, partition: int, first: int, end: int) -> Iterator[Sequence[TopicRecord]]:
        """Yield the records of a range, some at a time."""

    def write(self, records: Sequence[Record]) -> None:
        """Append records, of a partition in their order; they are durable when it returns."""


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What is exported, and how.

    Attributes:
        topics: only these; all if empty.
        location_id: only segments of this location; None: of all.
        keyed: write keys and tombstones.
    """

    topics: Collection[str] = ()
    location_id: int | None = None
    keyed: bool = False


@dataclass(slots=True)
class ExportReport:
    """What an export has written: records by kind, and the partitions that had changes."""

    added: int = 0
    moved: int = 0
    partition_deletes: int = 0
    tombstones: int = 0
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class _Written:
    """What the topic has of a segment: its state, and the key of its records."""

    state: RemoteLogSegmentState
    key: bytes | None


@dataclass(slots=True)
class _Known:
    """What the topic has of a partition, and the revision of RLMM that it shows."""

    segments: dict[UUID, _Written] = field(default_factory=dict)
    delete_state: RemotePartitionDeleteState | None = None
    revision: int = -1


class MetadataExport:
    """Write what the topic lacks, as often as `run` is called.

    Attributes:
        report: of all runs.
    """

    def __init__(self, rlmm: RemoteLogMetadataManager, target: Target, plan: ExportPlan) -> None:
        self._rlmm = rlmm
        self._target = target
        self._plan = plan
        self._partitions = 0
        self._known: dict[TopicIdPartition, _Known] = {}
        self._waiting: list[Record] = []
        self.report = ExportReport()

    def begin(self) -> None:
        """Read what the topic has.

        Raises:
            UnreadableRecordError: it is not a metadata topic, or has what is not known.
            InvalidRequestError: its records have keys and the plan has not, or the other way round.
        """
        ranges = self._target.ranges()
        self._partitions = len(ranges)
        for partition, (first, end) in ranges.items():
            for records in self._target.records(partition, first, end):
                for record in records:
                    self._require_keys(record)
                    for each in read_records([record], Fold()):
                        self._learn(each.metadata, record.key)

    def run(self) -> ExportReport:
        """Write the changes of all partitions since the last run.

        Raises:
            RetriableRemoteStorageError: a service is away; run it again.
        """
        listed = set[TopicIdPartition]()
        for summary in all_partitions(self._rlmm):
            tp = summary.topic_id_partition
            listed.add(tp)
            known = self._known.get(tp)
            is_new = known is None or known.revision != summary.revision
            if is_new and (not self._plan.topics or tp.topic in self._plan.topics):
                self._export(summary, self._known.setdefault(tp, _Known()))
        for tp, known in self._known.items():
            if tp not in listed and known.delete_state is not _DELETE_STATES[-1]:
                self._delete(tp, known, list(known.segments))
                self._delete_partition(tp, known, _DELETE_STATES[-1])
        self._flush()
        return self.report

    # --- what the topic has -------------------------------------------------------------------

    def _require_keys(self, record: TopicRecord) -> None:
        if (record.key is not None) is not self._plan.keyed:
            has, option = ("no key", "without") if self._plan.keyed else ("a key", "with")
            raise InvalidRequestError(
                f"partition {record.partition}, offset {record.offset}: has {has}; export "
                f"{option} --keyed, or to another topic"
            )

    def _learn(
        self,
        metadata: RemoteLogSegmentMetadata
        | RemoteLogSegmentMetadataUpdate
        | RemotePartitionDeleteMetadata,
        key: bytes | None,
    ) -> None:
        """Follow one record, as Kafka's cache does."""
        if isinstance(metadata, RemotePartitionDeleteMetadata):
            known = self._known.setdefault(metadata.topic_id_partition, _Known())
            known.delete_state = metadata.state
            return
        id = metadata.remote_log_segment_id
        segments = self._known.setdefault(id.topic_id_partition, _Known()).segments
        written = segments.get(id.id)
        if isinstance(metadata, RemoteLogSegmentMetadata):
            segments.setdefault(id.id, _Written(_STARTED, key))
        elif key is not None and written is None:
            # Compaction has deleted what was before.
            segments[id.id] = _Written(metadata.state, key)
        elif written is not None and written.state in predecessors(metadata.state):
            segments[id.id] = _Written(metadata.state, written.key)
        if metadata.state is _DELETE_FINISHED:
            segments.pop(id.id, None)

    # --- what it lacks ------------------------------------------------------------------------

    def _export(self, summary: PartitionSummary, known: _Known) -> None:
        tp = summary.topic_id_partition
        rows = list(all_segments(self._rlmm, tp))
        present = {each.remote_log_segment_id.id for each in rows}
        # Copies that overlap are read by the one that finished last.
        copied = {self._key_of(each) for each in rows if each.state is not _STARTED}
        for row in sorted(rows, key=lambda each: (each.event_timestamp_ms, each.start_offset)):
            # Attempts under one leader epoch share a key: that of a later one has replaced it.
            is_replaced = self._plan.keyed and row.state is _STARTED and self._key_of(row) in copied
            if self._plan.location_id in (None, location_of(row)) and not is_replaced:
                self._move(known, as_kafka_has(row))
        keys = {self._key_of(each) for each in rows} if self._plan.keyed else set()
        gone = [id for id in known.segments if id not in present]
        for id in [id for id in gone if known.segments[id].key in keys]:
            del known.segments[id]
        self._delete(tp, known, [id for id in gone if id in known.segments])
        if summary.delete_state is not None:
            self._delete_partition(tp, known, summary.delete_state)
        known.revision = summary.revision
        self.report.partitions += 1

    def _move(self, known: _Known, row: RemoteLogSegmentMetadata) -> None:
        """Write what leads from the state in the topic to that of the row."""
        id, epoch = row.remote_log_segment_id.id, _leader_epoch_of(row)
        written = known.segments.get(id)
        if written is None:
            key = self._key_of(row)
            written = known.segments[id] = _Written(_STARTED, key)
            first = replace(row, state=_STARTED, custom_metadata=None)
            if row.state is _STARTED:
                first = row
            self._write(MetadataValue(first), key, epoch, row.end_offset)
            self.report.added += 1
        if written.state in predecessors(row.state):
            update = RemoteLogSegmentMetadataUpdate(
                row.remote_log_segment_id,
                row.event_timestamp_ms,
                row.state,
                row.broker_id,
                row.custom_metadata,
            )
            known.segments[id] = replace(written, state=row.state)
            self._write(MetadataValue(update), written.key, epoch, row.end_offset)
            self.report.moved += 1

    def _delete(self, tp: TopicIdPartition, known: _Known, ids: Sequence[UUID]) -> None:
        """Write that segments are gone."""
        for at in range(0, len(ids), MAX_BATCH):
            some = ids[at : at + MAX_BATCH]
            rows = {each.remote_log_segment_id.id: each for each in self._rows(tp, some)}
            for id in some:
                self._delete_one(tp, known, id, rows.get(id))

    def _rows(
        self, tp: TopicIdPartition, ids: Sequence[UUID]
    ) -> Iterable[RemoteLogSegmentMetadata]:
        try:
            return self._rlmm.remote_log_segment_metadata_by_id(tp, ids).value
        except RemoteResourceNotFoundError:
            return ()

    def _delete_one(
        self,
        tp: TopicIdPartition,
        known: _Known,
        id: UUID,
        row: RemoteLogSegmentMetadata | None,
    ) -> None:
        written = known.segments.pop(id)
        at_ms, broker_id, custom = 0, _NO_BROKER, None
        if row is not None:
            row = as_kafka_has(row)
            at_ms, broker_id = row.event_timestamp_ms, row.broker_id
            custom = row.custom_metadata
        name = decode_key(written.key) if written.key else None
        epoch = name.broker_leader_epoch if name else None
        end_offset = name.end_offset if name else None
        for state in (_DELETE_STARTED, _DELETE_FINISHED):
            if written.state in predecessors(state):
                update = RemoteLogSegmentMetadataUpdate(
                    RemoteLogSegmentId(tp, id), at_ms, state, broker_id, custom
                )
                self._write(MetadataValue(update), written.key, epoch, end_offset)
                self.report.moved += 1
                written = replace(written, state=state)
        if written.key is not None:
            self._append((self._partition_of(tp), written.key, None))
            self.report.tombstones += 1

    def _delete_partition(
        self, tp: TopicIdPartition, known: _Known, target: RemotePartitionDeleteState
    ) -> None:
        """Write the states of a partition's deletion that the topic lacks."""
        before = known.delete_state
        first = 0 if before is None else _DELETE_STATES.index(before) + 1
        key = encode_key(MetadataKey(tp.topic_id, tp.partition, topic=tp.topic))
        for state in _DELETE_STATES[first : _DELETE_STATES.index(target) + 1]:
            metadata = RemotePartitionDeleteMetadata(tp, state, 0, _NO_BROKER)
            self._write(MetadataValue(metadata), key if self._plan.keyed else None, None, None)
            self.report.partition_deletes += 1
            known.delete_state = state

    # --- records ------------------------------------------------------------------------------

    def _key_of(self, row: RemoteLogSegmentMetadata) -> bytes | None:
        if not self._plan.keyed:
            return None
        tp, end_offset, epoch = row.topic_id_partition, row.end_offset, _leader_epoch_of(row)
        return encode_key(MetadataKey(tp.topic_id, tp.partition, end_offset, epoch, tp.topic))

    def _partition_of(self, tp: TopicIdPartition) -> int:
        return metadata_partition(tp, self._partitions)

    def _write(
        self, value: MetadataValue, key: bytes | None, epoch: int | None, end_offset: int | None
    ) -> None:
        metadata = value.metadata
        if isinstance(metadata, RemotePartitionDeleteMetadata):
            tp = metadata.topic_id_partition
        else:
            assert not isinstance(metadata, SegmentSnapshot), "no snapshot is written"
            tp = metadata.remote_log_segment_id.topic_id_partition
        if key is not None:
            value = MetadataValue(metadata, KEYED_VERSION, epoch, end_offset)
        self._append((self._partition_of(tp), key, encode_value(value)))

    def _append(self, record: Record) -> None:
        self._waiting.append(record)
        if len(self._waiting) >= _RECORDS_PER_WRITE:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._target.write(self._waiting)
            self._waiting = []


def _leader_epoch_of(row: RemoteLogSegmentMetadata) -> int:
    """Return the epoch under which a segment was copied, or else that of its last records."""
    epoch = row.broker_leader_epoch
    return row.segment_leader_epochs[-1].leader_epoch if epoch is None else epoch


def location_of(row: RemoteLogSegmentMetadata) -> int | None:
    """Return the location that has a segment's objects; None if it is not known."""
    custom = row.custom_metadata
    if custom is not None and is_imported(custom):
        return read_imported(custom).location_id
    return None if custom is None else location_id_of(custom)
