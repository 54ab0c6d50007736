"""Import Kafka's metadata topic into RLMM, in the topic's order, and follow it.

Each step reads some records of one partition of the topic, folds them and imports the result with
the topic's position in one transaction. It may be killed at any point: a run resumes at the stored
positions, and two runs at once do not mix. While partitions are imported, a REBUILD hold on their
topics keeps retention from them; `finish` sets the log starts of the brokers and ends the holds.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import Protocol
from uuid import UUID

from services.api.calls import MutationContext
from services.api.errors import (
    InvalidRequestError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.holds import Hold, HoldKind
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, uuid_to_text
from services.api.imported_segments import imported_custom_metadata, is_imported, read_imported
from services.api.partitions import RemotePartitionDeleteMetadata
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.api.segment_batches import (
    MAX_BATCH,
    MAX_IMPORTED_EPOCHS,
    ImportedSegments,
    SegmentImport,
    SourcePosition,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    SegmentLeaderEpoch,
)
from services.interop.metadata_fold import (
    Drop,
    Dropped,
    Fold,
    ReadRecord,
    TopicRecord,
    fold_records,
    ids_to_look_up,
    read_records,
)

RECORDS_PER_STEP = 2 * MAX_BATCH
"""A copied segment has two records."""
WRITERS = 4
"""Partitions of the topic that are imported at the same time."""
NAMED = 10
"""The most dropped records of each kind that a report names."""
HOLD_NAME = "metadata-import"


class Source(Protocol):
    """The cluster whose topic is imported; a method may be called by several threads."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def topic_id(self) -> UUID:
        """Return the id of the metadata topic."""

    def ranges(self) -> Mapping[int, tuple[int, int]]:
        """Return the first offset and the end of each partition of the topic, as they are now."""

    def records(self, partition: int, first: int, end: int) -> Iterator[Sequence[TopicRecord]]:
        """Yield the records of a range, some at a time."""

    def topic_ids(self) -> Mapping[str, UUID]:
        """Return the ids of the cluster's topics, by name."""

    def log_starts(self, partitions: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        """Return the first offset that consumers may read, of the partitions that exist."""


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What is imported, and how.

    Attributes:
        location_id: of the location that has the objects.
        topics: only these; all if empty.
        restart: start over if the stored positions are of another metadata topic.
    """

    location_id: int
    topics: Collection[str] = ()
    apply: bool = True
    skip_unknown: bool = False
    restart: bool = False
    run_id: str = ""


@dataclass(slots=True)
class ImportReport:
    """What an import has done so far.

    Attributes:
        lag: records of the topic that are not imported yet.
        examples: the first dropped records of each kind.
    """

    records: int = 0
    not_selected: int = 0
    imported: ImportedSegments = field(default_factory=ImportedSegments)
    dropped: Counter[Drop] = field(default_factory=Counter)
    examples: list[Dropped] = field(default_factory=list)
    lag: int = 0
    log_starts: int = 0

    def add(self, count: int, fold: Fold, imported: ImportedSegments) -> None:
        self.records += count
        self.not_selected += fold.not_selected
        again = ImportedSegments(repeated=fold.repeated)
        self.imported += replace(imported, of_removed_partitions=0) + again
        for each in fold.dropped:
            self.dropped[each.why] += 1
            if self.dropped[each.why] <= NAMED:
                self.examples.append(each)
        if imported.of_removed_partitions:
            self.dropped[Drop.REMOVED] += imported.of_removed_partitions


class MetadataImport:
    """Import what the topic has, as often as `run` is called.

    Attributes:
        report: of all runs.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        source: Source,
        plan: ImportPlan,
        on_progress: Callable[[ImportReport], None] = lambda _: None,
    ) -> None:
        self._rlmm = rlmm
        self._source = source
        self._plan = plan
        self._on_progress = on_progress
        self._context = MutationContext(reason="metadata import", plan_id=plan.run_id or None)
        self._positions: dict[int, SourcePosition] = {}
        self._topic_ids = frozenset[UUID]()
        self._held: dict[UUID, str] = {}
        self._unwritten: dict[UUID, RemoteLogSegmentState] = {}
        self._lock = Lock()
        self._stop = Event()
        self.report = ImportReport()

    def begin(self) -> None:
        """Read the stored positions and hold the topics that are imported already.

        Raises:
            InvalidRequestError: the positions are not of this topic; names them.
        """
        source, ranges = self._source, self._source.ranges()
        for position in self._rlmm.list_source_positions(source.cluster_id):
            self._positions[position.partition] = position
            if not self._plan.restart:
                _require_same(position, source.topic_id, ranges)
        known = {
            each.topic_id_partition.topic_id: each.topic_id_partition.topic
            for each in all_partitions(self._rlmm)
        }
        in_cluster = frozenset(source.topic_ids().values())
        self._topic_ids = in_cluster | known.keys()
        if self._positions:
            for topic_id, topic in known.items():
                if topic_id in in_cluster and self._is_selected(topic):
                    self._hold(topic_id, topic)

    def run(self) -> ImportReport:
        """Import all records up to the end that the topic has now.

        Raises:
            UnreadableRecordError: a record cannot be read; those before it are imported.
            ConcurrentUpdateError: another import runs.
            RetriableRemoteStorageError: a service is away; run it again.
        """
        self._stop.clear()
        ranges = self._source.ranges()
        self._topic_ids |= frozenset(self._source.topic_ids().values())
        todo = {}
        for partition, (first, end) in ranges.items():
            begin = self._next_offset(partition, first)
            if begin < end:
                todo[partition] = begin, end
        self.report.lag = sum(end - begin for begin, end in todo.values())
        with ThreadPoolExecutor(WRITERS) as writers:
            runs = [writers.submit(self._run_of, it, *todo[it]) for it in sorted(todo)]
            try:
                for each in runs:
                    each.result()
            except BaseException:
                self._stop.set()
                raise
        return self.report

    def finish(self) -> ImportReport:
        """Set the log starts that the brokers have, and end the holds."""
        found: dict[tuple[str, int], TopicIdPartition] = {}
        for each in all_partitions(self._rlmm):
            tp = each.topic_id_partition
            if tp.topic_id in self._held and each.delete_state is None:
                found[tp.topic, tp.partition] = tp
        for key, offset in self._source.log_starts(found).items():
            try:
                outcome = self._rlmm.raise_log_start_offset(
                    found[key], offset, self._context, restores=True
                )
            except RemoteResourceNotFoundError:
                continue
            self.report.log_starts += outcome.applied
        for topic_id, topic in self._held.items():
            self._rlmm.end_hold(hold_of(topic_id, topic))
        self._held.clear()
        return self.report

    # --- one partition of the topic -----------------------------------------------------------

    def _run_of(self, partition: int, first: int, end: int) -> None:
        waiting: list[TopicRecord] = []
        for records in self._source.records(partition, first, end):
            if self._stop.is_set():
                return
            waiting += records
            while len(waiting) >= RECORDS_PER_STEP:
                self._import(partition, waiting[:RECORDS_PER_STEP], None)
                del waiting[:RECORDS_PER_STEP]
        # The end may lie behind the last record, where a transaction's marker or nothing is.
        self._import(partition, waiting, end)

    def _import(
        self, partition: int, records: Sequence[TopicRecord], next_offset: int | None
    ) -> None:
        """Import records in one transaction, or in two if they are too many for one."""
        if next_offset is None:
            next_offset = records[-1].offset + 1
        fold = Fold()
        plan = self._plan
        read = read_records(records, fold, topics=plan.topics, skip_unknown=plan.skip_unknown)
        self._fold(read, fold, ids_to_look_up(read) if plan.apply else _all_ids(read))
        if _is_too_large(fold):
            middle = len(records) // 2
            self._import(partition, records[:middle], None)
            self._import(partition, records[middle:], next_offset)
            return
        try:
            imported = self._write(partition, fold, next_offset)
        except SegmentAlreadyExistsError:
            # An id that an earlier step has added comes again, with other content.
            fold = Fold(not_selected=fold.not_selected)
            read = read_records(records, fold, topics=plan.topics, skip_unknown=plan.skip_unknown)
            self._fold(read, fold, _all_ids(read))
            imported = self._write(partition, fold, next_offset)
        with self._lock:
            self.report.add(len(records), fold, imported)
            self.report.lag -= len(records)
            self._on_progress(self.report)

    def _fold(
        self, read: Sequence[ReadRecord], fold: Fold, ids: Sequence[RemoteLogSegmentId]
    ) -> None:
        fold_records(read, fold, self._stored(ids), self._topic_ids.__contains__)

    def _stored(
        self, ids: Sequence[RemoteLogSegmentId]
    ) -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
        by_partition = defaultdict[TopicIdPartition, dict[UUID, None]](dict)
        for id in ids:
            by_partition[id.topic_id_partition][id.id] = None
        stored = {}
        for tp, wanted in by_partition.items():
            some = list(wanted)
            for at in range(0, len(some), MAX_BATCH):
                try:
                    found = self._rlmm.remote_log_segment_metadata_by_id(
                        tp, some[at : at + MAX_BATCH]
                    )
                except RemoteResourceNotFoundError:
                    break
                for row in found.value:
                    stored[row.remote_log_segment_id] = as_kafka_has(row)
        for id in ids:
            if state := self._unwritten.get(id.id):
                stored[id] = _stand_in(id, state)
        return stored

    def _write(self, partition: int, fold: Fold, next_offset: int) -> ImportedSegments:
        location_id = self._plan.location_id
        segments = tuple(
            replace(
                each,
                custom_metadata=imported_custom_metadata(location_id, each.custom_metadata),
                broker_leader_epoch=None,
            )
            for each in fold.segments
        )
        source = self._source
        position = SourcePosition(source.cluster_id, source.topic_id, partition, next_offset)
        item = SegmentImport(
            segments,
            self._context,
            tuple(fold.partition_deletes),
            position,
            self._positions.get(partition),
        )
        moved = len(segments) - fold.added + len(fold.partition_deletes)
        imported = ImportedSegments(fold.added, moved=moved)
        if not self._plan.apply:
            self._unwritten |= {each.remote_log_segment_id.id: each.state for each in segments}
        else:
            imported = self._rlmm.import_remote_log_segments([item])
            for tp in {each.topic_id_partition for each in segments}:
                self._hold(tp.topic_id, tp.topic)
        self._positions[partition] = position
        return imported

    def _hold(self, topic_id: UUID, topic: str) -> None:
        """Keep retention from a topic until `finish`; it must be known to RLMM."""
        if topic_id not in self._held and self._plan.apply:
            self._rlmm.set_hold(hold_of(topic_id, topic))
            self._held[topic_id] = topic

    def _is_selected(self, topic: str) -> bool:
        return not self._plan.topics or topic in self._plan.topics

    def _next_offset(self, partition: int, first: int) -> int:
        position = self._positions.get(partition)
        if position is None or position.topic_id != self._source.topic_id:
            return first
        return max(first, position.next_offset)


