"""Many copies that begin: add_remote_log_segment_metadata_batch.

What segments.add does, judged item by item in their order and written in a handful of statements.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from services.api.calls import MutationOutcome
from services.api.errors import RemoteStorageError
from services.api.ids import RemoteLogSegmentId
from services.api.segment_batches import AddOutcome, SegmentAddition
from services.api.validation import require, within
from services.rlmm import batch_statements as statements
from services.rlmm import segments, visibility
from services.rlmm.batch_records import BatchRecords, SegmentEvent
from services.rlmm.batch_statements import Addition
from services.rlmm.batches import Outcome, Outcomes, change_all, require_distinct
from services.rlmm.json_rows import key_of
from services.rlmm.limits import Limits, check_storable
from services.rlmm.locked_partitions import LockedPartitions
from services.rlmm.partitions import raise_leader_epoch
from services.rlmm.rows import event_key
from services.rlmm.transactions import Transactions

MAX_ADDED_EPOCHS = 50_000
"""Of one batch together: each is a row."""


def add_all(
    transactions: Transactions, limits: Limits, additions: Sequence[SegmentAddition]
) -> list[AddOutcome]:
    """See RemoteLogMetadataManager.add_remote_log_segment_metadata_batch."""
    require_distinct([_segment_id(item) for item in additions], "adds")
    epochs = sum(len(item.metadata.segment_leader_epochs) for item in additions)
    most = MAX_ADDED_EPOCHS
    require(epochs <= most, "adds", f"at most {most} leader epochs together, has {epochs}")
    outcomes, sound = Outcomes(), {}
    for place, item in enumerate(additions):
        try:
            limits.check_addition(item.metadata)
            check_storable(item.context)
            sound[place] = item
        except RemoteStorageError as e:
            outcomes[place] = e
    outcomes |= change_all(transactions, sound, _segment_id, _add)
    return [outcomes[place] for place in range(len(additions))]


def _segment_id(item: SegmentAddition) -> RemoteLogSegmentId:
    return item.metadata.remote_log_segment_id


def _add(session: Session, items: Mapping[int, SegmentAddition]) -> Outcomes:
    return _Additions(session, items).outcomes()


class _Additions:
    def __init__(self, session: Session, items: Mapping[int, SegmentAddition]) -> None:
        self._session = session
        self._items = items
        tps = [item.metadata.topic_id_partition for item in items.values()]
        self._partitions = LockedPartitions.lock_or_create(session, tps)
        ids = [_segment_id(item) for item in items.values()]
        self._stored = statements.stored_segments(session, ids)
        contexts = [item.context for item in items.values()]
        calls = zip(map(key_of, tps), contexts, strict=True)
        self._records = BatchRecords(session, calls)
        self._added: list[Addition] = []

    def outcomes(self) -> Outcomes:
        outcomes = {place: self._judged(item) for place, item in self._items.items()}
        if self._added:
            statements.add_segments(self._session, self._added)
            visibility.note_copies_started(self._session, [each.metadata for each in self._added])
        self._partitions.write_back()
        self._records.write()
        return outcomes

    def _judged(self, item: SegmentAddition) -> Outcome:
        try:
            return self._outcome(item)
        except RemoteStorageError as e:
            return e

    def _outcome(self, item: SegmentAddition) -> MutationOutcome:
        metadata, context = item.metadata, item.context
        with within("metadata.remote_log_segment_id"):
            locked = self._partitions.of(metadata.topic_id_partition)
        answer = self._records.answered_before(locked.row, metadata, context)
        if answer is not None:
            return answer
        epoch = segments.require_may_add(locked.row, metadata, context)
        stored = self._stored.get(statements.segment_key(_segment_id(item)))
        if stored is not None:
            return self._records.repeat(locked.row, segments.added_before(stored, metadata))
        locked.guards.require_expected(context)
        raise_leader_epoch(locked.row, epoch)
        event = SegmentEvent(
            _segment_id(item),
            from_state=None,
            to_state=metadata.state.value,
            key=event_key(metadata),
            broker_id=metadata.broker_id,
            broker_leader_epoch=epoch,
        )
        outcome = self._records.change(locked.row, event, metadata, context)
        self._added.append(Addition(metadata, outcome.revision, item.lease_ms))
        return outcome
