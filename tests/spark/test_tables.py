"""RLMM's tables in Spark: `spark.read.format("sediment")`."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema

from services.api.errors import InvalidRequestError
from services.api.ids import uuid_to_text
from services.api.partitions import OffsetGap
from services.api.segments import RemoteLogSegmentMetadata
from spark_jobs.spark_schemas import spark_schema
from spark_jobs.sweeps.plan import SCAN_SCHEMA
from spark_jobs.tables.segments_table import COLUMNS, as_rows
from spark_jobs.tables.source import TABLES, SedimentTables
from tests.harness.tier import (
    BROKER,
    OFFSETS,
    Tier,
    a_topic,
    now_ms,
    segment,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
FINISHED = "COPY_SEGMENT_FINISHED"


def table(spark: SparkSession, tier: Tier, name: str = "segments", **options: Any) -> DataFrame:
    reader = spark.read.format("sediment").option("rlmm", tier.rlmm_process.address)
    return reader.options(table=name, **options).load()


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Spark gives the filters of its queries to every source that takes them."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def moment(time_ms: int) -> datetime:
    """Return a time as Spark gives it: this machine's wall clock, without a zone."""
    at = datetime.fromtimestamp(time_ms // 1_000, UTC) + timedelta(milliseconds=time_ms % 1_000)
    return at.astimezone().replace(tzinfo=None)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_same_types_in_spark_and_in_arrow(name: str) -> None:
    columns = TABLES[name].columns
    assert columns == to_arrow_schema(spark_schema(columns), timezone="UTC")


def test_a_segment_is_as_rlmm_lists_it(spark: SparkSession, tier: Tier) -> None:
    [tp] = a_topic()
    tier.fill(tp, 2)
    tier.rlmm.add_remote_log_segment_metadata(
        segment(tp, 2, broker_leader_epoch=None, max_timestamp_ms=-1), lease_ms=600_000
    )
    rows = table(spark, tier, topic=tp.topic).orderBy("start_offset").collect()
    assert [row.asDict(recursive=True) for row in rows] == [
        as_listed(tier, each) for each in tier.rows(tp)
    ]


def as_listed(tier: Tier, listed: RemoteLogSegmentMetadata) -> dict[str, Any]:
    tp, at_ms = listed.topic_id_partition, listed.max_timestamp_ms
    return {
        "topic": tp.topic,
        "topic_id": uuid_to_text(tp.topic_id),
        "partition": tp.partition,
        "segment_id": uuid_to_text(listed.remote_log_segment_id.id),
        "start_offset": listed.start_offset,
        "end_offset": listed.end_offset,
        "max_timestamp": None if at_ms < 0 else moment(at_ms),
        "segment_size_in_bytes": listed.segment_size_in_bytes,
        "state": listed.state.value,
        "event_timestamp": moment(listed.event_timestamp_ms),
        "broker_id": listed.broker_id,
        "broker_leader_epoch": listed.broker_leader_epoch,
        "segment_leader_epochs": [
            {"leader_epoch": e.leader_epoch, "start_offset": e.start_offset}
            for e in listed.segment_leader_epochs
        ],
        "txn_idx_empty": listed.txn_idx_empty,
        "custom_metadata": listed.custom_metadata,
        "plan_id": None,
        "copy_leased": listed.copy_leased,
        "partition_revision": tier.rlmm.partition_state(tp).revision,
        "partition_delete_state": None,
    }


def test_a_time_that_spark_cannot_hold_is_null() -> None:
    given: dict[str, Any] = {
        "topic_id": [str(uuid4())] * 2,
        "segment_id": [str(uuid4())] * 2,
        "max_timestamp_ms": [2**63 - 1, 1],
        "event_timestamp_ms": [0, 0],
        "leader_epochs": [[1], [1, 2]],
        "epoch_start_offsets": [[5], [6, 7]],
        "revision": [1, 1],
    }
    nulls = {name: [None, None] for name in SCAN_SCHEMA.names}
    made = as_rows(pa.RecordBatch.from_pydict({**nulls, **given}, SCAN_SCHEMA))
    assert made.schema == COLUMNS
    assert made.column("max_timestamp").to_pylist() == [
        None,
        datetime(1970, 1, 1, microsecond=1_000, tzinfo=UTC),
    ]
    assert made.column("segment_leader_epochs").to_pylist()[1] == [
        {"leader_epoch": 1, "start_offset": 6},
        {"leader_epoch": 2, "start_offset": 7},
    ]


def test_options_select_what_filters_of_a_query_would(spark: SparkSession, tier: Tier) -> None:
    partitions = a_topic(partitions=3)
    for each in partitions:
        tier.fill(each, 3)
    [tp, _, marked] = partitions
    made = segment(tp, 3, broker_leader_epoch=None, max_timestamp_ms=now_ms(), txn_idx_empty=True)
    tier.rlmm.add_remote_log_segment_metadata(made)
    tier.mark_deleted(marked)
    every = table(spark, tier)
    of_topic = every.where(F.col("topic") == tp.topic)
    assert len(segment_ids(of_topic)) == 10
    assert segment_ids(table(spark, tier, topic=tp.topic, shards=2)) == segment_ids(of_topic)
    finished = segment_ids(of_topic.where(F.col("state") == FINISHED))
    assert len(finished) == 9
    assert segment_ids(table(spark, tier, topic=tp.topic, state=FINISHED)) == finished


@pytest.mark.parametrize("name", TABLES)
def test_a_frame_that_was_filtered_has_all_rows_again(
    spark: SparkSession, tier: Tier, pushdown: None, name: str
) -> None:
    [tp], [other] = a_topic(), a_topic()
    for each in (tp, other):
        tier.fill(each, 2)
    every = table(spark, tier, name)
    whole = every.count()
    some = every.where(F.col("topic_id") == uuid_to_text(tp.topic_id)).count()
    assert 0 < some < whole
    assert every.count() == whole
    assert every.where(F.col("topic_id") == uuid_to_text(other.topic_id)).count() > 0


def segment_ids(frame: DataFrame) -> set[str]:
    return {row.segment_id for row in frame.select("segment_id").collect()}


def test_partitions_have_their_report(spark: SparkSession, tier: Tier) -> None:
    [reported, marked, _] = partitions = a_topic(partitions=3)
    for tp in partitions:
        tier.fill(tp, 2)
    tier.report(reported, 2, log_end_offset=260, high_watermark=250)
    tier.rlmm.record_gap(reported, OffsetGap(205, 209), BROKER)
    tier.rlmm.raise_log_start_offset(reported, OFFSETS)
    tier.mark_deleted(marked)
    rows = {
        row.partition: row
        for row in table(spark, tier, "partitions", topic=reported.topic, shards=2).collect()
    }
    assert set(rows) == {0, 1, 2}
    row = rows[0]
    state = tier.rlmm.partition_state(reported)
    assert (row.log_start_offset, row.log_end_offset, row.high_watermark) == (OFFSETS, 260, 250)
    assert row.revision == state.revision
    assert row.reported_at == moment(state.value.reported_at_ms or 0)
    assert [gap.asDict() for gap in row.gaps] == [
        {"start_offset": 205, "end_offset": 209, "kind": "LOST_BEFORE_COPY"}
    ]
    assert [epoch.asDict() for epoch in row.lineage] == [
        {"leader_epoch": 0, "start_offset": OFFSETS}
    ]
    assert rows[1].delete_state == "DELETE_PARTITION_MARKED"
    assert rows[1].marked_at is not None
    assert rows[2].reported_at is None
    assert rows[2].high_watermark is None
    marked_only = table(
        spark, tier, "partitions", topic=reported.topic, state="delete_partition_marked"
    )
    assert [row.partition for row in marked_only.collect()] == [1]


def test_the_audit_trail_of_a_removed_partition_is_read_by_its_whole_name(
    spark: SparkSession, tier: Tier
) -> None:
    [tp] = a_topic()
    [made] = tier.fill(tp, 1)
    events = table(spark, tier, "events", topic=tp.topic).orderBy("revision").collect()
    assert [event.to_state for event in events] == ["COPY_SEGMENT_STARTED", FINISHED]
    assert {event.segment_id for event in events} == {uuid_to_text(made.remote_log_segment_id.id)}
    tier.remove(tp, made)
    name = {"topic": tp.topic, "topicId": uuid_to_text(tp.topic_id), "partition": "0"}
    after = table(spark, tier, "events", **name)
    assert after.where("kind = 'PARTITION_DELETE'").count() == 3
    assert after.where(F.col("to_state") == FINISHED).count() == 1
    assert table(spark, tier, "events", topicId=name["topicId"]).count() == 0


BAD_OPTIONS: list[tuple[dict[str, str], str]] = [
    ({"table": "segment"}, "option table: must be one of segments, partitions"),
    ({"tabel": "segments"}, "option tabel: there is no such option; did you mean table"),
    ({"table": "events", "partition": "one"}, "option partition: must be a whole number"),
    ({"table": "events", "topicId": "abc"}, "option topicId: must be 22 characters"),
    ({"state": "FINISHED"}, "option state: must be one of COPY_SEGMENT_STARTED"),
    ({"partition": "1"}, "option partition: the table segments does not have it"),
    ({"table": "events", "state": "X"}, "option state: the table events does not have it"),
    ({"retryForS": "soon"}, "option retryForS: must be a number of seconds"),
    ({"tlsCertificate": "/tls.crt"}, "options tlsCa, tlsCertificate, tlsKey, tokenFile, plaintext"),
    ({"plaintext": "yes"}, "option plaintext: must be one of true, false"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        SedimentTables(CaseInsensitiveDict(options)).schema()


def test_a_wrong_option_is_named_when_the_frame_is_made(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="option tabel: there is no such option") as raised:
        spark.read.format("sediment").option("tabel", "segments").load()
    assert len(str(raised.value).strip().splitlines()) == 2  # Spark's SQLSTATE is the second


def test_what_cannot_be_reached_or_is_not_known_is_named(spark: SparkSession, tier: Tier) -> None:
    with pytest.raises(AnalysisException, match="RLMM knows no topic 'nowhere'") as raised:
        table(spark, tier, topic="nowhere").collect()
    assert len(str(raised.value).strip().splitlines()) == 2
    assert table(spark, tier).where("topic = 'a\0b'").collect() == []
    with pytest.raises(AnalysisException, match=r"rlmm\.example:1 is another machine"):
        table(spark, tier, rlmm="rlmm.example:1").collect()
    with pytest.raises(AnalysisException, match=r"127\.0\.0\.1:1"):
        table(spark, tier, rlmm="127.0.0.1:1", retryForS="0", topic="a").collect()
    with pytest.raises(AnalysisException, match=r"option (dataDir|rlmm): "):
        table(spark, tier, rlmm="", dataDir="/nowhere").collect()
