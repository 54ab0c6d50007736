"""Test that the audit trail has each deletion: who, why, by which rule and with which figures.

tests/unit/test_deletion_sites.py names the place of the product that each test is about.
"""

from typing import Any

import pytest

from services.api.errors import RemoteStorageError
from services.api.partitions import (
    EventQuery,
    PartitionEvent,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_metadata_manager import all_events
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlm.copy.ship import ship
from services.workflows.deletion import Deleter
from services.workflows.removal import remove_partition
from tests.contract.rlmm.segments import move
from tests.harness.retained_log import AT_ONCE, hourly_log, keep_hours, take_turns
from tests.harness.ship_stack import ONE_TRY, Stack
from tests.harness.troubles import FailingRsm, raising
from tests.unit.rlm.kafka_bytes import NAME, three_segments

pytestmark = pytest.mark.deep

BROKER_ID = 7
MARKED = "DELETE_SEGMENT_STARTED"
GONE = "DELETE_SEGMENT_FINISHED"


def events_of(stack: Stack, *states: str) -> list[PartitionEvent]:
    return [e for e in all_events(stack.rlmm, EventQuery(NAME)) if e.to_state in states]


def steps(stack: Stack) -> list[str]:
    """Return the states of deletions that segments reached, in order."""
    return [event.to_state for event in events_of(stack, MARKED, GONE)]


def marks(stack: Stack) -> set[tuple[int, str]]:
    """Return who marked segments, and why."""
    return {(event.broker_id, event.reason) for event in events_of(stack, MARKED)}


def test_retention_of_an_rlm(stack: Stack) -> None:
    hourly_log(stack.log_dir)
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(4), now=True)
    take_turns(rlm)
    assert steps(stack) == [MARKED, MARKED, GONE, GONE]
    assert marks(stack) == {(BROKER_ID, "retention.ms breached")}
    figures = [event.rule_detail for event in events_of(stack, MARKED)]
    assert all("18000000" in detail for detail in figures), figures


def test_removal_of_a_partition(stack: Stack) -> None:
    hourly_log(stack.log_dir, rolled=3)
    take_turns(stack.rlm(limits=AT_ONCE))
    deleted = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    stack.rlmm.put_remote_partition_delete_metadata(
        RemotePartitionDeleteMetadata(NAME, deleted, 1, BROKER_ID)
    )
    remover = Deleter(broker_id=8, plan_id="plan-1")
    assert remove_partition(stack.rlmm, stack.rsm, NAME, remover, now_ms=1).left == ""
    assert steps(stack) == [MARKED] * 3 + [GONE] * 3
    assert marks(stack) == {(8, "the partition was deleted")}
    assert {event.plan_id for event in events_of(stack, MARKED, GONE)} == {"plan-1"}
    states = [e.to_state for e in all_events(stack.rlmm, EventQuery(NAME))]
    ends = [state.removeprefix("DELETE_PARTITION_") for state in states if "PARTITION" in state]
    assert ends == ["MARKED", "STARTED", "FINISHED"]
    assert states.index("DELETE_PARTITION_STARTED") < states.index(MARKED)


def test_the_remains_of_a_failed_copy(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rsm: Any = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RemoteStorageError("no bucket"))
    ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    assert steps(stack) == [MARKED, GONE]
    assert {reason for _, reason in marks(stack)} == {"copy not finished"}


def test_the_remains_of_a_copy_that_another_process_abandoned(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rsm: Any = FailingRsm(stack.rsm)
    trail_at_deletion: list[list[str]] = []

    def abandon(segment: RemoteLogSegmentMetadata) -> None:
        move(stack.rlmm, segment, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)

    rsm.before_copy = abandon
    rsm.before_delete = lambda: trail_at_deletion.append(steps(stack))
    ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    assert trail_at_deletion == [[MARKED]]
    assert stack.keys() == []
