"""Test that changed settings delete nothing for a while, in which they can be set back."""

import pytest
from sqlalchemy import Engine, text

from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.retention.snapshot import read_snapshot
from tests.harness.retained_log import AT_ONCE, hourly_log, keep_hours, take_turns
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME

WHOLE = [(base, base + 9) for base in range(0, 60, 10)]
ENABLED = {"remote.storage.enable": "true"}
DISABLED = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}


@pytest.fixture
def rlm(stack: Stack) -> BrokerRemoteLogManager:
    """Provide an RLM that has copied all rolled segments, and keeps those of nine hours."""
    stack.files = hourly_log(stack.log_dir)
    made = BrokerRemoteLogManager([stack.log_dir], stack.rsm, stack.rlmm, AT_ONCE)
    take_turns(made)
    stack.rlmm.put_topic_config(NAME.topic_id, {**ENABLED, **keep_hours(9)}, now=True)
    take_turns(made)
    assert stack.ranges() == WHOLE
    return made


def put(stack: Stack, settings: dict[str, str]) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, settings)


def a_day_passes(engine: Engine) -> None:
    """Make all versions of settings a day older, by the database's clock."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE topic_config_events SET at = at - interval '24 hours'"))


def waiting(stack: Stack) -> list[tuple[int, int]]:
    snapshot = read_snapshot(stack.rlmm, NAME, stack.rlmm.partition_state(NAME))
    plan = snapshot.plan(stack.rlmm.topic_config(NAME.topic_id))
    assert plan.deletions == ()
    return [(d.segment.start_offset, d.segment.end_offset) for d in plan.waiting]


def test_lowered_and_set_back_nothing_was_deleted(
    stack: Stack, engine: Engine, rlm: BrokerRemoteLogManager
) -> None:
    before = stack.rlmm.partition_state(NAME)
    put(stack, {**ENABLED, **keep_hours(2)})
    take_turns(rlm, rounds=3)
    assert waiting(stack) == WHOLE[:4]
    put(stack, {**ENABLED, **keep_hours(9)})
    take_turns(rlm)
    a_day_passes(engine)
    take_turns(rlm)
    assert stack.ranges() == WHOLE
    after = stack.rlmm.partition_state(NAME)
    assert (after.revision, after.value.log_start_offset) == (before.revision, 0)


def test_lowered_it_deletes_after_a_day(
    stack: Stack, engine: Engine, rlm: BrokerRemoteLogManager
) -> None:
    put(stack, {**ENABLED, **keep_hours(2)})
    take_turns(rlm)
    a_day_passes(engine)
    take_turns(rlm)
    assert stack.ranges() == WHOLE[4:]
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 40


def test_what_both_settings_want_is_deleted_at_once(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, {**ENABLED, **keep_hours(4)}, now=True)
    put(stack, {**ENABLED, **keep_hours(2)})
    take_turns(rlm)
    assert stack.ranges() == WHOLE[2:]
    assert waiting(stack) == WHOLE[2:4]


def test_a_disabled_topic_keeps_its_data_for_a_day(
    stack: Stack, engine: Engine, rlm: BrokerRemoteLogManager
) -> None:
    put(stack, DISABLED)
    take_turns(rlm, rounds=2)
    assert stack.ranges() == WHOLE
    a_day_passes(engine)
    take_turns(rlm, rounds=2)
    assert stack.keys() == []
