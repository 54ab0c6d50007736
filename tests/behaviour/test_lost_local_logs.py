"""Test a broker that has lost its log, or the beginning of it, while the tier has more."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import pack

import pytest

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.lineage import Lineage, parse_checkpoint
from services.api.partitions import (
    EventQuery,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_manager import FetchError, Problem, ProblemKind
from services.api.remote_log_metadata_manager import all_events
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.copy.ship import ShipOutcome
from services.rlm.manager import BrokerRemoteLogManager
from services.rsm.servicer import add_to_server
from services.workflows.deletion import Deleter
from services.workflows.removal import remove_partition
from tests.harness.processes import serving_rlmm
from tests.harness.retained_log import (
    AT_ONCE,
    DEADLINE_S,
    HOUR_MS,
    Changed,
    hourly_log,
    keep_hours,
    take_turns,
)
from tests.harness.served import served
from tests.harness.ship_stack import Stack, description, read
from tests.harness.troubles import raising
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, write_log_dir
from tests.unit.rlm.test_candidates import lineage

pytestmark = pytest.mark.deep

WHOLE_TIER = [(base, base + 9) for base in range(0, 60, 10)]
KEPT_LONG = {"retention.ms": str(10_000 * HOUR_MS)}


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.files = hourly_log(stack.log_dir)
    return stack


def rlm_of(
    stack: Stack, log_dir: Path, clock: Callable[[], float] = time.monotonic
) -> BrokerRemoteLogManager:
    return BrokerRemoteLogManager([log_dir], stack.rsm, stack.rlmm, AT_ONCE, clock)


def copy(rlm: BrokerRemoteLogManager) -> None:
    rlm.lanes.copies.tick()
    assert rlm.lanes.copies.wait_idle(DEADLINE_S)


def report(rlm: BrokerRemoteLogManager) -> None:
    rlm.lanes.reports.tick()
    assert rlm.lanes.reports.wait_idle(DEADLINE_S)


def lose_beginning(files: PartitionFiles, kept: int, *epochs: tuple[int, int]) -> None:
    """Delete the segments below `kept`, and the epochs that only they had, as a broker does."""
    for path in files.path.glob(f"{'[0-9]' * 20}.*"):
        if int(path.name[:20]) < kept:
            path.unlink()
    files.epochs(*epochs)


def stored_lineage(stack: Stack) -> Lineage:
    return stack.rlmm.partition_state(NAME).value.lineage


def test_a_first_report_has_the_epochs_that_the_broker_has_forgotten(stack: Stack) -> None:
    copy(rlm_of(stack, stack.log_dir))
    lose_beginning(stack.files, 50, (2, 50))
    stack.rlmm.put_topic_config(NAME.topic_id, KEPT_LONG, now=True)
    take_turns(rlm_of(stack, stack.log_dir), rounds=2)
    assert stored_lineage(stack) == lineage((0, 0), (2, 30))
    assert stack.ranges() == WHOLE_TIER


def test_ship_reports_them_too(stack: Stack) -> None:
    copy(rlm_of(stack, stack.log_dir))
    lose_beginning(stack.files, 50, (2, 50))
    stack.ship()
    assert stored_lineage(stack) == lineage((0, 0), (2, 30))


def test_segments_copied_after_the_read_of_the_tier_count(stack: Stack) -> None:
    """The copy pass reads the tier before it copies; the broker may delete before the report."""
    rlm = rlm_of(stack, stack.log_dir)
    copy(rlm)
    lose_beginning(stack.files, 50, (2, 50))
    report(rlm)
    assert stored_lineage(stack) == lineage((0, 0), (2, 30))


def test_a_first_report_names_the_offset_from_which_an_old_leader_was_overruled(
    stack: Stack,
) -> None:
    """An unclean election: epoch 0 wrote through 59, epoch 1 began at 51."""
    files = stack.files
    files.epochs((0, 0))
    copy(rlm_of(stack, stack.log_dir))
    files.epochs((0, 0), (1, 51))
    for base in (60, 70, 80):
        files.segment(base, [batch(base, 10)])
        files.snapshot(base + 10)
    files.segment(90, [batch(90)])
    copy(rlm_of(stack, stack.log_dir))
    lose_beginning(files, 90, (1, 90))
    take_turns(rlm_of(stack, stack.log_dir))
    assert stored_lineage(stack) == lineage((0, 0), (1, 51))


def manifest_of(stack: Stack, segment: RemoteLogSegmentMetadata) -> Path:
    """Return the object without which no index can be read, nor rebuilt."""
    segment_id = segment.remote_log_segment_id.id
    (path,) = stack.objects.rglob(f"*{segment_id.hex}.manifest")
    return path


def lost(manifest: Path) -> None:
    manifest.unlink()


def damaged(manifest: Path) -> None:
    manifest.write_bytes(b"\xff" * manifest.stat().st_size)


@pytest.mark.parametrize("harm", [lost, damaged])
def test_if_the_tiers_epochs_cannot_be_read_nothing_is_reported(
    stack: Stack, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    copy(rlm_of(stack, stack.log_dir))
    lose_beginning(stack.files, 50, (2, 50))
    manifest = manifest_of(stack, stack.segments()[-1])
    sound = manifest.read_bytes()
    harm(manifest)
    rlm = rlm_of(stack, stack.log_dir)
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(2), now=True)
    take_turns(rlm)
    assert stack.ship().outcome is ShipOutcome.DONE
    assert stack.rlmm.partition_state(NAME).value.report is None
    assert "not reported; the next run retries: cannot read the tier's leader epochs" in caplog.text
    assert stack.ranges() == WHOLE_TIER
    manifest.write_bytes(sound)
    take_turns(rlm)
    assert stored_lineage(stack) == lineage((2, 40))
    assert stack.ranges() == [(40, 49), (50, 59)]


def test_a_history_that_does_not_reach_back_to_the_tiers_beginning_is_not_reported(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    """Segments copied after the loss of the tier's epochs know no more than the broker did."""
    copy(rlm_of(stack, stack.log_dir))
    lose_beginning(stack.files, 50, (2, 50))
    lost(manifest_of(stack, stack.segments()[-1]))
    stack.files.snapshot(65)
    stack.files.segment(65, [])
    rlm = rlm_of(stack, stack.log_dir)
    take_turns(rlm, rounds=2)
    assert len(stack.segments()) == 7
    assert stack.rlmm.partition_state(NAME).value.report is None
    assert "no leader epoch is known for the tier's start offset 0" in caplog.text


