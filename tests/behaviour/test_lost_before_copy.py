"""Test data that the broker deleted before its copy: logged, recorded once, and no reason to
stop.
"""

import time

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.partitions import EventQuery, OffsetGap
from services.api.remote_log_manager import FetchError, ProblemKind
from services.api.remote_log_metadata_manager import all_events
from services.api.segments import RemoteLogSegmentState
from services.rlm.copy.ship import ShipOutcome, ship
from services.rlm.manager import BrokerRemoteLogManager
from tests.contract.rlmm.partition_states import lineage, report_of, taken
from tests.contract.rlmm.segments import move, segment
from tests.harness.published import growth
from tests.harness.retained_log import AT_ONCE, take_turns
from tests.harness.ship_stack import ONE_TRY, SOME_TRIES, Stack, description, read
from tests.harness.troubles import (
    FailingRsm,
    GapsRefused,
    GapsUnanswered,
    SilentRlmm,
    raising,
)
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments

pytestmark = pytest.mark.deep


def lose_before_copy(files: PartitionFiles, base: int) -> None:
    """Delete all before `base` as the broker does; leave five offsets rolled, then an active
    one.
    """
    for path in files.path.glob(f"{'[0-9]' * 20}.*"):
        path.unlink()
    files.snapshot(base)
    files.segment(base, [batch(base, 5)])
    files.snapshot(base + 5)
    files.segment(base + 5, [batch(base + 5)])


@pytest.fixture
def lost(stack: Stack) -> PartitionFiles:
    """Provide a log: 0 to 9 are in the tier, 10 to 19 are lost, 20 to 24 are rolled."""
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [batch(0, 10)])
    files.snapshot(10)
    files.segment(10, [batch(10, 10)])
    assert stack.ship().outcome is ShipOutcome.DONE
    lose_before_copy(files, 20)
    return files


def test_range_deleted_before_its_copy_is_named_and_the_rest_shipped(
    stack: Stack, lost: PartitionFiles
) -> None:
    report = stack.ship()
    (partition,) = report.partitions
    (problem,) = partition.problems
    assert (problem.kind, problem.path) == (ProblemKind.LOST_BEFORE_COPY, str(lost.path))
    assert (problem.offset, problem.blocked_segments) == (10, 0)
    assert "10 to 19" in problem.message
    assert problem.message.endswith("; recorded as a gap")
    assert report.outcome is ShipOutcome.PARTIAL
    assert (partition.copied_segments, partition.blocked_segments) == (1, 0)
    assert (partition.recorded, partition.known_gaps) == ((problem,), ())
    assert stack.ranges() == [(0, 9), (20, 24)]


def test_lost_range_is_recorded_once_as_a_gap(stack: Stack, lost: PartitionFiles) -> None:
    stack.ship()
    assert stack.rlmm.partition_state(NAME).value.gaps == (OffsetGap(10, 19),)
    for _ in range(2):
        report = stack.ship()
        (partition,) = report.partitions
        assert (report.outcome, partition.problems) == (ShipOutcome.DONE, ())
        assert (partition.recorded, partition.known_gaps) == ((), ((10, 19),))
    (event,) = [e for e in all_events(stack.rlmm, EventQuery(NAME)) if e.kind == "GAP"]
    assert (event.broker_id, event.broker_leader_epoch, event.repeat_count) == (7, 0, 0)


def test_each_range_that_the_service_records_as_lost_is_counted_once(
    stack: Stack, lost: PartitionFiles
) -> None:
    grown = growth("sediment_rlm_lost_ranges_total")
    take_turns(stack.rlm(limits=AT_ONCE), rounds=3)
    assert stack.rlmm.partition_state(NAME).value.gaps == (OffsetGap(10, 19),)
    assert grown() == [1]


def test_a_loss_that_grows_is_found_again(stack: Stack, lost: PartitionFiles) -> None:
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RetriableRemoteStorageError("away"))
    ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY)
    lose_before_copy(lost, 25)
    (partition,) = stack.ship().partitions
    assert [p.message for p in partition.recorded] == [
        "the broker deleted offsets 10 to 24 before they were copied; recorded as a gap"
    ]
    assert stack.rlmm.partition_state(NAME).value.gaps == (OffsetGap(10, 24),)
    assert stack.ship().partitions[0].known_gaps == ((10, 24),)


