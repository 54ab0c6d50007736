"""Report the results of a sweep as one JSON document; define its exit codes and error."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from services.api.errors import InvalidRequestError, RemoteStorageError
from services.api.retention import DeletionReason
from spark_jobs.plan import DELETED, FAILED, PARTITION, PLANNED, REFUSED, SEGMENT

EXIT_PARTIAL = 1
EXIT_REFUSED = 2
EXIT_FAILED = 3

# The cause in Spark's text about a failed job, best first: our own error, which ended a task;
# Spark's summary of the task; the last line of any other Python traceback.
_CAUSES = (
    re.compile(r"^services\.api\.errors\.\w+: (?P<cause>.+)$", re.M),
    re.compile(r"Job aborted due to stage failure: (?P<cause>.+)$", re.M),
    re.compile(r"^(?P<cause>[\w.]+(?:Error|Exception): .+)$", re.M),
)


class SweepError(Exception):
    """The sweep could not start or continue; the message has the reason and the remedy."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def sweep_errors() -> Iterator[None]:
    """Turn errors of services and Spark into SweepError.

    Any other error is a defect of the sweep and keeps its traceback.
    """
    try:
        yield
    except InvalidRequestError as e:
        raise SweepError(str(e), EXIT_REFUSED) from e
    except RemoteStorageError as e:
        raise SweepError(str(e)) from e
    except (PySparkException, Py4JError) as e:
        raise SweepError(
            f"{_cause(e)}; run the command again, with --work-dir to keep Spark's log"
        ) from e


def _cause(error: Exception) -> str:
    """Find the cause of a failed Spark job; return it as one line."""
    text = str(error)
    for pattern in _CAUSES:
        found = pattern.search(text)
        if found is not None:
            return found["cause"]
    lines = [line.strip(": ") for line in text.split("\n") if line.strip()]
    return f"Spark: {' '.join(lines[:2]) or type(error).__name__}"


DONE, PARTIAL, SKIPPED, REMAINING = "DONE", "PARTIAL", "SKIPPED", "REMAINING"

COUNTS = (
    "planned_segments",
    "planned_bytes",
    "resumed_segments",
    "deleted_segments",
    "deleted_bytes",
    "refused_segments",
    "failed_segments",
)
"""Counts of segments: planned = deleted + refused + failed if the plan was executed. Resumed are
those of the planned ones that an earlier run had marked."""

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

SEGMENT_KEYS = (
    "topic_id",
    "topic",
    "partition",
    "segment_id",
    "start_offset",
    "end_offset",
    "segment_size_in_bytes",
    "reason",
    "detail",
    "outcome",
    "error",
    "earlier_plan_id",
)

_IDS = ("topic_id", "segment_id")
_NAMED_LARGEST = 20
_NAMED_ERRORS = 10
_ROWS_AT_ONCE = 10_000
_EXIT_CODES = {PLANNED: 0, DONE: 0, PARTIAL: EXIT_PARTIAL, REFUSED: EXIT_REFUSED}


