"""A driver of sweeps that a test may kill: one Spark session, which sweeps as a test orders.

Each order is a line of JSON on standard input; each phase, and each end, one on standard output.
A sweep waits at each phase until the test lets it go on.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from services.local.stack import own_environment
from spark_jobs.options import SweepConfig, SweepOptions
from spark_jobs.spark_session import SparkSettings, spark_session
from spark_jobs.sweeps import retention_sweep
from spark_jobs.sweeps.spark_engine import SparkEngine
from spark_jobs.sweeps.sweep import SweepRun
from spark_jobs.sweeps.sweep_error import SweepError, service_errors

# Spark waits for many tasks, and for long, before it starts a second copy of one. After this
# duration it waits for no other task.
EAGER_SPECULATION = (
    ("spark.speculation.task.duration.threshold", "1s"),
    ("spark.speculation.multiplier", "1"),
    ("spark.speculation.quantile", "0.5"),
)
ON_LOOPBACK = (
    ("spark.driver.host", "127.0.0.1"),
    ("spark.driver.bindAddress", "127.0.0.1"),
    ("spark.executor.memory", "512m"),
    ("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1"),
    ("spark.ui.enabled", "false"),
)
READY = {"phase": "ready"}


class SweepDriver:
    """The other end: starts the process, sends orders, reads what it says."""

    def __init__(self, master: str, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, master, str(directory)],
            env=own_environment({}),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._read() == READY

    def sweep(self, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Sweep; yield each phase, in which the sweep waits for `go_on`, and at last the end.

        The end is empty if the driver was killed.
        """
        self._send(options)
        while True:
            said = self._read()
            yield said
            if "phase" not in said:
                return

    def go_on(self) -> None:
        self._send({})

    def _send(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        said: dict[str, Any] = json.loads(line) if line else {}
        return said


def main(argv: Sequence[str]) -> None:
    master, directory = argv[0], Path(argv[1])
    conf = (*EAGER_SPECULATION, *ON_LOOPBACK, ("spark.local.dir", f"{directory}/local"))
    settings = SparkSettings(master, driver_memory="512m", conf=conf)
    with spark_session("sweeps", directory, directory / "spark.log", settings) as spark:
        _say(READY)
        for line in sys.stdin:
            plan_id = uuid4().hex
            this = SweepRun(retention_sweep.JOB, plan_id, directory / plan_id, _wait_at)
            this.directory.mkdir()
            options = SweepOptions(**json.loads(line))
            engine = SparkEngine(spark, f"file:{this.directory}")
            try:
                with service_errors():
                    report = retention_sweep.run(engine, this, SweepConfig(options))
            except SweepError as e:
                _say({"error": str(e), "plan_id": plan_id})
            else:
                _say({"report": str(this.document), "exit_code": report.exit_code})


def _wait_at(phase: str) -> None:
    _say({"phase": phase})
    sys.stdin.readline()


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
