"""The records source in Spark: by name, as rows and as a stream; docs/use/spark.md."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from spark_jobs.records.options import OPTIONS
from spark_jobs.records.schema import OFFSETS_SCHEMA, WITH_HEADERS_SCHEMA
from spark_jobs.source_options import CONNECTION
from tests.harness.tier import Tier, a_topic
from tests.spark.made_logs import copied, plain
from tests.spark.records_reads import ServedTier, records

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "use" / "spark.md").read_text()
MOST_STARTS = 5
COMMITTED = {"kafka.isolation.level": "read_committed"}
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_METHOD = "/tieredstorage.v1.RemoteStorageManager/FetchLogSegment"
STREAMED = f'sediment_rpc_seconds_count{{code="OK",method="{_METHOD}"}}'


def options(tier: ServedTier, **more: object) -> dict[str, Any]:
    return {"rsm": tier.rsm_address, "rlmm": tier.rlmm_address, "subscribe": "payments", **more}


def frame(spark: SparkSession, tier: ServedTier, **more: object) -> DataFrame:
    return spark.read.format("sediment-records").options(**options(tier, **more)).load()


def test_spark_reads_what_the_source_reads(spark: SparkSession, shipped: ServedTier) -> None:
    every = frame(spark, shipped, **COMMITTED, splitBytes=16_384)
    assert every.rdd.getNumPartitions() > 8
    rows = every.orderBy("partition", "offset").collect()
    wanted = records(shipped, subscribe="payments", **COMMITTED)
    assert [(row.partition, row.offset, row.key, row.value) for row in rows] == [
        (row["partition"], row["offset"], row["key"], row["value"]) for row in wanted
    ]
    reach = frame(spark, shipped, table="offsets").where("partition = 0").collect()
    assert [row.from_offset for row in reach] == [0]


@pytest.fixture
def direct_reads(tier: Tier) -> Iterator[None]:
    """RSM hands out URLs."""
    tier.rsm_process.stop()
    tier.rsm_process.start({"RSM_DIRECT_READS": "true"})
    yield
    tier.rsm_process.stop()
    tier.rsm_process.start()


def counted(tier: Tier, name: str) -> float:
    """Return the sum of RSM's samples with this beginning."""
    with urlopen(f"http://{tier.rsm_process.announcement.metrics}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_tasks_read_the_store_itself(
    spark: SparkSession, tier: Tier, shipped: ServedTier, direct_reads: None
) -> None:
    read = {
        "subscribe": "",
        "assign": '{"payments":[0]}',
        "startingOffsets": '{"payments":{"0":57}}',
        "endingOffsets": '{"payments":{"0":120}}',
    }
    one = {name: read[name] for name in ("subscribe", "assign")}
    whole = frame(spark, shipped, splitBytes=4_096, directReads="true", **one)
    found = frame(spark, shipped, splitBytes=4_096, directReads="true", **read)
    assert 0 < found.rdd.getNumPartitions() < whole.rdd.getNumPartitions()
    rows = found.orderBy("offset").select("offset", "value").collect()
    assert counted(tier, "sediment_rsm_direct_reads_total") > 0
    assert counted(tier, STREAMED) == 0
    assert [(row.offset, row.value) for row in rows] == [
        (row["offset"], row["value"]) for row in records(shipped, **read)
    ]
    assert counted(tier, STREAMED) > 0


EARLIEST = {"startingOffsets": "earliest"}
EXAMPLES: dict[str, tuple[dict[str, str], set[str]]] = {
    "one topic": ({"subscribe": "payments"}, {"payments"}),
    "headers": ({"subscribe": "payments", "includeHeaders": "true"}, {"payments"}),
    "several topics": (
        {
            "subscribe": "payments,profiles",
            "startingOffsets": '{"payments":{"0":23,"1":-2},"profiles":{"0":-2}}',
            "endingOffsets": '{"payments":{"0":50,"1":-1},"profiles":{"0":-1}}',
        },
        {"payments", "profiles"},
    ),
    "a pattern": (
        {
            "subscribePattern": "p.*",
            "startingOffsets": "earliest",
            "endingOffsets": "latest",
        },
        {"payments", "profiles"},
    ),
}
"""As the guide of Spark's kafka source reads: what is subscribed, and the topics that are read."""


