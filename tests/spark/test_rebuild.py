"""A rebuild on Spark finds and imports what one process does, and freezes deletions alike."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from services.api.errors import DeletionRefusedError
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.workflows.deployment_state import read_kept
from services.workflows.rebuild import Rebuild, RebuildPlan
from services.workflows.rebuild_document import rebuild_document
from spark_jobs.checks import rebuild_job
from spark_jobs.checks.options import RebuildConfig
from spark_jobs.connections import Services
from spark_jobs.options import SweepOptions
from spark_jobs.sweeps.sweep import SweepRun
from tests.harness.databases import Stores
from tests.harness.processes import serving_rlmm
from tests.harness.tier import BROKER, Tier, a_topic, now_ms
from tests.spark.buckets import with_every_anomaly
from tests.spark.jobs import spark_engine
from tests.spark.tiers import new_tier

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]


@pytest.fixture(scope="module")
def filled(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    """A tier of its own, with everything that bucket and metadata can disagree about."""
    directory = tmp_path_factory.mktemp("rebuilt")
    with new_tier(directory, stores) as tier:
        with_every_anomaly(tier)
        [twice] = a_topic()
        tier.fill(twice, 2)
        tier.fill(twice, 2)
        yield tier


class Rebuilds:
    """Rebuilds of one RLMM from the bucket of a tier."""

    def __init__(self, tier: Tier, address: str, rlmm: RemoteLogMetadataManager) -> None:
        self.rlmm = rlmm
        self._options = SweepOptions(tier.rsm_process.address, address)

    def in_one_process(self, *, apply: bool) -> dict[str, Any]:
        services: Services = self._options.services
        plan = RebuildPlan(uuid4().hex, apply)
        with services.connected_rsm() as rsm, services.connected_objects() as objects:
            kept = read_kept(objects)
            done = Rebuild(self.rlmm, rsm, objects, plan).run()
            back = kept.put_settings_back(self.rlmm, apply=apply)
        return comparable(rebuild_document(plan, done, kept, back))

    def on_spark(self, spark: SparkSession, directory: Path, *, apply: bool) -> dict[str, Any]:
        plan_id = uuid4().hex
        (directory / plan_id).mkdir()
        this = SweepRun(rebuild_job.JOB, plan_id, directory / plan_id, lambda _: None)
        engine = spark_engine(spark, this.directory)
        reported = rebuild_job.run(engine, this, RebuildConfig(self._options, apply))
        assert reported.exit_code == 1  # something is damaged
        return comparable(json.loads(this.document.read_text()))

    def rows(self) -> set[tuple[Any, ...]]:
        """Return what RLMM has of each segment."""
        return {
            (row.remote_log_segment_id, row.state, row.start_offset, row.custom_metadata)
            for each in all_partitions(self.rlmm)
            for row in all_segments(self.rlmm, each.topic_id_partition)
        }


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what differs between equal runs."""
    differences = sorted(document["differences"], key=lambda each: json.dumps(each, sort_keys=True))
    is_frozen = document["freeze"] is not None
    return {**document, "run_id": "", "differences": differences, "freeze": is_frozen}


def test_a_lost_database_is_rebuilt_as_by_one_process(
    spark: SparkSession, filled: Tier, stores: Stores, tmp_path: Path
) -> None:
    with (
        stores.new() as store,
        stores.new() as another_store,
        serving_rlmm(store.database_url) as one,
        serving_rlmm(another_store.database_url) as other,
    ):
        alone = Rebuilds(filled, one.address, one.client)
        tasks = Rebuilds(filled, other.address, other.client)
        found = tasks.on_spark(spark, tmp_path, apply=False)
        assert found == alone.in_one_process(apply=False)
        assert (found["freeze"], found["imported"], tasks.rows()) == (False, 0, set())

        found = tasks.on_spark(spark, tmp_path, apply=True)
        assert found == alone.in_one_process(apply=True)
        assert found["freeze"]
        assert found["imported"] == len(tasks.rows()) > 0
        assert tasks.rows() == alone.rows()
        assert {found["counts"][kind] > 0 for kind in ("SUPERSEDED", "DAMAGED")} == {True}
        tp = next(iter(all_partitions(other.client))).topic_id_partition
        mark = RemotePartitionDeleteMetadata(
            tp, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, now_ms(), BROKER
        )
        with pytest.raises(DeletionRefusedError, match="confirm-rebuild"):
            other.client.put_remote_partition_delete_metadata(mark)

        again = tasks.on_spark(spark, tmp_path, apply=True)
        assert (again["imported"], again["same"]) == (0, found["imported"])


def test_metadata_without_objects_is_found_in_partitions_without_any(
    spark: SparkSession, filled: Tier, tmp_path: Path
) -> None:
    [tp] = a_topic()
    filled.fill(tp, 2)
    client = filled.s3.client()
    for key in filled.objects(tp.topic_id):
        client.remove_object(filled.bucket, key)
    rebuilds = Rebuilds(filled, filled.rlmm_process.address, filled.rlmm)
    found = rebuilds.on_spark(spark, tmp_path, apply=False)
    assert found == rebuilds.in_one_process(apply=False)
    missing = [d for d in found["differences"] if d["kind"] == "ONLY_IN_METADATA"]
    assert [each["topic"] for each in missing].count(tp.topic) == 2
