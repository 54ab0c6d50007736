"""Plan and sweep random partitions by both engines: equal plans, equal reports."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import PartitionReport
from services.api.segment_batches import imports_of
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.segments import segment_leader_epochs as epochs
from spark_jobs.sweeps.local_engine import LocalEngine
from spark_jobs.sweeps.stages import Engine
from tests.harness.tier import BROKER, HOUR_MS, OFFSETS, SIZE_BYTES, Tier, now_ms, segment
from tests.spark.jobs import Done, Jobs, spark_engine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3_000)]
SEED = 20
REPORTS_AT_ONCE = 100
STATES = [
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
]
OWN = ("plan_id", "engine", "started_at_ms", "finished_at_ms", "segments_file")
IDS = ("topic_id", "segment_id")
SEGMENT = re.compile(r"(?<=: )\d+-[\w-]{22}$")
MOMENT = re.compile(r"(?<= < )\d+")


class RandomTier:
    """Topics of random settings with random segments; equal for an equal seed but for ids."""

    def __init__(self, name: str, topics: int, partitions: int, now: int) -> None:
        self._name = name
        self._size = topics, partitions
        self._random = Random(SEED)
        self._now_ms = now
        self.topics: list[str] = []
        self._reports: list[PartitionReport] = []

    def fill(self, tier: Tier) -> None:
        for number in range(self._size[0]):
            topic_id, topic = uuid4(), f"{self._name}-{self._size[0]}-{number:03}"
            self.topics.append(topic)
            partitions = [TopicIdPartition(topic_id, topic, p) for p in range(self._size[1])]
            made = [(tp, list(self._segments(tp))) for tp in partitions]
            rows = (row for _, segments in made for row in segments)
            tier.rlmm.import_remote_log_segments(
                imports_of(rows, MutationContext(reason="a random tier"))
            )
            self._reports += [r for tp, segments in made if (r := self._report(tp, len(segments)))]
            tier.rlmm.put_topic_config(topic_id, self._settings(), now=True)

    def report(self, tier: Tier, number: int) -> None:
        """Report all partitions again: an old report does not count, however long a job takes."""
        for start in range(0, len(self._reports), REPORTS_AT_ONCE):
            some = self._reports[start : start + REPORTS_AT_ONCE]
            reports = [replace(each, report_number=number) for each in some]
            for outcome in tier.rlmm.report_partition_state(reports):
                assert not isinstance(outcome, Exception), outcome

    def _segments(self, tp: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        chance = self._random
        for number in range(chance.randrange(8)):
            start = number * OFFSETS
            age_ms = chance.choice([0, 1, 3, 30]) * HOUR_MS
            yield replace(
                segment(tp, number),
                max_timestamp_ms=chance.choice([-1, self._now_ms - age_ms]),
                event_timestamp_ms=self._now_ms - age_ms,
                segment_leader_epochs=epochs([(chance.choice([0, 0, 0, 1]), start)]),
                segment_size_in_bytes=SIZE_BYTES * chance.randrange(1, 4),
                state=chance.choices(STATES, [8, 1, 1])[0],
            )

    def _report(self, tp: TopicIdPartition, segments: int) -> PartitionReport | None:
        chance, end = self._random, segments * OFFSETS
        if chance.random() < 0.2:
            return None
        start = chance.choice([0, 0, OFFSETS])
        return PartitionReport(
            tp,
            broker_id=BROKER,
            leader_epoch=1,
            report_number=0,
            lineage=Lineage(epochs([(chance.choice([0, 0, 1]), 0)])),
            local_log_start_offset=min(start, end),
            log_end_offset=end + 1,
            high_watermark=end + 1,
            last_stable_offset=end + 1,
            only_local_bytes=chance.choice([0, SIZE_BYTES]),
            copied_through_offset=end - 1,
        )

    def _settings(self) -> dict[str, str]:
        chance = self._random
        made = {"sediment.retention.owner": chance.choice(["sweep"] * 4 + ["rlm"])}
        if chance.random() < 0.7:
            made["retention.ms"] = str(chance.choice([2, 20]) * HOUR_MS)
        if chance.random() < 0.5:
            made["retention.bytes"] = str(SIZE_BYTES * chance.randrange(10))
        return made


def alike(done: Done, name: str) -> dict[str, Any]:
    """Return a report without ids and moments, equal for tiers and runs that are alike."""

    def row(row: dict[str, Any], **cleaned: Any) -> dict[str, Any]:
        kept = {key: value for key, value in row.items() if key not in IDS}
        error = row["error"]
        return {
            **kept,
            **cleaned,
            "topic": row["topic"].removeprefix(name),
            "error": None if error is None else error.partition(" ")[0],
        }

    document = {key: value for key, value in done.document.items() if key not in OWN}
    partitions = [
        row(each, notes=[SEGMENT.sub("", note) for note in each["notes"]])
        for each in document["partitions"]
    ]
    segments = [
        row(each, detail=MOMENT.sub("", each["detail"] or "")) for each in document["segments"]
    ]
    return {
        **document,
        "partitions": sorted(partitions, key=itemgetter("topic", "partition")),
        "segments": sorted(segments, key=itemgetter("topic", "partition", "start_offset")),
    }


@pytest.mark.parametrize(
    ("topics", "partitions"),
    [(5, 8), pytest.param(50, 40, marks=pytest.mark.long)],
)
def test_both_engines_plan_and_sweep_the_same(
    spark: SparkSession, tier: Tier, tmp_path: Path, topics: int, partitions: int
) -> None:
    now = now_ms()
    engines: dict[str, Callable[[Path], Engine]] = {
        "local": LocalEngine,
        "spark": partial(spark_engine, spark),
    }
    reports = []
    for name, engine_in in engines.items():
        random_tier = RandomTier(name, topics, partitions, now)
        random_tier.fill(tier)
        jobs = Jobs(engine_in, tier, tmp_path)
        random_tier.report(tier, 1)
        planned = jobs.retention(random_tier.topics)
        random_tier.report(tier, 2)
        swept = jobs.retention(
            random_tier.topics, apply=True, wave_segments=700, max_topic_percent=90.0
        )
        reports += [alike(planned, name), alike(swept, name)]
    local_plan, local_sweep, spark_plan, spark_sweep = reports
    assert local_plan == spark_plan
    assert local_sweep == spark_sweep
    totals = local_sweep["totals"]
    assert totals["partitions"] >= 0.75 * topics * partitions
    assert totals["deleted_segments"] > 0.5 * topics * partitions
