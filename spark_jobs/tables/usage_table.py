"""Read what the tier holds of each topic, from the totals that RLMM keeps: the table `usage`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar
from uuid import UUID

import pyarrow as pa

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import uuid_to_text
from services.api.partitions import NO_SEGMENTS, SegmentTotals
from spark_jobs.tables.columns import Columns, Kind
from spark_jobs.tables.conditions import Condition, Relation
from spark_jobs.tables.table import Connected, Table, in_shards, known_partitions


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
        }
    )
    option_columns: ClassVar = {
        "topic": ("topic", Relation.IN),
        "topicId": ("topic_id", Relation.IN),
    }

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
                **({} if usage.totals is None else asdict(usage.totals)),
            }
