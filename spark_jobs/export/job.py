"""Export the records of tiered topics into a Delta table, each exactly once."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from services.api.ids import TopicIdPartition, uuid_to_text
from services.common.failpoints import failpoint
from spark_jobs.export.options import JOB, ExportOptions, parse_args
from spark_jobs.export.progress import application_id, begin_of, ranges
from spark_jobs.export.table import ExportTable
from spark_jobs.launch import listen_for_signals, print_line, stopped_by_signals
from spark_jobs.records.options import RecordsOptions, records_options
from spark_jobs.records.source import NAME, SedimentRecords
from spark_jobs.records.tier import TierReader, connected, read_reach, wanted_partitions
from spark_jobs.scratch import scratch_directory
from spark_jobs.spark_engine import spark_errors
from spark_jobs.spark_session import java_and_spark
from spark_jobs.sweep_error import EXIT_PARTIAL, SweepError, service_errors

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
        services.require_reachable()
        with connected(services) as tier:
            partitions = wanted_partitions(tier, records)
            for tp in partitions:
                keep(tier, options, tp, 0)  # an earlier run may have kept offsets from later on
        failpoint("export.kept")
        say("starting Spark")
        log = scratch / "spark.log"
        with (
            spark_errors(hint=_HINT),
            java_and_spark("sediment export", scratch, log, options.spark) as (java, spark),
            connected(services) as tier,  # not before: Java is forked, which gRPC does not survive
        ):
            listen_for_signals()  # Spark has replaced our handler by its own
            spark.dataSource.register(SedimentRecords)
            table = ExportTable(spark, java, options.table)
            table.create()
            run = _Run(spark, table, tier, options, records, say, partitions)
            return _report(options, [run.partition(tp) for tp in partitions])


def keep(tier: TierReader, options: ExportOptions, tp: TopicIdPartition, position: int) -> None:
    """Keep offsets from the position on from retention, for as long as the options say."""
    if options.lease_ms > 0:
        tier.call(tier.rlmm.set_export_position, tp, options.name, position, options.lease_ms)


class _Run:
    """Export one partition after the other."""

    def __init__(
        self,
        spark: SparkSession,
        table: ExportTable,
        tier: TierReader,
        options: ExportOptions,
        records: RecordsOptions,
        say: Say,
        partitions: Sequence[TopicIdPartition],
    ) -> None:
        self._spark = spark
        self._table = table
        self._tier = tier
        self._options = options
        self._records = records
        self._say = say
        self._waiting = list(partitions)
        self._renewed_s = time.monotonic()

    def partition(self, tp: TopicIdPartition) -> Report:
        """Export a partition; a loss of offsets ends only this partition."""
        self._waiting.remove(tp)
        name = application_id(tp)
        position = self._table.position(name)
        keep(self._tier, self._options, tp, position or 0)
        row: Report = {
            "topic": tp.topic,
            "topic_id": uuid_to_text(tp.topic_id),
            "partition": tp.partition,
            "from_offset": position,
            "next_offset": position,
            "commits": 0,
            "error": None,
        }
        is_exact = position is not None
        found = read_reach(self._tier, tp, position, self._records.is_committed, is_exact=is_exact)
        try:
            begin = begin_of(tp, position, found.reach.first, skip_lost=self._options.skip_lost)
        except SweepError as e:
            self._say(str(e))
            return {**row, "error": str(e)}
        row["from_offset"] = begin
        for first, end in ranges(begin, found.end, self._options.max_offsets):
            scope = (
                f"topic_id = '{row['topic_id']}' AND partition = {tp.partition} "
                f"AND offset >= {first} AND offset < {end}"
            )
            self._table.commit(self._rows(tp, first, end), name, scope, end)
            failpoint("export.committed")
            keep(self._tier, self._options, tp, end)
            self._renew()
            row["next_offset"] = end
            row["commits"] += 1
            self._say(f"{tp.topic}-{tp.partition}: offsets {first} to {end - 1} are in the table")
        return row

    def _renew(self) -> None:
        """Renew the leases of the partitions whose turn is to come, once a quarter has passed."""
        if time.monotonic() - self._renewed_s < self._options.lease_ms / 4000:
            return
        for tp in self._waiting:
            keep(self._tier, self._options, tp, 0)  # a lower position only renews
        self._renewed_s = time.monotonic()

    def _rows(self, tp: TopicIdPartition, first: int, end: int) -> DataFrame:
        topic_id = uuid_to_text(tp.topic_id)
        reader = self._spark.read.format(NAME).options(**self._options.source)
        reader = reader.option("topic", tp.topic).option("topicId", topic_id)
        reader = reader.option("partition", tp.partition)
        reader = reader.option("fromOffset", first).option("toOffset", end - 1)
        return reader.option("requireAll", "true").load().withColumn("topic_id", F.lit(topic_id))


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