@pytest.mark.parametrize(("given", "topics"), EXAMPLES.values(), ids=EXAMPLES)
def test_what_reads_kafka_reads_the_tier(
    spark: SparkSession,
    shipped: ServedTier,
    tmp_path: Path,
    given: dict[str, str],
    topics: set[str],
) -> None:
    """As a query and, but for its ends, as a stream."""
    columns = ["CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "partition", "offset"]
    columns += ["headers"] if "includeHeaders" in given else []
    to_tier = {"rsm": shipped.rsm_address, "rlmm": shipped.rlmm_address}
    reader = spark.read.format("sediment-records").options(**to_tier).options(**given)
    rows = reader.load().selectExpr(*columns).collect()
    assert {row.topic for row in rows} == topics
    if "endingOffsets" in given and "subscribe" in given:
        first = [row.offset for row in rows if (row.topic, row.partition) == ("payments", 0)]
        assert 23 <= min(first) <= max(first) < 50
        return
    streamed = {name: text for name, text in given.items() if name != "endingOffsets"} | EARLIEST
    stream = spark.readStream.format("sediment-records").options(**to_tier).options(**streamed)
    writer = stream.load().selectExpr(*columns).writeStream.format("parquet")
    writer = writer.option("path", str(tmp_path / "rows"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_to_its_end(writer.trigger(availableNow=True))
    assert spark.read.parquet(str(tmp_path / "rows")).count() == len(rows)


def test_a_view_reads_the_tier_and_a_table_is_refused(
    spark: SparkSession, shipped: ServedTier
) -> None:
    """Spark 4.3 gives no option to a source in Python when a table of it is read."""
    using = (
        "tiered_payments USING `sediment-records` OPTIONS (subscribe 'payments', "
        f"rsm '{shipped.rsm_address}', rlmm '{shipped.rlmm_address}')"
    )
    with pytest.raises(AnalysisException, match="write CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE {using}")
    spark.sql(f"CREATE TEMPORARY VIEW {using}")
    count = spark.sql("SELECT count(*) FROM tiered_payments").first()
    assert count is not None
    assert count[0] == len(records(shipped, subscribe="payments"))


def test_a_frame_that_was_filtered_has_all_records_again(
    spark: SparkSession, shipped: ServedTier
) -> None:
    wanted = records(shipped, subscribe="payments")
    first = [row for row in wanted if row["partition"] == 1]
    spark.conf.set(PUSHDOWN, "true")
    try:
        every = frame(spark, shipped)
        counts = [every.count(), every.where("partition = 1").count(), every.count()]
        early = every.where("offset < 57").count()
        ends = frame(spark, shipped, table="offsets")
        reaches = [ends.count(), ends.where("partition = 1").count(), ends.count()]
    finally:
        spark.conf.unset(PUSHDOWN)
    assert counts == [len(wanted), len(first), len(wanted)]
    assert early == sum(row["offset"] < 57 for row in wanted)
    assert reaches[0] == reaches[2] > reaches[1] == 1


def test_a_stream_that_is_stopped_goes_on_where_it_was(
    spark: SparkSession, shipped: ServedTier, tmp_path: Path
) -> None:
    given = options(shipped, startingOffsets="earliest", maxOffsetsPerTrigger=300, **COMMITTED)
    stream = spark.readStream.format("sediment-records").options(**given).load()
    for _ in range(2):
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_its_end(writer.trigger(availableNow=True))
    written = spark.read.parquet(str(tmp_path / "rows")).select("partition", "offset").collect()
    wanted = records(shipped, subscribe="payments", **COMMITTED)
    assert sorted((row.partition, row.offset) for row in written) == [
        (row["partition"], row["offset"]) for row in wanted
    ]
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) > 2


def test_a_stream_to_the_present_end_fails_when_retention_has_deleted_what_it_has_not_read(
    spark: SparkSession, tier: Tier, tmp_path: Path
) -> None:
    [tp] = a_topic()
    first = copied(tier, tp, 0, [plain(0, [b"a", b"b"])])
    addresses = {"rsm": tier.rsm_process.address, "rlmm": tier.rlmm_process.address}
    source = spark.readStream.format("sediment-records").options(
        subscribe=tp.topic, startingOffsets="earliest", **addresses
    )
    writer = source.load().writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_to_its_end(writer.trigger(availableNow=True))
    later = copied(tier, tp, 2, [plain(2, [b"c", b"d"])])
    tier.rlmm.raise_log_start_offset(tp, 4)
    tier.delete(first, later)
    with pytest.raises(StreamingQueryException, match="offsets 2 to 3 were to be read") as raised:
        run_to_its_end(writer.trigger(availableNow=True))
    assert "Traceback" not in str(raised.value)
    written = spark.read.parquet(str(tmp_path / "rows")).select("offset").collect()
    assert sorted(row.offset for row in written) == [0, 1]


@pytest.mark.parametrize(
    ("damaged", "error"),
    [
        ("[1]", "the stream's checkpoint is damaged"),
        ('{"payments": {"0": 1}}', "the stream's checkpoint is damaged"),
        ('{"payments": 1}', "the stream's checkpoint is damaged"),
        # Spark parses the text before the source gets it (docs/use/spark.md).
        ('{"payments": ', "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
    ],
    ids=["list", "no id", "number", "no json", "deep json"],
)
def test_a_damaged_checkpoint_fails_as_the_page_says(
    spark: SparkSession, tier: Tier, tmp_path: Path, damaged: str, error: str
) -> None:
    [tp] = a_topic()
    copied(tier, tp, 0, [plain(0, [b"a", b"b"])])
    addresses = {"rsm": tier.rsm_process.address, "rlmm": tier.rlmm_process.address}
    source = spark.readStream.format("sediment-records").options(
        subscribe=tp.topic, startingOffsets="earliest", **addresses
    )
    writer = source.load().writeStream.format("noop").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path))
    run_to_its_end(writer)
    stored = tmp_path / "offsets" / "0"
    *head, _ = stored.read_text().splitlines()
    stored.write_text("\n".join((*head, damaged)))
    (tmp_path / "offsets" / ".0.crc").unlink()
    for file in (tmp_path / "commits").iterdir():
        file.unlink()
    with pytest.raises(StreamingQueryException, match=error) as raised:
        run_to_its_end(writer)
    assert ("Traceback" in str(raised.value)) is error.endswith("Error")


def run_to_its_end(writer: DataStreamWriter) -> None:
    """Run a query; again, as who runs it would, if its Python worker was not there in 10 seconds.

    So long, and no longer, Spark waits, also on a machine that others use.
    """
    for attempt in range(MOST_STARTS):
        query = writer.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as e:
            if "Python worker failed to connect back" not in str(e) or attempt == MOST_STARTS - 1:
                raise
        else:
            assert query.exception() is None
            return


def names_in(section: str) -> list[str]:
    text = PAGE.partition(f"\n### {section}\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]


def test_the_page_has_the_columns_and_the_options() -> None:
    schemas: list[tuple[str, StructType]] = [
        ("Columns of records", WITH_HEADERS_SCHEMA),
        ("What is read", OFFSETS_SCHEMA),
    ]
    for section, schema in schemas:
        assert names_in(section) == schema.fieldNames()
    assert names_in("Options of records") == [name for name in OPTIONS if name not in CONNECTION]
