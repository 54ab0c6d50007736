"""What a job says on a cluster without any worker, and that Ctrl-C and SIGTERM end it."""

import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from services.local.stack import own_environment
from spark_jobs.spark_session import stop_session
from tests.harness.eventually import eventually
from tests.harness.tier import Tier, a_topic
from tests.spark.commands import TIMEOUT_S, ended, start
from tests.spark.standalone import StandaloneCluster, standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
NO_WAIT = ("--conf", "spark.default.parallelism=1")
"""With it a job waits in a stage of its own, and not for executors before its first task."""

WAITS = "Initial job has not accepted any resources"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    home, directory = Path(pyspark.__file__).parent, tmp_path_factory.mktemp("idle-cluster")
    with standalone_cluster(home, own_environment({}), directory, hosts=()) as running:
        yield running


@pytest.mark.parametrize(
    ("number", "job"),
    [
        (signal.SIGTERM, ("retention", "--apply")),
        (signal.SIGINT, ("reconcile",)),
        (signal.SIGINT, ("reconcile", *NO_WAIT)),
        (signal.SIGTERM, ("rebuild", *NO_WAIT)),
    ],
)
def test_a_job_that_waits_for_spark_can_be_stopped(
    tier: Tier,
    cluster: StandaloneCluster,
    tmp_path: Path,
    number: signal.Signals,
    job: tuple[str, ...],
) -> None:
    """One line says what to do."""
    tier.fill(a_topic()[0], 1)
    work = tmp_path / "work"
    addresses = ("--rsm", tier.rsm_process.address, "--rlmm", tier.rlmm_process.address)
    program = [sys.executable, "-m", "spark_jobs.main", *job, "--plaintext", *addresses]
    process = start([*program, "--master", cluster.master, "--work-dir", str(work)])

    def waits() -> bool:
        logs = [path.read_text() for path in work.glob("*/spark.log")]
        return process.poll() is not None or any(WAITS in text for text in logs)

    eventually(waits, deadline_ms=TIMEOUT_S * 1_000)
    process.send_signal(number)
    stopped = ended(process)
    assert stopped.exit_code == 128 + number, stopped.stderr
    assert stopped.stderr.splitlines()[-1].endswith(
        "stopped; run the command again to finish what it began"
    )
    assert "Traceback" not in stopped.stderr


def test_a_job_says_that_the_cluster_gives_no_executor(
    tier: Tier, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    addresses = ("--rsm", tier.rsm_process.address, "--rlmm", tier.rlmm_process.address)
    options = ("--plaintext", *addresses, "--master", cluster.master)
    with said.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "spark_jobs.main", "retention", *options],
            env=own_environment({}),
            stdin=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        line = re.compile(r"^sweep retention: .* given no executor for \d+ s; check for free", re.M)
        eventually(lambda: line.search(said.read_text()), deadline_ms=TIMEOUT_S * 1_000)
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def test_that_pyspark_could_not_stop_its_jvm_is_no_line_of_the_job() -> None:
    class Killed:
        """Stops as a SparkSession whose JVM has been killed, or broke off a call."""

        def stop(self) -> None:
            text = "Unable to cleanly shutdown Spark JVM process. It is possible that the process"
            warnings.warn(text, RuntimeWarning, stacklevel=1)

    killed: Any = Killed()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        stop_session(killed, killed)
    assert seen == []
