"""Run the stages of a sweep on Spark, and store their rows as Parquet in any directory."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from spark_jobs.spark_schemas import spark_schema
from spark_jobs.spark_session import text_of
from spark_jobs.sweeps.plan import ROWS_PER_BATCH
from spark_jobs.sweeps.stages import EVERYTHING, Selection, Stored, Task
from spark_jobs.sweeps.sweep_error import SweepError

# The cause in Spark's text about a failed job, best first: our own error, which ended a task; a
# directory that cannot be used; Spark's summary of the task; the last line of any other traceback.
_OURS = re.compile(r"^services\.api\.errors\.(?P<name>\w+): (?P<cause>.+)$", re.M)
_CAUSES = (
    _OURS,
    re.compile(r"(?P<cause>Mkdirs failed to create .+?)(?: \(exists.*)?$", re.M),
    re.compile(r"^Caused by: (?P<cause>[\w.$]*(?:Access|FileSystem|NoSuchBucket)\w*: .+)$", re.M),
    re.compile(r"(?P<cause>No FileSystem for scheme .+)$", re.M),
    re.compile(r"(?P<cause>Path does not exist: \S+?)\.?(?: SQLSTATE.*)?$", re.M),
    re.compile(r"(?P<cause>Class org\.apache\.hadoop\.fs\.\S+ not found)"),
    re.compile(r"Job aborted due to stage failure: (?P<cause>.+)$", re.M),
    re.compile(r"^(?P<cause>[\w.]+(?:Error|Exception): .+)$", re.M),
)
_HINT = "run the command again, with --work-dir, which keeps Spark's log"
_IS_DIRECTORY = re.compile(r"Mkdirs|FileSystem|AccessDenied|AccessControl|NoSuchBucket|hadoop\.fs")


class SparkEngine:
    """An Engine of Spark's executors."""

    name = "spark"

    def __init__(self, spark: SparkSession, directory: str) -> None:
        """Keep the stages in `directory`, which all executors must see: a URI or a path."""
        self._spark = spark
        self._directory = directory

    @property
    def session(self) -> SparkSession:
        return self._spark

    @property
    def parallelism(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

    @property
    def attempts_at_once(self) -> int:
        """Return 2 if Spark may run a second copy of a slow task while the first one runs."""
        conf = self._spark.sparkContext.getConf()
        return 2 if conf.get("spark.speculation", "false") == "true" else 1

    def require_room(self, segments: int) -> None:
        """Accept any number."""

    def scatter(
        self, name: str, task: Task, rows: pa.Table, schema: pa.Schema, tasks: int
    ) -> Stored:
        spread = self._spark.sparkContext.parallelize(rows.to_pylist(), tasks)
        with spark_errors():
            frame = self._spark.createDataFrame(spread, spark_schema(rows.schema))
        return self.written(name, task, frame, schema)

    def by_partition(
        self, name: str, task: Task, source: Stored, which: Selection, schema: pa.Schema, tasks: int
    ) -> Stored:
        with spark_errors():
            frame = (
                self.frame(source, which)
                .repartition(tasks, "topic_id", "partition")
                .sortWithinPartitions("topic_id", "partition", "kind", "position")
            )
        return self.written(name, task, frame, schema)

    def evenly(
        self, name: str, task: Task, source: Stored, which: Selection, schema: pa.Schema, tasks: int
    ) -> Stored:
        with spark_errors():
            # By ranges: tasks of equal size, with few partitions in each of RLMM's batches.
            frame = self.frame(source, which).repartitionByRange(
                tasks, "topic_id", "partition", "start_offset", "segment_id"
            )
        return self.written(name, task, frame, schema)

    def read(
        self, source: Stored, which: Selection, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        with spark_errors():
            table = self.frame(source, which).select(*columns).toArrow()
        yield from table.to_batches(ROWS_PER_BATCH)

    def count(self, source: Stored) -> int:
        with spark_errors():
            return int(self.frame(source, EVERYTHING).count())

    def frame(self, source: Stored, which: Selection = EVERYTHING) -> DataFrame:
        """Return rows of a stage as a frame."""
        frame = self._spark.read.schema(spark_schema(source.schema)).parquet(source.path)
        for condition in which.conditions(F.col):
            frame = frame.where(condition)
        return frame

    def written(self, name: str, task: Task, frame: DataFrame, schema: pa.Schema) -> Stored:
        """Run the stage `name` over a frame, and count the rows that its tasks write."""
        path = f"{self._directory}/{name}"
        written = Observation()
        with spark_errors(path):
            rows = frame.mapInArrow(task, spark_schema(schema))
            counted = rows.observe(written, F.count(F.lit(1)).alias("rows"))
            counted.write.parquet(path)
            return Stored(path, int(written.get["rows"]), schema)


@contextmanager
def spark_errors(directory: str | None = None, hint: str = _HINT) -> Iterator[None]:
    """Turn errors of Spark into SweepError with one line.

    Args:
        directory: what is written to inside; named if it cannot be.
        hint: what to do next.
    """
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as e:
        cause = cause_of(e)
        if directory is not None and _IS_DIRECTORY.search(cause):
            raise SweepError(
                f"--work-dir: executors cannot write to {directory}: {cause}; name a "
                "directory that all of them may write to"
            ) from e
        raise SweepError(f"{cause}; {hint}") from e


def raised_in_task(error: Exception, kinds: Sequence[type[Exception]]) -> str | None:
    """Return the message of the error in a task that failed a Spark job, if it is of these kinds.

    Args:
        kinds: of services.api.errors.
    """
    match = _OURS.search(text_of(error))
    if match is None or match["name"] not in {kind.__name__ for kind in kinds}:
        return None
    return match["cause"].strip()


def cause_of(error: Exception) -> str:
    """Find the cause of a failed Spark job; return it as one line."""
    text = text_of(error)
    for pattern in _CAUSES:
        match = pattern.search(text)
        if match is not None:
            return match["cause"].strip()
    lines = [line.strip(": ") for line in text.split("\n") if line.strip()]
    return f"Spark: {' '.join(lines[:2]) or type(error).__name__}"
