"""Read what the tier holds and costs of each topic: the table `usage`.

From the totals that RLMM keeps, and with the option `ages` from a scan of the segments.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar
from uuid import UUID

import pyarrow as pa

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import uuid_to_text
from services.api.partitions import NO_SEGMENTS, SegmentTotals
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.workflows.tier_usage import (
    DAYS,
    DEFAULT_PART_BYTES,
    GIB,
    OBJECTS_PER_SEGMENT,
    Ages,
    finished_segments,
)
from spark_jobs.source_options import SourceOptions, bad_option
from spark_jobs.tables.columns import Columns, Kind
from spark_jobs.tables.conditions import Condition, Relation
from spark_jobs.tables.table import Connected, Table, in_shards, known_partitions

_BY_AGE = (*(f"bytes_under_{days}d" for days in DAYS), "bytes_older")
_COPIED = tuple(f"bytes_copied_{days}d" for days in DAYS)
_WRITES = tuple(f"write_requests_{days}d" for days in DAYS)


@dataclass
class _Usage:
    """What the tier holds of a topic; without totals if an RLMM of an earlier release sent none."""

    topic_id: UUID
    topic: str
    partitions: int = 0
    totals: SegmentTotals | None = NO_SEGMENTS

    def add(self, totals: SegmentTotals | None) -> None:
        self.partitions += 1
        self.totals = None if self.totals is None or totals is None else self.totals + totals


@dataclass(frozen=True)
class _Figures:
    """The options of the table.

    Attributes:
        ages: scan the segments, too.
        price_per_gib_month, price_per_thousand_writes: None: not given.
        part_bytes: RSM's RSM_PART_SIZE_BYTES, to count requests.
    """

    ages: bool = False
    price_per_gib_month: float | None = None
    price_per_thousand_writes: float | None = None
    part_bytes: int = DEFAULT_PART_BYTES

    def of_totals(self, totals: SegmentTotals) -> dict[str, Any]:
        price = self.price_per_gib_month
        return {
            **asdict(totals),
            "objects": OBJECTS_PER_SEGMENT * totals.live_segments,
            "cost_per_month": None if price is None else totals.live_bytes / GIB * price,
        }

    def of_ages(self, ages: Ages) -> dict[str, Any]:
        price = self.price_per_thousand_writes
        return {
            **dict(zip(_BY_AGE, ages.by_age, strict=True)),
            **dict(zip(_COPIED, ages.copied, strict=True)),
            **dict(zip(_WRITES, ages.writes, strict=True)),
            "write_cost_per_month": None if price is None else ages.writes[-1] / 1_000 * price,
        }


class UsageTable(Table):
    """Every topic with a known partition, with the totals of its segments."""

    name = "usage"
    columns = Columns(
        {
            "topic": Kind.STRING,
            "topic_id": Kind.STRING,
            "owner": Kind.STRING,
            "partitions": Kind.INT,
            "finished_segments": Kind.LONG,
            "finished_bytes": Kind.LONG,
            "live_segments": Kind.LONG,
            "live_bytes": Kind.LONG,
            "objects": Kind.LONG,
            "cost_per_month": Kind.DOUBLE,
            **dict.fromkeys(_BY_AGE, Kind.LONG),
            **dict.fromkeys(_COPIED, Kind.LONG),
            **dict.fromkeys(_WRITES, Kind.LONG),
            "write_cost_per_month": Kind.DOUBLE,
        }
    )
    option_columns: ClassVar = {
        "topic": ("topic", Relation.IN),
        "topicId": ("topic_id", Relation.IN),
    }

    def __init__(self, figures: _Figures | None = None) -> None:
        self._figures = figures or _Figures()

    def configured(self, options: SourceOptions) -> "UsageTable":
        figures = _Figures(
            options.boolean("ages"),
            options.price("pricePerGibMonth"),
            options.price("pricePerThousandWrites"),
            options.number("partSizeBytes", None, 1) or DEFAULT_PART_BYTES,
        )
        if figures.price_per_thousand_writes is not None and not figures.ages:
            raise bad_option("pricePerThousandWrites", "needs ages=true, which counts requests")
        return UsageTable(figures)

    def tasks(
        self, connected: Connected, conditions: Sequence[Condition], shards: int
    ) -> list[Any]:
        topics: dict[UUID, _Usage] = {}
        for summary in known_partitions(connected, conditions):
            tp = summary.topic_id_partition
            topics.setdefault(tp.topic_id, _Usage(tp.topic_id, tp.topic)).add(summary.totals)
        return in_shards(list(topics.values()), shards)

    def batches(
        self, connected: Connected, task: list[_Usage], conditions: Sequence[Condition]
    ) -> Iterator[pa.RecordBatch]:
        return self.columns.batches(self._rows(connected, task))

    def _rows(self, connected: Connected, task: list[_Usage]) -> Iterator[dict[str, Any]]:
        for usage in task:
            try:
                stored = connected.call(connected.rlmm.topic_config, usage.topic_id)
            except RemoteResourceNotFoundError:
                continue  # it was removed since the driver listed it
            yield {
                "topic": usage.topic,
                "topic_id": uuid_to_text(usage.topic_id),
                "owner": stored.config.owner,
                "partitions": usage.partitions,
                **({} if usage.totals is None else self._figures.of_totals(usage.totals)),
                **(self._ages(connected, usage) if self._figures.ages else {}),
            }

    def _ages(self, connected: Connected, usage: _Usage) -> dict[str, Any]:
        ages = connected.call(self._ages_of, connected.rlmm, usage)
        return self._figures.of_ages(ages)

    def _ages_of(self, rlmm: RemoteLogMetadataManager, usage: _Usage) -> Ages:
        """Scan a topic; a topic of this name with another id may be scanned, too."""
        ages, now_ms, topic_id = Ages(), time.time_ns() // 1_000_000, str(usage.topic_id)
        for found_id, max_timestamp_ms, copied_at_ms, size in finished_segments(rlmm, usage.topic):
            if found_id == topic_id:
                part_bytes = self._figures.part_bytes
                ages.count(now_ms, max_timestamp_ms, copied_at_ms, size, part_bytes)
        return ages
