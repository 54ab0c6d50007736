"""Import segments in any state (import_remote_log_segments)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from services.api.calls import MutationContext
from services.api.errors import (
    InvalidStateTransitionError,
    RemoteStorageError,
    SegmentAlreadyExistsError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.partitions import RemotePartitionDeleteState
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
from services.rlmm.changes.audit import addition_event
from services.rlmm.changes.batch import Addition, Batch
from services.rlmm.changes.locked_partitions import LockedPartitions
from services.rlmm.changes.segment_changes import index_in_order
from services.rlmm.database.db import Transactions
from services.rlmm.database.limits import Limits, check_storable
from services.rlmm.database.rows import segment_from_row
from services.rlmm.guards import TOPIC_FIELD, LockedPartition, raise_leader_epoch, removed_partition

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED

_STATES = list(RemoteLogSegmentState)
"""The states in the order in which a segment passes them."""


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
        tp = item.segments[0].topic_id_partition
        batch = Batch(connection, LockedPartitions.lock_or_create(connection, [tp]))
        locked = batch.partitions.of(tp, f"segments[0].remote_log_segment_id.{TOPIC_FIELD}")
        if locked.row.delete_state == RemotePartitionDeleteState.DELETE_PARTITION_FINISHED.value:
            raise removed_partition(tp)
        if locked.row.delete_state is not None:
            raise InvalidStateTransitionError(
                f"partition {tp} is in {locked.row.delete_state}; undelete it before an import"
            )
        imported = _Import(batch, locked, item).run()
        batch.write()
        return imported

    return transactions.change(work)


def _check(limits: Limits, item: SegmentImport) -> None:
    """Check an item before its partition is locked.

    Raises:
        InvalidRequestError: the item is malformed.
    """
    segments, context = item.segments, item.context
    check_storable(context)
    allowed = MutationContext(reason=context.reason, plan_id=context.plan_id)
    require(context == allowed, "context", "only reason and plan_id may be set for an import")
    require_count(segments, "segments", MAX_BATCH)
    epochs, most = sum(len(each.segment_leader_epochs) for each in segments), MAX_IMPORTED_EPOCHS
    require(epochs <= most, "segments", f"at most {most} leader epochs together, has {epochs}")
    for index, segment in enumerate(segments):
        path = f"segments[{index}]"
        limits.check_segment(segment, path)
        require(
            segment.topic_id_partition == segments[0].topic_id_partition,
            f"{path}.remote_log_segment_id.topic_id_partition",
            f"must be that of segments[0], {segments[0].topic_id_partition}, "
            f"is {segment.topic_id_partition}",
        )


@dataclass
class _Import:
    """Import one item, whose partition is locked."""

    batch: Batch
    locked: LockedPartition
    item: SegmentImport
    _new: list[Addition] = field(default_factory=list)
    _repeated: int = 0

    def run(self) -> ImportedSegments:
        segments, records = self.item.segments, self.batch.records
        stored = _stored(self.batch.connection, segments)
        for index, segment in enumerate(segments):
            before = stored.get(segment.remote_log_segment_id)
            if before is None:
                added = self._add(self._as_imported(segment))
                stored[segment.remote_log_segment_id] = added
            else:
                _require_same(before.metadata, segment, index)
                if before.metadata.state is segment.state:
                    records.repeat(self.locked.row, before.revision)
                self._repeated += 1
        self._write()
        return ImportedSegments(len(self._new), self._repeated)

    def _as_imported(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """Return the segment as imported: one below the log start is deleted, unless it is held."""
        start, end = segment.start_offset, segment.end_offset
        is_below = end < self.locked.row.log_start_offset
        if segment.state is not FINISHED or not is_below or self.locked.is_held(start, end):
            return segment
        return replace(segment, state=DELETE_STARTED)

    def _add(self, segment: RemoteLogSegmentMetadata) -> Addition:
        raise_leader_epoch(self.locked.row, segment.broker_leader_epoch)
        event = addition_event(segment, segment.broker_leader_epoch)
        records, context = self.batch.records, self.item.context
        outcome = records.change(self.locked.row, event, segment, context)
        self.locked.row.move_totals(None, segment.state, segment.segment_size_in_bytes)
        addition = Addition(segment, outcome.revision)
        self._new.append(addition)
        return addition

    def _write(self) -> None:
        if self._new:
            statements.add_segments(self.batch.connection, self._new)
            index_in_order(self.batch.connection, [each.metadata for each in self._new])


def _stored(
    connection: Connection, segments: Sequence[RemoteLogSegmentMetadata]
) -> dict[RemoteLogSegmentId, Addition]:
    """Read the stored ones of the segments, each with the revision of its state."""
    tp = segments[0].topic_id_partition
    ids = [segment.remote_log_segment_id for segment in segments]
    rows = statements.stored_segments(connection, ids).values()
    stored = [Addition(segment_from_row(row, tp), row.state_revision) for row in rows]
    return {each.metadata.remote_log_segment_id: each for each in stored}


def _require_same(
    stored: RemoteLogSegmentMetadata, segment: RemoteLogSegmentMetadata, index: int
) -> None:
    if stored != segment and not _has_become(segment, stored):
        raise SegmentAlreadyExistsError(
            f"segments[{index}]: segment {segment.remote_log_segment_id} is there with other "
            f"content, in {stored.state.value}"
        )


def _has_become(segment: RemoteLogSegmentMetadata, later: RemoteLogSegmentMetadata) -> bool:
    """Return whether a change of state turns `segment` into `later`."""
    if _STATES.index(later.state) <= _STATES.index(segment.state):
        return False
    change = RemoteLogSegmentMetadataUpdate(
        later.remote_log_segment_id,
        later.event_timestamp_ms,
        later.state,
        later.broker_id,
        later.custom_metadata,
    )
    return segment.updated(change) == later
