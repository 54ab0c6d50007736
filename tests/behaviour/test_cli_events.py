"""Test `sediment events`, which lists the changes of a partition with actors and reasons."""

import re

import pytest

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition, uuid_to_text
from tests.contract.rlmm.segments import (
    DELETE_STARTED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    finished,
    id_of,
    move,
    put_deletion,
)
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.tier import a_topic

rlmm = served_fixtures.rlmm


@pytest.fixture
def tp() -> TopicIdPartition:
    return a_topic("orders")[0]


def test_the_audit_trail_is_printed_for_scripts(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    marked, kept = finished(rlmm.client, tp, 0, 9), finished(rlmm.client, tp, 10, 19)
    why = MutationContext(reason="retention.ms", rule_detail="1 < 2", plan_id="plan-1")
    move(rlmm.client, marked, DELETE_STARTED, context=why)
    name = f"{tp.topic}-0"
    printed = rlmm.answers("events", name)
    assert [event["revision"] for event in printed] == [1, 2, 3, 4, 5]
    last = printed[-1]
    assert last["segment_id"] == uuid_to_text(id_of(marked))
    assert (last["from_state"], last["to_state"]) == (
        "COPY_SEGMENT_FINISHED",
        "DELETE_SEGMENT_STARTED",
    )
    assert (last["reason"], last["plan_id"]) == ("retention.ms", "plan-1")
    segment = f"--segment={uuid_to_text(id_of(kept))}"
    assert [event["revision"] for event in rlmm.answers("events", name, segment)] == [3, 4]
    assert [e["revision"] for e in rlmm.answers("events", name, "--plan", "plan-1")] == [5]
    assert [e["revision"] for e in rlmm.answers("events", name, "--after-revision", "4")] == [5]


def test_the_audit_trail_is_printed_for_people(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    finished(rlmm.client, tp, 0, 9)
    printed = rlmm.sediment("events", f"{tp.topic}-0").stdout
    rows = [re.split("  +", line) for line in printed.splitlines()]
    assert rows[0] == ["TIME", "CHANGE", "END OFFSET", "BY AND WHY"]
    assert [row[1:] for row in rows[1:]] == [
        ["COPY_STARTED", "9", "anonymous, broker 1: -"],
        ["FINISHED", "9", "anonymous, broker 1: -"],
    ]


def test_escapes_in_a_reason_are_shown_escaped(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    segment = finished(rlmm.client, tp, 0, 9)
    why = MutationContext(reason="\x1b[2J\u202egood\nline", plan_id="\x9b1m")
    move(rlmm.client, segment, DELETE_STARTED, context=why)
    name = f"{tp.topic}-0"
    for command in (["events", name], ["explain", name, uuid_to_text(id_of(segment))]):
        done = rlmm.sediment(*command)
        assert done.returncode == 0, done.stderr
        assert all(line.isprintable() for line in (done.stdout + done.stderr).splitlines())
        assert r"\x1b[2J\u202egood\nline" in done.stdout
    assert rlmm.answers("events", name)[-1]["reason"] == why.reason


def test_a_deleted_partition_is_named_by_its_topic_id(
    rlmm: RlmmProcess, tp: TopicIdPartition
) -> None:
    put_deletion(rlmm.client, tp, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
    refusal = rlmm.refusal("events", f"{tp.topic}-0")
    assert f"the tier has no partition {tp.topic}-0;" in refusal
    assert f"of a removed one pass TOPIC_ID:{tp.topic}-0" in refusal
    printed = rlmm.answers("events", f"{uuid_to_text(tp.topic_id)}:{tp.topic}-0")
    assert [event["to_state"] for event in printed][-1] == "DELETE_PARTITION_FINISHED"
