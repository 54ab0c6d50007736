"""docs/use/spark.md and its notebook: columns, options, queries and cells as written."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from services.api.partitions import OffsetGap
from services.api.segments import RemoteLogSegmentState
from services.local.data_directory import StackEndpoints, write_state
from spark_jobs.spark_schemas import spark_schema
from spark_jobs.tables.source import OPTIONS, TABLES
from tests.harness.tier import BROKER, HOUR_MS, Tier, a_topic, now_ms, segment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
DOCS = Path(__file__).parents[2] / "docs" / "use"
PAGE = (DOCS / "spark.md").read_text()
NOTEBOOK = json.loads((DOCS / "spark-tables.ipynb").read_text())
SETUP = PAGE.partition("They need the tables as views:")[2].partition("```python\n")[2]
QUERIES = re.findall(r"\*\*(\d+)\. ([^*]+)\*\*.*?```sql\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_columns_of_a_table(name: str) -> None:
    section = PAGE.partition(f"\n#### {name}\n")[2].partition("\n##")[0]
    written = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    fields = spark_schema(TABLES[name].columns).fields
    assert written == [(each.name, each.dataType.simpleString()) for each in fields]


def test_the_page_has_the_options() -> None:
    section = PAGE.partition("\n### Options\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == list(OPTIONS)


@pytest.fixture(scope="module")
def topic(tier: Tier) -> str:
    """A topic in which each query finds something."""
    [tp] = a_topic()
    [first, _, overlapped, _, last] = (segment(tp, number) for number in range(5))
    for each in (first, overlapped, segment(tp, 2), last):
        tier.copy(each)
    tier.move(last, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    hanging = segment(tp, 6, event_timestamp_ms=now_ms() - 2 * HOUR_MS)
    tier.rlmm.add_remote_log_segment_metadata(hanging)
    tier.report(tp, 8, copied_through_offset=299, lag_bytes=5_000)
    tier.rlmm.record_gap(tp, OffsetGap(110, 119), BROKER)
    return tp.topic


def test_the_page_has_nine_queries() -> None:
    assert [number for number, _, _ in QUERIES] == [str(number) for number in range(1, 10)]


@pytest.mark.parametrize(("title", "query"), [(title, query) for _, title, query in QUERIES])
def test_a_query_of_the_page_finds_the_topic(
    spark: SparkSession,
    tier: Tier,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    title: str,
    query: str,
) -> None:
    monkeypatch.setenv("SEDIMENT_RLMM", tier.rlmm_process.address)
    exec(SETUP.partition("```")[0], {"spark": spark})
    assert topic in {row.topic for row in spark.sql(query).collect()}, title


def test_the_cells_of_the_notebook_run_in_their_order(
    spark: SparkSession, tier: Tier, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEDIMENT_RLMM", tier.rlmm_process.address)
    names: dict[str, Any] = {}
    code = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 3
    for cell in code:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        exec("".join(cell["source"]), names)
    assert topic in set(names["sizes"].toPandas()["topic"])


def test_the_running_sediment_up_is_the_default(
    spark: SparkSession, tier: Tier, topic: str, tmp_path: Path
) -> None:
    addresses = dict.fromkeys(StackEndpoints.__dataclass_fields__, "")
    rlmm = tier.rlmm_process.address
    state: dict[str, Any] = {**addresses, "rlmm": rlmm, "pids": {}}
    write_state(tmp_path, StackEndpoints(**state))
    reader = spark.read.format("sediment").option("dataDir", str(tmp_path))
    assert reader.option("topic", topic).load().count() == 5
