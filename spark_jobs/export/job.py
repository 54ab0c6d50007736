"""Export the records of tiered topics into a Delta table, each exactly once."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from services.api.errors import (
    CorruptSegmentError,
    InvalidRangeError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition, uuid_to_text
from services.common.failpoints import failpoint
from spark_jobs.export.leases import Leases
from spark_jobs.export.options import JOB, ExportOptions, parse_args
from spark_jobs.export.progress import application_id, begin_of, ranges
from spark_jobs.export.table import ExportTable
from spark_jobs.launch import print_line, stopped_by_signals
from spark_jobs.records.options import RecordsOptions, records_options
from spark_jobs.records.source import NAME, SedimentRecords
from spark_jobs.records.tier import TierReader, connected, named_partitions, read_reach
from spark_jobs.spark_session import spark_session
from spark_jobs.sweeps.progress import still_said
from spark_jobs.sweeps.scratch import scratch_directory
from spark_jobs.sweeps.spark_engine import raised_in_task, spark_errors
from spark_jobs.sweeps.sweep_error import EXIT_PARTIAL, EXIT_REFUSED, SweepError, service_errors

Say = Callable[[str], None]
Report = dict[str, Any]
_STOPPED = "stopped; run the command again to export the rest"
_HINT = "what was committed is exported; run the command again for the rest"


def run_as_program(argv: Sequence[str]) -> int:
    """Run the job for `python -m` or spark-submit and return its exit code.

    The report goes to standard output or --report, a failure as one line to standard error.
    """
    try:
        with service_errors():
            options = parse_args(argv)
        report = export(options, lambda text: print_line(f"{JOB}: {text}"))
        _hand_over(report, options.report)
    except SweepError as e:
        print_line(f"{JOB}: {e}")
        return e.exit_code
    return 0 if report["outcome"] == "DONE" else EXIT_PARTIAL


def export(options: ExportOptions, say: Say) -> Report:
    """Bring the table up to what the tier has now; return the report.

    Raises:
        SweepError: the job could not start or continue, or was stopped by a signal.
    """
    given, records = records_options(options.source)
    with service_errors(), stopped_by_signals(_STOPPED), scratch_directory() as scratch:
        services = given.services("rlmm", "rsm")
        services.require_reachable(may_only_read=True)
        with connected(services) as tier:
            partitions = _partitions(tier, records)
            _require_delta(options)
            _leases(tier, options, partitions).begin()
        failpoint("export.kept")
        log = scratch / "spark.log"
        with ExitStack() as opened:
            opened.enter_context(spark_errors(hint=_HINT))
            with still_said(say, "starting Spark"):
                session = spark_session("sediment export", scratch, log, options.spark)
                spark = opened.enter_context(session)
            # Not before: Java is forked, which gRPC does not survive.
            tier = opened.enter_context(connected(services))
            spark.dataSource.register(SedimentRecords)
            table = ExportTable(spark, options.table)
            table.create()
            leases = _leases(tier, options, partitions)
            run = _Run(spark, table, tier, leases, options, records, say)
            return _report(options, [run.partition(tp) for tp in partitions])


def _require_delta(options: ExportOptions) -> None:
    """Raise SweepError if Delta's jars are not where Spark finds them; Spark starts slowly.

    Jars that a property or spark-submit names are found by Spark alone.
    """
    names_jars = any(name.startswith("spark.jars") for name, _ in options.spark.conf)
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars")
    if not names_jars and not any(jars.glob("delta-spark*.jar")):
        raise SweepError(
            f"Spark has no Delta: no delta-spark*.jar is in {jars}; run this with the Python of "
            "`make install-export` (.venv-export/bin/python), or put Delta's jars there",
            EXIT_REFUSED,
        )


def _partitions(tier: TierReader, records: RecordsOptions) -> list[TopicIdPartition]:
    try:
        return named_partitions(tier, records)
    except InvalidRequestError as e:
        # The option of the source is the job's.
        raise InvalidRequestError(str(e).replace("option subscribe:", "--topic:", 1)) from e


def _leases(
    tier: TierReader, options: ExportOptions, partitions: Sequence[TopicIdPartition]
) -> Leases:
    return Leases(tier, options.name, options.lease_ms, partitions)


# What is damaged, or gone: retention or a removal has deleted it, perhaps during the run.
_OF_ONE_PARTITION = (CorruptSegmentError, InvalidRangeError, RemoteResourceNotFoundError)


@dataclass(frozen=True)
class _Run:
    """Export one partition after the other."""

    spark: SparkSession
    table: ExportTable
    tier: TierReader
    leases: Leases
    options: ExportOptions
    records: RecordsOptions
    say: Say

    def partition(self, tp: TopicIdPartition) -> Report:
        """Export a partition; damage or a loss of offsets ends only this partition."""
        position = self.table.position(application_id(tp))
        row: Report = {
            "topic": tp.topic,
            "topic_id": uuid_to_text(tp.topic_id),
            "partition": tp.partition,
            "from_offset": position,
            "next_offset": position,
            "commits": 0,
            "error": None,
        }
        try:
            self._export(tp, position, row)
        except _OF_ONE_PARTITION as e:
            row["error"] = str(e)
        except (PySparkException, Py4JError) as e:
            row["error"] = raised_in_task(e, _OF_ONE_PARTITION)
            if row["error"] is None:
                raise
        if row["error"] is not None:
            self.say(f"{tp.topic}-{tp.partition}: {row['error']}")
        return row

    def _export(self, tp: TopicIdPartition, position: int | None, row: Report) -> None:
        """Commit range after range from the position on, and record each in the report's row."""
        self.leases.turn(tp, position or 0)
        is_exact = position is not None
        reached = read_reach(self.tier, tp, position, self.records.is_committed, is_exact=is_exact)
        begin = begin_of(position, reached.reach.first, skip_lost=self.options.skip_lost)
        row["from_offset"] = begin
        for first, end in ranges(begin, reached.end, self.options.max_offsets):
            scope = (
                f"topic_id = '{row['topic_id']}' AND partition = {tp.partition} "
                f"AND offset >= {first} AND offset < {end}"
            )
            self.table.commit(self._rows(tp, first, end), application_id(tp), scope, end)
            failpoint("export.committed")
            self.leases.committed(tp, end)
            row["next_offset"] = end
            row["commits"] += 1
            self.say(f"{tp.topic}-{tp.partition}: offsets {first} to {end - 1} are in the table")

    def _rows(self, tp: TopicIdPartition, first: int, end: int) -> DataFrame:
        topic_id = uuid_to_text(tp.topic_id)
        given = {k: v for k, v in self.options.source.items() if k != "subscribe"}
        reader = self.spark.read.format(NAME).options(**given)
        chosen: dict[str, object] = {
            "assign": {tp.topic: [tp.partition]},
            "startingOffsets": {tp.topic: {tp.partition: first}},
            "endingOffsets": {tp.topic: {tp.partition: end}},
        }
        for name, value in chosen.items():
            reader = reader.option(name, json.dumps(value))
        reader = reader.option("topicId", topic_id).option("includeHeaders", "true")
        return reader.load().withColumn("topic_id", F.lit(topic_id))


def _report(options: ExportOptions, partitions: list[Report]) -> Report:
    is_done = all(row["error"] is None for row in partitions)
    outcome = "DONE" if is_done else "PARTIAL"
    return {"job": JOB, "outcome": outcome, "table": options.table, "partitions": partitions}


def _hand_over(report: Report, path: Path | None) -> None:
    text = json.dumps(report, indent=2) + "\n"
    if path is None:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text)
    except OSError as e:
        raise SweepError(f"--report: {path}: {e.strerror}") from e
