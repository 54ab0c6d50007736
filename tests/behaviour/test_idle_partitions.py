"""Test idle partitions: one request to RLMM covers all of them, and there are no others."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from services.api.partitions import (
    EventQuery,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.segments import RemoteLogSegmentState
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.revisions import Revisions
from services.rlm.tier_state import TierState
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.workflows.deletion import Deleter
from services.workflows.removal import remove_partition
from tests.contract.rlmm.segments import move
from tests.harness.eventually import eventually
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME, batch, high_watermarks, three_segments

pytestmark = pytest.mark.deep

INTERVAL_S = 30.0
RENEW_S = RlmLimits().report_interval_s
DEADLINE_S = 30.0
POLL, REPORT = "partition_revisions", "report_partition_state"
LIST = "list_remote_log_segments"


class Counted:
    """The real RLMM; keeps the names of the calls, and the number of segments in each list."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        self._rlmm = rlmm
        self.calls: list[str] = []
        self.listed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._rlmm, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            answer = method(*args, **kwargs)
            if name == LIST and answer.segments:
                self.listed.append(len(answer.segments))
            return answer

        return call


class Clocked:
    """An RLM whose tasks run when the test starts them."""

    def __init__(self, stack: Stack, log_dir: Path) -> None:
        self.now_s = 0.0
        self.rlmm = Counted(stack.rlmm)
        self.rlm = BrokerRemoteLogManager(
            [log_dir],
            stack.rsm,
            self.rlmm,
            RlmLimits(interval_s=INTERVAL_S),
            clock=lambda: self.now_s,
        )

    def turn(self, *, polled: bool = True) -> list[str]:
        """Run each task one interval later; return the requests of the partitions' tasks to RLMM.

        The poll happened just before.
        """
        self.now_s += INTERVAL_S
        rlm = self.rlm
        if polled:
            self.poll()
        self.rlmm.calls.clear()
        for scheduler in (rlm.lanes.copies, rlm.lanes.expiration):
            scheduler.tick()
            assert scheduler.wait_idle(DEADLINE_S)
        # The settings of topics are read anew from time to time, once for all of their partitions.
        return [name for name in self.rlmm.calls if name != "topic_config"]

    def poll(self) -> None:
        for scheduler in (
            self.rlm.lanes.scan,
            self.rlm.lanes.reports,
            self.rlm.lanes.revisions,
        ):
            scheduler.tick()
            assert scheduler.wait_idle(DEADLINE_S)

    def rest(self) -> None:
        """Run the tasks until they send no more requests."""
        for _ in range(4):
            if not self.turn():
                return
        raise AssertionError(f"asked again and again: {self.rlmm.calls}")


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.files = three_segments(stack.log_dir)
    return stack


@pytest.fixture
def clocked(stack: Stack) -> Iterator[Clocked]:
    made = Clocked(stack, stack.log_dir)
    made.rest()
    assert stack.ranges() == [(0, 9), (10, 19)]
    yield made
    made.rlm.stop(1.0)


def test_a_partition_that_rests_is_polled_and_asked_nothing(clocked: Clocked) -> None:
    for _ in range(3):
        assert clocked.turn() == []


def test_a_segment_that_is_rolled_is_copied_in_the_next_turn(
    clocked: Clocked, stack: Stack
) -> None:
    stack.files.snapshot(25)
    stack.files.segment(25, [batch(25)])
    clocked.turn()
    assert stack.ranges() == [(0, 9), (10, 19), (20, 24)]
    clocked.rest()


def test_partition_stays_idle_when_other_checkpoint_entries_change(
    clocked: Clocked, log_dir: Path
) -> None:
    for number in range(3):
        high_watermarks(log_dir, {(NAME.topic, NAME.partition): 25, ("other", 0): number})
        assert clocked.turn() == []


def test_a_rolled_segment_that_waits_for_the_high_watermark_is_copied_in_the_turn_after_it_moves(
    clocked: Clocked, stack: Stack
) -> None:
    high_watermarks(stack.log_dir, {(NAME.topic, NAME.partition): 24})
    stack.files.snapshot(25)
    stack.files.segment(25, [batch(25)])
    for _ in range(3):
        clocked.turn()
    assert stack.ranges() == [(0, 9), (10, 19)]
    high_watermarks(stack.log_dir, {(NAME.topic, NAME.partition): 25})
    clocked.turn()
    assert stack.ranges() == [(0, 9), (10, 19), (20, 24)]
    clocked.rest()


def test_records_that_are_appended_do_not_wake_it(stack: Stack, clocked: Clocked) -> None:
    with stack.files.file(20, ".log").open("ab") as active:
        active.write(batch(25, 5))
    assert clocked.turn() == []


def test_change_by_another_client_is_seen_after_the_poll(clocked: Clocked, stack: Stack) -> None:
    (first, _) = stack.segments()
    move(stack.rlmm, first, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    assert clocked.turn(polled=False) == []
    assert LIST in clocked.turn()
    # Its log start was not raised, so that what was deleted is missing, and here still.
    assert stack.ranges() == [(0, 9), (10, 19)]
    assert first not in stack.segments()
    clocked.rest()


def test_settings_that_change_are_obeyed(clocked: Clocked, stack: Stack) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, {"retention.bytes": "0"}, now=True)
    clocked.turn()
    clocked.turn()
    assert stack.segments() == []


