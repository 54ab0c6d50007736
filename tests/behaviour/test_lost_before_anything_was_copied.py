"""Test a backlog that the broker deleted before anything of its partition was copied."""

from pathlib import Path

import pytest

from services.api.partitions import EventQuery, OffsetGap
from services.api.remote_log_manager import ProblemKind
from services.api.remote_log_metadata_manager import all_events
from services.views.tier import lag_line
from tests.behaviour.test_lost_before_copy import lose_before_copy
from tests.harness.published import growth
from tests.harness.retained_log import AT_ONCE, take_turns
from tests.harness.ship_stack import Stack, description
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments

NOT_COPIED = {"remote.log.copy.disable": "true"}


@pytest.fixture
def blocked(log_dir: Path) -> PartitionFiles:
    """Provide a log of which nothing can be copied: its first segment is damaged."""
    files = three_segments(log_dir)
    files.segment(0, [batch(0, 5), batch(5, 5)[:-1]])
    return files


def gaps(stack: Stack) -> tuple[OffsetGap, ...]:
    return stack.rlmm.partition_state(NAME).value.gaps


@pytest.mark.parametrize("is_restarted", [False, True])
def test_it_is_recorded_with_what_held_it_back(
    stack: Stack, blocked: PartitionFiles, is_restarted: bool
) -> None:
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    assert (stack.segments(), gaps(stack)) == ([], ())
    grown = growth("sediment_rlm_lost_ranges_total")
    lose_before_copy(blocked, 20)
    rlm = stack.rlm(limits=AT_ONCE) if is_restarted else rlm
    take_turns(rlm, rounds=2)
    assert (stack.ranges(), gaps(stack)) == ([(20, 24)], (OffsetGap(0, 19),))
    assert grown() == [1]
    (event,) = [e for e in all_events(stack.rlmm, EventQuery(NAME)) if e.kind == "GAP"]
    if not is_restarted:
        assert event.rule_detail.startswith("271 bytes; blocked by TRUNCATED_BATCH: batch cut")
    for each in (rlm, stack.rlm(limits=AT_ONCE)):
        take_turns(each)
        (problem,) = description(each).problems
        assert (problem.kind, problem.offset) == (ProblemKind.LOST_BEFORE_COPY, 0)
        assert problem.message.startswith("known gap: ")
        lag = each.copy_lag()
        assert lag.lost_partitions == 1
        assert "(records of 1 were deleted before their copy)" in lag_line(lag, 0).text


def test_it_grows_while_the_tier_stays_empty(stack: Stack, blocked: PartitionFiles) -> None:
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    for base in (20, 30):
        lose_before_copy(blocked, base)
        blocked.segment(base, [batch(base, 5)[:-1]])
        take_turns(rlm)
        assert (stack.segments(), gaps(stack)) == ([], (OffsetGap(0, base - 1),))


def test_log_that_begins_later_has_lost_nothing(stack: Stack) -> None:
    files = PartitionFiles(stack.log_dir)
    lose_before_copy(files, 40)
    for _ in range(2):
        take_turns(stack.rlm(limits=AT_ONCE), rounds=2)
    assert (stack.ranges(), gaps(stack)) == ([(40, 44)], ())


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_deleted_while_copying_was_disabled_is_not_lost(
    stack: Stack, blocked: PartitionFiles, is_restarted: bool
) -> None:
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    stack.rlmm.put_topic_config(NAME.topic_id, NOT_COPIED)
    take_turns(rlm)
    lose_before_copy(blocked, 20)
    take_turns(rlm)
    stack.rlmm.put_topic_config(NAME.topic_id, {})
    rlm = stack.rlm(limits=AT_ONCE) if is_restarted else rlm
    take_turns(rlm, rounds=2)
    assert (stack.ranges(), gaps(stack)) == ([(20, 24)], ())


def test_records_deleted_on_request_are_not_lost(stack: Stack, blocked: PartitionFiles) -> None:
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    lose_before_copy(blocked, 20)
    (stack.log_dir / "log-start-offset-checkpoint").write_text(f"0\n1\n{NAME.topic} 0 22\n")
    take_turns(rlm, rounds=2)
    assert (stack.ranges(), gaps(stack)) == ([(20, 24)], ())
