"""A history: what every client saw and what the audit trail says in the end; kept as JSON lines."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal

from pydantic import Discriminator, TypeAdapter

from tests.deep.linearizability.operations import Lost, Operation, Record, Reply
from tests.deep.model.partition import Event


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """An event of a partition, and how often its mutation was repeated."""

    partition: str
    event: Event
    repeat_count: int


@dataclass(frozen=True, slots=True)
class _RecordLine:
    record: Record
    line: Literal["record"] = "record"


@dataclass(frozen=True, slots=True)
class _TrailLine:
    entry: TrailEntry
    line: Literal["event"] = "event"


@dataclass(frozen=True, slots=True)
class _PartitionLine:
    """Says that the trail of this partition was read, though it may be empty."""

    partition: str
    line: Literal["partition"] = "partition"


_Line = Annotated[_RecordLine | _TrailLine | _PartitionLine, Discriminator("line")]
_LINES: TypeAdapter[_RecordLine | _TrailLine | _PartitionLine] = TypeAdapter(_Line)


@dataclass(frozen=True)
class History:
    """Attributes:
    records: in no order.
    trails: by partition, ascending by revision; a partition is absent where nobody read it.
    """

    records: Sequence[Record]
    trails: Mapping[str, Sequence[TrailEntry]] = field(default_factory=dict)

    def of(self, partition: str) -> list[Record]:
        return [record for record in self.records if record.partition == partition]

    @property
    def partitions(self) -> list[str]:
        return sorted({record.partition for record in self.records})

    def save(self, path: Path) -> None:
        lines: list[_RecordLine | _TrailLine | _PartitionLine] = []
        lines += [_RecordLine(record) for record in self.records]
        for partition, trail in self.trails.items():
            lines.append(_PartitionLine(partition))
            lines += [_TrailLine(entry) for entry in trail]
        path.write_bytes(b"".join(_LINES.dump_json(line) + b"\n" for line in lines))

    @classmethod
    def load(cls, path: Path) -> "History":
        return cls._from_lines(path.read_bytes().splitlines())

    @classmethod
    def _from_lines(cls, texts: Iterable[bytes]) -> "History":
        records: list[Record] = []
        trails: dict[str, list[TrailEntry]] = {}
        for line in map(_LINES.validate_json, texts):
            match line:
                case _RecordLine(record):
                    records.append(record)
                case _TrailLine(entry):
                    trails[entry.partition].append(entry)
                case _PartitionLine(partition):
                    trails[partition] = []
        return cls(records, trails)


class Recorder:
    """Record what clients do; thread-safe."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._lock = Lock()
        self._records: list[Record] = []
        self._begun = 0

    def perform(
        self, client: str, partition: str, operation: Operation, call: Callable[[], Reply]
    ) -> Reply:
        """Do `call`, which is `operation`, and record it with its reply."""
        with self._lock:
            self._begun += 1
            number = self._begun
        invoked_ns = self._clock_ns()
        reply = call()
        completed_ns = self._clock_ns()
        record = Record(number, client, partition, operation, reply, invoked_ns, completed_ns)
        with self._lock:
            self._records.append(record)
        return reply

    @property
    def completed(self) -> int:
        """How many operations have been answered."""
        with self._lock:
            return sum(not isinstance(record.reply, Lost) for record in self._records)

    def records(self) -> list[Record]:
        with self._lock:
            return list(self._records)
