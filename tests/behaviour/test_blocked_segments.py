"""Test which problems block a segment and those behind it, and nothing else."""

import os

import pytest

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import ProblemKind
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.records.index_files import producer_entries
from services.rlm.copy.ship import ShipOutcome, ShipSettings, ship
from tests.harness.ship_stack import Stack
from tests.harness.troubles import FailingRsm
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, in_transaction, three_segments


def test_the_segment_of_an_open_transaction_is_not_settled(stack: Stack) -> None:
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [batch(0, 10)])
    files.snapshot(10)
    files.segment(10, [in_transaction(10, 9, 10)])
    files.snapshot(20, {9: 10})
    files.segment(20, [batch(20)])
    report = stack.ship()
    (partition,) = report.partitions
    assert report.outcome is ShipOutcome.PARTIAL
    assert (partition.unsettled_segments, partition.settled_before_offset) == (1, 10)
    assert (partition.blocked_segments, partition.problems) == (0, ())
    assert stack.ranges() == [(0, 9)]


def test_a_damaged_segment_blocks_itself_and_those_behind_it_only(stack: Stack) -> None:
    sick, well = three_segments(stack.log_dir), TopicIdPartition(NAME.topic_id, NAME.topic, 1)
    three_segments(stack.log_dir, well)
    log = sick.segment(10, [batch(10, 5), batch(15, 5)[:-1]])
    report = stack.ship()
    assert report.outcome is ShipOutcome.PARTIAL
    first, second = report.partitions
    (problem,) = first.problems
    assert (problem.kind, problem.path, problem.offset) == (
        ProblemKind.TRUNCATED_BATCH,
        str(log),
        15,
    )
    assert (first.copied_segments, first.blocked_segments) == (1, 1)
    assert second.complete
    assert stack.ranges() == [(0, 9)]
    assert stack.ranges(well) == [(0, 9), (10, 19)]


@pytest.mark.parametrize(
    "pipe",
    [
        f"{10:020}.log",
        f"{20:020}.log",
        f"{10:020}.index",
        f"{20:020}.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ],
)
def test_a_pipe_in_a_folder_is_named_and_others_continue(stack: Stack, pipe: str) -> None:
    sick, well = three_segments(stack.log_dir), TopicIdPartition(NAME.topic_id, NAME.topic, 1)
    three_segments(stack.log_dir, well)
    (sick.path / pipe).unlink()
    os.mkfifo(sick.path / pipe)
    report = stack.ship()
    assert report.outcome is ShipOutcome.PARTIAL
    problems = [*report.log_dir_problems, *report.partitions[0].problems]
    assert {(p.path, p.message) for p in problems} == {
        (str(sick.path / pipe), "is not a regular file")
    }
    assert stack.ranges(well) == [(0, 9), (10, 19)]
    page = stack.rlm().describe_partitions()
    assert page.partitions[-1].topic_id_partition == well


def test_a_missing_snapshot_holds_nothing_up(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    files.segment(0, [batch(0, 10, producer_id=7)])
    files.file(10, ".snapshot").unlink()
    assert stack.ship().outcome is ShipOutcome.DONE
    first = stack.segments()[0]
    snapshot = b"".join(stack.rsm.fetch_index(first, IndexType.PRODUCER_SNAPSHOT))
    [producer] = producer_entries(snapshot)
    assert (producer.producer_id, producer.last_offset, producer.offset_delta) == (7, 9, 9)


def test_folder_that_becomes_unreadable_is_named_and_others_continue(stack: Stack) -> None:
    well = three_segments(stack.log_dir)
    sick = three_segments(stack.log_dir, TopicIdPartition(NAME.topic_id, NAME.topic, 1))
    rsm = FailingRsm(stack.rsm)

    def make_unreadable(_: RemoteLogSegmentMetadata) -> None:
        if not sick.path.is_symlink():
            sick.path.rename(stack.log_dir / "elsewhere")
            sick.path.symlink_to(sick.path)  # even root cannot read it

    rsm.before_copy = make_unreadable
    settings = ShipSettings(threads=1, retry_for_s=0.0)
    first, second = ship([stack.log_dir], rsm, stack.rlmm, settings).partitions
    assert first.complete
    assert stack.ranges(well.name) == [(0, 9), (10, 19)]
    (problem,) = second.problems
    assert (problem.kind, problem.path) == (ProblemKind.UNREADABLE, str(sick.path))
