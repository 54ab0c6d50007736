"""Test that a large part of the tier is deleted in a day only if a person has confirmed it."""

import json
from types import SimpleNamespace
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from services.api.errors import DeletionRefusedError
from services.rlm.manager import BrokerRemoteLogManager
from services.rlmm.deletion_bound import READ_EVERY_S, DeletionBound
from tests.contract.rlmm.segments import DELETE_STARTED, finished, move
from tests.harness import served_fixtures
from tests.harness.clocks import Clock
from tests.harness.processes import RlmmProcess
from tests.harness.retained_log import AT_ONCE, hourly_log, keep_hours, take_turns
from tests.harness.ship_stack import Stack
from tests.harness.tier import a_topic
from tests.unit.rlm.kafka_bytes import NAME

LARGE_BYTES = 2**31 - 1
served_rlmm = served_fixtures.rlmm


def test_what_waits_is_shown_and_confirmed_by_revision(served_rlmm: RlmmProcess) -> None:
    client, (orders,) = served_rlmm.client, a_topic("orders", 1)
    segments = [finished(client, orders, n, n, segment_size_in_bytes=LARGE_BYTES) for n in range(8)]
    for each in segments[:5]:
        move(client, each, DELETE_STARTED)
    with pytest.raises(DeletionRefusedError, match=r"12\.0 GiB would be deleted today of a tier"):
        move(client, segments[5], DELETE_STARTED)
    assert client.is_ready(orders)
    shown = json.loads(served_rlmm.sediment("status", "-o", "json").stdout)
    assert shown["tier"]["unconfirmed_topics"] == ["orders"]
    [line] = [line for line in shown["lines"] if line["what"] == "deletions"]
    assert (line["severity"], line["next"].split("run ")[1]) == (
        "WARNING",
        "`sediment deletions confirm orders`",
    )
    client.put_topic_config(orders.topic_id, {"retention.ms": "1"})
    moved = served_rlmm.sediment("deletions", "confirm", "orders", "--revision", "0")
    assert moved.returncode != 0
    assert "have revision 1, not 0" in moved.stderr
    [document] = served_rlmm.answers("deletions", "confirm", "orders", "--reason", "checked")
    assert (document["topic"], document["config_revision"]) == ("orders", 1)
    assert move(client, segments[5], DELETE_STARTED).applied
    shown = json.loads(served_rlmm.sediment("status", "-o", "json").stdout)
    assert shown["tier"]["unconfirmed_topics"] == []


def test_rlm_deletes_nothing_before_the_confirmation_and_all_of_it_after(
    stack: Stack, engine: Engine
) -> None:
    stack.files = hourly_log(stack.log_dir)
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, stack.rlmm, AT_ONCE)
    take_turns(rlm)
    whole = stack.ranges()
    with engine.begin() as connection:
        values = {"bytes": LARGE_BYTES}
        totals = "finished_bytes = 6::bigint * :bytes, live_bytes = 6::bigint * :bytes"
        connection.execute(text("UPDATE segments SET segment_size_in_bytes = :bytes"), values)
        connection.execute(text(f"UPDATE partitions SET {totals}"), values)
    stored = stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(0), now=True)
    take_turns(rlm)
    assert stack.ranges() == whole
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 0
    stack.rlmm.confirm_deletions(NAME.topic_id, stored.revision)
    take_turns(BrokerRemoteLogManager([stack.log_dir], stack.rsm, stack.rlmm, AT_ONCE))
    assert stack.ranges() == []


def test_a_process_learns_of_the_marks_of_others_and_of_another_day(engine: Engine) -> None:
    clock = Clock()
    bound = DeletionBound(clock)
    topic = SimpleNamespace(
        topic_id=UUID(int=1), name="t", config_revision=0, confirmed_revision=None
    )
    with engine.begin() as connection:

        def require() -> None:
            bound.require(connection, topic, LARGE_BYTES, marks=False)  # type: ignore[arg-type]

        connection.execute(
            text("INSERT INTO topics (topic_id, name) VALUES (:id, 't')"), {"id": topic.topic_id}
        )
        require()
        connection.execute(
            text(
                "INSERT INTO partitions (topic_id, partition, revision, marked_bytes, marked_on) "
                "VALUES (:id, 0, 1, 10737418240, (now() AT TIME ZONE 'UTC')::date)"
            ),
            {"id": topic.topic_id},
        )
        require()
        clock.move(READ_EVERY_S)
        with pytest.raises(DeletionRefusedError):
            require()
        connection.execute(text("UPDATE partitions SET marked_on = marked_on - 1"))
        clock.move(READ_EVERY_S)
        require()
