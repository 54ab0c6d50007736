"""Import segments in any state, and the position of their source (import_remote_log_segments)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from services.api.calls import MutationContext
from services.api.errors import (
    InvalidStateTransitionError,
    RemoteStorageError,
    SegmentAlreadyExistsError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.segment_batches import (
    MAX_BATCH,
    MAX_IMPORTED_EPOCHS,
    ImportedSegments,
    SegmentImport,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.validation import require, require_count
from services.rlmm.changes import batch as statements
from services.rlmm.changes import gaps, source_positions
from services.rlmm.changes.audit import Event, addition_event
from services.rlmm.changes.batch import Addition, Batch, Move
from services.rlmm.changes.locked_partitions import LockedPartitions
from services.rlmm.changes.segment_changes import index_in_order
from services.rlmm.database import epoch_index
from services.rlmm.database.db import PartitionKey, Transactions, key_of
from services.rlmm.database.limits import Limits, check_storable, check_text
from services.rlmm.database.rows import kept_until_ms_of, segment_from_row
from services.rlmm.guards import (
    TOPIC_FIELD,
    LockedPartition,
    Partition,
    raise_leader_epoch,
    removed_partition,
)

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
PARTITION_STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
PARTITION_FINISHED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED

_STATES = list(RemoteLogSegmentState)
"""The states in the order in which a segment passes them."""
_DELETE_STATES = [state.value for state in RemotePartitionDeleteState]


def import_all(
    transactions: Transactions, limits: Limits, imports: Iterable[SegmentImport]
) -> ImportedSegments:
    """Import segments; see RemoteLogMetadataManager.import_remote_log_segments."""
    items, total, number = iter(imports), ImportedSegments(), 1
    try:
        while (item := next(items, None)) is not None:
            total += _import_one(transactions, limits, item)
            number += 1
    except RemoteStorageError as e:
        raise type(e)(f"{e} (message {number} of the import)") from e
    return total


def _import_one(
    transactions: Transactions, limits: Limits, item: SegmentImport
) -> ImportedSegments:
    _check(limits, item)

    def work(connection: Connection) -> ImportedSegments:
        if not source_positions.advance(connection, item):
            return ImportedSegments(repeated=len(item.segments))
        named = [each.topic_id_partition for each in item.segments]
        named += [each.topic_id_partition for each in item.partition_deletes]
        tps = list(dict.fromkeys(named))
        if not tps:
            return ImportedSegments()
        batch = Batch(connection, LockedPartitions.lock_or_create(connection, tps))
        imported = _Import(batch, item).run()
        batch.write()
        return imported

    return transactions.change(work)


def _check(limits: Limits, item: SegmentImport) -> None:
    """Check an item before its partitions are locked.

    Raises:
        InvalidRequestError: the item is malformed.
    """
    segments, context, position = item.segments, item.context, item.position
    check_storable(context)
    allowed = MutationContext(reason=context.reason, plan_id=context.plan_id)
    require(context == allowed, "context", "only reason and plan_id may be set for an import")
    if position is None:
        require_count(segments, "segments", MAX_BATCH)
        given = item.partition_deletes or item.previous_position
        require(not given, "position", "must be set with partition_deletes or previous_position")
    else:
        check_text(position.cluster_id, "position.cluster_id")
        for name in ("segments", "partition_deletes"):
            count = len(getattr(item, name))
            require(count <= MAX_BATCH, name, f"must be at most {MAX_BATCH}, are {count}")
    epochs, most = sum(len(each.segment_leader_epochs) for each in segments), MAX_IMPORTED_EPOCHS
    require(epochs <= most, "segments", f"at most {most} leader epochs together, has {epochs}")
    for index, segment in enumerate(segments):
        path = f"segments[{index}]"
        limits.check_segment(segment, path)
        require(
            position is not None or segment.topic_id_partition == segments[0].topic_id_partition,
            f"{path}.remote_log_segment_id.topic_id_partition",
            f"must be that of segments[0], {segments[0].topic_id_partition}, "
            f"is {segment.topic_id_partition}",
        )


@dataclass
class _Wave:
    """Changes that are written together: additions, then copies that finish, then deletions.

    Attributes:
        finished: in their order, also those of `added` that come finished.
        deleted_ends: the highest offset of the deleted segments of each partition. A copy that
            finishes later and begins at or below it belongs to the next wave: in this one it would
            share offsets with a segment that is gone, and be flagged as overlapped for good.
    """

    added: list[Addition] = field(default_factory=list)
    moved: list[Move] = field(default_factory=list)
    finished: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    deleted: dict[RemoteLogSegmentId, Move] = field(default_factory=dict)
    deleted_ends: dict[PartitionKey, int] = field(default_factory=dict)

    def write(self, connection: Connection) -> None:
        if self.added:
            statements.add_segments(connection, self.added)
        index_in_order(connection, [each.metadata for each in self.added], self.finished)
        for moves in (self.moved, list(self.deleted.values())):
            if moves:
                statements.move_segments(connection, moves)()
        for state, write in (
            (DELETE_STARTED, epoch_index.unpublish),
            (DELETE_FINISHED, epoch_index.delete),
        ):
            if ids := [id for id, move in self.deleted.items() if move.update.state is state]:
                write(connection, ids)


class _Import:
    """Import one item, whose partitions are locked."""

    def __init__(self, batch: Batch, item: SegmentImport) -> None:
        self._batch = batch
        self._item = item
        self._waves = [_Wave()]
        self._locked: dict[PartitionKey, LockedPartition] = {}
        self._imported = self._repeated = self._moved = self._removed = 0

    def run(self) -> ImportedSegments:
        segments = self._item.segments
        stored = _stored(self._batch.connection, segments)
        for index, segment in enumerate(segments):
            locked = self._lock_of(
                segment.topic_id_partition,
                f"segments[{index}].remote_log_segment_id.{TOPIC_FIELD}",
            )
            if locked is None:
                self._removed += 1
                continue
            before = stored.get(segment.remote_log_segment_id)
            if before is None:
                after = self._add(locked, _as_imported(locked, segment))
            else:
                after = self._again(locked, before, segment, index)
            stored[segment.remote_log_segment_id] = after
        for wave in self._waves:
            wave.write(self._batch.connection)
        for index, deletion in enumerate(self._item.partition_deletes):
            self._delete_partition(deletion, f"partition_deletes[{index}].{TOPIC_FIELD}")
        return ImportedSegments(self._imported, self._repeated, self._moved, self._removed)

    def _lock_of(self, tp: TopicIdPartition, field: str) -> LockedPartition | None:
        """Return a locked partition; None if it was removed and the item is of a source."""
        locked = self._locked.get(key_of(tp))
        if locked is None or locked.topic_name != tp.topic:
            locked = self._locked[key_of(tp)] = self._batch.partitions.of(tp, field)
        state = locked.row.delete_state
        if state is None:
            return locked
        if self._item.position is None and state == PARTITION_FINISHED.value:
            raise removed_partition(tp)
        if self._item.position is None:
            raise InvalidStateTransitionError(
                f"partition {tp} is in {state}; undelete it before an import"
            )
        return None if state == PARTITION_FINISHED.value else locked

    def _add(self, locked: LockedPartition, segment: RemoteLogSegmentMetadata) -> Addition:
        raise_leader_epoch(locked.row, segment.broker_leader_epoch)
        event = addition_event(segment, segment.broker_leader_epoch)
        addition = Addition(segment, self._record(locked.row, event, segment))
        custom = (None, segment.custom_metadata)
        locked.row.move_totals(None, segment.state, segment.segment_size_in_bytes, custom)
        self._imported += 1
        wave = self._wave_for(segment)
        wave.added.append(addition)
        if segment.state is FINISHED:
            wave.finished.append(segment)
        return addition

    def _again(
        self,
        locked: LockedPartition,
        before: Addition,
        segment: RemoteLogSegmentMetadata,
        index: int,
    ) -> Addition:
        """Move a stored segment forward, or count a repeat.

        Raises:
            SegmentAlreadyExistsError: it has other content.
        """
        stored = before.metadata
        if stored == segment or _has_become(segment, stored):
            if stored.state is segment.state:
                self._batch.records.repeat(locked.row, before.revision)
            self._repeated += 1
            return before
        if not _has_become(stored, segment):
            raise SegmentAlreadyExistsError(
                f"segments[{index}]: segment {segment.remote_log_segment_id} is there with other "
                f"content, in {stored.state.value}"
            )
        after = _as_imported(locked, segment)
        states = stored.state.value, after.state.value
        event = replace(addition_event(after, after.broker_leader_epoch), from_state=states[0])
        revision = self._record(locked.row, event, segment)
        size, custom = after.segment_size_in_bytes, (stored.custom_metadata, after.custom_metadata)
        # Its source has deleted it: no bound of a day of ours has a say.
        locked.row.move_totals(stored.state, after.state, size, custom, is_superseded=True)
        self._moved += 1
        plan_id, kept = self._item.context.plan_id, stored.kept_until_ms
        move = Move(_change_to(after), states[0], revision, plan_id, kept_until_ms=kept)
        wave = self._wave_for(after)
        if after.state is FINISHED:
            wave.moved.append(move)
            wave.finished.append(after)
        else:
            wave.deleted[after.remote_log_segment_id] = move
            key = key_of(after.topic_id_partition)
            wave.deleted_ends[key] = max(wave.deleted_ends.get(key, -1), after.end_offset)
        return Addition(after, revision)

    def _wave_for(self, segment: RemoteLogSegmentMetadata) -> _Wave:
        wave, key = self._waves[-1], key_of(segment.topic_id_partition)
        is_over = segment.start_offset <= wave.deleted_ends.get(key, -1)
        again = segment.remote_log_segment_id in wave.deleted
        if again or (segment.state is FINISHED and is_over):
            wave = _Wave()
            self._waves.append(wave)
        return wave

    def _delete_partition(self, metadata: RemotePartitionDeleteMetadata, field: str) -> None:
        locked = self._lock_of(metadata.topic_id_partition, field)
        target = metadata.state
        if locked is None:
            return
        row, present = locked.row, locked.row.delete_state
        if target is PARTITION_FINISHED and row.totals.live_segments:
            target = PARTITION_STARTED
        if present is not None and _DELETE_STATES.index(present) >= _DELETE_STATES.index(
            target.value
        ):
            return
        if target is PARTITION_FINISHED:
            gaps.delete_all(self._batch.connection, row)
        row.delete_state = target.value
        self._record(row, Event("PARTITION_DELETE", present, target.value, metadata.broker_id))
        self._moved += 1

    def _record(self, row: Partition, event: Event, body: object = None) -> int:
        return self._batch.records.change(row, event, body, self._item.context).revision


def _as_imported(
    locked: LockedPartition, segment: RemoteLogSegmentMetadata
) -> RemoteLogSegmentMetadata:
    """Return the segment as imported: one below the log start is deleted, unless it is held."""
    start, end = segment.start_offset, segment.end_offset
    is_below = end < locked.row.log_start_offset
    if segment.state is not FINISHED or not is_below or locked.is_held(start, end):
        return segment
    return replace(segment, state=DELETE_STARTED)


def _stored(
    connection: Connection, segments: Sequence[RemoteLogSegmentMetadata]
) -> dict[RemoteLogSegmentId, Addition]:
    """Read the stored ones of the segments, each with the revision of its state."""
    ids = {statements.segment_key(each.remote_log_segment_id): each for each in segments}
    if not ids:
        return {}
    rows = statements.stored_segments(
        connection, [each.remote_log_segment_id for each in ids.values()]
    )
    stored = {}
    for key, row in rows.items():
        tp, kept_until_ms = ids[key].topic_id_partition, kept_until_ms_of(row)
        metadata = segment_from_row(row, tp, kept_until_ms=kept_until_ms)
        stored[metadata.remote_log_segment_id] = Addition(metadata, row.state_revision)
    return stored


def _has_become(segment: RemoteLogSegmentMetadata, later: RemoteLogSegmentMetadata) -> bool:
    """Return whether a change of state turns `segment` into `later`."""
    if _STATES.index(later.state) <= _STATES.index(segment.state):
        return False
    return segment.updated(_change_to(later)) == later


def _change_to(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment.remote_log_segment_id,
        segment.event_timestamp_ms,
        segment.state,
        segment.broker_id,
        segment.custom_metadata,
    )
