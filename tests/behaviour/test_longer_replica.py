"""Test a leader whose log begins before the tier.

Segments that the previous broker never had are copied; segments that were deleted from the tier are
not.
"""

from pathlib import Path
from typing import Any

import pytest

from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events
from tests.harness.callback_rlm import (
    LEADER,
    REASSIGNED,
    broker_beside,
    callback_rlm,
    send_role,
    stop,
)
from tests.harness.retained_log import HOUR_MS, expire, hourly_log, keep_hours, take_turns
from tests.harness.ship_stack import Stack, bytes_of, description, read
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles

EPOCH, LATER_EPOCH = 2, 3
ALL = [(base, base + 9) for base in range(0, 60, 10)]


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    return hourly_log(log_dir)


@pytest.fixture
def longer(log_dir: Path, files: PartitionFiles) -> Path:
    """Provide the directory of another broker, which has all of the log."""
    return broker_beside(log_dir, 8)


def led(stack: Stack, log_dir: Path, epoch: int) -> Any:
    rlm = callback_rlm(stack, log_dir)
    assert send_role(rlm, LEADER, epoch) is None
    take_turns(rlm, rounds=2)
    return rlm


def begun_copies(stack: Stack) -> int:
    states = [event.to_state for event in all_events(stack.rlmm, EventQuery(NAME))]
    return states.count("COPY_SEGMENT_STARTED")


def test_segments_missing_at_the_previous_leader_are_copied(
    stack: Stack, files: PartitionFiles, longer: Path
) -> None:
    for base in (0, 10):
        for suffix in (".log", ".index", ".timeindex"):
            files.file(base, suffix).unlink()
    before = led(stack, stack.log_dir, EPOCH)
    assert stack.ranges() == ALL[2:]
    assert stop(before, REASSIGNED, EPOCH) is None
    leader = led(stack, longer, LATER_EPOCH)
    assert stack.ranges() == ALL
    assert begun_copies(stack) == len(ALL)
    assert stack.rlmm.partition_state(NAME).value.gaps == ()
    assert description(leader).copied_through_offset == 59
    assert read(leader, 0) == bytes_of(longer / files.path.name)


@pytest.mark.parametrize("kept", [1, 3])
def test_segments_expired_from_the_tier_are_not_copied_again(
    stack: Stack, longer: Path, kept: int
) -> None:
    before = led(stack, stack.log_dir, EPOCH)
    assert stack.ranges() == ALL
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(kept), now=True)
    expire(before)
    assert stack.ranges() == ALL[-kept:]
    assert stop(before, REASSIGNED, EPOCH) is None
    # It was for those records alone: by now the topic keeps more.
    stack.rlmm.put_topic_config(NAME.topic_id, {"retention.ms": str(100 * HOUR_MS)}, now=True)
    leader = led(stack, longer, LATER_EPOCH)
    assert stack.ranges() == ALL[-kept:]
    assert begun_copies(stack) == len(ALL)
    assert description(leader).lag_segments == 0
