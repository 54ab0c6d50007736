"""The secrets of the services, if the shell of a sweep has them, reach nothing of Spark's."""

from pathlib import Path

import pytest

from tests.harness.eventually import eventually
from tests.harness.recorders import trap
from tests.harness.tier import Tier
from tests.spark.commands import command, ended, start, traces_of_children
from tests.spark.tiers import due_partitions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
CANARY = "canary-of-a-secret"
SECRETS = {
    "RSM_SECRET_KEY": CANARY,
    "RLMM_DATABASE_URL": f"postgresql://rlmm:{CANARY}@127.0.0.1:1/tier",
    "AWS_SECRET_ACCESS_KEY": CANARY,
    "AWS_SESSION_TOKEN": CANARY,
    "PGPASSWORD": CANARY,
}


def test_no_variable_sends_a_sweep_elsewhere(tier: Tier, tmp_path: Path) -> None:
    [tp] = due_partitions(tier, 1)
    with trap() as made:
        process = start(
            command(tier, "retention", "--topic", tp.topic, "--apply"),
            {**made.proxies(), **made.of_libpq(tmp_path)},
        )
        swept = ended(process)
        assert swept.exit_code == 0, swept.stderr
        assert list(swept.outcomes.values()) == ["DELETED"]
        assert made.reached == 0


@pytest.mark.long
def test_secrets_reach_no_process_and_no_file_of_spark(
    tier: Tier, tmp_path: Path, events: Path
) -> None:
    [tp] = due_partitions(tier, 1)
    work = tmp_path / "work"
    options = ["--topic", tp.topic, "--work-dir", str(work), "--apply"]
    process = start(
        command(tier, "retention", *options), {**SECRETS, "SPARK_CONF_DIR": str(tmp_path)}
    )
    with tier.held_up(tp):  # it has planned and waits to mark
        eventually(lambda: list(work.glob("*/plan")), deadline_ms=300_000)
        found = traces_of_children(process.pid)
    assert found
    assert [name for name, content in found.items() if CANARY.encode() in content] == []
    swept = ended(process)
    assert swept.exit_code == 0, swept.stderr
    assert CANARY not in swept.stderr + str(swept.report)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(events in path.parents for path in files)
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
