"""Keep the classes of Kafka and Spark ready to be mapped: a JVM then starts with half the CPU time.

Java calls it class data sharing. An archive of another Java or class path is ignored.
`python -m tests.harness.class_archives FILE` writes the one of Spark.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from demos.kafka_broker import SMALL_JVM, KafkaBroker, class_archive

_EXIT_TIMEOUT_S = 300
_A_JOB = """
import os
import psutil
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
java = next(p for p in psutil.Process().children(recursive=True) if p.name() == "java")
rows = spark.range(0, 10, 1, 2).selectExpr("id", "id % 3 AS rest")
rows = rows.mapInArrow(lambda batches: batches, "id long, rest long")
rows.write.parquet("rows")
assert spark.read.parquet("rows").groupBy("rest").count().count() == 3
spark.stop()
print(java.pid)
"""


def ensure_kafka_archive(jars: Path) -> None:
    """Start and stop a broker of these jars once, so that later ones start from an archive.

    Any number of processes may call at the same time: one does it, the others wait.
    """
    archive = class_archive(jars)
    if archive.is_file():
        return
    with (jars.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a crash
        if not archive.is_file():
            with tempfile.TemporaryDirectory(dir=jars.parent, prefix="archive-") as directory:
                made = Path(directory) / "made.jsa"
                jvm_options = [*SMALL_JVM, f"-XX:ArchiveClassesAtExit={made}"]
                with KafkaBroker(Path(directory) / "broker", jars, jvm_options=jvm_options):
                    pass
                made.rename(archive)


def write_spark_archive(archive: Path) -> None:
    """Run a small job on Spark, and keep the classes that it loaded."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "made.jsa"
        options = f"-XX:TieredStopAtLevel=1 -Xlog:disable -XX:ArchiveClassesAtExit={made}"
        done = subprocess.run(
            [sys.executable, "-c", _A_JOB],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"Spark's archive of classes: the job failed:\n{done.stderr}")
        # Java ends after the process that started it, and writes the archive at its end.
        with suppress(psutil.NoSuchProcess):
            psutil.Process(int(done.stdout.split()[-1])).wait(_EXIT_TIMEOUT_S)
        archive.parent.mkdir(parents=True, exist_ok=True)
        incoming = archive.with_name(f"{archive.name}.new")
        incoming.write_bytes(made.read_bytes())
        incoming.rename(archive)


if __name__ == "__main__":
    write_spark_archive(Path(sys.argv[1]))
