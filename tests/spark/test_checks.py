"""Checks of the store on Spark find what one process finds, over a bucket with every anomaly."""

import csv
import gzip
import json
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from services.api.ids import TopicIdPartition
from services.api.operations import Anomaly, AnomalyKind, RunCounts, RunKind
from services.api.remote_log_metadata_manager import all_anomalies, all_tool_runs
from services.rsm.layout import segment_keys
from services.workflows.check_documents import reconcile_document, scrub_document
from services.workflows.reconcile import Reconciliation, ReconciliationPlan
from services.workflows.scrub import Pace, Scrub, ScrubPlan
from spark_jobs.checks import reconcile_job, scrub_job
from spark_jobs.checks.inventory import read_manifest
from spark_jobs.checks.options import Inventory, ReconcileConfig, ScrubConfig
from spark_jobs.connections import Services
from spark_jobs.options import SweepOptions
from spark_jobs.sweeps.sweep import SweepRun
from spark_jobs.sweeps.sweep_error import EXIT_REFUSED, SweepError
from tests.harness.tier import Tier, a_topic, now_ms, segment
from tests.spark.buckets import with_every_anomaly
from tests.spark.commands import MASTER, Swept, ended, start
from tests.spark.jobs import spark_engine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
GRACE_MS = 0
DAY_MS = 24 * 60 * 60 * 1000
LISTS = ("failures", "reasons", "unfinished")


def options(tier: Tier) -> SweepOptions:
    return SweepOptions(tier.rsm_process.address, tier.rlmm_process.address)


def services(tier: Tier) -> Services:
    return options(tier).services


def a_run(job: str, directory: Path) -> SweepRun:
    plan_id = uuid4().hex
    (directory / plan_id).mkdir()
    return SweepRun(job, plan_id, directory / plan_id, lambda _: None)


def anomalies_of(tier: Tier, document: dict[str, Any]) -> set[Anomaly]:
    """Return what a run reported to RLMM, with the texts."""
    seen = all_anomalies(tier.rlmm)
    return {each.anomaly for each in seen if each.run_id == document["run_id"]}


def verified_by(tier: Tier, document: dict[str, Any], kind: RunKind) -> dict[UUID, RunCounts]:
    """Return what a run verified of each topic, if no later run did."""
    return {
        each.counts.topic_id: each.counts
        for each in all_tool_runs(tier.rlmm)
        if each.counts.topic_id is not None
        and (each.run_id, each.kind) == (document["run_id"], kind)
    }


def in_one_process(tier: Tier) -> dict[str, Any]:
    plan = ReconciliationPlan(uuid4().hex, now_ms(), GRACE_MS)
    with services(tier).connected_objects() as objects:
        return reconcile_document(plan, Reconciliation(tier.rlmm, tier.rsm, objects, plan).run())


def on_spark(spark: SparkSession, tier: Tier, directory: Path, **config: Any) -> dict[str, Any]:
    this = a_run(reconcile_job.JOB, directory)
    made = ReconcileConfig(options(tier), grace_ms=GRACE_MS, **config)
    reported = reconcile_job.run(spark_engine(spark, this.directory), this, made)
    assert reported.exit_code == 1
    document: dict[str, Any] = json.loads(this.document.read_text())
    return document


