"""Write histories by hand: one operation a line, by default with the model's reply."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from services.api.calls import MutationContext, MutationOutcome
from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from tests.deep.histories.history import History, Record, TrailEntry
from tests.deep.histories.operations import Add, Lead, Lost, Operation, Page
from tests.deep.histories.partition import Event
from tests.deep.histories.space import Space
from tests.deep.histories.step import step, unknown_partition

SPACE = Space((TopicIdPartition(UUID(int=7), "story", 0),))
LOST = Lost("the connection broke")


class Story:
    """Operations in the order in which they take effect, by default one after another.

    `truth` is the partition after them, `events` its audit trail.
    """

    def __init__(self) -> None:
        self.truth = unknown_partition(SPACE, 0)
        self.events: list[Event] = []
        self.records: list[Record] = []
        self._now = 0

    def record(
        self,
        operation: Operation,
        reply: object = ...,
        *,
        at: tuple[int, int] | None = None,
        client: str = "a",
        happens: bool = True,
    ) -> Record:
        """Add one more operation.

        Args:
            reply: what the client was answered; `...`: what the model answers.
            at: when it was invoked and when it completed; None: after all operations before it.
            happens: whether the truth has it.
        """
        made = step(self.truth, operation, SPACE)
        if happens:
            self.truth = made.partition
            self.events += made.events
        invoked, completed = at or (self._now + 1, self._now + 2)
        self._now = max(self._now, completed)
        answered = made.reply if reply is ... else reply
        number = len(self.records) + 1
        self.records.append(Record(number, client, operation, answered, invoked, completed))
        return self.records[-1]

    def history(self, *, without: Record | None = None) -> History:
        """Return what the clients saw."""
        return History(SPACE, [record for record in self.records if record != without])

    def history_with_trail(self, repeats: Mapping[int, int] | None = None) -> History:
        """Return what the clients saw, and the audit trail; `repeats`: its counts, by revision."""
        counts = repeats or {}
        trail = [TrailEntry(event, counts.get(event.revision, 0)) for event in self.events]
        return History(SPACE, self.records, {0: trail})


def add(number: int, start: int = 0, end: int = 9, **fields: Any) -> Add:
    """Begin a copy whose offsets are all in epoch 0."""
    return Add(0, number, start, end, ((0, start),), **fields)


def segment(number: int, start: int = 0, end: int = 9) -> RemoteLogSegmentMetadata:
    return add(number, start, end).metadata(SPACE)


def announce(leader_epoch: int) -> Lead:
    return Lead(((0, leader_epoch),))


def once(request_id: str, **fields: Any) -> MutationContext:
    return MutationContext(request_id=request_id, **fields)


def applied(revision: int) -> MutationOutcome:
    return MutationOutcome(True, revision)


def repeated(revision: int) -> MutationOutcome:
    return MutationOutcome(False, revision)


def listed(revision: int, *segments: RemoteLogSegmentMetadata) -> tuple[Page]:
    no = (False,) * len(segments)
    return (Page(segments, no, no, revision),)
