"""Test leading, following and releasing partitions by calls: RSM on files, RLMM on PostgreSQL."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.partitions import EventQuery, RemotePartitionDeleteState
from services.api.remote_log_manager import (
    FetchError,
    LeadershipChange,
    LeadershipDelta,
    PartitionStops,
    StopPartition,
    all_descriptions,
)
from services.api.remote_log_metadata_manager import all_events, all_partitions
from services.api.segments import RemoteLogSegmentState
from services.rlm.partition import Finishing
from services.rlm.reporting import report_of
from services.rlm.roles import disabling, stopping
from tests.harness.callback_rlm import (
    FOLLOWER,
    LEADER,
    REASSIGNED,
    TIERING_DISABLED,
    TOPIC_DELETED,
    HeldCopies,
    broker_beside,
    callback_rlm,
    refused_as,
    removing_turns,
    send_role,
    stop,
    turn,
)
from tests.harness.holds import hold, release
from tests.harness.retained_log import (
    AT_ONCE,
    Changed,
    expire,
    hourly_log,
    keep_hours,
    take_turns,
)
from tests.harness.ship_stack import FINISHED, Stack, description, read
from tests.harness.troubles import FailingRlmm, raising
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, deleted

EPOCH = 2  # the latest of an hourly log
ALL = [(base, base + 9) for base in range(0, 60, 10)]
DELETABLE = {"remote.log.delete.on.disable": "true"}
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    return hourly_log(log_dir)


@pytest.fixture
def rlm(stack: Stack, files: PartitionFiles) -> Any:
    return callback_rlm(stack)


@pytest.fixture
def leader(stack: Stack, rlm: Any) -> Any:
    """Provide a leader that has copied all rolled segments."""
    assert send_role(rlm, LEADER, EPOCH) is None
    take_turns(rlm)
    assert stack.ranges() == ALL
    return rlm


def put(stack: Stack, settings: dict[str, str]) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, settings, now=True)


def stop_all(rlm: Any, names: list[Any], reason: Any = TOPIC_DELETED) -> list[Any]:
    stops = tuple(StopPartition(name, EPOCH, reason) for name in names)
    outcomes: list[Any] = rlm.stop_partitions(PartitionStops(stops))
    return outcomes


def reasons(stack: Stack, state: str) -> set[str]:
    events = all_events(stack.rlmm, EventQuery(NAME))
    return {event.reason for event in events if event.to_state == state}


def test_partitions_without_a_role_are_left_alone(stack: Stack, rlm: Any) -> None:
    take_turns(rlm)
    assert list(all_partitions(stack.rlmm)) == []
    assert list(all_descriptions(rlm)) == []
    assert read(rlm, 60) is FetchError.NOT_LEADER_OR_FOLLOWER


def test_a_leader_copies_reports_and_expires_under_the_epoch_of_its_role(
    stack: Stack, rlm: Any
) -> None:
    send_role(rlm, LEADER, 5)
    take_turns(rlm)
    assert {segment.broker_leader_epoch for segment in stack.segments()} == {5}
    state = stack.rlmm.partition_state(NAME).value
    assert state.report is not None
    assert (state.report.leader_epoch, state.highest_broker_leader_epoch) == (5, 5)
    put(stack, keep_hours(2))
    take_turns(rlm)
    assert stack.ranges() == [(40, 49), (50, 59)]
    found = description(rlm)
    assert (found.role, found.leader_id, found.leader_epoch) == (LEADER, 7, 5)


def test_a_follower_knows_the_tier_and_changes_nothing(stack: Stack, leader: Any) -> None:
    follower = callback_rlm(stack, broker_beside(stack.log_dir, 8))
    send_role(follower, FOLLOWER, EPOCH)
    put(stack, {"retention.ms": "0"})
    before = stack.rlmm.partition_state(NAME).value.report
    for _ in range(2):
        take_turns(follower)
        turn(follower.lanes.followers)
    assert stack.ranges() == ALL
    assert stack.rlmm.partition_state(NAME).value.report == before
    assert follower._roles.partition(NAME).tier.cached.segments == 6
    found = description(follower)
    assert (found.role, found.leader_id, found.leader_epoch) == (FOLLOWER, -1, EPOCH)


def test_a_followed_partition_that_fails_in_any_way_delays_no_other(stack: Stack) -> None:
    names = [replace(NAME, partition=number) for number in range(3)]
    for name in names:
        hourly_log(stack.log_dir, name, rolled=1)
    real = stack.rlmm.list_remote_log_segments

    def sick(name: Any, *args: Any, **kwargs: Any) -> Any:
        if name == names[0]:
            raise MemoryError("whatever it likes")
        return real(name, *args, **kwargs)

    rlm = callback_rlm(stack, rlmm=Changed(stack.rlmm, list_remote_log_segments=sick))
    for name in names:
        send_role(rlm, FOLLOWER, EPOCH, name)
    for _ in range(3):
        turn(rlm.lanes.followers)
    seen = [rlm._roles.partition(name).tier.cached.known for name in names]
    assert seen == [None, True, True]


def test_follower_serves_offsets_that_only_the_tier_has(
    stack: Stack, leader: Any, files: PartitionFiles
) -> None:
    first = files.file(0, ".log").read_bytes()
    other = broker_beside(stack.log_dir, 8)
    for file in (other / files.path.name).glob(f"{0:020}.*"):
        file.unlink()
    follower = callback_rlm(stack, other)
    send_role(follower, FOLLOWER, EPOCH)
    turn(follower.lanes.followers)
    got = read(follower, 0)
    assert isinstance(got, bytes)
    assert got.startswith(first)


def test_demoted_leader_finishes_its_segment_and_the_new_leader_continues(
    stack: Stack, files: PartitionFiles
) -> None:
    copies = HeldCopies(stack)
    old = callback_rlm(stack, rsm=copies.rsm)
    new = callback_rlm(stack, broker_beside(stack.log_dir, 8))
    send_role(old, LEADER, EPOCH)
    send_role(new, FOLLOWER, EPOCH)
    with copies.held(old, 20):
        send_role(old, FOLLOWER, EPOCH + 1)
    take_turns(old, rounds=2)
    assert copies.copied_from == [0, 10, 20]
    assert stack.ranges() == ALL[:3]
    send_role(new, LEADER, EPOCH + 1)
    take_turns(new)
    assert stack.ranges() == ALL
    made_by = [(s.broker_id, s.broker_leader_epoch) for s in stack.segments()]
    assert made_by == [(7, EPOCH)] * 3 + [(8, EPOCH + 1)] * 3


def test_copy_finished_by_a_demoted_leader_is_kept(stack: Stack, files: PartitionFiles) -> None:
    copies = HeldCopies(stack)
    old = callback_rlm(stack, rsm=copies.rsm)
    new = callback_rlm(stack, broker_beside(stack.log_dir, 8))
    send_role(old, LEADER, EPOCH)
    with copies.held(old, 20):
        send_role(old, FOLLOWER, EPOCH + 1)
        send_role(new, LEADER, EPOCH + 1)
        take_turns(new)
    assert {segment.state for segment in stack.segments()} == {FINISHED}
    assert sorted(set(stack.ranges())) == ALL
    assert copies.copied_from == [0, 10, 20]
    whole = b"".join(log.read_bytes() for log in sorted(files.path.glob("*.log")))
    shutil.rmtree(new._roles.partition(NAME).role.local.folder.path)
    take_turns(new)
    parts = read(new, 0)
    assert isinstance(parts, bytes)
    assert parts == whole[: len(parts)]
    assert len(parts) == sum(files.file(base, ".log").stat().st_size for base in range(0, 60, 10))


def test_a_pass_that_a_demotion_overtook_begins_nothing(
    stack: Stack, files: PartitionFiles
) -> None:
    rlm = callback_rlm(stack)
    send_role(rlm, LEADER, EPOCH)
    overtaken = rlm.lanes.copies._entries[NAME].task
    (led,) = rlm.led_partitions()
    send_role(rlm, FOLLOWER, EPOCH + 1)
    overtaken()
    assert report_of(led, rlm.broker_id) is None
    assert list(all_partitions(stack.rlmm)) == []


def test_an_expiration_stops_when_the_leader_is_demoted(stack: Stack, leader: Any) -> None:
    put(stack, {"retention.ms": "0"})

    def demoted_meanwhile(updates: Any) -> Any:
        send_role(demoted, FOLLOWER, EPOCH)
        return stack.rlmm.update_remote_log_segment_metadata_batch(updates)

    rlmm = Changed(stack.rlmm, update_remote_log_segment_metadata_batch=demoted_meanwhile)
    demoted = callback_rlm(stack, rlmm=rlmm)
    send_role(demoted, LEADER, EPOCH)
    expire(demoted)
    expire(demoted)
    assert {segment.state for segment in stack.segments()} == {DELETING}
    assert len(stack.keys()) == 3 * 6
    send_role(leader, LEADER, EPOCH + 1)
    take_turns(leader)
    assert (stack.ranges(), stack.keys()) == ([], [])


def test_a_role_that_is_received_again_keeps_the_running_pass(
    stack: Stack, files: PartitionFiles
) -> None:
    copies = HeldCopies(stack)
    rlm = callback_rlm(stack, rsm=copies.rsm)
    send_role(rlm, LEADER, EPOCH)
    with copies.held(rlm, 20):
        assert send_role(rlm, LEADER, EPOCH) is None
    assert copies.copied_from == list(range(0, 60, 10))
    assert stack.ranges() == ALL


def leads_on_as_told(rlm: Any, files: PartitionFiles) -> None:
    assert send_role(rlm, LEADER, EPOCH + 1) is None


def leads_on_as_its_log_tells(rlm: Any, files: PartitionFiles) -> None:
    files.epochs((0, 0), (2, 30), (EPOCH + 1, 65))


@pytest.mark.parametrize("leads_on", [leads_on_as_told, leads_on_as_its_log_tells])
def test_pass_continues_under_a_leader_epoch_that_rises_meanwhile(
    stack: Stack, files: PartitionFiles, leads_on: Callable[[Any, PartitionFiles], None]
) -> None:
    """A report has raised the epoch in RLMM, which accepts no copy under the earlier one."""
    copies = HeldCopies(stack)
    if leads_on is leads_on_as_told:
        rlm = callback_rlm(stack, rsm=copies.rsm)
        send_role(rlm, LEADER, EPOCH)
    else:
        rlm = stack.rlm(rsm=copies.rsm, limits=AT_ONCE)
    with copies.held(rlm, 20):
        leads_on(rlm, files)
        turn(rlm.lanes.reports)
    turn(rlm.lanes.copies)
    assert stack.ranges() == ALL
    assert [s.broker_leader_epoch for s in stack.segments()] == [EPOCH] * 3 + [EPOCH + 1] * 3
    assert rlm.led_partitions()[0].copy.problems == ()
    counted = {s.name: s.value for m in rlm.topic_counts.collect() for s in m.samples}
    assert counted["sediment_rlm_remote_copy_requests_total"] == 6
    assert counted["sediment_rlm_remote_copy_errors_total"] == 0
    assert counted["sediment_rlm_remote_copy_retriable_errors_total"] == 0


def test_role_older_than_a_stop_is_fenced(stack: Stack, leader: Any) -> None:
    assert stop(leader, REASSIGNED, 6) is None
    assert refused_as(send_role(leader, LEADER, 5)) is FencedLeaderEpochError
    assert send_role(leader, LEADER, 6) is None


def test_a_log_of_a_later_leader_than_the_role_is_not_copied(
    stack: Stack, files: PartitionFiles
) -> None:
    files.epochs((0, 0), (2, 30), (6, 40))
    rlm = callback_rlm(stack)
    send_role(rlm, LEADER, 5)
    take_turns(rlm)
    assert list(all_partitions(stack.rlmm)) == []
    send_role(rlm, LEADER, 6)
    take_turns(rlm)
    assert stack.ranges() == ALL


def test_a_log_that_comes_after_the_role_is_found(stack: Stack) -> None:
    rlm = callback_rlm(stack)
    send_role(rlm, LEADER, EPOCH)
    take_turns(rlm)
    hourly_log(stack.log_dir)
    take_turns(rlm, rounds=2)
    assert stack.ranges() == ALL


def test_roles_are_received_without_store_and_database(stack: Stack, files: PartitionFiles) -> None:
    away = callback_rlm(stack, rlmm=FailingRlmm(stack.rlmm))
    assert send_role(away, LEADER, EPOCH) is None
    assert stop(away, REASSIGNED, EPOCH) is None


def test_after_a_restart_roles_are_sent_again(stack: Stack, leader: Any) -> None:
    restarted = callback_rlm(stack)
    assert send_role(restarted, LEADER, EPOCH) is None
    take_turns(restarted)
    assert stack.ranges() == ALL


@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
def test_a_reassigned_partition_leaves_the_tier_as_it_is(
    stack: Stack, leader: Any, role: Any
) -> None:
    send_role(leader, role, EPOCH)
    put(stack, {"retention.ms": "0"})
    before = stack.segments(), stack.rlmm.partition_state(NAME).revision
    for _ in range(2):
        assert stop(leader, REASSIGNED, EPOCH) is None
    take_turns(leader)
    turn(leader.lanes.followers)
    assert (stack.segments(), stack.rlmm.partition_state(NAME).revision) == before
    found = description(leader)
    assert (found.role, found.local_segments) == (None, 0)
    assert isinstance(read(leader, 0), bytes)


@pytest.mark.parametrize("again", [TIERING_DISABLED, REASSIGNED])
def test_a_stop_that_is_repeated_ends_no_deletion_that_the_first_began(
    stack: Stack, leader: Any, again: Any
) -> None:
    put(stack, DELETABLE)
    assert stop(leader, TIERING_DISABLED, EPOCH) is None
    assert stop(leader, again, EPOCH) is None
    expire(leader)
    assert (stack.segments(), stack.keys()) == ([], [])
    assert Finishing(NAME) not in leader.lanes.expiration.seconds_since_last_success()


def test_repeated_stop_resumes_a_deletion_interrupted_by_a_restart(
    stack: Stack, leader: Any
) -> None:
    put(stack, DELETABLE)
    assert stop(leader, TIERING_DISABLED, EPOCH) is None
    restarted = callback_rlm(stack)
    assert stop(restarted, TIERING_DISABLED, EPOCH) is None
    expire(restarted)
    assert (stack.segments(), stack.keys()) == ([], [])


def test_a_leader_role_received_while_disabling_gets_no_tasks(stack: Stack, leader: Any) -> None:
    put(stack, DELETABLE)
    outcomes: list[Any] = []

    def told_meanwhile(updates: Any) -> Any:
        outcomes.append(refused_as(send_role(disabled, LEADER, EPOCH + 1)))
        outcomes.append(refused_as(stop(disabled, TIERING_DISABLED, EPOCH + 1)))
        return stack.rlmm.update_remote_log_segment_metadata_batch(updates)

    rlmm = Changed(stack.rlmm, update_remote_log_segment_metadata_batch=told_meanwhile)
    disabled = callback_rlm(stack, rlmm=rlmm)
    send_role(disabled, LEADER, EPOCH)
    assert stop(disabled, TIERING_DISABLED, EPOCH) is None
    assert outcomes == [ConcurrentUpdateError] * 2
    assert NAME not in disabled.lanes.copies.seconds_since_last_success()
    assert disabled.led_partitions() == []
    assert send_role(disabled, LEADER, EPOCH) is None


def test_copies_of_all_that_is_disabled_end_before_one_is_waited_for(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [replace(NAME, partition=number) for number in range(3)]
    for name in names:
        hourly_log(stack.log_dir, name, rolled=1)
    rlm = callback_rlm(stack)
    for name in names:
        send_role(rlm, LEADER, EPOCH, name)
    take_turns(rlm)
    put(stack, DELETABLE)
    left: list[int] = []
    waits: list[float] = []

    def wait(name: Any, within_s: float) -> bool:
        left.append(len(rlm.lanes.copies.seconds_since_last_success().keys() & set(names)))
        waits.append(within_s)
        now_s[0] += within_s  # a copy that goes on
        return False

    now_s = [0.0]
    monkeypatch.setattr(disabling, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(stopping, "STEPS_AT_ONCE", 1)
    monkeypatch.setattr(rlm.lanes.copies, "wait_ended", wait)
    outcomes = stop_all(rlm, names, TIERING_DISABLED)
    assert [refused_as(outcome) for outcome in outcomes] == [ConcurrentUpdateError] * 3
    assert left == [0, 0, 0]
    assert waits == [disabling.COPY_ENDS_WITHIN_S, 0.0, 0.0]


def test_tiering_is_not_disabled_if_the_topic_does_not_allow_it(stack: Stack, leader: Any) -> None:
    hold(stack.rlmm, NAME)
    for settings, reason in (({}, "remote.log.delete.on.disable"), (DELETABLE, "hold audit")):
        put(stack, settings)
        outcome = stop(leader, TIERING_DISABLED, EPOCH)
        assert refused_as(outcome) is DeletionRefusedError
        assert reason in str(outcome)
    assert stack.ranges() == ALL
    assert description(leader).role is LEADER
    assert NAME in leader.lanes.copies.seconds_since_last_success()
    assert send_role(leader, LEADER, EPOCH + 1) is None
    release(stack.rlmm, NAME)
    put(stack, keep_hours(2))
    take_turns(leader)
    assert stack.ranges() == [(40, 49), (50, 59)]


@pytest.mark.parametrize("owner", ["rlm", "sweep", "broker"])
def test_the_owner_of_retention_does_not_keep_a_disabled_topic(
    stack: Stack, leader: Any, owner: str
) -> None:
    # Else what goes in the name of a broker is kept for a day.
    at_once = {"sediment.delete.grace.ms": "0"}
    put(stack, {**DELETABLE, **at_once, "sediment.retention.owner": owner})
    assert stop(leader, TIERING_DISABLED, EPOCH) is None
    expire(leader)
    assert (stack.segments(), stack.keys()) == ([], [])


def test_a_follower_of_a_disabled_topic_only_stops(stack: Stack, leader: Any) -> None:
    put(stack, DELETABLE)
    follower = callback_rlm(stack, broker_beside(stack.log_dir, 8))
    send_role(follower, FOLLOWER, EPOCH)
    for _ in range(2):
        assert stop(follower, TIERING_DISABLED, EPOCH) is None
    assert stack.ranges() == ALL


def test_without_a_leader_role_nothing_is_deleted(stack: Stack, leader: Any) -> None:
    put(stack, DELETABLE)
    restarted = callback_rlm(stack)
    assert refused_as(stop(restarted, TIERING_DISABLED)) is InvalidStateTransitionError
    assert stack.ranges() == ALL
    send_role(restarted, LEADER, EPOCH)
    assert stop(restarted, TIERING_DISABLED, EPOCH) is None
    assert stop(callback_rlm(stack), TIERING_DISABLED) is None


def test_a_copy_in_progress_of_a_disabled_topic_is_left_and_cleaned_up(
    stack: Stack, files: PartitionFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disabling, "COPY_ENDS_WITHIN_S", 0.05)
    copies = HeldCopies(stack)
    rlm = callback_rlm(stack, rsm=copies.rsm)
    send_role(rlm, LEADER, EPOCH)
    with copies.held(rlm, 20):
        put(stack, DELETABLE)
        assert refused_as(stop(rlm, TIERING_DISABLED, EPOCH)) is ConcurrentUpdateError
    assert copies.copied_from == [0, 10, 20]
    assert [segment.state for segment in stack.segments()] == [FINISHED, FINISHED, DELETING]
    assert stop(rlm, TIERING_DISABLED, EPOCH) is None
    expire(rlm)
    assert (stack.segments(), stack.keys()) == ([], [])


def test_a_role_received_after_a_failed_stop_starts_its_tasks_again(
    stack: Stack, files: PartitionFiles
) -> None:
    put_config = stack.rlmm.put_topic_config
    away = raising(RetriableRemoteStorageError("away"))
    rlm = callback_rlm(stack, rlmm=Changed(stack.rlmm, raise_log_start_offset=away))
    send_role(rlm, LEADER, EPOCH)
    take_turns(rlm)
    put_config(NAME.topic_id, DELETABLE, now=True)
    assert refused_as(stop(rlm, TIERING_DISABLED, EPOCH)) is RetriableRemoteStorageError
    put_config(NAME.topic_id, keep_hours(100))
    assert send_role(rlm, LEADER, EPOCH) is None
    files.segment(70, [files.file(60, ".log").read_bytes()])
    assert rlm.lanes.copies.seconds_since_last_success().keys() >= {NAME}


def test_failed_deletion_is_retried(stack: Stack, leader: Any) -> None:
    put(stack, DELETABLE)
    failing = raising(RetriableRemoteStorageError("away"))
    rsm = Changed(stack.rsm, delete_log_segment_data_batch=failing)
    rlm = callback_rlm(stack, rsm=rsm)
    send_role(rlm, LEADER, EPOCH)
    assert stop(rlm, TIERING_DISABLED, EPOCH) is None
    expire(rlm)
    assert len(stack.segments()) == 6
    rsm._methods.clear()
    expire(rlm)
    assert (stack.segments(), stack.keys()) == ([], [])


@pytest.mark.parametrize("role", [FOLLOWER, None])
def test_leader_and_follower_mark_a_deleted_topic(stack: Stack, leader: Any, role: Any) -> None:
    other = callback_rlm(stack, broker_beside(stack.log_dir, 8))
    if role is not None:
        send_role(other, role, EPOCH)
    assert stop(other, TOPIC_DELETED) is None
    (summary,) = all_partitions(stack.rlmm)
    assert summary.delete_state is MARKED


def test_a_mark_of_an_older_leader_is_refused_by_rlmm_too(stack: Stack, leader: Any) -> None:
    other = callback_rlm(stack, broker_beside(stack.log_dir, 8))
    send_role(other, LEADER, EPOCH + 1)
    take_turns(other)
    assert refused_as(stop(leader, TOPIC_DELETED, EPOCH)) is FencedLeaderEpochError
    (summary,) = all_partitions(stack.rlmm)
    assert summary.delete_state is None


def test_one_partition_that_cannot_be_abandoned_stops_no_other(stack: Stack) -> None:
    names = [replace(NAME, partition=number) for number in range(4)]
    for name in names:
        hourly_log(stack.log_dir, name, rolled=1)
    real = stack.rlmm.put_remote_partition_delete_metadata

    def unlucky(event: Any, context: Any) -> Any:
        if event.topic_id_partition == names[1]:
            raise ValueError("broken")
        return real(event, context)

    rlm = callback_rlm(
        stack, rlmm=Changed(stack.rlmm, put_remote_partition_delete_metadata=unlucky)
    )
    rlm.on_leadership_change(
        LeadershipDelta(tuple(LeadershipChange(name, EPOCH, LEADER) for name in names))
    )
    take_turns(rlm)
    outcomes = stop_all(rlm, names)
    assert [outcome is None for outcome in outcomes] == [True, False, True, True]
    marked = [s.topic_id_partition for s in all_partitions(stack.rlmm, delete_states=[MARKED])]
    assert marked == [names[0], names[2], names[3]]


@pytest.mark.deep
def test_partitions_that_are_locked_for_long_stop_no_other(stack: Stack) -> None:
    names = [replace(NAME, partition=number) for number in range(1000)]
    locked = {*names[:7], *names[500:520], names[999]}
    real = stack.rlmm.put_remote_partition_delete_metadata

    def put_unlocked(event: Any, context: Any) -> Any:
        if event.topic_id_partition in locked:
            raise RetriableRemoteStorageError("locked")
        return real(event, context)

    rlm = callback_rlm(
        stack,
        rlmm=Changed(stack.rlmm, put_remote_partition_delete_metadata=put_unlocked),
    )
    outcomes = stop_all(rlm, names)
    assert [outcome is None for outcome in outcomes] == [name not in locked for name in names]


def test_a_database_that_is_away_is_asked_once_a_call(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "STEPS_AT_ONCE", 1)
    asked: list[object] = []

    def away(event: Any, context: Any) -> Any:
        asked.append(event)
        raise RetriableRemoteStorageError("away")

    rlmm = Changed(stack.rlmm, put_remote_partition_delete_metadata=away, is_ready=lambda _: False)
    rlm = callback_rlm(stack, rlmm=rlmm)
    names = [replace(NAME, partition=number) for number in range(50)]
    outcomes = stop_all(rlm, names)
    assert [refused_as(outcome) for outcome in outcomes] == [RetriableRemoteStorageError] * 50
    assert len(asked) == 1


def test_a_topic_keeps_its_name(stack: Stack, leader: Any) -> None:
    renamed = replace(NAME, topic="renamed", partition=1)
    for refused in (
        send_role(leader, FOLLOWER, 9, renamed),
        stop(leader, TOPIC_DELETED, 9, renamed),
    ):
        assert isinstance(refused, InvalidRequestError)
        assert "has the topic id of another topic" in str(refused)
    two = [replace(NAME, topic_id=uuid4())] * 2
    changes = [
        LeadershipChange(replace(name, topic=f"t{n}"), 9, LEADER) for n, name in enumerate(two)
    ]
    outcomes = leader.on_leadership_change(LeadershipDelta(tuple(changes)))
    assert [refused_as(outcome) for outcome in outcomes] == [InvalidRequestError] * 2
    assert [found.topic_id_partition for found in all_descriptions(leader)] == [NAME]


def test_a_topic_that_was_created_again_is_another(
    stack: Stack, leader: Any, files: PartitionFiles
) -> None:
    stop(leader, TOPIC_DELETED, EPOCH)
    shutil.rmtree(files.path)
    anew = replace(NAME, topic_id=uuid4())
    hourly_log(stack.log_dir, anew, rolled=2)
    assert send_role(leader, LEADER, EPOCH, anew) is None
    take_turns(leader, rounds=2)
    assert stack.ranges(anew) == ALL[:2]
    removing_turns(leader)
    with pytest.raises(RemoteResourceNotFoundError):
        stack.segments(NAME)
    assert stack.ranges(anew) == ALL[:2]


def test_until_it_is_found_the_log_of_a_topic_created_again_is_not_used(
    stack: Stack, leader: Any, files: PartitionFiles
) -> None:
    turn(leader.lanes.reports)
    before = stack.rlmm.partition_state(NAME).value
    hourly_log(stack.log_dir, deleted(files), rolled=9).epochs((0, 0))
    for scheduler in (leader.lanes.copies, leader.lanes.reports, leader.lanes.expiration):
        turn(scheduler)
    assert stack.ranges() == ALL
    after = stack.rlmm.partition_state(NAME).value
    assert (after.lineage, after.report) == (before.lineage, before.report)
    assert not isinstance(read(leader, 35), FetchError)
    assert read(leader, 75) is FetchError.NOT_LEADER_OR_FOLLOWER
