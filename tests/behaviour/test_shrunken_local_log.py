"""Test that a broker that keeps little costs the tier nothing, however often retention runs.

A stock broker's log start, leader-epoch checkpoint and retention.* describe its local log alone.
"""

import pytest

from services.api.remote_log_manager import FetchError
from services.rlm.kafka_log.partition_dir import list_segments
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.retained_log import AT_ONCE, HOUR_MS, hourly_log, take_turns
from tests.harness.ship_stack import Stack, bytes_of, description, fetch, read
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles

PASSES = 10
COPIED = [(base, base + 9) for base in range(0, 60, 10)]
LOCAL_START, END = 60, 65
EPOCHS = ((0, 0), (1, 13), (2, 30), (4, 47), (7, 60))
NONE_BREACHED = {"retention.ms": str(1000 * HOUR_MS), "retention.bytes": str(2**40)}


@pytest.fixture
def stack(stack: Stack) -> Stack:
    """Provide six rolled segments and an active one, in five leader epochs."""
    stack.files = hourly_log(stack.log_dir)
    stack.files.epochs(*EPOCHS)
    return stack


def rlm_of(stack: Stack) -> BrokerRemoteLogManager:
    return BrokerRemoteLogManager([stack.log_dir], stack.rsm, stack.rlmm, AT_ONCE)


def shrink(files: PartitionFiles) -> None:
    """Shrink the log as Kafka's retention does: one segment, one epoch, a recorded log start."""
    for base in range(0, LOCAL_START, 10):
        for path in files.path.glob(f"{base:020}.*"):
            path.unlink()
    files.epochs((7, LOCAL_START))
    checkpoint = files.path.parent / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{NAME.topic} {NAME.partition} {LOCAL_START}\n")
    assert [s.base_offset for s in list_segments(files.path)] == [LOCAL_START]


@pytest.mark.deep
@pytest.mark.parametrize("settings", [{}, NONE_BREACHED], ids=["nothing set", "none breached"])
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_tier_keeps_segments_that_the_broker_has_deleted(
    stack: Stack, settings: dict[str, str], restarted: bool
) -> None:
    written = bytes_of(stack.files.path)
    stack.ship()
    rlm = rlm_of(stack)
    take_turns(rlm)
    stack.rlmm.put_topic_config(NAME.topic_id, settings, now=True)
    segments, objects = stack.segments(), sorted(stack.keys())
    assert stack.ranges() == COPIED
    shrink(stack.files)
    if restarted:
        rlm = rlm_of(stack)
    for _ in range(PASSES):
        take_turns(rlm)
        assert stack.segments() == segments
        assert sorted(stack.keys()) == objects
        state = stack.rlmm.partition_state(NAME).value
        assert state.log_start_offset == 0
        known = tuple((e.leader_epoch, e.start_offset) for e in state.lineage.entries)
        assert known == EPOCHS
    found = description(rlm)
    assert (found.log_start_offset, found.local_log_start_offset) == (0, LOCAL_START)
    assert (found.copied_through_offset, found.problems) == (59, ())
    assert read(rlm, 0) == written
    for offset in range(END):
        (part,) = fetch(rlm, offset, max_bytes=1)
        assert (part.error, part.log_start_offset) == (FetchError.NONE, 0)
        first = int.from_bytes(part.record_batches[:8], "big")
        assert first <= offset < first + 5
    report = stack.ship()
    assert (report.partitions[0].complete, report.partitions[0].copied_segments) == (True, 0)
    assert stack.segments() == segments
