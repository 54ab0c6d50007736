"""Test tiering that is disabled and enabled again, even if RLM is killed in between.

All local data is in the tier again, and no deliberately deleted data counts as lost.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import LOST_BEFORE_COPY, OffsetGap, PartitionReport
from services.api.remote_log_manager import (
    LeadershipChange,
    LeadershipDelta,
    PartitionStops,
    StopPartition,
)
from services.api.remote_log_metadata_manager import ReportOutcome
from services.api.retention import Deletion, DeletionReason
from services.api.segments import RemoteLogSegmentState
from services.api.topic_config import RetentionOwner
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlm_settings
from services.rlmm.database.engine import create_database_engine
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.workflows.deletion import Deleter, begin_deletion
from tests.harness.callback_rlm import (
    LEADER,
    REASSIGNED,
    TIERING_DISABLED,
    callback_rlm,
    refused_as,
    send_role,
    stop,
)
from tests.harness.eventually import eventually
from tests.harness.processes import kill_and_restart, start_with_failpoint, wait_until_dead
from tests.harness.retained_log import Changed, expire, hourly_log, keep_hours, take_turns
from tests.harness.ship_stack import Stack, description, read
from tests.harness.variants import first_of
from tests.harness.world import COPY_LEASE_MS, FINISHED, World
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch

pytestmark = pytest.mark.deep

BROKER_ID = 7
EPOCH = 2  # the latest of an hourly log
LATER_EPOCH = 100  # than any of the bundled log
ALL = [(base, base + 9) for base in range(0, 60, 10)]
DELETABLE = {"remote.log.delete.on.disable": "true"}
DISABLED = {"remote.storage.enable": "false"}
ENABLED = {"remote.storage.enable": "true"}


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.files = hourly_log(stack.log_dir)
    return stack


@pytest.fixture
def leader(stack: Stack) -> Any:
    """Provide a leader that has copied all rolled segments."""
    rlm = callback_rlm(stack)
    assert send_role(rlm, LEADER, EPOCH) is None
    take_turns(rlm)
    assert stack.ranges() == ALL
    return rlm


def put(stack: Stack, settings: dict[str, str]) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, settings, now=True)


def delete_tier(stack: Stack, rlm: Any) -> None:
    put(stack, DELETABLE)
    assert stop(rlm, TIERING_DISABLED, EPOCH) is None
    expire(rlm)
    assert (stack.segments(), stack.keys()) == ([], [])


def lead_again(rlm: Any) -> None:
    assert send_role(rlm, LEADER, EPOCH) is None
    take_turns(rlm, rounds=2)


def roll(files: PartitionFiles, base: int) -> None:
    """Fill and roll the active segment, which begins at `base`."""
    files.segment(base, [batch(base, 5), batch(base + 5, 5)])
    files.snapshot(base + 10)
    files.segment(base + 10, [batch(base + 10, 5)])


def delete_locally(files: PartitionFiles, bases: Sequence[int]) -> None:
    for base in bases:
        for suffix in (".log", ".index", ".timeindex"):
            files.file(base, suffix).unlink()


def gaps(stack: Stack) -> tuple[OffsetGap, ...]:
    return stack.rlmm.partition_state(NAME).value.gaps


def assert_tier_is(stack: Stack, files: PartitionFiles, ranges: list[tuple[int, int]]) -> None:
    """Assert that the tier has these ranges, byte for byte as the local log."""
    assert stack.ranges() == ranges
    for segment in stack.segments():
        local = files.file(segment.start_offset, ".log").read_bytes()
        assert b"".join(stack.rsm.fetch_log_segment(segment, 0)) == local


def test_all_that_is_local_is_copied_again(stack: Stack, leader: Any) -> None:
    delete_tier(stack, leader)
    roll(stack.files, 60)
    lead_again(leader)
    assert_tier_is(stack, stack.files, [*ALL, (60, 69)])
    assert gaps(stack) == ()
    found = description(leader)
    assert (found.problems, found.lag_segments, found.copied_through_offset) == ((), 0, 69)


def test_it_begins_at_the_local_log_start_of_then(stack: Stack, leader: Any) -> None:
    delete_locally(stack.files, [0, 10])
    delete_tier(stack, leader)
    lead_again(leader)
    assert_tier_is(stack, stack.files, ALL[2:])
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 20
    assert gaps(stack) == ()


@pytest.mark.deep
def test_segments_deleted_while_tiering_is_disabled_are_not_lost(stack: Stack, leader: Any) -> None:
    delete_tier(stack, leader)
    roll(stack.files, 60)
    delete_locally(stack.files, [0, 10, 20, 30, 40])
    lead_again(leader)
    assert_tier_is(stack, stack.files, [(50, 59), (60, 69)])
    assert gaps(stack) == ()
    assert description(leader).problems == ()


def test_a_stop_reports_again_if_another_report_overtakes_it(stack: Stack) -> None:
    overtaken: list[int] = []

    def overtake(reports: Sequence[PartitionReport]) -> Sequence[ReportOutcome]:
        if is_disabling and not overtaken:
            overtaken.append(reports[0].report_number)
            later = replace(reports[0], report_number=reports[0].report_number + 1, broker_id=8)
            stack.rlmm.report_partition_state([later])
        return stack.rlmm.report_partition_state(reports)

    is_disabling = False
    rlm = callback_rlm(stack, rlmm=Changed(stack.rlmm, report_partition_state=overtake))
    assert send_role(rlm, LEADER, EPOCH) is None
    take_turns(rlm)
    is_disabling = True
    delete_tier(stack, rlm)
    assert len(overtaken) == 1


def expire_before(stack: Stack, rlm: Any, log_start_offset: int) -> None:
    put(stack, keep_hours(6 - log_start_offset // 10))
    expire(rlm)
    put(stack, {})
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == log_start_offset


def forget_events(database_url: str) -> None:
    """Purge events as `sediment db maintain` does: a partition's latest event stays."""
    engine = create_database_engine(database_url)
    with engine.begin() as connection:
        connection.execute(
            text("DELETE FROM events WHERE revision < (SELECT max(revision) FROM events)")
        )
    engine.dispose()


