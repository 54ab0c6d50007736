"""Run `scrub` on Spark: list, join with the metadata, read ranges of segments in tasks, report."""

import json
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from services.api.segments import RemoteLogSegmentState
from services.workflows.check_documents import scrub_document
from services.workflows.scrub import Scrubbed, ScrubPlan
from services.workflows.segment_views import MetadataView
from spark_jobs.checks.frames import listed_objects, segments_with_objects, whole_frame
from spark_jobs.checks.objects import SEGMENT_KEY
from spark_jobs.checks.options import CheckReport, ScrubConfig
from spark_jobs.checks.scrubbing import SCRUBBED_SCHEMA, scrub_segments, scrubbed_of
from spark_jobs.sweeps.spark_engine import SparkEngine, spark_errors
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import SweepRun, share_of
from spark_jobs.sweeps.sweep_error import EXIT_FAILED, EXIT_PARTIAL, SweepError

JOB = "scrub"


def run(engine: Engine, this: SweepRun, config: ScrubConfig) -> CheckReport:
    """Verify the segments that the options name, and write the document."""
    if not isinstance(engine, SparkEngine):
        raise SweepError(f"{JOB} runs on Spark; `sediment scrub` runs in one process")
    plan = ScrubPlan(this.plan_id, config.part, config.parts, None, config.locations)
    tasks = engine.parallelism
    # All tasks run at once, so that their shares are the rate.
    share = share_of(config.bytes_per_s, engine, tasks)
    services = config.options.services
    with services.connected_rlmm() as rlmm:
        topic_ids = MetadataView(rlmm).topics(config.options.topics)
    this.say("listing objects")
    segments = _ranges(engine, config, tasks)
    this.say("reading segments")
    task = partial(scrub_segments, services=services, plan=plan, bytes_per_s=share)
    done = Scrubbed()
    stored = engine.written("scrubbed", task, segments, SCRUBBED_SCHEMA)
    with spark_errors():
        for row in whole_frame(engine, stored).collect():
            done.add(scrubbed_of(row.asDict()))
    if not done.is_cut_short:
        with services.connected_rlmm() as rlmm:
            done.coverage.report(rlmm, plan.run, topic_ids)
    rate = round(config.bytes_per_s or 0)
    document = scrub_document(plan, config.options.topics, rate, done)
    this.document.write_text(json.dumps(document), encoding="utf-8")
    if done.damaged:
        return CheckReport(EXIT_PARTIAL)
    return CheckReport(0 if done.is_complete else EXIT_FAILED)


def _ranges(engine: SparkEngine, config: ScrubConfig, tasks: int) -> DataFrame:
    """Return the finished segments with a manifest, in ranges, each with equally many."""
    services, topics = config.options.services, config.options.topics
    objects = listed_objects(engine, services, "objects", config.locations)
    with spark_errors():
        segments = segments_with_objects(engine, services, objects, topics)
        is_finished = F.col("row.state") == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
        has_manifest = F.exists("objects", lambda each: each["object_kind"] == "MANIFEST")
        finished = segments.where(is_finished & has_manifest)
        order = ("topic_id", "partition", "start_offset", "segment_id")
        chosen = finished.select(
            *SEGMENT_KEY, F.col("row.start_offset").alias("start_offset"), "objects"
        )
        return chosen.repartitionByRange(tasks, *order).sortWithinPartitions(*order)