@dataclass
class Totals:
    """Totals over all partitions; `skipped` counts partitions by reason."""

    partitions: int = 0
    by_outcome: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTS, 0)))

    def add(self, partition: dict[str, Any]) -> None:
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
    apply: bool
    started_at_ms: int
    refusal: str | None


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The part of the document that the table for people shows.

    Attributes:
        outcome: PLANNED for a dry run; REFUSED if nothing was done, for the header's reason;
            PARTIAL if some of the plan was refused, failed or is left; DONE.
        largest: the partitions with the most planned bytes (PARTITION_KEYS).
        errors: the first few reasons why segments were refused or failed, with counts.
    """

    header: Header
    outcome: str
    totals: Totals
    largest: tuple[dict[str, Any], ...]
    errors: Mapping[str, int]

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.outcome]


def segment_outcomes(rows: DataFrame, deleted: DataFrame | None) -> DataFrame:
    """Join plan and outcomes per segment: SEGMENT_KEYS and their order, `position`.

    Args:
        rows: MARKED_SCHEMA.
        deleted: DELETED_SCHEMA; None if nothing was executed.
    """
    segments = rows.where(F.col("kind") == SEGMENT)
    if deleted is not None:
        final = deleted.select(
            "segment_id", F.col("outcome").alias("final"), F.col("error").alias("why")
        )
        segments = (
            segments.join(final, on="segment_id", how="left")
            .withColumn("outcome", F.coalesce("final", "outcome"))
            .withColumn("error", F.coalesce("why", "error"))
        )
    return segments.withColumnRenamed("plan_id", "earlier_plan_id").select(
        *SEGMENT_KEYS, "position"
    )


def partition_outcomes(
    rows: DataFrame, segments: DataFrame, finished: DataFrame | None, is_executed: bool
) -> DataFrame:
    """Join plan and outcomes per partition: PARTITION_KEYS.

    Args:
        rows: MARKED_SCHEMA.
        segments: of segment_outcomes.
        finished: FINISHED_SCHEMA; None if partitions are not finished.
    """
    key = ["topic_id", "partition"]
    heads = rows.where(F.col("kind") == PARTITION).withColumnRenamed("outcome", "mark")
    joined = heads.join(_counts(segments, key), on=key, how="left").fillna(0, list(COUNTS))
    if finished is None:
        joined = joined.withColumn("end", F.lit(None).cast("string"))
    else:
        ends = finished.select(*key, F.col("outcome").alias("end"), F.col("error").alias("why"))
        joined = joined.join(ends, on=key, how="left")
        joined = joined.withColumn("error", F.coalesce("why", "error"))
    nothing_new = F.col("skipped").isNotNull() & (F.col("planned_segments") == 0)
    is_left = (
        (F.col("refused_segments") + F.col("failed_segments") > 0)
        | F.col("mark").eqNullSafe(FAILED)
        | F.col("end").eqNullSafe(FAILED)
    )
    outcome = F.when(nothing_new, SKIPPED)
    if is_executed:
        outcome = outcome.when(F.col("mark") == REFUSED, REFUSED).when(is_left, REMAINING)
        outcome = outcome.otherwise(DONE)
    else:
        outcome = outcome.otherwise(F.col("mark"))
    return joined.withColumn("outcome", outcome).select(*PARTITION_KEYS)


def write_document(
    path: Path,
    header: Header,
    partitions: DataFrame,
    segments: DataFrame,
    now_ms: Callable[[], int],
) -> SweepReport:
    """Write the report as one JSON document, in which every key is always present."""
    order = ["topic", "topic_id", "partition"]
    totals, largest = Totals(), list[dict[str, Any]]()
    with path.open("w", encoding="utf-8") as file:
        head = {"job": header.job, "plan_id": header.plan_id, "apply": header.apply}
        file.write(json.dumps(head)[:-1])
        file.write(', "partitions": [')
        for row in _written(file.write, _as_json(partitions, PARTITION_KEYS, order, 1)):
            partition = json.loads(row)
            totals.add(partition)
            largest = nlargest(_NAMED_LARGEST, [*largest, partition], key=_planned_bytes)
        file.write('], "segments": [')
        parts = totals.counts["planned_segments"] // _ROWS_AT_ONCE + 1
        order += ["position", "start_offset"]
        errors = Counter[str]()
        for row in _written(file.write, _as_json(segments, SEGMENT_KEYS, order, parts)):
            error = json.loads(row)["error"]
            if error is not None and (error in errors or len(errors) < _NAMED_ERRORS):
                errors[error] += 1
        outcome = _outcome(header, totals)
        tail = {
            "outcome": outcome,
            "error": header.refusal,
            "started_at_ms": header.started_at_ms,
            "finished_at_ms": now_ms(),
            "totals": totals.as_json(),
        }
        file.write(f"], {json.dumps(tail)[1:]}\n")
    planned = tuple(partition for partition in largest if partition["planned_segments"])
    return SweepReport(header, outcome, totals, planned, errors)


def _outcome(header: Header, totals: Totals) -> str:
    if header.refusal is not None:
        return REFUSED
    if not header.apply:
        return PLANNED
    return PARTIAL if totals.as_json()["unfinished_partitions"] else DONE


def _counts(segments: DataFrame, key: Sequence[str]) -> DataFrame:
    """Compute COUNTS per partition."""
    resumed = F.col("reason") == DeletionReason.DELETION_NOT_FINISHED.name
    return segments.groupBy(*key).agg(
        F.count("*").alias("planned_segments"),
        F.sum(size_bytes()).alias("planned_bytes"),
        F.count_if(resumed).alias("resumed_segments"),
        _how_many(DELETED).alias("deleted_segments"),
        F.sum(F.when(F.col("outcome") == DELETED, size_bytes()).otherwise(0)).alias(
            "deleted_bytes"
        ),
        _how_many(REFUSED).alias("refused_segments"),
        _how_many(FAILED).alias("failed_segments"),
    )


def size_bytes() -> Column:
    """Return a segment's size, or 0 if it is unknown."""
    return F.greatest(F.col("segment_size_in_bytes"), F.lit(0)).cast("long")


def _how_many(outcome: str) -> Column:
    return F.count_if(F.col("outcome") == outcome)


def _planned_bytes(partition: dict[str, Any]) -> int:
    return int(partition["planned_bytes"])


def _written(write: Callable[[str], object], rows: Iterable[str]) -> Iterator[str]:
    """Write rows as elements of a list; yield each after it is written."""
    for number, row in enumerate(rows):
        write(f"{',' if number else ''}\n{row}")
        yield row


def _as_json(
    frame: DataFrame, keys: Sequence[str], order: Sequence[str], parts: int
) -> Iterator[str]:
    """Yield each row as a JSON object, in order; the driver holds one part at a time."""
    columns = [_kafka_id(key) if key in _IDS else F.col(key) for key in keys]
    ordered = frame.repartitionByRange(parts, *order).sortWithinPartitions(*order)
    texts = ordered.select(F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}))
    return (text for (text,) in texts.toLocalIterator())


def _kafka_id(name: str) -> Column:
    """Convert an id to Kafka's form: 22 characters of URL-safe base64."""
    in_base64 = F.base64(F.unhex(F.replace(name, F.lit("-"), F.lit(""))))
    return F.translate(F.substring(in_base64, 1, 22), "+/", "-_").alias(name)