@pytest.mark.parametrize("raised_by", ["disabling", "retention", "retention, long ago"])
def test_segments_deleted_right_behind_the_log_start_are_not_lost(
    stack: Stack, leader: Any, database_url: str, raised_by: str
) -> None:
    if raised_by != "disabling":
        expire_before(stack, leader, 20)
    delete_locally(stack.files, [0, 10])
    delete_tier(stack, leader)
    roll(stack.files, 60)
    delete_locally(stack.files, [20, 30, 40])
    if raised_by == "retention, long ago":
        forget_events(database_url)
    lead_again(leader)
    assert_tier_is(stack, stack.files, [(50, 59), (60, 69)])
    state = stack.rlmm.partition_state(NAME).value
    assert (state.log_start_offset, state.gaps) == (20, ())
    found = description(leader)
    assert (found.problems, found.copied_through_offset) == ((), 69)


@pytest.mark.deep
def test_once_retention_has_raised_the_log_start_again_a_loss_behind_it_is_a_loss(
    stack: Stack, leader: Any
) -> None:
    delete_locally(stack.files, [0, 10])
    delete_tier(stack, leader)
    delete_locally(stack.files, [20])
    lead_again(leader)
    assert (stack.ranges(), gaps(stack)) == (ALL[3:], ())
    expire_before(stack, leader, 60)
    roll(stack.files, 60)
    roll(stack.files, 70)
    delete_locally(stack.files, [30, 40, 50, 60])
    take_turns(leader)
    assert stack.ranges() == [(70, 79)]
    assert gaps(stack) == (OffsetGap(60, 69, LOST_BEFORE_COPY),)


@pytest.mark.deep
def test_segment_still_being_deleted_is_copied_again(stack: Stack, leader: Any) -> None:
    put(stack, DELETABLE)
    assert stop(leader, TIERING_DISABLED, EPOCH) is None
    send_role(leader, LEADER, EPOCH)
    leader.lanes.copies.tick()
    assert leader.lanes.copies.wait_idle(30.0)
    states = [(s.start_offset, s.state) for s in stack.segments()]
    deleting = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    assert sorted(states, key=str) == sorted(
        [(first, state) for first, _ in ALL for state in (deleting, FINISHED)], key=str
    )
    expire(leader)
    assert_tier_is(stack, stack.files, ALL)


def test_segments_marked_by_an_interrupted_removal_are_copied_again(
    stack: Stack, leader: Any
) -> None:
    """The tier then begins above it, and the broker would delete it one day."""
    deleter = Deleter(BROKER_ID, RetentionOwner.RLM, broker_leader_epoch=EPOCH)
    marked = [Deletion(s, DeletionReason.TIERING_DISABLED, "") for s in stack.segments()[:2]]
    begun = begin_deletion(stack.rlmm, NAME, marked, 0, None, deleter, 1)
    assert [outcome.error for outcome in begun] == [None, None]
    lead_again(leader)
    expire(leader)
    assert_tier_is(stack, stack.files, ALL)
    assert gaps(stack) == ()
    assert description(leader).copied_through_offset == 59


def test_segments_kept_while_disabled_are_not_copied_again(stack: Stack, leader: Any) -> None:
    kept = stack.segments()
    outcome = stop(leader, TIERING_DISABLED, EPOCH)
    assert refused_as(outcome) is not None
    put(stack, DISABLED)
    roll(stack.files, 60)
    lead_again(leader)
    assert stack.segments() == kept
    put(stack, ENABLED)
    assert stop(leader, REASSIGNED, EPOCH) is None
    lead_again(leader)
    assert_tier_is(stack, stack.files, [*ALL, (60, 69)])
    assert stack.segments()[: len(kept)] == kept
    assert gaps(stack) == ()


