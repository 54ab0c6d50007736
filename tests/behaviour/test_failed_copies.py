"""Test failed copies: their remains, and the next pass over them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from services.api.calls import MutationContext
from services.api.errors import (
    ConcurrentUpdateError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_manager import ProblemKind
from services.api.retention import Deletion, DeletionReason
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.common.retry import Backoff
from services.rlm.copy.segment import CopyLimits
from services.rlm.copy.ship import ShipOutcome, ShipReport, ShipSettings, ship
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.workflows.deletion import Deleter, begin_deletion, finish_deletion
from services.workflows.removal import remove_partition
from tests.harness.retained_log import Changed
from tests.harness.ship_stack import FINISHED, ONE_TRY, Counting, Stack, description
from tests.harness.troubles import (
    CutWhileCopied,
    FailingOnce,
    FailingRsm,
    LateFinish,
    Recording,
    raising,
)
from tests.unit.rlm.kafka_bytes import (
    NAME,
    PartitionFiles,
    batch,
    deleted,
    three_segments,
    write_log_dir,
)

pytestmark = pytest.mark.deep


def test_a_copy_that_fails_for_good_is_cleaned_up(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RemoteStorageError("no bucket"))
    report = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    (problem,) = report.partitions[0].problems
    assert (problem.kind, problem.blocked_segments) == (ProblemKind.COPY_FAILED, 2)
    assert report.outcome is ShipOutcome.FAILED
    assert stack.segments() == []
    assert stack.keys() == []


def test_a_copy_that_may_have_worked_is_abandoned_and_cleaned_up_by_the_next_pass(
    stack: Stack,
) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)

    def lost_answer(answer: bytes | None) -> bytes | None:
        raise RetriableRemoteStorageError("the connection broke")

    rsm.after_copy = lost_answer
    progress = Counting()
    report = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY, progress)
    assert (progress.sent_bytes, progress.copied_segments) == (0, 0)
    assert [p.kind for p in report.partitions[0].problems] == [ProblemKind.STORE_UNAVAILABLE]
    (dangling,) = stack.segments()
    assert dangling.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    (partition,) = stack.ship().partitions
    assert (partition.cleaned_attempts, partition.copied_segments) == (1, 2)
    assert stack.ranges() == [(0, 9), (10, 19)]
    assert dangling.remote_log_segment_id not in {s.remote_log_segment_id for s in stack.segments()}
    assert len(stack.keys()) == 2 * 3


def test_an_attempt_that_cannot_be_cleaned_up_now_keeps_nothing_from_being_copied(
    stack: Stack,
) -> None:
    """An earlier location may be unavailable while every location is searched."""
    files = three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RetriableRemoteStorageError("the store went away"))
    rsm.before_delete = raising(RetriableRemoteStorageError("the old store is away"))
    ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    (left,) = stack.segments()
    rsm.before_copy = lambda _: None
    files.snapshot(25)
    files.segment(25, [batch(25)])
    (partition,) = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY).partitions
    assert (partition.cleaned_attempts, partition.copied_segments) == (0, 3)
    (problem,) = partition.problems
    assert problem.kind is ProblemKind.STORE_UNAVAILABLE
    assert "the old store is away" in problem.message
    assert not partition.complete
    (partition,) = stack.ship().partitions
    assert (partition.cleaned_attempts, partition.problems) == (1, ())
    assert left.remote_log_segment_id not in {s.remote_log_segment_id for s in stack.segments()}
    assert stack.ranges() == [(0, 9), (10, 19), (20, 24)]


def test_an_attempt_that_may_not_be_cleaned_up_at_all_keeps_nothing_from_being_copied(
    stack: Stack,
) -> None:
    """The store may permit writes and no deletions. Each pass logs the attempt."""
    files = three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = FailingOnce(RetriableRemoteStorageError("the connection broke"))
    rsm.before_delete = raising(RemoteStorageError("AccessDenied"))
    ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    (left,) = stack.segments()
    for copied in (2, 0):
        (partition,) = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY).partitions
        assert (partition.cleaned_attempts, partition.copied_segments) == (0, copied)
        (problem,) = partition.problems
        assert (problem.kind, problem.blocked_segments) == (ProblemKind.COPY_FAILED, 0)
        assert "AccessDenied" in problem.message
        assert not partition.complete
    files.snapshot(25)
    files.segment(25, [batch(25)])
    (partition,) = stack.ship().partitions
    assert (partition.cleaned_attempts, partition.problems) == (1, ())
    assert left.remote_log_segment_id not in {s.remote_log_segment_id for s in stack.segments()}
    assert stack.ranges() == [(0, 9), (10, 19), (20, 24)]


def test_of_an_attempt_that_may_not_be_cleaned_up_the_others_are_none_the_worse(
    stack: Stack,
) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RetriableRemoteStorageError("the connection broke"))
    rsm.before_delete = raising(RemoteStorageError("AccessDenied"))
    for _ in range(2):
        ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    left = stack.segments()
    assert len(left) == 2
    rsm.before_copy = lambda _: None
    rsm.before_delete = FailingOnce(RemoteStorageError("AccessDenied"))
    (partition,) = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY).partitions
    assert (partition.cleaned_attempts, partition.copied_segments) == (1, 2)


def test_a_clean_up_that_is_refused_keeps_nothing_from_being_copied(stack: Stack) -> None:
    """The clean-up has no other end: another pass would always find the same."""
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RetriableRemoteStorageError("the store went away"))
    ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    (left,) = stack.segments()

    def update(event: RemoteLogSegmentMetadataUpdate, context: MutationContext) -> Any:
        if event.remote_log_segment_id == left.remote_log_segment_id:
            raise ConcurrentUpdateError("changed meanwhile")
        return stack.rlmm.update_remote_log_segment_metadata(event, context)

    rlmm = Changed(stack.rlmm, update_remote_log_segment_metadata=update)
    report = ship([stack.log_dir], stack.rsm, rlmm, ONE_TRY)
    (partition,) = report.partitions
    assert (partition.cleaned_attempts, partition.copied_segments) == (0, 2)
    assert "changed meanwhile" in partition.problems[0].message
    assert report.outcome is not ShipOutcome.DONE
    assert stack.ship().outcome is ShipOutcome.DONE
    assert stack.ranges() == [(0, 9), (10, 19)]


def remove(files: PartitionFiles) -> None:
    shutil.rmtree(files.path)


def make_anew(files: PartitionFiles) -> None:
    """Create the log again under the same name, with other records at the same offsets."""
    made = PartitionFiles(files.path.parent, deleted(files))
    for base in (0, 10):
        made.segment(base, [batch(base, 5, payload=b"another"), batch(base + 5, 5)])
        made.snapshot(base + 10)
    made.segment(20, [batch(20)])


@pytest.mark.parametrize("hurt", [remove, deleted, make_anew])
@pytest.mark.parametrize("goes_at", [0, 10])
def test_a_folder_that_goes_while_it_is_shipped_is_reported(
    stack: Stack, hurt: Callable[[PartitionFiles], object], goes_at: int
) -> None:
    files = three_segments(stack.log_dir)
    three_segments(stack.log_dir, replace(NAME, partition=1))
    rsm = FailingRsm(stack.rsm)

    def before_copy(metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.topic_id_partition == NAME and metadata.start_offset == goes_at:
            hurt(files)

    rsm.before_copy = before_copy
    report = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    assert report.outcome is ShipOutcome.PARTIAL
    gone, there = report.partitions
    assert (gone.complete, there.complete) == (False, True)
    path = str(files.path)
    assert [(p.kind, p.path) for p in gone.problems] == [(ProblemKind.UNREADABLE, path)]
    assert stack.ranges(NAME) == [(base, base + 9) for base in range(0, goes_at, 10)]
    assert stack.ship().outcome is ShipOutcome.DONE


@pytest.mark.parametrize("hurt", [remove, make_anew])
def test_a_folder_that_goes_before_its_turn_is_reported_and_not_shipped(
    stack: Stack, hurt: Callable[[PartitionFiles], object]
) -> None:
    three_segments(stack.log_dir)
    other = three_segments(stack.log_dir, replace(NAME, partition=1))
    rsm, hurts = FailingRsm(stack.rsm), iter([hurt])

    def before_copy(_: RemoteLogSegmentMetadata) -> None:
        for each in hurts:
            each(other)

    rsm.before_copy = before_copy
    report = ship([stack.log_dir], rsm, stack.rlmm, replace(ONE_TRY, threads=1))
    assert [partition.complete for partition in report.partitions] == [True, False]
    assert report.outcome is ShipOutcome.PARTIAL
    with pytest.raises(RemoteResourceNotFoundError):
        stack.segments(other.name)


def test_log_of_a_topic_recreated_meanwhile_is_not_registered(stack: Stack) -> None:
    files = three_segments(stack.log_dir)

    def listed(*args: Any, **kwargs: Any) -> Any:
        """List the segments after the log was read."""
        if not list(stack.log_dir.glob("*-delete")):
            make_anew(files)
        return stack.rlmm.list_remote_log_segments(*args, **kwargs)

    rlmm = Changed(stack.rlmm, list_remote_log_segments=listed)
    report = ship([stack.log_dir], stack.rsm, rlmm, ONE_TRY)
    assert report.outcome is ShipOutcome.FAILED
    assert "its topic was created again" in report.partitions[0].problems[0].message
    assert stack.segments() == []


def test_a_finish_that_takes_effect_late_is_not_taken_back_by_the_clean_up(stack: Stack) -> None:
    three_segments(stack.log_dir)
    settings = ShipSettings(retry_for_s=30.0, backoff=Backoff(initial_s=0.01))
    report = ship([stack.log_dir], stack.rsm, LateFinish(stack.rlmm), settings)
    assert report.outcome is ShipOutcome.DONE
    assert stack.ranges() == [(0, 9), (10, 19)]
    assert len(stack.keys()) == 2 * 3


# Nobody else gives a copy up that is leased.
SAME_BROKER = Deleter(broker_id=7)


def remove_meanwhile(stack: Stack) -> None:
    deletes = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    marked = RemotePartitionDeleteMetadata(NAME, deletes, event_timestamp_ms=1, broker_id=7)
    stack.rlmm.put_remote_partition_delete_metadata(marked)
    assert remove_partition(stack.rlmm, stack.rsm, NAME, SAME_BROKER, 1).left == ""


def mark_meanwhile(stack: Stack) -> None:
    """Mark the partition meanwhile, and delete its segments."""
    delete_the_copy(stack, SAME_BROKER)


def delete_the_copy(stack: Stack, deleter: Deleter) -> None:
    (segment,) = stack.segments()
    deletion = Deletion(segment, DeletionReason.LOG_START_OFFSET, "")
    begun = begin_deletion(stack.rlmm, NAME, [deletion], None, None, deleter, 1)
    assert [outcome.error for outcome in begun] == [None]
    finished = finish_deletion(stack.rlmm, stack.rsm, [segment], deleter, 1)
    assert [outcome.error for outcome in finished] == [None]


@pytest.mark.parametrize("delete", [remove_meanwhile, mark_meanwhile])
def test_a_copy_that_ends_after_its_segment_was_deleted_leaves_no_objects(
    stack: Stack, delete: Callable[[Stack], None]
) -> None:
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [batch(0, 10)])
    files.snapshot(10)
    files.segment(10, [batch(10)])
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = lambda _: delete(stack)
    report = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    assert report.outcome is ShipOutcome.FAILED
    assert stack.keys() == []


def test_objects_that_cannot_be_deleted_then_hide_no_failure(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = lambda _: mark_meanwhile(stack)
    rsm.before_delete = raising(RetriableRemoteStorageError("away"))
    (partition,) = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY).partitions
    (problem,) = partition.problems
    assert problem.kind is ProblemKind.COPY_FAILED
    assert "InvalidStateTransitionError" in problem.message
    assert "is deleted, but its objects are not" in caplog.text


def test_only_updates_that_end_an_attempt_have_a_request_id(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rsm, rlmm = FailingRsm(stack.rsm), Recording(stack.rlmm)
    rsm.before_copy = FailingOnce(RemoteStorageError("no bucket"))
    ship([stack.log_dir], rsm, rlmm, ONE_TRY)
    ship([stack.log_dir], rsm, rlmm, ONE_TRY)
    assert [context.request_id for context in rlmm.adds] == [None, None, None]
    with_id = [state for state, context in rlmm.updates if context.request_id]
    without = [state for state, context in rlmm.updates if not context.request_id]
    assert with_id == [RemoteLogSegmentState.DELETE_SEGMENT_STARTED, FINISHED, FINISHED]
    assert without == [RemoteLogSegmentState.DELETE_SEGMENT_FINISHED]


def test_attempts_of_another_broker_are_not_touched(stack: Stack, tmp_path: Path) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RetriableRemoteStorageError("away"))
    ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    other = write_log_dir(tmp_path / "other", broker_id=8)
    three_segments(other)
    (partition,) = stack.ship(other).partitions
    assert partition.cleaned_attempts == 0
    assert len(stack.segments()) == 3


def test_an_outage_is_waited_out(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    once = FailingOnce(RetriableRemoteStorageError("away"))
    rsm.before_copy = once
    settings = ShipSettings(retry_for_s=30.0, backoff=Backoff(initial_s=0.01))
    report = ship([stack.log_dir], rsm, stack.rlmm, settings)
    assert report.outcome is ShipOutcome.DONE
    assert len(once.calls) == 3
    assert stack.ranges() == [(0, 9), (10, 19)]


def test_custom_metadata_over_the_limit_is_cleaned_up_and_not_tried_again(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    copies: list[RemoteLogSegmentMetadata] = []
    rsm.before_copy = copies.append
    limits = RlmLimits(interval_s=0.0, copy=CopyLimits(custom_metadata_max_bytes=1))
    rlm = BrokerRemoteLogManager([stack.log_dir], rsm, stack.rlmm, limits)
    for _ in range(2):
        rlm.lanes.copies.tick()
        assert rlm.lanes.copies.wait_idle(30.0)
    assert len(copies) == 1
    assert stack.segments() == []
    assert stack.keys() == []
    (problem,) = description(rlm).problems
    assert "custom metadata" in problem.message
    for text in (problem.message, caplog.text):
        assert "until RLM restarts" in text
        assert "let RSM return less custom" in text
        assert "tries again" not in text
    rlm.stop(1.0)


def test_a_file_that_is_cut_while_it_is_copied_fails_the_copy(stack: Stack) -> None:
    files = PartitionFiles(stack.log_dir)
    log = files.segment(0, [batch(0, payload=b"x" * 3_000_000)])
    files.snapshot(1)
    files.segment(1, [batch(1)])
    (partition,) = ship(
        [stack.log_dir], CutWhileCopied(stack.rsm, log), stack.rlmm, ONE_TRY
    ).partitions
    (problem,) = partition.problems
    assert (problem.kind, problem.path) == (ProblemKind.COPY_FAILED, str(log))
    assert stack.segments() == []
    assert stack.keys() == []


def test_two_copiers_of_one_folder_do_not_meet(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    inner: list[ShipReport] = []

    def ship_meanwhile(_: RemoteLogSegmentMetadata) -> None:
        if not inner:
            inner.append(stack.ship())

    rsm.before_copy = ship_meanwhile
    outer = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    assert outer.outcome is ShipOutcome.DONE
    (partition,) = inner[0].partitions
    assert (partition.copied_segments, partition.cleaned_attempts) == (0, 0)
    assert not partition.complete


def test_next_ship_finishes_a_cancelled_one(stack: Stack) -> None:
    three_segments(stack.log_dir)
    cancelled = Event()
    rsm = FailingRsm(stack.rsm)

    def cancel(_: RemoteLogSegmentMetadata) -> None:
        cancelled.set()

    rsm.before_copy = cancel
    report = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY, cancelled=cancelled)
    assert report.outcome is ShipOutcome.FAILED
    assert [s.state for s in stack.segments()] == [RemoteLogSegmentState.DELETE_SEGMENT_STARTED]
    assert stack.ship().outcome is ShipOutcome.DONE
    assert stack.ranges() == [(0, 9), (10, 19)]
