"""A history: the replies that every client received, and the audit trail in the end."""

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from sqlalchemy import Engine

from services.api.ids import TopicIdPartition
from tests.deep.histories.operations import Lost, Operation, as_python
from tests.deep.histories.partition import Event
from tests.deep.histories.space import Space
from tests.harness.databases import events


@dataclass(frozen=True, slots=True)
class Record:
    """One operation on one partition as its client saw it.

    Attributes:
        number: of this record; no two of a history have the same.
        invoked_ns: before the request was sent, by the one clock of all clients.
        completed_ns: after the reply came.
    """

    number: int
    client: str
    operation: Operation
    reply: object
    invoked_ns: int
    completed_ns: int

    @property
    def is_lost(self) -> bool:
        return isinstance(self.reply, Lost)

    def __str__(self) -> str:
        when = f"{self.invoked_ns}-{'...' if self.is_lost else self.completed_ns}"
        return f"#{self.number} {self.client} [{when}] {self.operation} -> {as_python(self.reply)}"


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """An event of a partition, and how often its mutation was repeated."""

    event: Event
    repeat_count: int


def trail_of(engine: Engine, tp: TopicIdPartition) -> list[TrailEntry]:
    """Read a partition's audit trail from the database itself, in order."""
    return [
        TrailEntry(
            Event(
                row.revision,
                row.kind,
                row.from_state,
                row.to_state,
                row.segment_id,
                row.broker_id,
                row.broker_leader_epoch,
                row.request_id,
                row.reason,
                row.key if row.kind == "OBJECT_DELETION" else "",
            ),
            row.repeat_count,
        )
        for row in events(engine, tp)
    ]


@dataclass(frozen=True)
class History:
    """Attributes:
    space: the partitions that the operations name by number.
    records: in no order.
    trails: by partition, ascending by revision; a partition is absent if nobody read it.
    holds: of the topic, by name: first and last offset; set before all operations, never ended.
    """

    space: Space
    records: Sequence[Record]
    trails: Mapping[int, Sequence[TrailEntry]] = field(default_factory=dict)
    holds: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def partitions(self) -> list[int]:
        return sorted({tp for record in self.records for tp in record.operation.tps})

    def of(self, tp: int) -> list[Record]:
        return [record for record in self.records if tp in record.operation.tps]

    def save(self, path: Path) -> None:
        path.write_bytes(pickle.dumps(self))

    @staticmethod
    def load(path: Path) -> "History":
        history = pickle.loads(path.read_bytes())
        assert isinstance(history, History)
        return history


class Recorder:
    """Record what clients do; thread-safe."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._lock = Lock()
        self._records: list[Record] = []
        self._begun = 0

    def perform(self, client: str, operation: Operation, call: Callable[[], object]) -> object:
        """Make the call, which is `operation`, and record it with its reply."""
        with self._lock:
            self._begun += 1
            number = self._begun
        invoked_ns = self._clock_ns()
        reply = call()
        completed_ns = self._clock_ns()
        record = Record(number, client, operation, reply, invoked_ns, completed_ns)
        with self._lock:
            self._records.append(record)
        return reply

    @property
    def completed(self) -> int:
        """Return how many operations have been answered."""
        return sum(not record.is_lost for record in self.records())

    def records(self) -> list[Record]:
        with self._lock:
            return list(self._records)
