"""Define what an engine does for a sweep: run a stage in tasks, store its rows, read them again."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from spark_jobs.sweeps.plan import PARTITION
from spark_jobs.sweeps.waves import Wave

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Arrow batches in, Arrow batches out. Safe to run twice: an engine may repeat any task."""

SEGMENTS_PER_TASK = 20_000


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored rows of a stage: frozen, so that each reading of them gives the same rows.

    Attributes:
        path: in the engine's work directory.
        rows: how many its tasks returned.
        schema: of the rows.
    """

    path: str
    rows: int
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Selection:
    """Some rows of a stage.

    Attributes:
        kind, outcome: only rows with this value; None for any.
        wave: only the partitions, and positions, of this wave; None for all.
    """

    kind: str | None = None
    outcome: str | None = None
    wave: Wave | None = None

    def conditions(self, column: Callable[[str], Any]) -> list[Any]:
        """Return the conditions on rows, in the expressions of Arrow or of Spark.

        Args:
            column: makes the expression of a column of this name.
        """
        conditions = []
        if self.kind is not None:
            conditions.append(column("kind") == self.kind)
        if self.outcome is not None:
            conditions.append(column("outcome") == self.outcome)
        if self.wave is None:
            return conditions
        topic, topic_id, partition = column("topic"), column("topic_id"), column("partition")
        first, last = self.wave.first, self.wave.last
        above = (topic_id > first[1]) | ((topic_id == first[1]) & (partition >= first[2]))
        below = (topic_id < last[1]) | ((topic_id == last[1]) & (partition <= last[2]))
        conditions.append((topic > first[0]) | ((topic == first[0]) & above))
        conditions.append((topic < last[0]) | ((topic == last[0]) & below))
        if (positions := self.wave.positions) is not None:
            position = column("position")
            inside = (position >= positions.start) & (position < positions.stop)
            conditions.append((column("kind") == PARTITION) | inside)
        return conditions


EVERYTHING = Selection()


class TooManySegmentsError(Exception):
    """The tier has more segments than the engine was made for."""


class Engine(Protocol):
    """Run the stages of a sweep.

    A method that runs a stage stores its rows once. Any of them raises SweepError if a task failed
    for good.
    """

    @property
    def name(self) -> str:
        """Return the value of --engine."""

    @property
    def parallelism(self) -> int:
        """Return how many tasks run at once."""

    @property
    def attempts_at_once(self) -> int:
        """Return how many attempts of one task may run at once; each paces itself."""

    def require_room(self, segments: int) -> None:
        """Raise TooManySegmentsError if the engine does not plan so many segments."""

    def scatter(
        self, name: str, task: Task, rows: pa.Table, schema: pa.Schema, tasks: int
    ) -> Stored:
        """Run the stage `name` over rows of this process, evenly."""

    def by_partition(
        self, name: str, task: Task, source: Stored, which: Selection, schema: pa.Schema, tasks: int
    ) -> Stored:
        """Run a stage over rows of another; a task gets whole partitions, in the plan's order."""

    def evenly(
        self, name: str, task: Task, source: Stored, which: Selection, schema: pa.Schema, tasks: int
    ) -> Stored:
        """Run a stage over rows of another; tasks get equally many, in the order of partitions."""

    def read(
        self, source: Stored, which: Selection, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read rows of a stage in any order."""

    def count(self, source: Stored) -> int:
        """Return how many rows of a stage can be read."""
