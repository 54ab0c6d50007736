"""RLMM's segments as a DataFrame."""

from uuid import UUID

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from services.api.segment_batches import SCAN_COLUMNS
from spark_jobs.connections import Services
from spark_jobs.segments_source import remote_log_segments
from spark_jobs.sweeps.plan import SCAN_SCHEMA, segment_of
from tests.harness.tier import Tier, a_topic, ids, segment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
_ARROW_NAMES = {"list<item: int32>": "list<int32>", "list<item: int64>": "list<int64>"}


def test_the_schema_is_that_of_the_scan() -> None:
    columns = [(f.name, str(f.type)) for f in SCAN_SCHEMA]
    assert [(name, _ARROW_NAMES.get(kind, kind)) for name, kind in columns] == list(SCAN_COLUMNS)


def services_of(tier: Tier) -> Services:
    return Services(tier.rlmm_process.address, tier.rsm_process.address, 10.0)


def test_each_partition_is_whole_and_in_order_in_one_task(spark: SparkSession, tier: Tier) -> None:
    partitions = a_topic(partitions=5)
    made = {tp.partition: ids(tier.fill(tp, 3)) for tp in partitions}
    frame = remote_log_segments(spark, services_of(tier), [partitions[0].topic], 3)
    rows = frame.withColumn("task", F.spark_partition_id()).collect()
    read = {
        number: [UUID(row["segment_id"]) for row in rows if row["partition"] == number]
        for number in made
    }
    assert read == made
    tasks = {(row["partition"], row["task"]) for row in rows}
    assert len(tasks) == len(partitions)
    assert frame.rdd.getNumPartitions() == 3


def test_a_row_is_the_segment_that_rlmm_lists(spark: SparkSession, tier: Tier) -> None:
    [tp] = a_topic()
    tier.fill(tp, 2)
    tier.rlmm.add_remote_log_segment_metadata(segment(tp, 2, broker_leader_epoch=None))
    frame = remote_log_segments(spark, services_of(tier), [tp.topic])
    rows = [row.asDict() for row in frame.collect()]
    assert [segment_of(row) for row in rows] == tier.rows(tp)
    assert {row["revision"] for row in rows} == {tier.rlmm.partition_state(tp).revision}


def test_a_topic_without_segments_has_no_rows(spark: SparkSession, tier: Tier) -> None:
    [tp] = a_topic()
    tier.report(tp, 0)
    assert remote_log_segments(spark, services_of(tier), [tp.topic]).collect() == []
