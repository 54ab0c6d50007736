"""Which engine runs a sweep, with which settings of Spark: by size, without Java, by the user."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.local.stack import own_environment
from tests.harness.tier import Tier
from tests.spark.commands import TIMEOUT_S, Swept, ended, start
from tests.spark.tiers import due_partitions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
SMALL_LIMIT = (
    "import spark_jobs.sweeps.engines; spark_jobs.sweeps.engines.LOCAL_SEGMENTS = 2; "
    "from services.cli.main import main; main()"
)


def swept(tier: Tier, topic: str, variables: dict[str, str], program: list[str]) -> Swept:
    """Run a sweep of a topic with no option of an engine, by a program that is `sediment`."""
    addresses = ["--rsm", tier.rsm_process.address, "--rlmm", tier.rlmm_process.address]
    options = [*addresses, "--topic", topic, "--apply", "-o", "json"]
    argv = [sys.executable, *program, "sweep", "retention", *options]
    return ended(start(argv, variables))


def due_topic(tier: Tier, segments: int) -> str:
    [tp] = due_partitions(tier, segments)
    return tp.topic


def test_a_tier_that_is_too_large_for_one_process_is_swept_by_spark(
    tier: Tier, tmp_path: Path
) -> None:
    """In one process: its threads and connections do not keep Spark from starting."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master local[1]\nspark.driver.memory 512m\n"
    )
    variables = {"SPARK_CONF_DIR": str(tmp_path)}
    small = swept(tier, due_topic(tier, 2), variables, ["-c", SMALL_LIMIT])
    assert (small.exit_code, small.report["engine"]) == (0, "local"), small.stderr
    large = swept(tier, due_topic(tier, 3), variables, ["-c", SMALL_LIMIT])
    assert large.exit_code == 0, large.stderr
    assert large.report["engine"] == "spark"
    assert "in this process" in large.stderr
    assert large.report["totals"]["deleted_segments"] == 3


def test_one_process_sweeps_without_java(tier: Tier, tmp_path: Path) -> None:
    """Nor any other program: nothing is on the PATH."""
    topic = due_topic(tier, 2)
    done = swept(tier, topic, {"PATH": str(tmp_path), "JAVA_HOME": ""}, ["-m", "services.cli"])
    assert (done.exit_code, done.report["engine"]) == (0, "local"), done.stderr
    assert done.report["totals"]["deleted_segments"] == 2


def read_back(conf_dir: Path, *conf: str) -> dict[str, str]:
    """Start Spark with the spark-defaults.conf of a directory, and read what it runs with."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.read_settings", *conf],
        env=own_environment({"SPARK_CONF_DIR": str(conf_dir)}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_settings_of_the_user_win(tmp_path: Path) -> None:
    """spark-defaults.conf before our defaults, and --conf before both."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.speculation true\n"
        "spark.sql.session.timeZone Europe/Berlin\n"
        "spark.driver.memory 600m\n"
        "spark.sql.shuffle.partitions 7\n"
        "spark.ui.enabled true\n"
        "spark.ui.port 0\n"
    )

    found = read_back(tmp_path, "spark.sql.shuffle.partitions=3")
    assert found == {
        "spark.speculation": "true",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.driver.memory": "600m",
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.enabled": "true",
        "heap": "-Xmx600m",
        "collectors": "",
        "has page": "True",
    }
    (tmp_path / "spark-defaults.conf").write_text("")
    found = read_back(tmp_path, "spark.sql.session.timeZone=Asia/Tokyo")
    assert found == {
        "spark.speculation": "false",  # the run has a rate
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "200",
        "spark.ui.enabled": "false",
        "heap": "-Xmx1g",
        "collectors": "",
        "has page": "False",
    }


@pytest.mark.parametrize(
    ("defaults", "conf", "collectors"),
    [
        ("", (), "-XX:+UseSerialGC"),
        ("spark.driver.extraJavaOptions -XX:+UseParallelGC\n", (), "-XX:+UseParallelGC"),
        ("", ("spark.driver.extraJavaOptions=-XX:+UseParallelGC",), "-XX:+UseParallelGC"),
    ],
    ids=["ours", "of a file", "of --conf"],
)
def test_a_driver_that_runs_no_tasks_collects_early_unless_the_user_sets_java_options(
    tmp_path: Path, defaults: str, conf: tuple[str, ...], collectors: str
) -> None:
    """Java would not start with two collectors."""
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    found = read_back(tmp_path, "spark.master=local-cluster[1,1,1024]", *conf)
    assert (found["heap"], found["collectors"]) == ("-Xmx1g", collectors)