def same(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what differs between equal runs."""
    ordered = {name: sorted(document[name]) for name in LISTS if name in document}
    return {**document, **ordered, "run_id": ""}


@dataclass(frozen=True)
class Filled:
    """A bucket with every anomaly, and what one process says of it."""

    topic: TopicIdPartition
    alone: dict[str, Any]
    anomalies: set[Anomaly]
    verified: dict[UUID, RunCounts]


@pytest.fixture(scope="module")
def filled(tier: Tier) -> Filled:
    [tp, _] = with_every_anomaly(tier)
    alone = in_one_process(tier)
    verified = verified_by(tier, alone, RunKind.RECONCILE)
    return Filled(tp, alone, anomalies_of(tier, alone), verified)


def test_reconcile_finds_the_same_as_one_process(
    spark: SparkSession, tier: Tier, tmp_path: Path, filled: Filled
) -> None:
    before = tier.objects(filled.topic.topic_id)
    found = on_spark(spark, tier, tmp_path)
    assert same(found) == same(filled.alone)
    assert anomalies_of(tier, found) == filled.anomalies
    assert verified_by(tier, found, RunKind.RECONCILE) == filled.verified
    of_topic = filled.verified[filled.topic.topic_id]
    assert of_topic.segments > of_topic.done_segments > of_topic.failed_segments > 0
    kinds = {each.kind for each in filled.anomalies}
    assert kinds == set(AnomalyKind) - {AnomalyKind.ABANDONED_UPLOAD}
    assert min(found["copies"].values()) >= 1
    details = [each.detail for each in filled.anomalies]
    for kind in ("log", "indexes"):
        assert any(f"the {kind} object has" in detail for detail in details), details
    assert tier.objects(filled.topic.topic_id) == before


def inventory(tier: Tier, path: Path, bucket: str, *, but: str = "nothing") -> Inventory:
    """Write the bucket's objects as S3 does, without those of a key, and one that is gone."""
    gone = segment_keys("", segment(a_topic()[0], 0)).log("a" * 16)
    listed = tier.s3.client().list_objects(tier.bucket, recursive=True)
    rows = [
        (str(each.object_name), each.size, each.last_modified)
        for each in listed
        if but not in str(each.object_name)
    ]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(("bucket", "key", "size", "last_modified_date"))
        for key, size, at in [*rows, (gone, 7, datetime.now(UTC))]:
            writer.writerow((bucket, key, size, at.isoformat() if at else ""))
    return Inventory(str(path), bucket)


def test_an_inventory_gives_what_a_listing_gives_though_it_is_old(
    spark: SparkSession, tier: Tier, tmp_path: Path, filled: Filled
) -> None:
    newer = tier.fill(filled.topic, 1, first=20)[0].remote_log_segment_id.id
    alone = in_one_process(tier)
    written = inventory(tier, tmp_path / "inventory.csv", tier.bucket, but=newer.hex)
    found = on_spark(spark, tier, tmp_path, inventory=written)
    assert {**same(found), "listed_at_ms": None} == same(alone)
    assert anomalies_of(tier, found) == filled.anomalies


def as_s3_writes_it(written: Inventory, place: Path, made_ms: int) -> Inventory:
    """Write an inventory of all versions: files without a head, and a manifest that names them."""
    head = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag"
    with Path(written.path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    half, keys = len(rows) // 2, list[str]()
    for number, some in enumerate((rows[:half], rows[half:])):
        keys.append(f"inventories/{written.bucket}/daily/data/{number}.csv.gz")
        path = place / "data" / f"{number}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            for row in some:
                key, at = quote(row["key"]), row["last_modified_date"]
                writer.writerow((row["bucket"], key, "v2", "true", "false", row["size"], at, "e"))
                writer.writerow((row["bucket"], key, "v1", "false", "false", "1", at, "e"))
                writer.writerow((row["bucket"], f"{key}.gone", "v3", "true", "true", "", at, ""))
    manifest = place / "2026-11-26T01-00Z" / "manifest.json"
    manifest.parent.mkdir()
    document = {
        "sourceBucket": written.bucket,
        "destinationBucket": "arn:aws:s3:::inventories",
        "version": "2016-11-30",
        "creationTimestamp": str(made_ms),
        "fileFormat": "CSV",
        "fileSchema": head,
        "files": [{"key": key, "size": 1, "MD5checksum": "0"} for key in keys],
    }
    manifest.write_text(json.dumps(document))
    return Inventory(str(manifest), written.bucket)


def test_an_inventory_as_s3_writes_it(
    spark: SparkSession, tier: Tier, tmp_path: Path, filled: Filled
) -> None:
    alone = in_one_process(tier)
    listed = inventory(tier, tmp_path / "inventory.csv", tier.bucket)
    made_ms = now_ms() - 2 * DAY_MS
    written = as_s3_writes_it(listed, tmp_path / "daily", made_ms)
    found = on_spark(spark, tier, tmp_path, inventory=written)
    assert same(found) == {**same(alone), "listed_at_ms": made_ms}
    # It verified what was there two days ago: less than the run in one process, which stays.
    assert found["run_id"] not in {each.run_id for each in all_tool_runs(tier.rlmm)}
    for other, said in (
        (replace(written, max_age_ms=DAY_MS), "hides what was lost since; give a newer one"),
        (replace(written, bucket="another"), "not of another"),
        (replace(written, path=f"{tmp_path}/daily/data/0.csv.gz"), "manifest.json of S3 names"),
    ):
        with pytest.raises(SweepError, match=said) as refused:
            on_spark(spark, tier, tmp_path, inventory=other)
        assert refused.value.exit_code == EXIT_REFUSED


def test_an_inventory_of_another_bucket_is_refused_before_anything(
    spark: SparkSession, tier: Tier, tmp_path: Path, filled: Filled
) -> None:
    before = {each.run_id for each in all_anomalies(tier.rlmm)}
    written = inventory(tier, tmp_path / "inventory.csv", "another")
    for other, said in (
        (replace(written, bucket=tier.bucket), "is of the bucket another, not of spark-"),
        (inventory(tier, tmp_path / "other.csv", "another", but="/"), "has no object that"),
    ):
        with pytest.raises(SweepError, match=said) as refused:
            on_spark(spark, tier, tmp_path, inventory=other)
        assert (refused.value.exit_code, "\n" in str(refused.value)) == (EXIT_REFUSED, False)
    assert {each.run_id for each in all_anomalies(tier.rlmm)} == before


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/nowhere/inventory.csv", "Path does not exist: file:/nowhere/inventory.csv"),
        ("/nowhere/inventory.parquet", "Path does not exist: file:/nowhere/inventory.parquet"),
        ("/nowhere/manifest.json", "Path does not exist: file:/nowhere/manifest.json"),
        ("s4://bucket/inventory.csv", 'No FileSystem for scheme "s4"'),
    ],
)
def test_an_inventory_that_cannot_be_read_is_refused(
    spark: SparkSession, tier: Tier, tmp_path: Path, filled: Filled, path: str, cause: str
) -> None:
    assert filled.anomalies
    with pytest.raises(SweepError) as refused:
        on_spark(spark, tier, tmp_path, inventory=Inventory(path, tier.bucket))
    assert refused.value.exit_code == EXIT_REFUSED
    assert str(refused.value) == (
        f"--inventory: {path}: {cause}; give a path that every executor can read"
    )


