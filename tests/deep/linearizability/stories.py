"""Histories written by hand: one operation a line, by default with the model's reply."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import PartitionLeadership, SegmentPage, SegmentUpdate
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from tests.deep.linearizability.draws import segment_uuid
from tests.deep.linearizability.history import History, TrailEntry
from tests.deep.linearizability.model import asked
from tests.deep.linearizability.operations import (
    Add,
    Announce,
    Changed,
    Listed,
    Lost,
    Operation,
    PutDeletion,
    Record,
    Refused,
    Reply,
    Update,
)
from tests.deep.model.partition import Event, Partition

TP = TopicIdPartition(UUID(int=7), "story", 0)
LOST = Lost("the connection broke")
BROKER, OTHER_BROKER = 1, 2


class Story:
    """Operations in the order in which they take effect, by default one after another.

    `truth` is the partition after them, `events` its audit trail.
    """

    def __init__(self) -> None:
        self.truth = Partition()
        self.events: list[Event] = []
        self.records: list[Record] = []
        self._now = 0

    def record(
        self,
        operation: Operation,
        reply: Reply | None = None,
        *,
        at: tuple[int, int] | None = None,
        client: str = "a",
        happens: bool = True,
    ) -> Record:
        """Add one more operation.

        Args:
            reply: what the client was answered; None: what the model answers.
            at: when it was invoked and when it completed; None: after all operations before it.
            happens: whether the truth has it.
        """
        step = asked(self.truth, operation)
        if happens:
            self.truth = step.partition
            self.events += step.events
        invoked, completed = at or (self._now + 1, self._now + 2)
        self._now = max(self._now, completed)
        record = Record(
            len(self.records) + 1,
            client,
            str(TP),
            operation,
            step.reply if reply is None else reply,
            invoked,
            completed,
        )
        self.records.append(record)
        return record

    def history(self, *, without: Record | None = None) -> History:
        """Return what the clients saw."""
        return History([record for record in self.records if record != without])

    def history_with_trail(self, repeats: Mapping[int, int] | None = None) -> History:
        """Return what the clients saw, and the audit trail; `repeats`: its counts, by revision."""
        counts = repeats or {}
        trail = [TrailEntry(str(TP), event, counts.get(event.revision, 0)) for event in self.events]
        return History(self.records, {str(TP): trail})


def segment(
    number: int,
    start: int = 0,
    end: int = 9,
    epochs: Mapping[int, int] | None = None,
    **fields: Any,
) -> RemoteLogSegmentMetadata:
    """All its offsets are in epoch 0 unless `epochs` says otherwise."""
    values: dict[str, Any] = {"broker_id": BROKER, "segment_size_in_bytes": 100, **fields}
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TP, segment_uuid(number)),
        start,
        end,
        max_timestamp_ms=1_000,
        event_timestamp_ms=5_000,
        segment_leader_epochs=segment_leader_epochs(sorted((epochs or {0: start}).items())),
        **values,
    )


def add(number: int, start: int = 0, end: int = 9, *, why: Any = NO_CONTEXT, **fields: Any) -> Add:
    return Add(segment(number, start, end, **fields), why)


def item(
    number: int,
    state: RemoteLogSegmentState,
    *,
    why: MutationContext = NO_CONTEXT,
    broker_id: int = BROKER,
    custom_metadata: bytes | None = None,
) -> SegmentUpdate:
    segment_id = RemoteLogSegmentId(TP, segment_uuid(number))
    update = RemoteLogSegmentMetadataUpdate(segment_id, 6_000, state, broker_id, custom_metadata)
    return SegmentUpdate(update, why)


def move(number: int, state: RemoteLogSegmentState, **fields: Any) -> Update:
    return Update(item(number, state, **fields))


def delete(state: RemotePartitionDeleteState, why: MutationContext = NO_CONTEXT) -> PutDeletion:
    return PutDeletion(RemotePartitionDeleteMetadata(TP, state, 7_000, BROKER), why)


def announce(leader_epoch: int) -> Announce:
    return Announce(PartitionLeadership(TP, leader_epoch), BROKER)


def asked_as(request_id: str, **fields: Any) -> MutationContext:
    return MutationContext(request_id=request_id, **fields)


def applied(*revisions: int) -> Changed:
    return Changed(tuple(MutationOutcome(True, revision) for revision in revisions))


def repeated(revision: int) -> Changed:
    return Changed((MutationOutcome(False, revision),))


def refused(error: type[Exception]) -> Refused:
    return Refused(error.__name__)


def listed(revision: int, *segments: RemoteLogSegmentMetadata, log_start: int = 0) -> Listed:
    return Listed(SegmentPage(segments, "", revision, log_start_offset=log_start))
