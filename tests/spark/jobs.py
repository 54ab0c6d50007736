"""Run sweeps by either engine, driven by this process, with something happening at each phase."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from pyspark.sql import SparkSession

from services.api.ids import TopicIdPartition, uuid_from_text
from spark_jobs.options import SweepConfig, SweepOptions
from spark_jobs.sweeps import partition_removal_sweep, retention_sweep
from spark_jobs.sweeps.report import COUNTS, PARTITION_KEYS, SEGMENT_KEYS, SweepReport
from spark_jobs.sweeps.spark_engine import SparkEngine
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import SweepRun
from spark_jobs.sweeps.sweep_error import service_errors
from tests.harness.tier import Tier

Phases = Mapping[str, Callable[[], object]]
DOCUMENT_KEYS = {
    "job",
    "plan_id",
    "engine",
    "apply",
    "outcome",
    "error",
    "started_at_ms",
    "finished_at_ms",
    "totals",
    "partitions",
    "segments",
    "segments_file",
}


@dataclass(frozen=True)
class Done:
    """A sweep that came to its end; `errors` is what a table for people would say."""

    exit_code: int
    errors: Mapping[str, int]
    document: dict[str, Any]

    @property
    def outcome(self) -> str:
        return str(self.document["outcome"])

    @property
    def plan_id(self) -> str:
        return str(self.document["plan_id"])

    @property
    def totals(self) -> dict[str, int]:
        made: dict[str, int] = self.document["totals"]
        return made

    def segments(self, key: str = "outcome") -> dict[UUID, Any]:
        """By id, what the report says of each segment."""
        return {uuid_from_text(s["segment_id"], "id"): s[key] for s in self.document["segments"]}

    def partition(self, tp: TopicIdPartition) -> dict[str, Any]:
        [found] = [
            p
            for p in self.document["partitions"]
            if (uuid_from_text(p["topic_id"], "id"), p["partition"]) == (tp.topic_id, tp.partition)
        ]
        assert isinstance(found, dict)
        return found


@dataclass
class Jobs:
    """Runs sweeps of some topics only, so that each test has its own."""

    engine_in: Callable[[Path], Engine]
    tier: Tier
    directory: Path

    def retention(
        self,
        topics: list[str],
        at: Phases | None = None,
        *,
        copy_grace_ms: int = 3_600_000,
        **options: Any,
    ) -> Done:
        config = SweepConfig(self._options(topics, options), copy_grace_ms)
        this = self._run(retention_sweep.JOB, at)
        with service_errors():
            report = retention_sweep.run(self.engine_in(this.directory), this, config)
        return _done(report, this.document)

    def removal(
        self, topics: list[str], at: Phases | None = None, *, grace_ms: int = 0, **options: Any
    ) -> Done:
        config = SweepConfig(self._options(topics, options), grace_ms)
        this = self._run(partition_removal_sweep.JOB, at)
        with service_errors():
            report = partition_removal_sweep.run(self.engine_in(this.directory), this, config)
        return _done(report, this.document)

    def _options(self, topics: list[str], options: Mapping[str, Any]) -> SweepOptions:
        rsm, rlmm = self.tier.rsm_process.address, self.tier.rlmm_process.address
        return SweepOptions(**{"rsm": rsm, "rlmm": rlmm, "topics": tuple(topics), **options})

    def _run(self, job: str, at: Phases | None) -> SweepRun:
        plan_id = uuid4().hex
        directory = self.directory / plan_id
        directory.mkdir()

        def say(phase: str) -> None:
            if at is not None and phase in at:
                at[phase]()

        return SweepRun(job, plan_id, directory, say)


def spark_engine(spark: SparkSession, directory: Path) -> SparkEngine:
    """Return an engine on the tests' cluster, whose executors see every directory."""
    return SparkEngine(spark, f"file:{directory}")


def _done(report: SweepReport, document: Path) -> Done:
    """Checked for what must hold of every report."""
    made = Done(report.exit_code, report.errors, json.loads(document.read_text()))
    assert made.document.keys() == DOCUMENT_KEYS
    segments, partitions = made.document["segments"], made.document["partitions"]
    assert all(tuple(each) == SEGMENT_KEYS for each in segments)
    assert all(tuple(each) == PARTITION_KEYS for each in partitions)
    assert {name: made.totals[name] for name in COUNTS} == {
        name: sum(partition[name] for partition in partitions) for name in COUNTS
    }
    outcomes = [segment["outcome"] for segment in segments]
    if made.document["segments_file"] is not None:
        return made
    assert made.totals["planned_segments"] == len(outcomes) == len(made.segments())
    assert made.totals["deleted_segments"] == outcomes.count("DELETED")
    by_another = outcomes.count("DELETED_BY_ANOTHER")
    assert made.totals["deleted_by_another_segments"] == by_another
    assert made.totals["refused_segments"] == outcomes.count("REFUSED")
    assert made.totals["failed_segments"] == outcomes.count("FAILED")
    assert made.exit_code == {"PLANNED": 0, "DONE": 0, "PARTIAL": 1, "REFUSED": 2}[made.outcome]
    return made