def test_scrub_finds_the_same_as_one_process(
    spark: SparkSession, tier: Tier, tmp_path: Path, filled: Filled
) -> None:
    plan = ScrubPlan(uuid4().hex)
    pace = Pace(lambda _: None, lambda _: None)
    with services(tier).connected_objects() as objects:
        alone = Scrub(tier.rlmm, tier.rsm, objects, plan, pace).run()
    expected = scrub_document(plan, (), 10**9, alone)
    reported = anomalies_of(tier, expected)
    verified = verified_by(tier, expected, RunKind.SCRUB)
    this = a_run(scrub_job.JOB, tmp_path)
    config = ScrubConfig(options(tier), bytes_per_s=1e9)
    assert scrub_job.run(spark_engine(spark, this.directory), this, config).exit_code == 1
    found = json.loads(this.document.read_text())
    assert same(found) == same(expected)
    assert anomalies_of(tier, found) == reported
    assert verified_by(tier, found, RunKind.SCRUB) == verified
    assert verified[filled.topic.topic_id].failed_segments > 0
    assert alone.damaged >= 2
    assert alone.verified >= 3


@pytest.mark.long
def test_an_inventory_may_be_parquet_with_versions(
    spark: SparkSession, tier: Tier, tmp_path: Path, filled: Filled
) -> None:
    alone = in_one_process(tier)
    written = inventory(tier, tmp_path / "inventory.csv", tier.bucket)
    path = str(tmp_path / "inventory.parquet")
    rows = spark.read.csv(written.path, header=True)
    latest = rows.withColumns({"is_latest": F.lit(True), "is_delete_marker": F.lit(False)})
    latest.union(
        rows.withColumns({"is_latest": F.lit(False), "is_delete_marker": F.lit(True)})
    ).write.parquet(path)
    found = on_spark(spark, tier, tmp_path, inventory=Inventory(path, tier.bucket))
    assert {**same(found), "listed_at_ms": None} == same(alone)