def hold_of(topic_id: UUID, topic: str) -> Hold:
    reason = "its metadata is imported; the brokers' log starts are not known yet"
    return Hold(HOLD_NAME, HoldKind.REBUILD, topic_id, topic, reason=reason)


def as_kafka_has(row: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Return a row with the custom metadata that Kafka's topic has of it."""
    custom = row.custom_metadata
    if custom is None or not is_imported(custom):
        return row
    return replace(row, custom_metadata=read_imported(custom).original)


def _all_ids(records: Sequence[ReadRecord]) -> list[RemoteLogSegmentId]:
    return [
        each.metadata.remote_log_segment_id
        for each in records
        if not isinstance(each.metadata, RemotePartitionDeleteMetadata)
    ]


def _stand_in(id: RemoteLogSegmentId, state: RemoteLogSegmentState) -> RemoteLogSegmentMetadata:
    """Return what a dry run remembers of a segment: a million of whole ones are too many."""
    return RemoteLogSegmentMetadata(
        id, 0, 0, -1, -1, 0, (SegmentLeaderEpoch(0, 0),), -1, state=state
    )


def _is_too_large(fold: Fold) -> bool:
    epochs = sum(len(each.segment_leader_epochs) for each in fold.segments)
    deletes = len(fold.partition_deletes)
    return max(len(fold.segments), deletes) > MAX_BATCH or epochs > MAX_IMPORTED_EPOCHS


def _require_same(
    position: SourcePosition, topic_id: UUID, ranges: Mapping[int, tuple[int, int]]
) -> None:
    """Refuse a topic that is not the one that was imported before."""
    of = f"cluster {position.cluster_id}, partition {position.partition}"
    if position.topic_id != topic_id:
        raise InvalidRequestError(
            f"{of}: the stored position is of the metadata topic with id "
            f"{uuid_to_text(position.topic_id)}, this one has {uuid_to_text(topic_id)}: another "
            "topic, one that was created again, or another cluster with the same id; --restart "
            "begins with this one"
        )
    end = ranges.get(position.partition, (0, -1))[1]
    if end < position.next_offset:
        raise InvalidRequestError(
            f"{of}: the stored position {position.next_offset} is behind the topic's end {end}: "
            "records were lost, or another cluster has the same id; --restart starts over"
        )