def test_a_copy_keeps_the_history_although_the_one_before_it_has_lost_its_own(stack: Stack) -> None:
    take_turns(rlm_of(stack, stack.log_dir))
    lose_beginning(stack.files, 50, (2, 50))
    lost(manifest_of(stack, stack.segments()[-1]))
    stack.files.snapshot(65)
    stack.files.segment(65, [])
    copy(rlm_of(stack, stack.log_dir))
    newest = stack.segments()[-1]
    assert newest.end_offset == 64
    index = b"".join(stack.rsm.fetch_index(newest, IndexType.LEADER_EPOCH))
    assert parse_checkpoint(index.decode()) == lineage((0, 0), (2, 30))


UNREADABLE = [RetriableRemoteStorageError("the old store is away"), RemoteStorageError("denied")]


@pytest.mark.parametrize("error", UNREADABLE)
def test_a_copy_gets_through_while_the_one_before_it_is_in_an_unreadable_location(
    stack: Stack, error: RemoteStorageError
) -> None:
    """RSM may write to another location by now."""
    take_turns(rlm_of(stack, stack.log_dir))
    lose_beginning(stack.files, 50, (2, 50))
    stack.files.snapshot(65)
    stack.files.segment(65, [])
    rsm = Changed(stack.rsm, fetch_index=raising(error))
    copy(stack.rlm(rsm=rsm, limits=AT_ONCE))
    assert stack.ranges() == [*WHOLE_TIER, (60, 64)]
    index = b"".join(stack.rsm.fetch_index(stack.segments()[-1], IndexType.LEADER_EPOCH))
    assert parse_checkpoint(index.decode()) == lineage((0, 0), (2, 30))


@pytest.mark.parametrize("error", UNREADABLE)
def test_a_history_that_can_be_read_later_and_that_rlmm_has_not_is_waited_for(
    stack: Stack, error: RemoteStorageError
) -> None:
    copy(rlm_of(stack, stack.log_dir))  # and never reports
    lose_beginning(stack.files, 50, (2, 50))
    stack.files.snapshot(65)
    stack.files.segment(65, [])
    rlm = stack.rlm(rsm=Changed(stack.rsm, fetch_index=raising(error)), limits=AT_ONCE)
    copy(rlm)
    assert stack.ranges() == WHOLE_TIER
    assert str(error) in description(rlm).problems[0].message
    copy(rlm_of(stack, stack.log_dir))
    index = b"".join(stack.rsm.fetch_index(stack.segments()[-1], IndexType.LEADER_EPOCH))
    assert parse_checkpoint(index.decode()) == lineage((0, 0), (2, 30))


def new_log(log_dir: Path, rolled: int) -> PartitionFiles:
    """Make the log that a broker begins on an empty disk: offset 0 again, under a later epoch."""
    files = PartitionFiles(log_dir)
    files.epochs((3, 0))
    now_ms = time.time_ns() // 1_000_000
    for base in range(0, 10 * rolled, 10):
        files.segment(base, [batch(base, 10, payload=b"new", timestamp_ms=now_ms)])
        files.file(base, ".timeindex").write_bytes(pack(">qi", now_ms, 9))
        files.snapshot(base + 10)
    files.segment(10 * rolled, [])
    return files


