"""What a user can do wrong with any job of `main.py`: one line, an exit code, nothing changed."""

import pytest

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import all_anomalies
from spark_jobs.main import main
from tests.harness.tier import Tier
from tests.spark.tiers import due_partitions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
NOBODY = "127.0.0.1:1"
JOBS = {
    "retention": ("--apply",),
    "removal": ("--apply", "--grace", "0"),
    "reconcile": ("--delete", "--grace", "0"),
    "scrub": (),
    "rebuild": ("--apply",),
    "export": ("--table", "/nowhere/table"),
}
WRONG = {
    "unknown topic": (("--topic", "nobody-knows-it"), 2, "nobody-knows-it"),
    "rlmm away": (("--rlmm", NOBODY, "--retry-for", "0.1"), 3, f"rlmm at {NOBODY}"),
    "rsm away": (("--rsm", NOBODY, "--retry-for", "0.1"), 3, f"rsm at {NOBODY}"),
    "no file of the CA": (("--tls-ca", "/nowhere/ca.pem"), 2, "/nowhere/ca.pem"),
    "no token file": (("--token-file", "/nowhere/token"), 2, "token"),
}
CASES = [
    (job, wrong)
    for job in JOBS
    for wrong in WRONG
    if wrong != "unknown topic" or job not in ("reconcile", "rebuild")
]


@pytest.fixture
def topic(tier: Tier) -> TopicIdPartition:
    """A topic of which each job would change something."""
    [tp] = due_partitions(tier, 2)
    return tp


@pytest.mark.parametrize(("job", "wrong"), CASES)
def test_it_is_named_in_one_line_before_anything_changes(
    job: str,
    wrong: str,
    tier: Tier,
    topic: TopicIdPartition,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options, exit_code, named = WRONG[wrong]
    if job == "export" and options[0] != "--topic":
        options = (*options, "--topic", topic.topic)
    anomalies = len(list(all_anomalies(tier.rlmm)))
    before = tier.rows(topic), tier.objects(topic.topic_id)
    addresses = ["--rsm", tier.rsm_process.address, "--rlmm", tier.rlmm_process.address]
    assert main([job, *addresses, *JOBS[job], *options]) == exit_code
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.strip().splitlines()
    assert named in line
    assert (tier.rows(topic), tier.objects(topic.topic_id)) == before
    assert len(list(all_anomalies(tier.rlmm))) == anomalies