def test_loss_behind_kept_segments_is_recorded(stack: Stack, leader: Any) -> None:
    put(stack, DISABLED)
    roll(stack.files, 60)
    roll(stack.files, 70)
    delete_locally(stack.files, [base for base, _ in [*ALL, (60, 69)]])
    put(stack, ENABLED)
    lead_again(leader)
    assert stack.ranges() == [*ALL, (70, 79)]
    assert gaps(stack) == (OffsetGap(60, 69, LOST_BEFORE_COPY),)
    assert isinstance(read(leader, 0), bytes)


@contextmanager
def told_process(world: World, directory: Path) -> Iterator[ServiceProcess]:
    """Make an RLM beside the world's log that learns its leadership by calls, not started yet."""
    addresses = world.rsm.address, world.rlmm.address
    settings = rlm_settings(*addresses, [world.log_dir], task_interval_ms=200)
    settings["RLM_PARTITION_SOURCE"] = "callbacks"
    settings["RLM_COPY_LEASE_MS"] = str(COPY_LEASE_MS)
    rlm = ServiceProcess("rlm", settings, directory / "rlm")
    try:
        yield rlm
    finally:
        rlm.kill()


def lead_all(rlm: ServiceProcess, names: Sequence[TopicIdPartition]) -> None:
    changes = tuple(LeadershipChange(name, LATER_EPOCH, LEADER) for name in names)
    with open_channel(rlm.address, PLAINTEXT) as channel:
        client = RemoteLogManagerClient(channel, rlm.address)
        assert client.on_leadership_change(LeadershipDelta(changes)) == [None] * len(names)


def disable_all(rlm: ServiceProcess, names: Sequence[TopicIdPartition]) -> None:
    stops = tuple(StopPartition(name, None, TIERING_DISABLED) for name in names)
    with open_channel(rlm.address, PLAINTEXT) as channel:
        client = RemoteLogManagerClient(channel, rlm.address)
        assert client.stop_partitions(PartitionStops(stops)) == [None] * len(names)


def is_shipped(world: World) -> bool:
    """Return whether all is done that assert_all_shipped checks."""
    expected = sum(map(len, world.local_segments().values()))
    rows = world.rows()
    return len(rows) == expected and {row.state for row in rows} == {FINISHED}


@pytest.mark.deep
@pytest.mark.parametrize(
    "failpoint",
    first_of(
        [
            "deletion.log_start_raised",
            "deletion.marked_some",
            "deletion.objects_deleted",
            "deletion.confirmed_some",
        ]
    ),
)
def test_an_rlm_that_was_killed_while_it_disabled(
    world: World, tmp_path: Path, failpoint: str
) -> None:
    world.ship()
    before = {row.remote_log_segment_id for row in world.rows()}
    world.set_retention(DELETABLE)
    names = sorted(world.local_segments(), key=str)
    with told_process(world, tmp_path) as rlm:
        start_with_failpoint(rlm, failpoint)
        lead_all(rlm, names)
        with suppress(RetriableRemoteStorageError):
            disable_all(rlm, names)
        wait_until_dead(rlm)
        kill_and_restart(rlm)
        lead_all(rlm, names)
        eventually(lambda: is_shipped(world), deadline_ms=60_000)
        if failpoint != "deletion.log_start_raised":
            assert {row.remote_log_segment_id for row in world.rows()} != before
    world.assert_all_shipped()
    with world.metadata() as rlmm:
        assert [rlmm.partition_state(name).value.gaps for name in names] == [()] * len(names)


@pytest.mark.deep
@pytest.mark.parametrize(
    "failpoint", first_of(["copy.finished_registered", "copy.started_registered"])
)
def test_an_rlm_that_was_killed_while_it_copied_again(
    world: World, tmp_path: Path, failpoint: str
) -> None:
    world.ship()
    world.set_retention(DELETABLE)
    names = sorted(world.local_segments(), key=str)
    with told_process(world, tmp_path) as rlm:
        rlm.start()
        lead_all(rlm, names)
        disable_all(rlm, names)
        eventually(lambda: world.rows() == [], deadline_ms=60_000)
        rlm.kill()
        start_with_failpoint(rlm, failpoint, 3)
        with suppress(RetriableRemoteStorageError):
            lead_all(rlm, names)
        wait_until_dead(rlm)
        kill_and_restart(rlm)
        lead_all(rlm, names)
        eventually(lambda: is_shipped(world), deadline_ms=60_000)
    world.assert_all_shipped()
    with world.metadata() as rlmm:
        assert [rlmm.partition_state(name).value.gaps for name in names] == [()] * len(names)
