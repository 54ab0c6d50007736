"""Run `reconcile` on Spark: list, join with the metadata, judge in tasks, report."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from services.workflows.check_documents import needs_operator, reconcile_document
from services.workflows.coverage import verified_of
from services.workflows.reconcile import ReconciliationPlan, Recording, abandoned_uploads
from services.workflows.segment_views import MetadataView
from services.workflows.unfinished_copies import CopyKind
from spark_jobs.checks.frames import (
    by_partition,
    listed_objects,
    segments_with_objects,
    shard_column,
    whole_frame,
)
from spark_jobs.checks.inventory import (
    OpenInventory,
    inventory_objects,
    open_inventory,
    text_of_ms,
)
from spark_jobs.checks.judging import (
    COUNTED,
    FINDING,
    SHARDS,
    UNFINISHED,
    UNREAD,
    VERDICTS_SCHEMA,
    VERIFIED,
    finding_of,
    judge,
)
from spark_jobs.checks.options import CheckReport, ReconcileConfig
from spark_jobs.connections import Services
from spark_jobs.sweeps.marking import now_ms
from spark_jobs.sweeps.plan import Row
from spark_jobs.sweeps.spark_engine import SparkEngine, spark_errors
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import SweepRun
from spark_jobs.sweeps.sweep_error import EXIT_PARTIAL, SweepError

JOB = "reconcile"


def run(engine: Engine, this: SweepRun, config: ReconcileConfig) -> CheckReport:
    """Run one comparison, and write its document."""
    if not isinstance(engine, SparkEngine):
        raise SweepError(f"{JOB} runs on Spark; `sediment reconcile` runs in one process")
    services = config.options.services
    plan = ReconciliationPlan(
        this.plan_id, now_ms(), config.grace_ms, config.delete, config.locations
    )
    with services.connected_rlmm() as rlmm, services.connected_objects() as objects:
        listed = None
        if config.inventory is not None:
            location_id = plan.locations[0]
            listed = open_inventory(engine, objects, config.inventory, location_id, plan.now_ms)
            plan = replace(plan, listed_at_ms=listed.made_ms)
        recording = Recording(rlmm, objects, plan)
        this.say("listing uploads")
        view = MetadataView(rlmm)
        for location_id in plan.locations:
            for upload in abandoned_uploads(view, objects, location_id, plan):
                recording.add(upload)
        comparison = _Comparison(engine, services, plan, this)
        verdicts = comparison.of_store() if listed is None else comparison.of_inventory(listed)
        this.say("reporting")
        for row in _rows(verdicts):
            _add(recording, row)
        done = recording.finish(view.topics())
    document = reconcile_document(plan, done)
    this.document.write_text(json.dumps(document), encoding="utf-8")
    return CheckReport(EXIT_PARTIAL if needs_operator(done) else 0)


class _Comparison:
    """Compare objects with the metadata, in stages."""

    def __init__(
        self, engine: SparkEngine, services: Services, plan: ReconciliationPlan, this: SweepRun
    ) -> None:
        self._engine = engine
        self._services = services
        self._plan = plan
        self._say = this.say

    def of_store(self) -> DataFrame:
        """List the stores, and return rows of VERDICTS_SCHEMA."""
        self._say("listing objects")
        objects = listed_objects(self._engine, self._services, "objects", self._plan.locations)
        return self._judged("verdicts", objects)

    def of_inventory(self, inventory: OpenInventory) -> DataFrame:
        """Compare an inventory; then list the shards with findings, and compare them again.

        An inventory is old: what it has may have been deleted since. What is lost since is found
        by a later run, so this one counts as a verification at the time of the inventory.
        """
        self._say(f"reading the inventory of {text_of_ms(inventory.made_ms)}")
        verdicts = self._judged("first", inventory_objects(self._engine, inventory, "inventory"))
        with spark_errors():
            differing = (
                verdicts.where(F.col("what").isin(FINDING, UNREAD))
                .select("shard")
                .distinct()
                .collect()
            )
        shards = sorted(row["shard"] for row in differing)
        if not shards:
            return verdicts
        self._say("listing what differs")
        locations = self._plan.locations
        objects = listed_objects(self._engine, self._services, "objects", locations, shards, SHARDS)
        again = self._judged("verdicts", objects, shards)
        return verdicts.where(~F.col("shard").isin(shards)).union(again)

    def _judged(
        self, name: str, objects: DataFrame, shards: Sequence[int] | None = None
    ) -> DataFrame:
        with spark_errors():
            segments = segments_with_objects(self._engine, self._services, objects)
            if shards is not None:
                segments = segments.where(shard_column().isin(list(shards)))
            segments = by_partition(self._engine, segments)
        task = partial(judge, services=self._services, plan=self._plan)
        self._say("comparing")
        stored = self._engine.written(name, task, segments, VERDICTS_SCHEMA)
        return whole_frame(self._engine, stored)


def _rows(verdicts: DataFrame) -> Iterator[Row]:
    """Read verdicts one partition of the frame after the other."""
    with spark_errors():
        for row in verdicts.toLocalIterator():
            yield row.asDict()


def _add(recording: Recording, row: Row) -> None:
    """Add a row of VERDICTS_SCHEMA."""
    if row["what"] == COUNTED:
        recording.done.segments += row["segments"]
        recording.done.objects += row["objects"]
    elif row["what"] == VERIFIED:
        recording.done.coverage.add(verified_of(row))
    elif row["what"] == UNREAD:
        recording.done.add_unread(row["unread"])
    elif row["what"] == UNFINISHED:
        recording.done.add_copy(CopyKind(row["kind"]), row["detail"])
    else:
        recording.add(finding_of(row), counts=row["counts"])
