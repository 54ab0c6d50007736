"""Report the results of a sweep in one JSON document; many segments go into Parquet beside it."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nlargest
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from services.api.ids import uuid_to_text
from services.api.retention import DeletionReason
from spark_jobs.sweeps.plan import (
    DELETED,
    DELETED_BY_ANOTHER,
    FAILED,
    MARKED,
    PARTITION,
    PLANNED,
    REFUSED,
    ROWS_PER_BATCH,
    Row,
    batches_of,
    rows_in,
)
from spark_jobs.sweeps.sweep_error import EXIT_PARTIAL, EXIT_REFUSED
from spark_jobs.sweeps.waves import Head

DONE, PARTIAL, SKIPPED, REMAINING = "DONE", "PARTIAL", "SKIPPED", "REMAINING"
BROKEN = "FAILED"
"""The outcome of a sweep that could not continue."""
INLINE_SEGMENTS = 10_000
"""A report of more segments has them in a Parquet file beside it."""

SEGMENTS_SUFFIX = ".segments.parquet"

COUNTS = (
    "planned_segments",
    "planned_bytes",
    "resumed_segments",
    "deleted_segments",
    "deleted_bytes",
    "deleted_by_another_segments",
    "refused_segments",
    "failed_segments",
)
"""Counts of segments: planned = deleted + deleted by another + refused + failed if the plan was
executed. Resumed are those of the planned ones that an earlier run had marked."""

PARTITION_KEYS = (
    "topic_id",
    "topic",
    "partition",
    "outcome",
    "error",
    "skipped",
    "notes",
    "log_start_offset",
    *COUNTS,
)

_SEGMENT_SCHEMA = pa.schema(
    [
        ("topic_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("segment_id", pa.string()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("segment_size_in_bytes", pa.int32()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("outcome", pa.string()),
        ("error", pa.string()),
        ("earlier_plan_id", pa.string()),
    ]
)
SEGMENT_KEYS = tuple(_SEGMENT_SCHEMA.names)

ROW_COLUMNS = (
    "kind",
    *(name for name in SEGMENT_KEYS if name != "earlier_plan_id"),
    "plan_id",
    "position",
)
"""The columns of MARKED_SCHEMA that a report needs."""

_ORDER = [(name, "ascending") for name in ("topic", "topic_id", "partition", "kind", "position")]
_NAMED_LARGEST = 20
_NAMED_ERRORS = 10
_EXIT_CODES = {PLANNED: 0, DONE: 0, PARTIAL: EXIT_PARTIAL, REFUSED: EXIT_REFUSED}

Outcome = tuple[str, str | None]
"""An outcome and its error."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The results of the stages after the marks.

    Attributes:
        segments: by segment id.
        partitions: by topic id and number.
    """

    segments: Mapping[str, Outcome] = field(default_factory=dict)
    partitions: Mapping[tuple[str, int], Outcome] = field(default_factory=dict)


@dataclass
class Totals:
    """Totals over all partitions; `skipped` counts partitions by reason."""

    partitions: int = 0
    by_outcome: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTS, 0)))

    def add(self, partition: Row) -> None:
        """Add a partition (PARTITION_KEYS)."""
        self.partitions += 1
        self.by_outcome[partition["outcome"]] += 1
        self.counts.update({name: partition[name] for name in COUNTS})
        if partition["skipped"] is not None:
            self.skipped[partition["skipped"]] += 1

    def as_json(self) -> dict[str, int]:
        unfinished = self.by_outcome[REMAINING] + self.by_outcome[REFUSED]
        return {
            "partitions": self.partitions,
            "skipped_partitions": self.by_outcome[SKIPPED],
            "unfinished_partitions": unfinished,
            **self.counts,
        }


@dataclass(frozen=True, slots=True)
class Header:
    """The part of the report that is known before the outcome.

    Attributes:
        refusal: why the whole plan was refused; None if it was not.
    """

    job: str
    plan_id: str
    engine: str
    apply: bool
    started_at_ms: int
    refusal: str | None

    @property
    def is_executed(self) -> bool:
        return self.apply and self.refusal is None


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The part of the document that the table for people shows.

    Attributes:
        outcome: PLANNED for a dry run; PARTIAL if another run may do more; REFUSED if something was
            refused that another run would refuse, too, and nothing else is left; DONE.
        largest: the partitions with the most planned bytes (PARTITION_KEYS).
        errors: the first few reasons why segments were refused or failed, with counts.
    """

    header: Header
    outcome: str
    totals: Totals
    largest: tuple[Row, ...]
    errors: Mapping[str, int]

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.outcome]