@pytest.mark.long
def test_as_programs_one_deletes_if_it_is_told_to_and_one_verifies(
    tier: Tier, filled: Filled
) -> None:
    def run(job: str, *more: str) -> Swept:
        addresses = ["--rsm", tier.rsm_process.address, "--rlmm", tier.rlmm_process.address]
        program = [sys.executable, "-m", "spark_jobs.main", job, "--plaintext", *addresses]
        process = start([*program, "--master", MASTER, "--driver-memory", "512m", *more])
        return ended(process, (job,))

    assert filled.alone["anomalies"]["ORPHAN_OBJECTS"] > 0
    deleted = run("reconcile", "--delete", "--grace", "0")
    assert (deleted.exit_code, deleted.report["failures"]) == (1, [])
    assert deleted.report["deleted_objects"] > 0
    left = run("reconcile", "--grace", "0")
    assert left.report["anomalies"] == {**filled.alone["anomalies"], "ORPHAN_OBJECTS": 0}
    scrubbed = run("scrub", "--topic", filled.topic.topic, "--part", "1/1")
    assert (scrubbed.exit_code, scrubbed.report["topics"]) == (1, [filled.topic.topic])
    assert scrubbed.report["damaged"] > 0
    refused = run("scrub", "--part", "2/1")
    assert (refused.exit_code, refused.stderr.count("\n")) == (EXIT_REFUSED, 1)


KEY = "inventories/orders/daily/data/0.csv.gz"
DOCUMENT = {
    "sourceBucket": "orders",
    "creationTimestamp": "1764118800000",
    "fileFormat": "CSV",
    "fileSchema": "Bucket, Key, IsLatest, Size, LastModifiedDate, ETag",
    "files": [{"key": KEY}],
}


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("s3a://kept/inventories/orders/daily/2026/manifest.json", f"s3a://kept/{KEY}"),
        ("/copies/daily/2026/manifest.json", "/copies/daily/data/0.csv.gz"),
        ("2026/manifest.json", "./data/0.csv.gz"),
    ],
)
def test_files_are_in_the_bucket_of_the_manifest_or_beside_a_copy(path: str, file: str) -> None:
    found = read_manifest(json.dumps(DOCUMENT), path, "orders")
    assert (found.paths, found.made_ms) == ((file,), 1_764_118_800_000)
    assert found.columns == ("bucket", "key", "is_latest", "size", "last_modified_date", "etag")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "not a manifest of S3"),
        ("[]", "not a manifest of S3"),
        (json.dumps({**DOCUMENT, "creationTimestamp": "today"}), "not a manifest of S3"),
        (
            json.dumps({name: DOCUMENT[name] for name in DOCUMENT if name != "creationTimestamp"}),
            "KeyError: 'creationTimestamp'",
        ),
        (json.dumps({**DOCUMENT, "files": []}), "names no files"),
        (json.dumps({**DOCUMENT, "fileFormat": "XML"}), "its files are xml"),
        (json.dumps({**DOCUMENT, "sourceBucket": 7}), "is of the bucket 7, not of orders"),
    ],
)
def test_what_is_no_manifest_is_named(text: str, said: str) -> None:
    with pytest.raises(SweepError, match=said):
        read_manifest(text, "/a/b/manifest.json", "orders")
