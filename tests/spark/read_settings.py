"""Start Spark as a sweep with a rate does, and print the settings that it has."""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import psutil

from spark_jobs.options import SweepOptions, properties_of
from spark_jobs.sweeps.engines import open_spark
from spark_jobs.sweeps.spark_engine import SparkEngine
from spark_jobs.sweeps.sweep import SweepRun

READ = (
    "spark.speculation",
    "spark.sql.session.timeZone",
    "spark.driver.memory",
    "spark.sql.shuffle.partitions",
    "spark.ui.enabled",
)


def main(argv: Sequence[str]) -> None:
    """Take each argument as a --conf."""
    with tempfile.TemporaryDirectory() as name:
        scratch, directory = Path(name, "scratch"), Path(name, "run")
        for each in (scratch, directory):
            each.mkdir()
        this = SweepRun("test", uuid4().hex, directory, lambda _: None)
        options = SweepOptions("h:1", "h:2", conf=properties_of(argv))
        with open_spark(this, options, scratch, may_speculate=False) as engine:
            assert isinstance(engine, SparkEngine)
            spark = engine.session
            found = {key: spark.conf.get(key) for key in READ}
            [heap] = _java_options("-Xmx")
            collectors = " ".join(_java_options("-XX:+Use"))
            has_page = spark.sparkContext.uiWebUrl is not None
    own = {"heap": heap, "collectors": collectors, "has page": str(has_page)}
    sys.stdout.write(json.dumps({**found, **own}))


def _java_options(start: str) -> Iterator[str]:
    """Yield the options of the driver's JVM that begin so."""
    for child in psutil.Process().children():
        yield from (text for text in child.cmdline() if text.startswith(start))


if __name__ == "__main__":
    main(sys.argv[1:])