@dataclass(slots=True)
class _Ended:
    """What became of a partition so far."""

    mark: str | None = None
    error: str | None = None
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTS, 0)))


class Document:
    """Write the report of a sweep, wave by wave, with the segments of one wave in memory."""

    def __init__(
        self, path: Path, header: Header, heads: Iterable[Head], segments_name: str | None
    ) -> None:
        """Args:
        path: of the JSON document; the segments' file is in the same directory.
        segments_name: the name that the segments' file has in the end; None if it is not stored, so
            that the document has all segments.
        """
        self._path = path
        self._segments_name = segments_name
        self._header = header
        self._heads = tuple(heads)
        self._ended: dict[tuple[str, int], _Ended] = {}
        self._is_broken = False
        self._errors: Counter[str] = Counter()
        self._inline: list[str] = []
        planned = sum(head.planned_segments for head in self._heads)
        is_large = planned > INLINE_SEGMENTS
        self._file = path.with_name(f"{path.name}{SEGMENTS_SUFFIX}") if is_large else None
        self._writer = pq.ParquetWriter(self._file, _SEGMENT_SCHEMA) if self._file else None

    def __enter__(self) -> "Document":
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, rows: pa.Table, outcomes: Outcomes | None = None) -> None:
        """Add the rows of a wave: ROW_COLUMNS."""
        known = outcomes or Outcomes()
        segments = self._segments_of(rows.sort_by(_ORDER), known)
        if self._writer is None:
            self._inline += (json.dumps(segment) for segment in segments)
            return
        for batch in batches_of(segments, _SEGMENT_SCHEMA):
            self._writer.write_batch(batch)

    def _segments_of(self, rows: pa.Table, known: Outcomes) -> Iterator[Row]:
        for batch in rows.to_batches(ROWS_PER_BATCH):
            for row in batch.to_pylist():
                key = (row["topic_id"], row["partition"])
                ended = self._ended.setdefault(key, _Ended())
                if row["kind"] == PARTITION:
                    _end_partition(ended, row, known.partitions.get(key))
                else:
                    yield self._segment(row, ended, known.segments)

    def _segment(self, row: Row, ended: _Ended, known: Mapping[str, Outcome]) -> Row:
        outcome, error = known.get(row["segment_id"], (row["outcome"], row["error"]))
        size_bytes = max(row["segment_size_in_bytes"], 0)
        is_resumed = row["reason"] == DeletionReason.DELETION_NOT_FINISHED.name
        counts = ended.counts
        counts["planned_segments"] += 1
        counts["planned_bytes"] += size_bytes
        counts["resumed_segments"] += is_resumed
        if outcome == DELETED:
            counts["deleted_segments"] += 1
            counts["deleted_bytes"] += size_bytes
        counts["deleted_by_another_segments"] += outcome == DELETED_BY_ANOTHER
        counts["refused_segments"] += outcome == REFUSED
        counts["failed_segments"] += outcome in (FAILED, MARKED)
        if error is not None:
            ended.error = ended.error or error
            if error in self._errors or len(self._errors) < _NAMED_ERRORS:
                self._errors[error] += 1
        return {
            **{key: row[key] for key in SEGMENT_KEYS[:-1]},
            "topic_id": _topic_id(row["topic_id"]),
            "segment_id": _kafka_id(row["segment_id"]),
            "outcome": outcome,
            "error": error,
            "earlier_plan_id": row["plan_id"],
        }

    def finish(self, now_ms: Callable[[], int], failure: str | None = None) -> SweepReport:
        """Write the document, in which every key is always present.

        Args:
            failure: why the sweep could not continue: it has the waves that have ended.
        """
        if self._writer is not None:
            self._writer.close()
        header, self._is_broken = self._header, failure is not None
        totals, largest = Totals(), list[dict[str, Any]]()
        unfinished = self._path.with_name(f".{self._path.name}.partial")
        with unfinished.open("w", encoding="utf-8") as file:
            head = {
                "job": header.job,
                "plan_id": header.plan_id,
                "engine": header.engine,
                "apply": header.apply,
            }
            file.write(json.dumps(head)[:-1])
            file.write(', "partitions": [')
            for number, each in enumerate(self._heads):
                partition = self._partition(each)
                totals.add(partition)
                largest = nlargest(_NAMED_LARGEST, [*largest, partition], key=_planned_bytes)
                file.write(f"{',' if number else ''}\n{json.dumps(partition)}")
            file.write('], "segments": [')
            texts = enumerate(self._inline_segments())
            file.writelines(f"{',' if number else ''}\n{text}" for number, text in texts)
            outcome = BROKEN if self._is_broken else _outcome(header, totals)
            tail = {
                "segments_file": None if self._file is None else self._segments_name,
                "outcome": outcome,
                "error": header.refusal or failure,
                "started_at_ms": header.started_at_ms,
                "finished_at_ms": now_ms(),
                "totals": totals.as_json(),
            }
            file.write(f"], {json.dumps(tail)[1:]}\n")
        unfinished.replace(self._path)
        planned = tuple(partition for partition in largest if partition["planned_segments"])
        return SweepReport(header, outcome, totals, planned, self._errors)

    def _inline_segments(self) -> Iterator[str]:
        """Yield the segments that the document has; all of them if no file of theirs is stored."""
        if self._file is None:
            yield from self._inline
        elif self._segments_name is None:
            with pq.ParquetFile(self._file) as stored:
                yield from map(json.dumps, rows_in(stored.iter_batches(ROWS_PER_BATCH)))

    def _partition(self, head: Head) -> Row:
        topic, topic_id, partition = head.key
        ended = self._ended.get((topic_id, partition), _Ended())
        return {
            "topic_id": _topic_id(topic_id),
            "topic": topic,
            "partition": partition,
            "outcome": self._outcome_of(head, ended),
            "error": ended.error,
            "skipped": head.skipped,
            "notes": list(head.notes),
            "log_start_offset": head.log_start_offset,
            **ended.counts,
        }

    def _outcome_of(self, head: Head, ended: _Ended) -> str:
        if not head.has_work:
            return (
                SKIPPED if head.skipped is not None else DONE if self._is_executed else self._left
            )
        if not self._is_executed:
            return self._left
        if ended.mark == FAILED or ended.counts["failed_segments"]:
            return REMAINING
        if self._is_broken and ended.counts["planned_segments"] < head.planned_segments:
            return REMAINING
        return REFUSED if ended.mark == REFUSED or ended.counts["refused_segments"] else DONE

    @property
    def _is_executed(self) -> bool:
        return self._header.is_executed

    @property
    def _left(self) -> str:
        return left_outcome(self._header)


def left_outcome(header: Header) -> str:
    """Return the outcome of the rows of a dry run, or of a plan that is refused as a whole."""
    return REFUSED if header.apply else PLANNED


def _end_partition(ended: _Ended, row: Row, end: Outcome | None) -> None:
    mark, error = end or (row["outcome"], row["error"])
    if ended.mark in (None, MARKED, DELETED):
        ended.mark, ended.error = mark, error or ended.error


def _outcome(header: Header, totals: Totals) -> str:
    if header.refusal is not None:
        return REFUSED
    if not header.apply:
        return PLANNED
    if totals.by_outcome[REMAINING]:
        return PARTIAL
    return REFUSED if totals.by_outcome[REFUSED] else DONE


def _planned_bytes(partition: dict[str, Any]) -> int:
    return int(partition["planned_bytes"])


@lru_cache(maxsize=1_000)
def _topic_id(text: str) -> str:
    return _kafka_id(text)


def _kafka_id(text: str) -> str:
    return uuid_to_text(UUID(text))
