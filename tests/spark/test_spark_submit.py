"""`spark-submit main.py` from machines that have Spark and Python, but no Sediment."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.api.ids import TopicIdPartition
from services.api.operations import AnomalyKind
from services.api.remote_log_metadata_manager import all_anomalies
from services.local.seaweedfs import S3Endpoint, SeaweedFS
from tests.harness.emulators import OneNodeHdfs
from tests.harness.jars import ensure_s3a_jars
from tests.harness.tier import Tier, a_topic
from tests.spark.bare_environment import BareEnvironment, make_bare_environment
from tests.spark.buckets import Bucket
from tests.spark.commands import TIMEOUT_S, Swept
from tests.spark.made_logs import copied, plain
from tests.spark.s3a_properties import s3a_properties
from tests.spark.standalone import StandaloneCluster, standalone_cluster
from tests.spark.tiers import due_partitions
from tools.shape import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
SEGMENTS = 3
BUCKET = "sweeps-work"
PAGE = ROOT / "docs" / "use" / "sweeps.md"
REPAIR = ROOT / "docs" / "run" / "repair.md"
USER_PROGRAM = ROOT / "tests" / "spark" / "user_program.py"
SMALL = ("--executor-memory", "512m")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> BareEnvironment:
    return make_bare_environment(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def cluster(
    environment: BareEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    home, variables = environment.spark_home, environment.variables()
    with standalone_cluster(home, variables, directory) as running:
        yield running


@pytest.fixture(scope="module")
def work_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Endpoint]:
    """Run a store for work directories, whose keys open nothing of the tier."""
    server = SeaweedFS(tmp_path_factory.mktemp("work-store"))
    server.start()
    server.endpoint.ensure_bucket(BUCKET)
    yield server.endpoint
    server.kill()


def expired(tier: Tier) -> TopicIdPartition:
    [tp] = due_partitions(tier, SEGMENTS)
    return tp


@dataclass(frozen=True)
class Submitted:
    """Sweeps of the tier by `spark-submit` to the standalone cluster."""

    environment: BareEnvironment
    cluster: StandaloneCluster
    tier: Tier
    cwd: Path

    def sweep(self, tp: TopicIdPartition, work: Path | str, *more: str) -> Swept:
        """Submit a retention sweep of a topic; `more` are options of Spark."""
        return self.environment.submit(
            self.tier,
            "retention",
            ("--master", self.cluster.master, *SMALL, *more),
            *("--topic", tp.topic, "--apply", "--work-dir", str(work)),
            cwd=self.cwd,
        )

    def assert_all_deleted(self, tp: TopicIdPartition, swept: Swept) -> None:
        assert swept.exit_code == 0, swept.stderr
        assert len(swept.outcomes) == SEGMENTS
        assert set(swept.outcomes.values()) == {"DELETED"}
        assert self.tier.objects(tp.topic_id) == {}


@pytest.fixture
def submitted(
    environment: BareEnvironment, cluster: StandaloneCluster, tier: Tier, tmp_path: Path
) -> Submitted:
    return Submitted(environment, cluster, tier, tmp_path)


@pytest.mark.long
def test_the_environment_has_no_sediment(environment: BareEnvironment) -> None:
    for package in ("services", "spark_jobs", "tieredstorage"):
        done = subprocess.run(
            [str(environment.python), "-c", f"import pyspark, grpc, {package}"],
            env=environment.variables(),
            cwd=environment.main.parent.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"No module named '{package}'" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "master"), [("retention", "local-cluster[2,1,1024]"), ("removal", "local[1]")]
)
def test_the_wheel_alone_is_enough_on_one_machine(
    environment: BareEnvironment, tier: Tier, tmp_path: Path, job: str, master: str
) -> None:
    tp = expired(tier)
    options = ["--topic", tp.topic, "--apply"]
    if job == "removal":
        tier.mark_deleted(tp)
        options += ["--grace", "0"]
    swept = environment.submit(tier, job, ("--master", master), *options, cwd=tmp_path)
    assert swept.exit_code == 0, swept.stderr
    assert set(swept.outcomes.values()) == {"DELETED"}
    assert tier.objects(tp.topic_id) == {}


@pytest.mark.long
def test_a_standalone_cluster_sweeps_from_a_directory_that_all_share(submitted: Submitted) -> None:
    tp = expired(submitted.tier)
    submitted.assert_all_deleted(tp, submitted.sweep(tp, submitted.cwd / "work"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("directory", "why"),
    [("private", "0 can be read"), ("read_only", "executors cannot write to")],
)
def test_a_directory_that_executors_do_not_share_is_named_before_anything_is_marked(
    submitted: Submitted, directory: str, why: str
) -> None:
    tp = expired(submitted.tier)
    work: Path = getattr(submitted.cluster, directory)
    swept = submitted.sweep(tp, work)
    assert swept.exit_code == 3, swept.stderr
    [line] = [each for each in swept.stderr.splitlines() if "--work-dir" in each]
    assert str(work) in line
    assert why in line
    assert {row.state.name for row in submitted.tier.rows(tp)} == {"COPY_SEGMENT_FINISHED"}
    assert swept.report == {}


@pytest.mark.long
def test_workers_with_separate_disks_sweep_from_a_bucket_with_keys_of_its_own(
    submitted: Submitted, work_store: S3Endpoint
) -> None:
    tp = expired(submitted.tier)
    properties = submitted.cwd / "s3a.conf"
    given = s3a_properties(work_store, BUCKET, ensure_s3a_jars())
    properties.write_text("\n".join(f"{key} {value}" for key, value in given.items()))
    work = f"s3a://{BUCKET}/sweeps"
    swept = submitted.sweep(tp, work, "--properties-file", str(properties))
    submitted.assert_all_deleted(tp, swept)
    stored = work_store.client().list_objects(BUCKET, "sweeps/", recursive=True)
    names = {str(each.object_name).split("/")[2] for each in stored}
    assert {"plan", "marked-0", "deleted-0"} <= names
    assert work_store.secret_key not in swept.stderr


@pytest.mark.long
def test_workers_with_separate_disks_sweep_from_hdfs(submitted: Submitted) -> None:
    tp, directory = expired(submitted.tier), submitted.cwd
    with OneNodeHdfs(directory / "hdfs") as hdfs:
        submitted.assert_all_deleted(tp, submitted.sweep(tp, f"{hdfs.uri}/sweeps"))
        # The rows are in HDFS, and nowhere else.
        assert not list(directory.rglob("part-*.parquet"))
        assert list((directory / "hdfs").rglob("blk_*")), sorted(directory.rglob("*"))


def commands_of(page: Path) -> list[str]:
    """Return the spark-submit commands of a page, each with its options."""
    blocks = re.findall(r"```sh\n(spark-submit .*?)```", page.read_text(), re.S)
    return [each for block in blocks for each in re.split(r"\n(?=spark-submit)", block.strip())]


def as_a_user(submitted: Submitted, command: str) -> tuple[int, dict[str, Any], str]:
    """Run a command of a page in a shell; return exit code, report and what was printed."""
    environment, tier, cwd = submitted.environment, submitted.tier, submitted.cwd
    variables = {
        "MASTER": submitted.cluster.master,
        "WHEEL": str(environment.wheel),
        "RSM": tier.rsm_process.address,
        "RLMM": tier.rlmm_process.address,
        "WORK_DIR": str(cwd / "work"),
        "PATH": f"{environment.spark_home}/bin:{os.environ['PATH']}",
    }
    shutil.copy(environment.main, cwd)
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment.variables(variables),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    report = cwd / "report.json"
    found = json.loads(report.read_text()) if report.exists() else {}
    return done.returncode, found, done.stdout + done.stderr


@pytest.mark.parametrize("job", ["retention", pytest.param("removal", marks=pytest.mark.long)])
def test_the_commands_of_the_page_sweep(submitted: Submitted, tier: Tier, job: str) -> None:
    tp = expired(tier)
    [command] = [each for each in commands_of(PAGE) if f"main.py {job} " in each]
    command = command.replace("--topic orders", f"--topic {tp.topic}")
    if job == "removal":
        tier.mark_deleted(tp)
        command += " --grace 0"
    code, report, printed = as_a_user(submitted, command)
    assert (code, report.get("outcome")) == (0, "DONE"), printed
    assert report["totals"]["deleted_segments"] == SEGMENTS
    assert tier.objects(tp.topic_id) == {}


@pytest.mark.parametrize(
    "check",
    [
        "reconcile",
        pytest.param("scrub", marks=pytest.mark.long),
        pytest.param("rebuild", marks=pytest.mark.long),
    ],
)
def test_the_commands_of_the_page_check(submitted: Submitted, tier: Tier, check: str) -> None:
    [command] = [each for each in commands_of(REPAIR) if f"main.py {check} " in each]
    [tp] = a_topic()
    tier.fill(tp, SEGMENTS)
    if check == "scrub":
        # All parts: which of them has a segment is decided by its id.
        command = command.replace("--part 3/28", f"--topic {tp.topic} --part 1/1")
    else:
        bucket = Bucket(tier)
        bucket.delete(bucket.keys(tier.rows(tp)[0]))
    if check == "reconcile":
        command += " --grace 0"
    code, report, printed = as_a_user(submitted, command)
    assert code == (0 if check == "scrub" else 1), printed
    if check == "scrub":
        assert (report["verified"], report["damaged"]) == (SEGMENTS, 0)
    elif check == "reconcile":
        found = [each.anomaly for each in all_anomalies(tier.rlmm)]
        [missing] = [each.kind for each in found if each.topic_id == tp.topic_id]
        assert missing is AnomalyKind.MISSING_OBJECTS
    else:
        [missing] = [d["kind"] for d in report["differences"] if d["topic"] == tp.topic]
        assert missing == "ONLY_IN_METADATA"


@pytest.mark.long
def test_a_program_of_the_user_reads_both_sources_on_executors(
    environment: BareEnvironment, cluster: StandaloneCluster, tier: Tier, tmp_path: Path
) -> None:
    [tp] = a_topic()
    copied(tier, tp, 0, [plain(0, [b"a", b"b"])])
    result = tmp_path / "result.json"
    addresses = tier.rsm_process.address, tier.rlmm_process.address
    done = environment.spark_submit(
        ("--master", cluster.master, *SMALL),
        USER_PROGRAM,
        *(*addresses, tp.topic, str(result)),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(result.read_text()) == {"segments": 1, "offsets": [0, 1]}


@pytest.mark.long
def test_an_unknown_job_is_named(environment: BareEnvironment, tier: Tier, tmp_path: Path) -> None:
    swept = environment.submit(tier, "retain", ("--master", "local[1]"), cwd=tmp_path)
    assert "'retain' is not a job; the first argument must be one of retention, removal" in (
        swept.stderr
    )