@pytest.mark.deep
@pytest.mark.parametrize("rolled", [0, 3])
def test_a_log_that_ends_below_the_tiers_log_start_is_blocked_and_reported(
    stack: Stack, tmp_path: Path, rolled: int
) -> None:
    old = rlm_of(stack, stack.log_dir)
    take_turns(old)
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(2), now=True)
    take_turns(old)
    before = stack.rlmm.partition_state(NAME).value
    assert before.log_start_offset == 40

    replaced = write_log_dir(tmp_path / "replaced")
    found = new_log(replaced, rolled)
    report = stack.ship(replaced)
    assert report.outcome is ShipOutcome.FAILED
    (shipped,) = report.partitions
    assert_told(shipped.problems, found.path, blocked_segments=rolled)
    assert (shipped.copied_segments, shipped.blocked_segments) == (0, rolled)

    now_s = [0.0]
    rlm = rlm_of(stack, replaced, lambda: now_s[0])
    stack.rlmm.put_topic_config(NAME.topic_id, {"retention.ms": "0"}, now=True)
    for now_s[0] in (0.0, 1000.0):
        take_turns(rlm)
    assert_told(description(rlm).problems, found.path, blocked_segments=rolled)
    assert read(rlm, 5) is FetchError.OFFSET_OUT_OF_RANGE
    assert rlm.lanes.copies.seconds_since_last_success()[NAME] == 1000.0

    after = stack.rlmm.partition_state(NAME).value
    assert (after.report, after.lineage) == (before.report, before.lineage)
    assert stack.ranges() == [(40, 49), (50, 59)]


def assert_told(problems: tuple[Problem, ...], path: Path, blocked_segments: int) -> None:
    (problem,) = problems
    kind = ProblemKind.LOG_END_BELOW_LOG_START
    assert (problem.kind, problem.path, problem.offset) == (kind, str(path), 0)
    assert problem.blocked_segments == blocked_segments
    assert (
        f"ends at offset {10 * blocked_segments}, below the tier's log start 40" in problem.message
    )


def test_log_of_a_removed_partition_is_reported_and_left_alone(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [0.0]
    rlm = rlm_of(stack, stack.log_dir, lambda: now_s[0])
    assert rlm.copy_lag().unchecked_partitions == 1
    take_turns(rlm)
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    stack.rlmm.put_remote_partition_delete_metadata(
        RemotePartitionDeleteMetadata(NAME, marked, event_timestamp_ms=0, broker_id=1)
    )
    assert remove_partition(stack.rlmm, stack.rsm, NAME, Deleter(), now_ms=0).left == ""
    caplog.clear()
    now_s[0] = 1000.0
    rlm.lanes.revisions.tick()
    assert rlm.lanes.revisions.wait_idle(DEADLINE_S)
    assert rlm.copy_lag().unchecked_partitions == 1
    assert description(rlm).lag_segments == 6
    lag = rlm.copy_lag()
    assert (lag.lag_segments, lag.unchecked_partitions) == (6, 0)
    take_turns(rlm, 2)
    lag = rlm.copy_lag()
    assert (lag.blocked_partitions, lag.lag_segments, lag.unchecked_partitions) == (1, 6, 0)
    assert description(rlm).lag_segments == 6
    for result in (description(rlm).problems, stack.ship().partitions[0].problems):
        assert [(p.kind, p.blocked_segments) for p in result] == [
            (ProblemKind.PARTITION_DELETED, 6)
        ]
    assert "a task failed" not in caplog.text


def test_what_the_tier_has_of_a_lost_disk_is_named_and_can_be_dropped(
    stack: Stack, tmp_path: Path, database_url: str
) -> None:
    take_turns(rlm_of(stack, stack.log_dir))
    replaced = write_log_dir(tmp_path / "replaced")
    new_log(replaced, rolled=2)
    rlm = rlm_of(stack, replaced)
    take_turns(rlm, 2)
    (problem,) = description(rlm).problems
    assert (problem.kind, problem.offset) == (ProblemKind.EARLIER_HISTORY, 0)
    assert "offsets 0 to 59 of an earlier history" in problem.message
    assert rlm.copy_lag().earlier_histories == 1
    drop = ("partitions", "drop-history", "t-0", "--reason=a lost disk")
    with (
        serving_rlmm(database_url) as rlmm,
        served(partial(add_to_server, stack.rsm), "tieredstorage.v1.RemoteStorageManager") as (
            _,
            rsm,
        ),
    ):
        asked = rlmm.sediment(*drop)
        assert asked.returncode == 0, asked.stderr
        assert "6 segments (816 B) of an earlier history" in asked.stderr
        assert len(stack.ranges()) == 8
        done = rlmm.sediment(*drop, "--yes", f"--rsm={rsm}")
        assert done.returncode == 0, done.stderr
    assert stack.ranges() == [(0, 9), (10, 19)]
    trail = list(all_events(stack.rlmm, EventQuery(NAME)))
    marks = [event for event in trail if event.to_state == "DELETE_SEGMENT_STARTED"]
    assert len(marks) == 6
    assert {event.reason for event in marks} == {"all leader epochs before the lineage"}
    assert all(event.rule_detail.startswith("a lost disk: ") for event in marks)
    take_turns(rlm)
    assert description(rlm).problems == ()
    assert rlm.copy_lag().earlier_histories == 0