def test_copied_prefix_ends_at_a_loss_until_it_is_recorded(
    stack: Stack, lost: PartitionFiles
) -> None:
    rlmm = GapsRefused(stack.rlmm)
    for copied in (1, 0):
        report = ship([stack.log_dir], stack.rsm, rlmm, ONE_TRY)
        (partition,) = report.partitions
        (problem,) = partition.problems
        assert problem.message.endswith("; not recorded: InvalidStateTransitionError: held")
        assert (report.outcome, partition.recorded) == (ShipOutcome.PARTIAL, ())
        assert partition.copied_segments == copied
    rlm = stack.rlm()
    found = description(rlm)
    assert found.copied_through_offset == 9
    assert [(p.kind, p.offset) for p in found.problems] == [(ProblemKind.LOST_BEFORE_COPY, 10)]
    assert description(stack.tier_reader()).copied_through_offset == 9
    assert read(rlm, 12) is FetchError.TIERED_STORAGE_NOT_AVAILABLE
    stack.ship()
    found = description(rlm)
    assert found.copied_through_offset == 24
    (problem,) = found.problems
    assert (problem.kind, problem.offset, problem.blocked_segments) == (
        ProblemKind.LOST_BEFORE_COPY,
        10,
        0,
    )
    assert problem.message.startswith("known gap: the broker deleted offsets 10 to 19 ")
    assert description(stack.tier_reader()).copied_through_offset == 24
    assert read(rlm, 12) == read(rlm, 20)


def test_range_leased_by_another_broker_is_not_recorded_as_lost(
    stack: Stack, lost: PartitionFiles
) -> None:
    under_way = segment(NAME, 10, 19, broker_id=9)
    stack.rlmm.add_remote_log_segment_metadata(under_way, lease_ms=3_600_000)
    (partition,) = stack.ship().partitions
    (problem,) = partition.problems
    assert problem.message.endswith("; not recorded: broker 9 is copying offsets 10 to 19")
    assert stack.rlmm.partition_state(NAME).value.gaps == ()
    move(stack.rlmm, under_way, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, broker_id=9)
    assert len(stack.ship().partitions[0].recorded) == 1


def test_young_copy_of_another_broker_is_not_recorded_as_lost(
    stack: Stack, lost: PartitionFiles
) -> None:
    young = segment(NAME, 10, 19, broker_id=9, event_timestamp_ms=time.time_ns() // 1_000_000)
    stack.rlmm.add_remote_log_segment_metadata(young)
    (problem,) = stack.ship().partitions[0].problems
    assert problem.message.endswith("; not recorded: broker 9 is copying offsets 10 to 19")
    assert stack.rlmm.partition_state(NAME).value.gaps == ()


def test_an_old_copy_of_another_broker_hides_no_loss(stack: Stack, lost: PartitionFiles) -> None:
    old = segment(NAME, 10, 19, broker_id=9, event_timestamp_ms=1)
    stack.rlmm.add_remote_log_segment_metadata(old)
    assert len(stack.ship().partitions[0].recorded) == 1


@pytest.mark.parametrize(
    ("broker_id", "leader_epoch", "first_offset", "recorded"),
    [
        (9, 0, 0, 0),
        (9, 0, 19, 0),
        (9, 3, 19, 0),
        (9, 0, 20, 1),
        (7, 0, 0, 1),
    ],
)
def test_range_reported_by_the_leader_is_not_recorded_as_lost(
    stack: Stack,
    lost: PartitionFiles,
    broker_id: int,
    leader_epoch: int,
    first_offset: int,
    recorded: int,
) -> None:
    result = report_of(
        NAME,
        1_000,
        broker_id=broker_id,
        leader_epoch=leader_epoch,
        lineage=lineage((0, 0)),
        local_log_start_offset=first_offset,
    )
    taken(stack.rlmm, result)
    (partition,) = stack.ship().partitions
    assert len(partition.recorded) == recorded
    if not recorded:
        assert partition.problems[0].message.endswith(
            f"; not recorded: broker 9 reported a log that starts at offset {first_offset}"
        )


def test_a_report_of_an_overruled_leader_hides_no_loss(stack: Stack, lost: PartitionFiles) -> None:
    taken(stack.rlmm, report_of(NAME, 1_000, broker_id=9, leader_epoch=0, lineage=lineage((0, 0))))
    lost.epochs((0, 0), (2, 12))
    assert len(stack.ship().partitions[0].recorded) == 1


@pytest.fixture
def lost_twice(stack: Stack, lost: PartitionFiles) -> PartitionFiles:
    """Provide an unrecorded loss of 10 to 19 and 25 to 29; 30 to 34 are rolled."""
    ship([stack.log_dir], stack.rsm, GapsRefused(stack.rlmm), ONE_TRY)
    lose_before_copy(lost, 30)
    return lost


@pytest.mark.parametrize("is_recorded", [False, True])
def test_losses_are_reported_although_recording_the_second_one_fails_at_first(
    stack: Stack, lost_twice: PartitionFiles, is_recorded: bool
) -> None:
    rlmm = GapsUnanswered(stack.rlmm, is_recorded=is_recorded, unanswered={2})
    (partition,) = (report := ship([stack.log_dir], stack.rsm, rlmm, SOME_TRIES)).partitions
    assert report.outcome is ShipOutcome.PARTIAL
    assert [problem.offset for problem in partition.problems] == [10, 25]
    assert [problem.offset for problem in partition.recorded] == [10, 25]
    assert partition.known_gaps == ()
    found = stack.rlmm.partition_state(NAME).value.gaps
    assert found == (OffsetGap(10, 19), OffsetGap(25, 29))
    assert stack.ship().outcome is ShipOutcome.DONE


def test_a_loss_that_cannot_be_recorded_keeps_nothing_from_being_copied(
    stack: Stack, lost_twice: PartitionFiles
) -> None:
    rlmm = GapsUnanswered(stack.rlmm, is_recorded=False, unanswered=set(range(1, 9)))
    (partition,) = ship([stack.log_dir], stack.rsm, rlmm, ONE_TRY).partitions
    assert partition.copied_segments == 1
    assert stack.ranges()[-1] == (30, 34)
    first, second, away = partition.problems
    text = "RetriableRemoteStorageError: the connection broke"
    assert first.message.endswith(f"; perhaps recorded as a gap: {text}")
    assert second.message.endswith(f"; not recorded: {text}")
    assert away.kind is ProblemKind.STORE_UNAVAILABLE
    assert rlmm.calls == 1
    assert not partition.complete


def test_a_known_gap_is_known_while_rlmm_is_away(stack: Stack, lost: PartitionFiles) -> None:
    stack.ship()
    rlmm = SilentRlmm(stack.rlmm)
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, rlmm)
    assert description(rlm).copied_through_offset == 24
    rlmm.is_silent = True
    found = description(rlm)
    assert found.copied_through_offset == 24
    away, known = found.problems
    assert away.kind is ProblemKind.STORE_UNAVAILABLE
    assert known.message.startswith("known gap: ")


