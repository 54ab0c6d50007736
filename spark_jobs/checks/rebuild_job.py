"""Run `rebuild` on Spark: freeze deletions, list, compare and import in tasks, report."""

import json
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from services.workflows.deployment_state import read_kept
from services.workflows.rebuild import RebuildPlan, begin
from services.workflows.rebuild_document import rebuild_document
from services.workflows.rebuild_report import Rebuilt
from services.workflows.segment_views import MetadataView
from spark_jobs.checks.frames import listed_objects, whole_frame
from spark_jobs.checks.objects import OBJECT_FIELDS, SEGMENT_KEY
from spark_jobs.checks.options import CheckReport, RebuildConfig
from spark_jobs.checks.rebuilding import REBUILT_SCHEMA, rebuild_partitions, rebuilt_of
from spark_jobs.spark_schemas import spark_schema
from spark_jobs.sweeps.spark_engine import SparkEngine, spark_errors
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import SweepRun
from spark_jobs.sweeps.sweep_error import EXIT_PARTIAL, SweepError

JOB = "rebuild"
_PARTITIONS_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
    ]
)


def run(engine: Engine, this: SweepRun, config: RebuildConfig) -> CheckReport:
    """Compare the bucket with the metadata, import what the plan allows, and write the document."""
    if not isinstance(engine, SparkEngine):
        raise SweepError(f"{JOB} runs on Spark; `sediment db rebuild` runs in one process")
    services = config.options.services
    plan = RebuildPlan(this.plan_id, config.apply, config.locations)
    done = Rebuilt()
    with services.connected_rlmm() as rlmm, services.connected_objects() as objects:
        state = read_kept(objects)
        done.freeze = begin(rlmm, plan)
        this.say("listing objects")
        segments = _segments_by_partition(engine, config, MetadataView(rlmm))
        this.say("comparing and importing" if plan.apply else "comparing")
        task = partial(rebuild_partitions, services=services, plan=plan)
        stored = engine.written("rebuilt", task, segments, REBUILT_SCHEMA)
        with spark_errors():
            # Differences in the order of their partitions, as one process finds them.
            order = (F.col("kind").isNotNull(), "topic_id", "partition", "start_offset")
            for row in whole_frame(engine, stored).orderBy(*order).toLocalIterator():
                done.add(rebuilt_of(row.asDict()))
        this.say("reporting")
        restored = state.put_settings_back(rlmm, apply=plan.apply)
    document = rebuild_document(plan, done, state, restored)
    this.document.write_text(json.dumps(document), encoding="utf-8")
    return CheckReport(EXIT_PARTIAL if done.needs_operator or restored.refused else 0)


def _segments_by_partition(
    engine: SparkEngine, config: RebuildConfig, view: MetadataView
) -> DataFrame:
    """Return each segment with its objects, and each partition of RLMM that has none.

    A partition is in one task, its segments by start offset.
    """
    objects = listed_objects(engine, config.options.services, "objects", config.locations)
    known = [
        {"topic": tp.topic, "topic_id": str(tp.topic_id), "partition": tp.partition}
        for tp in view.partitions(0, 1)
    ]
    with spark_errors():
        of_object = F.struct(*(field.name for field in OBJECT_FIELDS))
        segments = objects.groupBy(*SEGMENT_KEY).agg(
            F.collect_list(of_object).alias("objects"), F.min("start_offset").alias("start_offset")
        )
        names = engine.session.createDataFrame(known, spark_schema(_PARTITIONS_SCHEMA))
        together = segments.join(names, ["topic_id", "partition"], "full_outer")
        placed = together.repartition(2 * engine.parallelism, "topic_id", "partition")
        return placed.sortWithinPartitions("topic_id", "partition", "start_offset", "segment_id")
