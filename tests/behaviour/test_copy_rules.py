"""Test which segments are copied, when and how fast, by a topic's settings and the quota.

RSM is on files, RLMM on PostgreSQL, without gRPC.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchError, RecordSource
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.segments import RemoteLogSegmentState
from services.common.fair_queue import QuotaLimit, TokenBucket
from services.rlm.collectors import TopicCollector
from services.rlm.copy.report import Progress
from services.rlm.copy.rules import CopyLagDefaults, CopyRules
from services.rlm.copy.segment import CopyLimits, SegmentCopier
from services.rlm.copy.task import CopyTask
from services.rlm.kafka_log.local_log import LocalPartition
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.partition import new_partition
from services.rlm.topic_configs import TopicConfigs
from tests.harness.eventually import eventually
from tests.harness.retained_log import (
    AT_ONCE,
    DEADLINE_S,
    HOUR_MS,
    Changed,
    hourly_log,
    keep_hours,
    take_turns,
)
from tests.harness.ship_stack import Stack, description, fetch, lose_rolled_segments
from tests.unit.rlm.kafka_bytes import NAME, batch

pytestmark = pytest.mark.deep

BROKER_ID = 7
YEAR_MS = 365 * 24 * HOUR_MS
EVERY_RANGE = [(base, base + 9) for base in range(0, 60, 10)]
COPY_DISABLED = {"remote.log.copy.disable": "true"}
NOT_TIERED = {"remote.storage.enable": "false"}


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.files = hourly_log(stack.log_dir)
    return stack


def real_now_ms() -> int:
    return time.time_ns() // 1_000_000


def rlm_of(
    stack: Stack,
    now_ms: Callable[[], int] = real_now_ms,
    rsm: Any = None,
    rlmm: Any = None,
    limits: RlmLimits = AT_ONCE,
) -> BrokerRemoteLogManager:
    return BrokerRemoteLogManager(
        [stack.log_dir], rsm or stack.rsm, rlmm or stack.rlmm, limits, now_ms=now_ms
    )


class Turned:
    """A manager some of whose methods are replaced from some time on."""

    def __init__(self, manager: object, methods: dict[str, Callable[..., Any]]) -> None:
        self._manager = manager
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods.get(name) or getattr(self._manager, name)


def put(stack: Stack, settings: dict[str, str]) -> None:
    """Put settings, even before the first pass, which makes the topic known."""
    stack.rlmm.on_partition_leadership_changes([PartitionLeadership(NAME, 2)], [], BROKER_ID)
    stack.rlmm.put_topic_config(NAME.topic_id, settings, now=True)


def figures(rlm: BrokerRemoteLogManager) -> dict[str, float]:
    """Return the metrics of the one topic, by their names."""
    registry = CollectorRegistry()
    registry.register(TopicCollector(rlm.led_partitions))
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert {tuple(sample.labels.items()) for sample in samples} <= {(("topic", "t"),)}
    return {sample.name.removeprefix("sediment_rlm_"): sample.value for sample in samples}


def test_a_segment_is_copied_when_its_newest_record_is_old_enough(stack: Stack) -> None:
    ahead_ms = [0]
    rlm = rlm_of(stack, now_ms=lambda: real_now_ms() + ahead_ms[0])
    put(stack, {"remote.copy.lag.ms": str(4 * HOUR_MS)})
    take_turns(rlm)
    assert stack.ranges() == EVERY_RANGE[:3]
    ahead_ms[0] = HOUR_MS
    take_turns(rlm)
    assert stack.ranges() == EVERY_RANGE[:4]
    put(stack, {"remote.copy.lag.ms": "0"})
    take_turns(rlm)
    assert stack.ranges() == EVERY_RANGE


def test_a_segment_is_copied_when_enough_lies_behind_it(stack: Stack) -> None:
    size = stack.files.file(0, ".log").stat().st_size
    active = stack.files.file(60, ".log").stat().st_size
    put(stack, {"remote.copy.lag.ms": "-1", "remote.copy.lag.bytes": str(4 * size + active)})
    rlm = rlm_of(stack)
    take_turns(rlm)
    assert stack.ranges() == EVERY_RANGE[:2]
    put(stack, {"remote.copy.lag.ms": "-1"})
    take_turns(rlm)
    assert stack.ranges() == EVERY_RANGE[:2]


def test_the_lag_of_the_settings_holds_for_topics_that_say_nothing(stack: Stack) -> None:
    lag = CopyLagDefaults(ms=5 * HOUR_MS)
    rlm = rlm_of(stack, limits=RlmLimits(interval_s=0.0, copy_lag=lag))
    take_turns(rlm)
    assert stack.ranges() == EVERY_RANGE[:2]


@pytest.mark.parametrize("wrong_ms", [-YEAR_MS, YEAR_MS])
def test_with_a_clock_a_year_wrong_nothing_is_deleted_that_is_not_due(
    stack: Stack, wrong_ms: int
) -> None:
    put(stack, {**keep_hours(24), "remote.copy.lag.ms": str(4 * HOUR_MS)})
    take_turns(rlm_of(stack, now_ms=lambda: real_now_ms() + wrong_ms), rounds=3)
    assert stack.ranges() == EVERY_RANGE


def test_ship_ignores_the_copy_lag(stack: Stack) -> None:
    put(stack, {"remote.copy.lag.ms": str(24 * HOUR_MS)})
    (shipped,) = stack.ship().partitions
    assert (shipped.copied_segments, shipped.complete) == (6, True)


@pytest.mark.parametrize("settings", [COPY_DISABLED, NOT_TIERED])
def test_topic_with_copying_disabled_is_not_copied(stack: Stack, settings: dict[str, str]) -> None:
    put(stack, settings)
    rlm = rlm_of(stack)
    take_turns(rlm, rounds=2)
    assert (stack.segments(), stack.keys()) == ([], [])
    assert figures(rlm)["remote_copy_lag_segments"] == description(rlm).lag_segments == 0
    (shipped,) = stack.ship().partitions
    assert (shipped.copied_segments, stack.keys()) == (0, [])
    put(stack, {"remote.log.delete.on.disable": "true"})
    take_turns(rlm)
    assert stack.ranges() == EVERY_RANGE


def test_reads_and_retention_continue_while_copying_is_disabled(stack: Stack) -> None:
    rlm = rlm_of(stack)
    take_turns(rlm)
    put(stack, {**COPY_DISABLED, **keep_hours(2)})
    lose_rolled_segments(stack.log_dir)
    take_turns(rlm, rounds=2)
    assert stack.ranges() == EVERY_RANGE[4:]
    (part,) = fetch(rlm, 45)[:1]
    assert (part.error, part.source) == (FetchError.NONE, RecordSource.REMOTE)
    assert description(rlm).problems == ()


def test_remains_of_a_copy_are_removed_while_copying_is_disabled(stack: Stack) -> None:
    def away(*args: object, **named: object) -> bytes:
        raise RetriableRemoteStorageError("away")

    rlm = rlm_of(stack, rsm=Changed(stack.rsm, copy_log_segment_data=away))
    take_turns(rlm)
    assert [s.state for s in stack.segments()] == [RemoteLogSegmentState.DELETE_SEGMENT_STARTED]
    put(stack, COPY_DISABLED)
    take_turns(rlm)
    assert stack.segments() == []


class SteppedTime:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


UNLIMITED = QuotaLimit()
DEADLINE_MS = 60_000


def copy_task(
    stack: Stack,
    clock: SteppedTime,
    limit: QuotaLimit = UNLIMITED,
    quota: TokenBucket | None = None,
    name: TopicIdPartition = NAME,
    turn_s: float | None = 10.0,
    rsm: Any = None,
) -> CopyTask:
    found = find_partitions([stack.log_dir]).partitions[name]
    rules = CopyRules(TopicConfigs(stack.rlmm, 0.0), quota=quota or limit.bucket("copies", clock))
    partition = new_partition(name, LocalPartition(found), stack.rsm, stack.rlmm)
    copier = SegmentCopier(rsm or stack.rsm, stack.rlmm, BROKER_ID, real_now_ms, CopyLimits())
    return CopyTask(
        partition,
        copier,
        stack.rlmm,
        BROKER_ID,
        rules,
        Progress(),
        threading.Event(),
        threading.Event(),
        turn_s,
        clock,
    )


def before_copies(stack: Stack, act: Callable[[], object]) -> Changed:
    """Wrap the store; `act` runs before each copy."""

    def copied(*args: Any) -> Any:
        act()
        return stack.rsm.copy_log_segment_data(*args)

    return Changed(stack.rsm, copy_log_segment_data=copied)


def test_copies_keep_to_the_quota(stack: Stack) -> None:
    clock, size = SteppedTime(), stack.files.file(0, ".log").stat().st_size
    task = copy_task(stack, clock, QuotaLimit(1))
    (count, waited_s), passes = throttled(), 1
    while (report := task.run()).more_after_s is not None:
        assert (report.copied_segments, report.failure) == (1, "")
        clock.now_s += report.more_after_s
        passes += 1
    assert passes == 6
    burst = QuotaLimit(1).windows
    assert 5 * size - burst <= clock.now_s <= 5 * size + 1
    assert stack.ranges() == EVERY_RANGE
    assert throttled()[0] == count + 5
    assert throttled()[1] == pytest.approx(waited_s + clock.now_s)


def throttled() -> tuple[float, float]:
    """Return how many copies have waited for the quota, and their total waiting time."""
    name = "sediment_rlm_remote_copy_throttle_seconds"
    read: Callable[[str], float | None] = REGISTRY.get_sample_value
    return read(f"{name}_count") or 0.0, read(f"{name}_sum") or 0.0


def two_tasks(stack: Stack, clock: SteppedTime) -> list[CopyTask]:
    """Return tasks of two partitions that share a quota."""
    hourly_log(stack.log_dir, replace(NAME, partition=1))
    quota, names = QuotaLimit(1).bucket("copies", clock), [NAME, replace(NAME, partition=1)]
    return [copy_task(stack, clock, quota=quota, name=name) for name in names]


def test_segments_pass_the_quota_in_the_order_of_asking(stack: Stack) -> None:
    clock = SteppedTime()
    first, second = two_tasks(stack, clock)
    assert first.run().copied_segments == 1
    wait_s = [task.run().more_after_s or 0.0 for task in (first, second)]
    assert 0 < wait_s[0] < wait_s[1]
    clock.now_s += wait_s[0]
    assert [task.run().copied_segments for task in (second, first)] == [0, 1]
    clock.now_s = wait_s[1]
    assert second.run().copied_segments == 1


def test_a_pass_that_copies_nothing_gives_its_share_of_the_quota_back(stack: Stack) -> None:
    clock = SteppedTime()
    first, second = two_tasks(stack, clock)
    assert first.run().copied_segments == 1
    due_s = first.run().more_after_s
    put(stack, COPY_DISABLED)
    assert first.run().more_after_s is None
    put(stack, {})
    assert second.run().more_after_s == due_s


def test_partition_waiting_for_the_quota_can_be_shipped(stack: Stack) -> None:
    task = copy_task(stack, SteppedTime(), QuotaLimit(1))
    assert task.run().copied_segments == 1
    report = task.run()
    assert (report.copied_segments, report.failure) == (0, "")
    assert report.more_after_s
    (shipped,) = stack.ship().partitions
    assert (shipped.copied_segments, shipped.complete) == (5, True)
    assert task.run().more_after_s is None


def test_a_pass_gives_way_after_the_segment_with_which_its_turn_is_over(stack: Stack) -> None:
    clock = SteppedTime()

    def take_4_s() -> None:
        clock.now_s += 4.0

    task = copy_task(stack, clock, rsm=before_copies(stack, take_4_s))
    found = [task.run() for _ in range(3)]
    assert [(r.copied_segments, r.more_after_s, r.failure) for r in found] == [
        (3, 0.0, ""),
        (3, None, ""),
        (0, None, ""),
    ]
    assert stack.ranges() == EVERY_RANGE


def test_ship_copies_all_segments_in_one_pass(stack: Stack) -> None:
    clock = SteppedTime()

    def take_an_hour() -> None:
        clock.now_s += 3600.0

    rsm = before_copies(stack, take_an_hour)
    report = copy_task(stack, clock, turn_s=None, rsm=rsm).run()
    assert (report.copied_segments, report.more_after_s) == (6, None)


def throttled_rlm(stack: Stack) -> BrokerRemoteLogManager:
    """Make an RLM that copies a segment in some minutes, and one partition at a time."""
    limits = replace(AT_ONCE, interval_s=0.1, copier_threads=1, copy_quota=QuotaLimit(1))
    return rlm_of(stack, limits=limits)


@pytest.mark.deep
def test_while_the_quota_keeps_some_waiting_the_others_have_their_passes(stack: Stack) -> None:
    others = [replace(NAME, partition=number) for number in (1, 2)]
    for name in others:
        hourly_log(stack.log_dir, name)
    rlm = throttled_rlm(stack)
    rlm.start()
    try:
        # All but the one that was copied; and of all it is known.
        eventually(lambda: figures(rlm)["remote_copy_lag_segments"] == 17, DEADLINE_MS)
        hourly_log(stack.log_dir, replace(NAME, partition=3))
        eventually(lambda: figures(rlm)["remote_copy_lag_segments"] == 23, DEADLINE_MS)
    finally:
        rlm.stop(DEADLINE_S)


def test_copying_that_is_disabled_within_a_pass_ends_it(stack: Stack) -> None:
    rsm = before_copies(stack, lambda: put(stack, COPY_DISABLED))
    report = copy_task(stack, SteppedTime(), rsm=rsm).run()
    assert (report.failure, report.problems, report.more_after_s) == ("", [], None)
    assert stack.ranges() == EVERY_RANGE[:1]


def told_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "is not copied" in r.getMessage()]


@pytest.mark.deep
def test_the_reason_why_a_topic_is_not_copied_is_logged_once(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="services.rlm")
    hourly_log(stack.log_dir, replace(NAME, partition=1))
    put(stack, NOT_TIERED)
    rlm = rlm_of(stack)
    take_turns(rlm, rounds=3)
    (said,) = told_of(caplog)
    assert said == "topic t is not copied: remote.storage.enable=false"
    put(stack, {})
    take_turns(rlm)
    put(stack, COPY_DISABLED)
    take_turns(rlm, rounds=2)
    assert told_of(caplog)[1:] == ["topic t is not copied: remote.log.copy.disable=true"]


def test_damage_of_a_log_not_to_be_copied_is_no_problem(stack: Stack) -> None:
    stack.files.file(0, ".log").write_bytes(b"no batch")
    put(stack, COPY_DISABLED)
    report = copy_task(stack, SteppedTime()).run()
    assert (report.failure, report.problems) == ("", [])
    put(stack, {})
    report = copy_task(stack, SteppedTime()).run()
    assert len(report.problems) == 1


def test_metrics_of_a_topic_show_lag_and_tiered_segments(stack: Stack) -> None:
    size = stack.files.file(0, ".log").stat().st_size
    put(stack, {"remote.copy.lag.ms": str(4 * HOUR_MS), "local.retention.ms": str(6 * HOUR_MS)})
    rlm = rlm_of(stack)
    take_turns(rlm)
    found = figures(rlm)
    # The oldest that is left is three and a half hours old.
    assert found.pop("remote_copy_lag_seconds") == pytest.approx(3.5 * 3600, abs=600)
    assert found.pop("seconds_until_local_deletion") == pytest.approx(2.5 * 3600, abs=600)
    assert 0 < found.pop("remote_log_size_computation_seconds") < 30
    assert found == {
        "partitions_blocked": 0,
        "remote_copy_lag_bytes": 3 * size,
        "remote_copy_lag_segments": 3,
        "remote_delete_lag_bytes": 0,
        "remote_delete_lag_segments": 0,
        "remote_log_metadata_count": 3,
        "remote_log_size_bytes": 3 * size,
    }
    for lag in (rlm.copy_lag(), description(rlm)):
        assert (lag.lag_segments, lag.lag_bytes) == (3, 3 * size)
    put(stack, {})
    take_turns(rlm)
    found = figures(rlm)
    assert (found["remote_copy_lag_segments"], found["remote_copy_lag_seconds"]) == (0, 0)
    assert "seconds_until_local_deletion" not in found
    assert found["remote_log_size_bytes"] == 6 * size


def test_the_figures_count_deletions_that_did_not_end(stack: Stack) -> None:
    def away(*args: object, **named: object) -> None:
        raise RetriableRemoteStorageError("away")

    size = stack.files.file(0, ".log").stat().st_size
    stuck = Changed(stack.rsm, delete_log_segment_data=away, delete_log_segment_data_batch=away)
    rlm = rlm_of(stack, rsm=stuck)
    take_turns(rlm)
    put(stack, keep_hours(2))
    take_turns(rlm)
    found = figures(rlm)
    assert found["remote_delete_lag_segments"] == 4
    assert found["remote_delete_lag_bytes"] == 4 * size
    assert (found["remote_log_metadata_count"], found["remote_log_size_bytes"]) == (6, 6 * size)
    take_turns(rlm_of(stack))
    take_turns(rlm)
    assert figures(rlm)["remote_delete_lag_segments"] == 0


def test_lag_is_published_while_rlmm_is_away(stack: Stack) -> None:
    def away(*args: object, **named: object) -> None:
        raise RetriableRemoteStorageError("away")

    changes: dict[str, Callable[..., Any]] = {}
    rlm = rlm_of(stack, rlmm=Turned(stack.rlmm, changes))
    take_turns(rlm)
    assert figures(rlm)["remote_copy_lag_segments"] == 0
    changes.update(topic_config=away, list_remote_log_segments=away)
    stack.files.snapshot(65)
    stack.files.segment(65, [batch(65, 5)])
    rlm.lanes.copies.tick()
    assert rlm.lanes.copies.wait_idle(30.0)
    assert figures(rlm)["remote_copy_lag_segments"] == 1


def test_the_figures_of_a_topic_go_with_its_last_partition(stack: Stack) -> None:
    put(stack, {"remote.copy.lag.ms": str(24 * HOUR_MS)})
    rlm = rlm_of(stack)
    take_turns(rlm)
    assert figures(rlm)["remote_copy_lag_segments"] == 6
    shutil.rmtree(stack.files.path)
    take_turns(rlm)
    assert figures(rlm) == {}


def test_it_is_logged_once_that_compacted_topics_cannot_be_recognized(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="services.rlm")
    take_turns(rlm_of(stack), rounds=2)
    said = [r for r in caplog.records if "remote.storage.enable=false" in r.getMessage()]
    assert len(said) == 1