def test_a_partition_that_is_not_copied_any_more_rests_though_something_waited(
    clocked: Clocked, stack: Stack
) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, {"remote.copy.lag.ms": "-1"})
    clocked.rest()
    stack.files.snapshot(25)
    stack.files.segment(25, [batch(25)])
    assert clocked.turn() != []
    stack.rlmm.put_topic_config(NAME.topic_id, {"remote.log.copy.disable": "true"})
    clocked.rest()
    assert stack.ranges() == [(0, 9), (10, 19)]


def test_a_partition_that_is_disabled_is_deleted_from_the_tier_once_and_rests(
    clocked: Clocked, stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="services.rlm")
    disabled = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    stack.rlmm.put_topic_config(NAME.topic_id, disabled, now=True)
    for _ in range(2):
        clocked.turn()
    assert stack.segments() == []
    clocked.rest()
    reported = len(caplog.records)
    for _ in range(3):
        assert clocked.turn() == []
    assert len(caplog.records) == reported


def test_first_report_of_a_new_leader_causes_no_second_listing(
    clocked: Clocked, stack: Stack
) -> None:
    clocked.rlm.stop(1.0)
    stack.rlmm.put_topic_config(NAME.topic_id, {"retention.ms": "9000000000000"}, now=True)
    stack.files.epochs((0, 0), (1, 25))
    restarted = Clocked(stack, stack.log_dir)
    restarted.rest()
    restarted.rlm.stop(1.0)
    events = stack.rlmm.list_events(EventQuery(NAME)).events
    assert [event.kind for event in events][-2:] == ["LEADERSHIP", "LINEAGE"]
    # Once for the copy pass, once for retention.
    assert restarted.rlmm.listed == [2, 2]


def test_without_a_poll_of_late_each_is_asked_about_itself(clocked: Clocked) -> None:
    clocked.turn(polled=False)
    clocked.turn(polled=False)
    assert LIST in clocked.turn(polled=False)


def test_reports_that_take_their_time_hold_back_neither_the_poll_nor_the_look_at_folders(
    stack: Stack,
) -> None:
    made = Clocked(stack, stack.log_dir)
    rlm, reporting, go_on = made.rlm, Event(), Event()

    def wait() -> None:
        reporting.set()
        assert go_on.wait(DEADLINE_S)

    rlm.lanes.reports.schedule("reports of all partitions", wait)
    shutil.rmtree(stack.files.path)
    rlm.lanes.reports.tick()
    try:
        assert reporting.wait(DEADLINE_S)
        for scheduler in (rlm.lanes.revisions, rlm.lanes.scan):
            scheduler.tick()
            assert scheduler.wait_idle(DEADLINE_S)
        assert POLL in made.rlmm.calls
        assert rlm.led_partitions() == []
    finally:
        go_on.set()
        rlm.stop(DEADLINE_S)


@pytest.mark.parametrize(
    ("config", "renewed"),
    [({"retention.bytes": "1000000"}, [REPORT]), ({"retention.ms": "9000000000000"}, [])],
)
def test_a_report_is_renewed_if_its_age_matters_and_nothing_is_listed_for_that(
    clocked: Clocked, stack: Stack, config: dict[str, str], renewed: list[str]
) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, config, now=True)
    clocked.rest()
    clocked.rlmm.calls.clear()
    for _ in range(int(RENEW_S / INTERVAL_S) + 1):
        clocked.now_s += INTERVAL_S
        clocked.poll()
    asked = [name for name in clocked.rlmm.calls if name in (REPORT, LIST)]
    assert asked == renewed


def test_poll_older_than_an_own_change_is_not_trusted(clocked: Clocked, stack: Stack) -> None:
    revisions = Revisions(clocked.rlmm, INTERVAL_S, lambda: clocked.now_s)
    tier = TierState(stack.rsm, clocked.rlmm, NAME, revisions)
    tier.refresh()
    assert not tier.is_as_polled
    revisions.poll([NAME])
    assert tier.is_as_polled
    tier.changed_here()
    assert not tier.is_as_polled
    (first, _) = stack.segments()
    move(stack.rlmm, first, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    tier.refresh()
    assert not tier.is_as_polled
    revisions.poll([NAME])
    assert tier.is_as_polled
    clocked.now_s += INTERVAL_S + 1
    assert not tier.is_as_polled


def test_watch_reports_changes_of_others_without_a_poll(clocked: Clocked, stack: Stack) -> None:
    revisions = Revisions(clocked.rlmm, INTERVAL_S)
    revisions.start()
    tier = TierState(stack.rsm, clocked.rlmm, NAME, revisions)
    tier.refresh()
    revisions.follow([NAME])
    assert tier.is_as_polled
    clocked.rlmm.calls.clear()
    (first, _) = stack.segments()
    move(stack.rlmm, first, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    eventually(lambda: not tier.is_as_polled)
    tier.refresh()
    eventually(lambda: tier.is_as_polled)
    revisions.follow([NAME])
    assert POLL not in clocked.rlmm.calls

    def is_read() -> bool:
        tier.refresh()
        return not tier.is_behind_poll

    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    stack.rlmm.put_remote_partition_delete_metadata(
        RemotePartitionDeleteMetadata(NAME, marked, event_timestamp_ms=0, broker_id=1)
    )
    assert remove_partition(stack.rlmm, stack.rsm, NAME, Deleter(), now_ms=0).left == ""
    eventually(lambda: tier.is_behind_poll)
    eventually(is_read)  # The watch has the revision of the removal, and RLMM no partition.
    assert tier.cached.known is False
    revisions.stop()


def test_all_are_polled_by_one_call(clocked: Clocked) -> None:
    clocked.rlmm.calls.clear()
    clocked.now_s += INTERVAL_S
    clocked.poll()
    assert clocked.rlmm.calls.count(POLL) == 1