def test_a_loss_that_the_first_of_several_passes_recorded_is_reported(
    stack: Stack, lost: PartitionFiles
) -> None:
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(RetriableRemoteStorageError("away"))
    (partition,) = (report := ship([stack.log_dir], rsm, stack.rlmm, SOME_TRIES)).partitions
    kinds = [problem.kind for problem in partition.problems]
    assert kinds == [ProblemKind.LOST_BEFORE_COPY, ProblemKind.STORE_UNAVAILABLE]
    assert (len(partition.recorded), partition.known_gaps) == (1, ())
    assert report.outcome is ShipOutcome.FAILED


def test_a_range_that_is_copied_but_not_seen_yet_is_not_called_lost(stack: Stack) -> None:
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [batch(0, 10)])
    files.snapshot(10)
    files.segment(10, [batch(10, 10)])
    stack.ship()
    rlmm = SilentRlmm(stack.rlmm)
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, rlmm)
    assert description(rlm).problems == ()
    files.snapshot(20)
    files.segment(20, [batch(20)])
    stack.ship()
    lose_before_copy(files, 20)
    rlmm.is_silent = True
    kinds = [problem.kind for problem in description(rlm).problems]
    assert kinds == [ProblemKind.STORE_UNAVAILABLE]


def test_range_deleted_by_delete_records_is_not_lost(stack: Stack, lost: PartitionFiles) -> None:
    checkpoint = stack.log_dir / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 22\n")
    assert stack.ship().outcome is ShipOutcome.DONE
    assert stack.segments()[-1].epoch_ranges() == ((0, 22, 24),)
    assert description(stack.rlm()).copied_through_offset == 24
    checkpoint.write_text("0\n0\n")
    lose_before_copy(lost, 25)
    report = stack.ship()
    assert report.outcome is ShipOutcome.DONE
    assert report.partitions[0].problems == ()


def test_a_segment_that_the_broker_deletes_while_it_is_copied_is_lost(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = lambda _: files.file(0, ".log").unlink()
    (partition,) = ship([stack.log_dir], rsm, stack.rlmm, ONE_TRY).partitions
    (problem,) = partition.problems
    assert (problem.kind, problem.offset) == (ProblemKind.LOST_BEFORE_COPY, 0)
    assert not partition.complete
    assert stack.segments() == []
