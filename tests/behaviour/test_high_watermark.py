"""Test that the broker's replication-offset-checkpoint bounds copies, reports and reads."""

import shutil
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from services.api.remote_log_manager import FetchError, ProblemKind, RemoteLogManager
from services.rlm.copy.ship import ShipOutcome
from tests.harness.callback_rlm import LEADER, broker_beside, callback_rlm, send_role
from tests.harness.retained_log import (
    AT_ONCE,
    PYTHON_HOLDER,
    hourly_log,
    keep_hours,
    other_process,
    take_turns,
)
from tests.harness.ship_stack import Stack, description, fetch, read
from tests.unit.rlm.kafka_bytes import (
    NAME,
    PartitionFiles,
    batch,
    high_watermarks,
    three_segments,
)

HERE = (NAME.topic, NAME.partition)


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    """Provide a log that ends at offset 25, with two rolled segments."""
    return three_segments(log_dir)


def offsets_read(rlm: RemoteLogManager, offset: int) -> bytes:
    found = read(rlm, offset)
    assert isinstance(found, bytes), found
    return found


def test_records_of_a_new_leader_at_offsets_of_the_old_one_are_copied(stack: Stack) -> None:
    hourly_log(stack.log_dir)
    high_watermarks(stack.log_dir, {HERE: 20})
    behind = broker_beside(stack.log_dir, 8)
    old = callback_rlm(stack)
    assert send_role(old, LEADER, 2) is None
    take_turns(old)
    assert stack.ranges() == [(0, 9), (10, 19)]
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(1), now=True)
    old = callback_rlm(stack)
    assert send_role(old, LEADER, 2) is None
    take_turns(old, 3)
    state = stack.rlmm.partition_state(NAME).value
    assert state.report is not None
    assert (state.report.high_watermark, state.log_start_offset) == (20, 20)

    shutil.rmtree(behind / "t-0")
    files = PartitionFiles(behind, NAME)
    files.epochs((0, 0), (3, 20))
    now_ms = time.time_ns() // 1_000_000
    for base in range(0, 50, 10):
        files.snapshot(base)
        files.segment(base, [batch(base + n, 5, timestamp_ms=now_ms) for n in (0, 5)])
    high_watermarks(behind, {HERE: 50})
    new = callback_rlm(stack, behind)
    assert send_role(new, LEADER, 3) is None
    take_turns(new, 3)
    assert stack.ranges() == [(20, 29), (30, 39)]
    reported = description(new)
    assert {p.kind for p in reported.problems} <= {ProblemKind.INDEX_REBUILT}
    assert (reported.lag_segments, reported.copied_through_offset) == (0, 39)
    assert offsets_read(new, 25).startswith(batch(25, 5, timestamp_ms=now_ms, leader_epoch=3))


def test_a_rolled_segment_waits_for_the_high_watermark_and_no_longer(
    stack: Stack, files: PartitionFiles
) -> None:
    high_watermarks(stack.log_dir, {HERE: 19})
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm, 2)
    assert stack.ranges() == [(0, 9)]
    assert description(rlm).problems == ()
    assert description(rlm).last_stable_offset == 19
    high_watermarks(stack.log_dir, {HERE: 20})
    take_turns(rlm)
    assert stack.ranges() == [(0, 9), (10, 19)]


@pytest.mark.parametrize("a_broker_runs", [True, False])
def test_ship_reports_segments_rolled_above_the_high_watermark(
    stack: Stack, files: PartitionFiles, a_broker_runs: bool
) -> None:
    """No broker updates it in a copy of a crashed broker's directory: DONE would be
    misunderstood.
    """
    high_watermarks(stack.log_dir, {HERE: 9})
    with other_process(PYTHON_HOLDER, stack.log_dir) if a_broker_runs else nullcontext():
        report = stack.ship()
    (partition,) = report.partitions
    assert report.outcome is (ShipOutcome.DONE if a_broker_runs else ShipOutcome.PARTIAL)
    assert (partition.unsettled_segments, partition.settled_before_offset) == (2, 9)
    assert partition.will_settle is a_broker_runs
    assert stack.segments() == []
    high_watermarks(stack.log_dir, {HERE: 20})
    report = stack.ship()
    assert report.outcome is ShipOutcome.DONE
    assert report.partitions[0].unsettled_segments == 0


