"""`main.py export` into a Delta table: killed between commits, while it writes and when it has
written, twice at once, and of topics some of which cannot be exported.

In the environment of `make install-export`, which has an older Spark: so are both data sources.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.api.holds import Hold
from services.api.ids import uuid_to_text
from services.api.remote_log_metadata_manager import all_segments
from services.local.stack import own_environment
from supply_chain.requirements import EXPORT_LOCK, locked
from tests.harness.eventually import eventually
from tests.harness.tier import Tier, a_topic
from tests.spark.made_logs import copied, plain
from tests.spark.records_reads import ServedTier, offsets, records

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_500)]
ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-export" / "bin" / "python"
TIMEOUT_S = 600
TOPICS = ("payments", "telemetry")
# Delta keeps its state in 50 parts otherwise; and compiled queries pay for more rows than these.
SMALL = (
    ("--conf", "spark.databricks.delta.snapshotPartitions=2"),
    ("--conf", "spark.sql.shuffle.partitions=2"),
    ("--conf", "spark.sql.adaptive.enabled=false"),
    ("--conf", "spark.sql.codegen.wholeStage=false"),
    ("--conf", "spark.sql.codegen.factoryMode=NO_CODEGEN"),
)


class Export:
    """Exports of one table."""

    def __init__(
        self, tier: ServedTier, table: Path, topics: Sequence[str] = TOPICS, max_offsets: int = 300
    ) -> None:
        self.table = table
        self._rlmm = tier.rlmm
        addresses = ["--rsm", tier.rsm_address, "--rlmm", tier.rlmm_address]
        named = [text for topic in topics for text in ("--topic", topic)]
        self._argv = [str(PYTHON), "-m", "spark_jobs.main", "export", *addresses, *named]
        self._argv += ["--table", str(table), "--max-offsets", str(max_offsets)]
        self._argv += ["--master", "local[2]"]
        self._argv += [text for pair in SMALL for text in pair]

    def start(self, failpoint: str = "", *options: str) -> "subprocess.Popen[str]":
        armed = {"SEDIMENT_FAILPOINT": failpoint} if failpoint else {}
        pipe = subprocess.PIPE
        environment = own_environment(armed)
        return subprocess.Popen(
            [*self._argv, *options], env=environment, cwd=ROOT, text=True, stdout=pipe, stderr=pipe
        )

    def run(self, failpoint: str = "", *options: str) -> tuple[int, dict[str, Any]]:
        with self.start(failpoint, *options) as process:
            output, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode in (0, 1, -9), errors
        return process.returncode, json.loads(output) if output else {}

    def kept(self) -> list[Hold]:
        """Return the positions in RLMM; each partition has one."""
        rlmm, found = self._rlmm, []
        for topic in TOPICS:
            for each in rlmm.list_partitions(topic=topic).partitions:
                [position] = rlmm.partition_state(each.topic_id_partition).value.holds
                found.append(position)
        return found

    def commits(self) -> list[list[dict[str, Any]]]:
        """Return the actions of each commit."""
        log = sorted((self.table / "_delta_log").glob("[0-9]*.json"))
        return [[json.loads(line) for line in path.read_text().splitlines()] for path in log]

    def files(self) -> set[str]:
        """Return the data files that belong to the table."""
        live: set[str] = set()
        for action in (action for commit in self.commits() for action in commit):
            live |= {action["add"]["path"]} if "add" in action else set()
            live -= {action["remove"]["path"]} if "remove" in action else set()
        return live

    def written(self) -> set[str]:
        """Return the data files that are there, of the table or not."""
        return {path.name for path in self.table.glob("*.parquet")}

    def rows(self) -> list[dict[str, Any]]:
        read = pa.concat_tables(pq.read_table(self.table / name) for name in sorted(self.files()))
        # Spark stores times without their zone, which is UTC.
        at = read.column_names.index("timestamp")
        times = read.column(at).cast(pa.timestamp("us", "UTC"))
        rows: list[dict[str, Any]] = read.set_column(at, "timestamp", times).to_pylist()
        return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def processes_that_write(
    export: Export, process: "subprocess.Popen[str]", before: set[str]
) -> list[psutil.Process]:
    """Return the processes of an export once it has begun a file that was not there before."""

    def has_begun() -> bool:
        return process.poll() is not None or not export.written() <= before

    eventually(has_begun, TIMEOUT_S * 1_000)
    assert process.poll() is None, process.communicate()
    running = psutil.Process(process.pid)
    return [running, *running.children(recursive=True)]


def kill_while_writing(export: Export) -> None:
    """Start an export, and kill it with its JVM when it has begun a file of its next commit."""
    before = export.written()
    with export.start() as process:
        for each in processes_that_write(export, process, before):
            each.kill()
        process.communicate(timeout=TIMEOUT_S)


def dies_before_commit(directory: Path) -> list[str]:
    """Return the options of an export that dies with its data written, and not committed."""
    [jars] = (PYTHON.parents[1] / "lib").glob("python*/site-packages/pyspark/jars")
    source = ROOT / "tests" / "spark" / "delta" / "DiesBeforeCommit.java"
    argv = ["javac", "-cp", f"{jars}/*", "-d", str(directory), str(source)]
    subprocess.run(argv, check=True, timeout=TIMEOUT_S)
    store = f"spark.delta.logStore.file.impl={source.stem}"
    return ["--conf", store, "--conf", f"spark.driver.extraClassPath={directory}"]


READ = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}


def wanted_rows(tier: ServedTier, topics: Sequence[str] = TOPICS) -> list[dict[str, Any]]:
    return [row for topic in sorted(topics) for row in records(tier, subscribe=topic, **READ)]


def test_kills_add_nothing_twice_and_miss_nothing(shipped: ServedTier, tmp_path: Path) -> None:
    export = Export(shipped, tmp_path / "table")
    assert export.run("export.kept")[0] == -9
    assert {each.first_offset for each in export.kept()} == {0}
    assert export.run("export.committed")[0] == -9
    written = len(export.rows())
    assert written > 0
    kill_while_writing(export)
    commits, files = len(export.commits()), len(export.written())
    positions = [each.first_offset for each in export.kept()]
    assert export.run("", *dies_before_commit(tmp_path))[0] == -9
    assert len(export.written()) > files
    assert len(export.commits()) == commits
    assert [each.first_offset for each in export.kept()] == positions
    code, report = export.run()
    assert (code, report["outcome"]) == (0, "DONE")
    wanted = wanted_rows(shipped)
    assert written < len(wanted)
    rows = export.rows()
    names = {row.pop("topic_id") for row in rows}
    assert names == {row["topic_id"] for row in report["partitions"]}
    assert rows == wanted
    versions = Counter(
        (action["txn"]["appId"], action["txn"]["version"])
        for commit in export.commits()
        for action in commit
        if "txn" in action
    )
    assert set(versions.values()) == {1}
    ends = sorted(row["first_offset"] for row in report["partitions"])
    assert sorted(each.first_offset for each in export.kept()) == ends
    commits = len(export.commits())
    code, report = export.run()
    assert code == 0
    assert {row["commits"] for row in report["partitions"]} == {0}
    assert len(export.commits()) == commits


def test_executors_that_are_killed_while_they_write_add_nothing_twice(
    shipped: ServedTier, tmp_path: Path
) -> None:
    export = Export(shipped, tmp_path / "table", ["payments"])
    with export.start("", "--master", "local-cluster[2,1,1024]") as process:
        executors = [
            each
            for each in processes_that_write(export, process, set())
            if each.status() != psutil.STATUS_ZOMBIE and "CoarseGrained" in str(each.cmdline())
        ]
        assert executors
        for each in executors:
            each.kill()
        errors = process.communicate(timeout=TIMEOUT_S)[1]
    assert process.returncode == 0, errors
    assert len(export.written()) > len(export.files())
    rows = export.rows()
    for row in rows:
        del row["topic_id"]
    assert rows == wanted_rows(shipped, ["payments"])


def test_two_exports_of_one_table_at_once_add_nothing_twice(
    shipped: ServedTier, tmp_path: Path
) -> None:
    export = Export(shipped, tmp_path / "table", ["payments"], max_offsets=1_000)
    other = Export(shipped, export.table, ["payments"], max_offsets=700)
    with export.start() as one, other.start() as two:
        errors = [each.communicate(timeout=TIMEOUT_S)[1] for each in (one, two)]
    # Of commits at the same time one fails, and its job ends.
    assert sorted((one.returncode, two.returncode)) in ([0, 0], [0, 3]), errors
    code, report = export.run()
    assert (code, report["outcome"]) == (0, "DONE")
    rows = export.rows()
    for row in rows:
        del row["topic_id"]
    assert rows == wanted_rows(shipped, ["payments"])


def test_a_partition_that_cannot_be_exported_does_not_keep_the_others(
    tier: Tier, shipped: ServedTier, tmp_path: Path
) -> None:
    names = [f"{name}-{uuid4().hex}" for name in ("again", "index", "log", "lost")]
    again, index, log, lost = names
    [old], [new] = a_topic(again), a_topic(again)
    for tp in (old, new):
        copied(shipped, tp, 0, [plain(0, [b"a"])])
    tier.mark_deleted(old)
    [damaged], [unreadable], [losing] = (a_topic(name) for name in (index, log, lost))
    copied(shipped, damaged, 0, [plain(0, [b"a"])], checkpoint=b"no leader epochs")
    copied(shipped, unreadable, 0, [plain(0, [b"a"])[:-1] + b"!"])
    copied(shipped, losing, 0, [plain(0, [b"a", b"b"])])
    export = Export(shipped, tmp_path / "table", names)

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        code, report = export.run("", "--lease", "0", *options)
        return code, {row["topic"]: row for row in report["partitions"]}

    code, rows = run()
    assert code == 1
    assert rows[again]["topic_id"] == uuid_to_text(new.topic_id)
    assert [rows[name]["first_offset"] for name in (again, index, log, lost)] == [1, None, None, 2]
    assert "LEADER_EPOCH index" in rows[index]["error"]
    assert "sediment scrub" in rows[log]["error"]
    assert rows[again]["error"] is rows[lost]["error"] is None

    copied(shipped, losing, 2, [plain(2, [b"c", b"d"])])
    copied(shipped, losing, 4, [plain(4, [b"e"])])
    tier.rlmm.raise_log_start_offset(losing, 4)
    code, rows = run()
    assert (code, rows[lost]["first_offset"]) == (1, 2)
    assert "offsets 2 to 3 were deleted" in rows[lost]["error"]
    code, rows = run("--skip-lost")
    assert rows[lost]["error"] is None
    values = {row["offset"]: row["value"] for row in export.rows() if row["topic"] == lost}
    assert values == {0: b"a", 1: b"b", 4: b"e"}


def test_both_data_sources_read_the_same_as_with_the_newer_spark(shipped: ServedTier) -> None:
    addresses = shipped.rsm_address, shipped.rlmm_address
    done = subprocess.run(
        [str(PYTHON), "-m", "tests.spark.both_sources", *addresses, "payments"],
        env=own_environment({}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wanted = sorted(offsets(records(shipped, topic="payments")))
    assert (found["records"], found["streamed"]) == (wanted, wanted)
    page = shipped.rlmm.list_partitions(topic="payments").partitions
    tps = [each.topic_id_partition for each in page]
    assert found["segments"] == sum(1 for tp in tps for _ in all_segments(shipped.rlmm, tp))
    assert found["spark"] in {each.version for each in locked("spark", lock=EXPORT_LOCK)}
