"""Test that RLM removes partitions marked by any client, beside other RLMs."""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from services.api.calls import MutationContext
from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import (
    EventQuery,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_metadata_manager import (
    PartitionPage,
    PartitionSummary,
    all_events,
    all_partitions,
)
from services.common.log import LINES_PER_WINDOW
from services.common.retry import Backoff
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.roles import partition_remover
from services.rlm.roles.stopping import BatchedDeletion
from services.workflows import removal
from tests.harness.callback_rlm import (
    ALL_AT_ONCE,
    LEADER,
    TOPIC_DELETED,
    callback_rlm,
    removing_turns,
    send_role,
    stop,
    turn,
)
from tests.harness.holds import hold, release
from tests.harness.retained_log import Changed, hourly_log, take_turns
from tests.harness.ship_stack import Stack
from tests.harness.troubles import raising
from tests.unit.rlm.kafka_bytes import NAME

pytestmark = pytest.mark.deep

NAMES = [replace(NAME, partition=number) for number in range(3)]
LAST = TopicIdPartition(UUID("ffffffff-ffff-4fff-bfff-ffffffffffff"), "z", 0)
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
WHY = MutationContext(reason="test")
LEASED_BY = 9


@pytest.fixture
def rlm(stack: Stack) -> Any:
    """Provide three partitions in the tier whose tasks no longer run."""
    for name in NAMES:
        hourly_log(stack.log_dir, name, rolled=3)
    shipped = BrokerRemoteLogManager([stack.log_dir], stack.rsm, stack.rlmm, ALL_AT_ONCE)
    take_turns(shipped)
    return remover(stack)


def remover(stack: Stack, rsm: Any = None, rlmm: Any = None, **limits: Any) -> Any:
    """Make an RLM without logs, which only removes partitions."""
    settings = replace(ALL_AT_ONCE, **limits)
    return BrokerRemoteLogManager([], rsm or stack.rsm, rlmm or stack.rlmm, settings)


def mark(stack: Stack, *names: TopicIdPartition) -> None:
    for name in names:
        event = RemotePartitionDeleteMetadata(name, MARKED, 1, -1)
        stack.rlmm.put_remote_partition_delete_metadata(event, WHY)


def seen_first(stack: Stack, summary: PartitionSummary) -> Changed:
    """Wrap the real RLMM, whose first list of partitions is outdated by a moment."""
    answers = iter([PartitionPage((summary,), "")])
    real = stack.rlmm.list_partitions

    def as_it_was_first(**asked: Any) -> PartitionPage:
        return next(answers, None) or real(**asked)

    return Changed(stack.rlmm, list_partitions=as_it_was_first)


def known(stack: Stack) -> list[TopicIdPartition]:
    return [summary.topic_id_partition for summary in all_partitions(stack.rlmm)]


def test_the_grace_period_is_kept_by_the_clock_of_the_database(stack: Stack, rlm: Any) -> None:
    mark(stack, NAMES[0])
    removing_turns(remover(stack, deletion_grace_ms=3_600_000))
    assert known(stack) == NAMES
    assert len(stack.ranges(NAMES[0])) == 3


def test_a_mark_that_was_taken_back_removes_nothing(stack: Stack, rlm: Any) -> None:
    mark(stack, NAMES[0])
    turn(rlm.lanes.removal)
    stack.rlmm.undelete_partition(NAMES[0])
    removing_turns(rlm)
    assert len(stack.ranges(NAMES[0])) == 3


def test_repeated_mark_has_its_own_grace_period(stack: Stack, rlm: Any) -> None:
    mark(stack, NAMES[0])
    (old,) = all_partitions(stack.rlmm, delete_states=[MARKED])
    stack.rlmm.undelete_partition(NAMES[0])
    mark(stack, NAMES[0])
    late = seen_first(stack, replace(old, marked_at_ms=0))
    removing_turns(remover(stack, rlmm=late, deletion_grace_ms=3_600_000))
    assert known(stack) == NAMES
    assert len(stack.ranges(NAMES[0])) == 3


def test_partition_changed_since_its_listing_is_still_removed(stack: Stack, rlm: Any) -> None:
    mark(stack, NAMES[0])
    (now,) = all_partitions(stack.rlmm, delete_states=[MARKED])
    late = seen_first(stack, replace(now, revision=now.revision - 1))
    removing_turns(remover(stack, rlmm=late), turns=4)
    assert known(stack) == NAMES[1:]


def test_a_partition_on_hold_stays_and_is_removed_when_the_hold_ends(
    stack: Stack, rlm: Any
) -> None:
    mark(stack, NAMES[0])
    hold(stack.rlmm, NAME)
    removing_turns(rlm)
    assert known(stack) == NAMES
    release(stack.rlmm, NAME)
    removing_turns(rlm)
    assert known(stack) == NAMES[1:]


def test_a_partition_is_removed_only_when_no_object_is_left(stack: Stack, rlm: Any) -> None:
    segment = stack.segments(NAMES[0])[0]
    stray = stack.object_of(segment)
    stray = stray.with_name(stray.name.replace(segment.remote_log_segment_id.id.hex, "1" * 32))
    stray.write_bytes(b"of a copy that nobody knows")
    mark(stack, NAMES[0])
    removing_turns(rlm)
    assert known(stack) == NAMES
    stray.unlink()
    removing_turns(rlm)
    assert known(stack) == NAMES[1:]


@pytest.fixture
def behind_the_held(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide three partitions on hold, and one that follows them in every list.

    There is room for two of these four.
    """
    for name in (*NAMES, LAST):
        hourly_log(stack.log_dir, name, rolled=3)
    take_turns(BrokerRemoteLogManager([stack.log_dir], stack.rsm, stack.rlmm, ALL_AT_ONCE))
    hold(stack.rlmm, NAME)
    mark(stack, *NAMES, LAST)
    monkeypatch.setattr(partition_remover, "MAX_REMOVALS", 2)


@pytest.mark.deep
@pytest.mark.usefixtures("behind_the_held")
def test_partition_behind_many_held_ones_is_removed(stack: Stack) -> None:
    removing_turns(remover(stack, remover_interval_s=3600.0), turns=6)
    assert known(stack) == NAMES


@pytest.mark.deep
@pytest.mark.usefixtures("behind_the_held")
def test_held_removal_is_retried_without_filling_the_log(
    stack: Stack, limited_log: pytest.LogCaptureFixture
) -> None:
    limited_log.set_level(logging.INFO, logger="services.rlm")
    asked: list[Any] = []

    def put(*arguments: Any) -> Any:
        asked.append(arguments)
        return stack.rlmm.put_remote_partition_delete_metadata(*arguments)

    rlmm = Changed(stack.rlmm, put_remote_partition_delete_metadata=put)
    removing_turns(remover(stack, rlmm=rlmm), turns=60)
    refused = [r for r in limited_log.records if "removal was refused" in r.getMessage()]
    assert len(asked) > 30
    assert len(refused) == LINES_PER_WINDOW
    release(stack.rlmm, NAME)
    removing_turns(remover(stack), turns=6)
    assert known(stack) == []


@pytest.mark.deep
def test_no_more_removals_wait_than_there_is_room_for(
    stack: Stack, rlm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_remover, "MAX_REMOVALS", 2)
    mark(stack, *NAMES)
    away = raising(RetriableRemoteStorageError("away"))
    rsm = Changed(stack.rsm, delete_log_segment_data_batch=away)
    some = remover(stack, rsm=rsm)
    removing_turns(some, turns=6)
    waiting = set(some.lanes.removal.seconds_since_last_success())
    always = {partition_remover.FIND_TASK, partition_remover.KEPT_TASK}
    assert waiting == {*always, *NAMES[:2]}
    rsm._methods.clear()
    removing_turns(some, turns=6)
    assert known(stack) == []


@pytest.fixture
def one_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a removal to one segment per step."""
    monkeypatch.setattr(removal, "MAX_DELETE_BATCH", 1)
    monkeypatch.setattr(
        partition_remover, "BatchedDeletion", lambda begin: BatchedDeletion(begin, size=1)
    )


@pytest.mark.deep
@pytest.mark.usefixtures("one_a_turn")
def test_a_turn_in_which_nothing_goes_waits_its_back_off(stack: Stack, rlm: Any) -> None:
    mark(stack, NAMES[0])
    asked: list[Any] = []

    def sick(segments: Any) -> Any:
        asked.append(segments)
        return [RetriableRemoteStorageError("away")] * len(segments)

    slow = remover(
        stack,
        rsm=Changed(stack.rsm, delete_log_segment_data_batch=sick),
        remover_interval_s=3600.0,
        backoff=Backoff(initial_s=1000.0, max_s=1000.0),
    )
    removing_turns(slow, turns=5)
    assert len(asked) == 1
    assert NAMES[0] in slow.lanes.removal.seconds_since_last_success()


def test_one_that_cannot_be_removed_delays_no_other(stack: Stack, rlm: Any) -> None:
    mark(stack, *NAMES)
    real = stack.rsm.delete_log_segment_data_batch

    def sick(segments: Any) -> Any:
        if segments[0].remote_log_segment_id.topic_id_partition == NAMES[1]:
            raise ValueError("whatever it likes")
        return real(segments)

    removing_turns(remover(stack, rsm=Changed(stack.rsm, delete_log_segment_data_batch=sick)))
    assert known(stack) == [NAMES[1]]
    removing_turns(rlm)
    assert (known(stack), stack.keys()) == ([], [])


def test_failed_removal_is_retried(stack: Stack, rlm: Any) -> None:
    mark(stack, NAMES[0])
    away = Changed(stack.rlmm, list_partitions=raising(RetriableRemoteStorageError("away")))
    back = remover(stack, rlmm=away)
    turn(back.lanes.removal)
    away._methods.clear()
    removing_turns(back)
    assert known(stack) == NAMES[1:]


def test_a_copy_that_another_broker_makes_under_a_lease_is_waited_for(
    stack: Stack, rlm: Any
) -> None:
    tp = NAMES[0]
    (first, *_) = stack.segments(tp)
    copying = replace(
        first,
        remote_log_segment_id=replace(first.remote_log_segment_id, id=NAME.topic_id),
        broker_id=LEASED_BY,
        custom_metadata=None,
        state=type(first.state).COPY_SEGMENT_STARTED,
    )
    stack.rlmm.add_remote_log_segment_metadata(copying, WHY, lease_ms=3_600_000)
    mark(stack, tp)
    removing_turns(rlm)
    left = [segment.remote_log_segment_id for segment in stack.segments(tp)]
    assert left == [copying.remote_log_segment_id]


@pytest.mark.usefixtures("one_a_turn")
def test_a_large_partition_goes_a_batch_a_turn(stack: Stack, rlm: Any) -> None:
    mark(stack, NAMES[0])
    left = [3]
    while known(stack) != NAMES[1:]:  # other tasks have turns too
        turn(rlm.lanes.removal)
        now = [] if NAMES[0] not in known(stack) else stack.ranges(NAMES[0])
        left += [len(now)] if len(now) != left[-1] else []
    assert left == [3, 2, 1, 0]


@pytest.mark.deep
def test_several_at_once_do_no_harm(stack: Stack, rlm: Any) -> None:
    mark(stack, *NAMES)
    removers = [remover(stack) for _ in range(4)]
    with ThreadPoolExecutor(len(removers)) as pool:
        list(pool.map(lambda each: removing_turns(each, turns=6), removers))
    removing_turns(rlm)
    assert (known(stack), stack.keys()) == ([], [])
    finished = [
        event
        for event in all_events(stack.rlmm, EventQuery(NAMES[0]))
        if event.to_state == "DELETE_PARTITION_FINISHED"
    ]
    assert len(finished) == 1


def test_a_deleted_topic_that_was_announced_is_removed_completely(stack: Stack, rlm: Any) -> None:
    reported = callback_rlm(stack)
    send_role(reported, LEADER, 2, NAMES[0])
    assert stop(reported, TOPIC_DELETED, 2, NAMES[0]) is None
    removing_turns(reported)
    assert known(stack) == NAMES[1:]
