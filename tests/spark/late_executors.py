"""Start Spark with three executors of one core, and print how many cores a job counts."""

import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from spark_jobs.options import SweepOptions
from spark_jobs.sweeps.engines import open_spark
from spark_jobs.sweeps.sweep import SweepRun

CONF = (
    ("spark.cores.max", "3"),
    ("spark.executor.memory", "512m"),
)


def main(argv: Sequence[str]) -> None:
    """Take a directory for Spark's files."""
    scratch, directory = Path(argv[0], "scratch"), Path(argv[0], "run")
    for each in (scratch, directory):
        each.mkdir()
    this = SweepRun("test", uuid4().hex, directory, lambda _: None)
    options = SweepOptions("h:1", "h:2", master="local-cluster[3,1,512]", conf=CONF)
    with open_spark(this, options, scratch, may_speculate=False) as engine:
        sys.stdout.write(f"{engine.parallelism}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
