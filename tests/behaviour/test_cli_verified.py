"""Test `sediment verified`: what reconcile and scrub record of each topic."""

import json
import re
from typing import Any

from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.operations import RunCounts, RunKind, ToolRun
from services.rsm.backends.filesystem import FilesystemStorage
from tests.contract.rlmm.segments import finished
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.served import ServedRsm
from tests.harness.stores import keys_in
from tests.harness.tier import SIZE_BYTES, SmallTier, a_topic

rlmm, rsm, store = served_fixtures.rlmm_with_rsm, served_fixtures.rsm, served_fixtures.store


def check(rlmm: RlmmProcess, *command: str) -> str:
    """Run reconcile or scrub; return its run id."""
    done = rlmm.sediment(*command, "-o", "json")
    assert done.returncode in (0, 1), done.stderr
    return str(json.loads(done.stdout)["run_id"])


def last_of(rlmm: RlmmProcess, kind: str, topic: str = "orders") -> dict[str, Any] | None:
    """Return the last verification of a topic, without its times."""
    [row] = [row for row in rlmm.answers("verified", topic) if row["kind"] == kind]
    last: dict[str, Any] | None = row["last"]
    if last is not None:
        assert 0 < last.pop("ended_ms") <= last.pop("last_ended_ms")
    return last


def of_run(tp: TopicIdPartition, kind: str = "SCRUB") -> dict[str, Any]:
    """Return what each check of a topic records alike."""
    topic = {"topics": [tp.topic], "topic_id": uuid_to_text(tp.topic_id)}
    return {"kind": kind, "outcome": "DONE", "duration_ms": 0, **topic}


def test_parts_of_a_scrub_count_together_and_damage_is_no_coverage(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    orders, audit = a_topic("orders", 1)[0], a_topic("audit", 1)[0]
    tier = SmallTier(rsm.client, rlmm.client)
    segments = [each.remote_log_segment_id.id for each in tier.fill(orders, 4)]
    tier.fill(audit, 1)
    [damaged] = [key for key in keys_in(store, "") if segments[0].hex in key and "log" in key]
    store.put(damaged, bytes(SIZE_BYTES - 1) + b"x")
    for part in (1, 2):
        run_id = check(rlmm, "scrub", "--topic", "orders", "--part", f"{part}/2")
        found = last_of(rlmm, "SCRUB")
        assert found is not None
        assert (found["parts"], found["ended_parts"], found["run_id"]) == (2, part, run_id)
    assert found == {
        **of_run(orders),
        "parts": 2,
        "ended_parts": 2,
        "run_id": run_id,
        "segments": 4,
        "done_segments": 3,
        "done_bytes": 3 * SIZE_BYTES,
        "failed_segments": 1,
    }
    assert last_of(rlmm, "SCRUB", "audit") is None
    assert last_of(rlmm, "RECONCILE") is None


def test_a_reconciliation_counts_what_is_missing(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    tier, (orders,) = SmallTier(rsm.client, rlmm.client), a_topic("orders", 1)
    segments = [each.remote_log_segment_id.id for each in tier.fill(orders, 3)]
    tier.fill(a_topic("audit", 1)[0], 1)
    store.delete([key for key in keys_in(store, "") if segments[0].hex in key])
    manifests = [key for key in keys_in(store, "") if segments[1].hex in key and "mani" in key]
    store.delete(manifests)
    run_id = check(rlmm, "reconcile", "--grace", "0")
    counts = {"segments": 3, "done_segments": 1, "done_bytes": SIZE_BYTES}
    parts = {"parts": 1, "ended_parts": 1, "run_id": run_id}
    assert last_of(rlmm, "RECONCILE") == {
        **of_run(orders, "RECONCILE"),
        **parts,
        **counts,
        "failed_segments": 2,
    }
    sound = last_of(rlmm, "RECONCILE", "audit")
    assert sound is not None
    assert (sound["done_segments"], sound["failed_segments"]) == (1, 0)


def test_the_table_has_each_topic_and_check_and_fits_a_terminal(rlmm: RlmmProcess) -> None:
    (orders,) = a_topic("orders", 1)
    for number in range(3):
        finished(rlmm.client, orders, number, number, segment_size_in_bytes=1 << 30)
    done = RunCounts(orders.topic_id, 2, 1, 1 << 30, 1)
    run = ToolRun(RunKind.SCRUB, "run", part=3, parts=28)
    rlmm.client.report_tool_run(run, [done])
    shown = rlmm.sediment("verified")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [re.split("  +", line) for line in lines]
    assert rows == [
        ["TOPIC", "CHECK", "AGE", "VERIFIED", "FAILED"],
        ["orders", "reconcile", "never", "0/3", "0"],
        ["orders", "scrub", rows[2][2], "1/3", "1"],
    ]
    assert rows[2][2].endswith((" s", " min"))
    [_, row] = rlmm.answers("verified", f"{uuid_to_text(orders.topic_id)}:orders")
    assert (row["finished_segments"], row["finished_bytes"]) == (3, 3 << 30)