def test_a_partition_that_the_broker_has_not_listed_waits_until_it_is(
    stack: Stack, files: PartitionFiles
) -> None:
    high_watermarks(stack.log_dir, {("t", 1): 100})
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm, 2)
    assert stack.segments() == []
    (problem,) = description(rlm).problems
    assert (problem.kind, problem.blocked_segments) == (
        ProblemKind.HIGH_WATERMARK_UNKNOWN,
        2,
    )
    assert problem.path == str(stack.log_dir / "replication-offset-checkpoint")
    high_watermarks(stack.log_dir, {("t", 1): 100, HERE: 25})
    take_turns(rlm)
    assert stack.ranges() == [(0, 9), (10, 19)]
    assert description(rlm).problems == ()


def test_a_damaged_checkpoint_blocks_and_is_named_and_a_written_one_lets_go(
    stack: Stack, files: PartitionFiles
) -> None:
    path = stack.log_dir / "replication-offset-checkpoint"
    path.write_text("0\n2\nt 0 25\n")
    report = stack.ship()
    assert report.outcome is ShipOutcome.FAILED
    (problem,) = report.partitions[0].problems
    assert (problem.kind, problem.path, problem.blocked_segments) == (
        ProblemKind.UNREADABLE,
        str(path),
        2,
    )
    assert [p.path for p in report.log_dir_problems] == [str(path)]
    assert stack.segments() == []
    high_watermarks(stack.log_dir, {HERE: 25})
    assert stack.ship().outcome is ShipOutcome.DONE
    assert stack.ranges() == [(0, 9), (10, 19)]


def test_a_folder_without_a_checkpoint_is_copied_to_its_end(
    stack: Stack, files: PartitionFiles
) -> None:
    assert not (stack.log_dir / "replication-offset-checkpoint").exists()
    assert stack.ship().outcome is ShipOutcome.DONE
    assert stack.ranges() == [(0, 9), (10, 19)]


def test_a_partition_without_anything_to_copy_is_not_blocked(
    stack: Stack, files: PartitionFiles
) -> None:
    assert stack.ship().outcome is ShipOutcome.DONE
    high_watermarks(stack.log_dir, {})
    assert stack.ship().outcome is ShipOutcome.DONE


@pytest.mark.parametrize(("watermark", "through"), [(25, 25), (15, 15), (12, 10), (5, 5)])
def test_records_above_the_high_watermark_are_not_read(
    stack: Stack, files: PartitionFiles, watermark: int, through: int
) -> None:
    high_watermarks(stack.log_dir, {HERE: watermark})
    rlm = stack.rlm(limits=AT_ONCE)
    expected = b"".join(batch(base, 5) for base in range(0, through, 5))
    assert offsets_read(rlm, 0) == expected
    parts = fetch(rlm, 0)
    assert {(p.high_watermark, p.last_stable_offset) for p in parts} == {(watermark, watermark)}


def test_an_offset_above_the_high_watermark_is_still_to_come_and_one_above_the_end_is_nowhere(
    stack: Stack, files: PartitionFiles
) -> None:
    high_watermarks(stack.log_dir, {HERE: 10})
    rlm = stack.rlm(limits=AT_ONCE)
    for offset in (10, 15, 25):
        assert offsets_read(rlm, offset) == b""
    assert read(rlm, 26) is FetchError.OFFSET_OUT_OF_RANGE


def test_tiered_offsets_are_read_despite_a_lower_checkpoint(
    stack: Stack, files: PartitionFiles
) -> None:
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    assert stack.ranges() == [(0, 9), (10, 19)]
    high_watermarks(stack.log_dir, {HERE: 5})
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    assert offsets_read(rlm, 0) == b"".join(batch(base, 5) for base in range(0, 20, 5))
