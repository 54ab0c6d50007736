"""Retention lists no more segments at once than it has room for, whatever number of threads it
has."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.common.fair_queue import FairQueue
from services.rlm import manager
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.eventually import eventually
from tests.harness.retained_log import (
    AT_ONCE,
    DEADLINE_S,
    ROLLED,
    Changed,
    hourly_log,
    keep_hours,
    take_turns,
)
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME

NAMES = [replace(NAME, partition=number) for number in range(3)]


@dataclass
class Lists:
    """The real RLMM; lists that retention asks for wait until they are let go."""

    stack: Stack
    asked: list[TopicIdPartition] = field(default_factory=list)
    let_go: threading.Event = field(default_factory=threading.Event)

    def rlmm(self) -> Any:
        return Changed(self.stack.rlmm, list_remote_log_segments=self._list)

    def _list(self, name: TopicIdPartition, **asked: Any) -> Any:
        is_of_retention = "if_revision_not" not in asked
        if is_of_retention:
            self.asked.append(name)
            assert self.let_go.wait(DEADLINE_S)
        return self.stack.rlmm.list_remote_log_segments(name, **asked)


@pytest.fixture
def lists(stack: Stack) -> Lists:
    return Lists(stack)


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> FairQueue:
    """What the RLM that comes next goes by: room for one partition."""
    made = FairQueue("segments", ROLLED + 1)
    monkeypatch.setattr(manager, "FairQueue", lambda *_: made)
    return made


@pytest.fixture
def rlm(stack: Stack, lists: Lists, budget: FairQueue) -> Iterator[BrokerRemoteLogManager]:
    """One partition is being listed, the others wait."""
    for name in NAMES:
        hourly_log(stack.log_dir, name)
    take_turns(stack.rlm(limits=AT_ONCE))
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(2), now=True)
    made = BrokerRemoteLogManager([stack.log_dir], stack.rsm, lists.rlmm(), AT_ONCE)
    made.lanes.copies.tick()
    assert made.lanes.copies.wait_idle(DEADLINE_S)
    made.lanes.expiration.tick()
    eventually(lambda: len(lists.asked) == 1 and budget.waiting == len(NAMES) - 1)
    yield made
    lists.let_go.set()


def test_others_wait_until_there_is_room_and_then_all_that_is_due_goes(
    stack: Stack, rlm: BrokerRemoteLogManager, lists: Lists
) -> None:
    assert len(lists.asked) == 1
    lists.let_go.set()
    assert rlm.lanes.expiration.wait_idle(DEADLINE_S)
    assert sorted(set(lists.asked), key=NAMES.index) == NAMES
    for name in NAMES:
        assert stack.ranges(name) == [(40, 49), (50, 59)]


def test_a_pass_that_waits_when_rlm_stops_lists_nothing(
    stack: Stack, rlm: BrokerRemoteLogManager, lists: Lists, budget: FairQueue
) -> None:
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(rlm.stop, DEADLINE_S)
        eventually(lambda: budget.waiting == 0)
        lists.let_go.set()
        stopped.result(DEADLINE_S)
    assert len(lists.asked) == 1
    assert [len(stack.ranges(name)) for name in NAMES] == [ROLLED] * len(NAMES)


def test_segments_marked_while_the_store_is_away_are_not_kept_in_memory(stack: Stack) -> None:
    hourly_log(stack.log_dir)
    take_turns(stack.rlm(limits=AT_ONCE))
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(2), now=True)
    without_store = Changed(stack.rsm, delete_log_segment_data_batch=_refuse)
    rlm = BrokerRemoteLogManager([stack.log_dir], without_store, stack.rlmm, AT_ONCE)
    take_turns(rlm, rounds=2)
    (partition,) = rlm.led_partitions()
    seen = partition.tier.cached
    assert (seen.segments, seen.deleting_segments, seen.unfinished) == (2, ROLLED - 2, [])
    assert seen.deleting_bytes > 0


def _refuse(_: object) -> list[RemoteStorageError | None]:
    raise RetriableRemoteStorageError("away, on purpose")


def test_deleted_segments_are_not_kept_in_memory(
    stack: Stack, rlm: BrokerRemoteLogManager, lists: Lists
) -> None:
    lists.let_go.set()
    assert rlm.lanes.expiration.wait_idle(DEADLINE_S)
    tiers = [partition.tier.cached for partition in rlm.led_partitions()]
    assert [(tier.segments, tier.deleting_segments) for tier in tiers] == [(2, 0)] * len(NAMES)
