"""More copies than RSM has places for, and stores that take nothing: no attempt fails for the one,
none is left behind for the other but the last."""

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from prometheus_client import REGISTRY

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError, ThrottledError
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.retry import Backoff
from services.local.stack import ServiceProcess, rlm_settings
from services.rlm.copy.dangling_copies import DANGLING_PAUSE_MS, MAX_DANGLING_COPIES
from services.rlm.copy.segment import CopyLimits
from services.rlm.copy.sending import ThrottleRetry
from services.rlm.copy.ship import ShipOutcome, ship
from services.rlm.manager import BrokerRemoteLogManager
from tests.deep.test_rlm_kills import is_shipped
from tests.harness.eventually import eventually
from tests.harness.retained_log import AT_ONCE, take_turns
from tests.harness.ship_stack import FINISHED, ONE_TRY, Counting, Stack
from tests.harness.synthetic_log import make_log_dir
from tests.harness.troubles import FailingRsm, raising
from tests.harness.variants import first_of
from tests.harness.world import World
from tests.unit.rlm.kafka_bytes import NAME, batch, three_segments

MIB = 1024 * 1024
AT_ONCE_AGAIN = ThrottleRetry(backoff=Backoff(initial_s=0.001, max_s=0.001))


@pytest.mark.parametrize(
    ("rsm", "rlm"),
    first_of(
        [
            # One place at once and three to wait, for 32 copies.
            pytest.param(
                {"RSM_COPY_THREADS": "2"},
                {"RLM_REMOTE_LOG_MANAGER_COPIER_THREAD_POOL_SIZE": "32"},
                id="few-places",
            ),
            pytest.param({}, {}, id="defaults"),
        ]
    ),
)
def test_partitions_wait_for_places_and_nothing_fails(
    world: World, tmp_path: Path, rsm: dict[str, str], rlm: dict[str, str]
) -> None:
    world.log_dir = tmp_path / "twenty"
    make_log_dir(world.log_dir, partitions=20, segments=2, segment_bytes=MIB)
    world.rsm.kill()
    world.rsm.start(rsm)
    settings = rlm_settings(world.rsm.address, world.rlmm.address, [world.log_dir], None)
    service = ServiceProcess("rlm", {**settings, **rlm}, tmp_path / "rlm")
    try:
        service.start()
        eventually(lambda: is_shipped(world), deadline_ms=60_000)
        log = service.process.log_path.read_text()
    finally:
        service.kill()
        world.rsm.kill()
        world.rsm.start()
    world.assert_all_shipped()
    reported = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    warnings = [line["message"] for line in reported if line["level"] != "INFO"]
    assert [text for text in warnings if not text.startswith("serving without TLS")] == ["ready"]
    assert "failed" not in log
    assert ("waits because RSM is busy" in log) is bool(rsm)
    with world.metadata() as rlmm:
        for name in world.local_segments():
            events = [event.to_state for event in all_events(rlmm, EventQuery(name))]
            copies = [state for state in events if state and state.endswith("_SEGMENT_FINISHED")]
            begun = [state for state in events if state == "COPY_SEGMENT_STARTED"]
            assert (len(begun), copies) == (2, ["COPY_SEGMENT_FINISHED"] * 2)


def refused_times(times: int) -> Any:
    """What a copy runs into so often; then no more."""
    left = [times]

    def refuse(_: RemoteLogSegmentMetadata) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise ThrottledError("no place")

    return refuse


def test_a_copy_that_is_refused_a_place_is_asked_again_under_its_id(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = refused_times(20)
    settings = replace(ONE_TRY, limits=CopyLimits(throttle_retry=AT_ONCE_AGAIN))
    progress = Counting()
    with caplog.at_level(logging.INFO):
        report = ship([stack.log_dir], rsm, stack.rlmm, settings, progress)
    assert report.outcome is ShipOutcome.DONE
    states = [event.to_state for event in all_events(stack.rlmm, EventQuery(NAME))]
    assert states.count("COPY_SEGMENT_STARTED") == states.count("COPY_SEGMENT_FINISHED") == 2
    assert "DELETE_SEGMENT_STARTED" not in states
    assert progress.sent_bytes == progress.planned_bytes
    assert caplog.text.count("waits because RSM is busy") == 1


def test_a_copy_that_never_gets_a_place_fails_in_the_end(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = raising(ThrottledError("no place"))
    retry = replace(AT_ONCE_AGAIN, timeout_s=0.05)
    report = ship(
        [stack.log_dir], rsm, stack.rlmm, replace(ONE_TRY, limits=CopyLimits(throttle_retry=retry))
    )
    assert report.outcome is ShipOutcome.FAILED
    assert "no place" in report.partitions[0].problems[0].message


def test_a_copy_that_waits_for_a_place_stops_when_it_is_cancelled(stack: Stack) -> None:
    three_segments(stack.log_dir)
    refused, rsm = Event(), FailingRsm(stack.rsm)

    def refuse(_: RemoteLogSegmentMetadata) -> None:
        refused.set()
        raise ThrottledError("no place")

    rsm.before_copy = refuse
    rlm = stack.rlm(rsm=rsm)
    rlm.lanes.copies.tick()
    assert refused.wait(30.0)
    eventually(lambda: copies_waiting() == 1)
    began_s = time.monotonic()
    # Long enough for a copy that RSM has taken.
    rlm.stop(60.0)
    assert time.monotonic() - began_s < 20
    assert rlm.lanes.copies.wait_idle(5.0)
    assert copies_waiting() == 0
    assert [s.state for s in stack.segments()] == [RemoteLogSegmentState.DELETE_SEGMENT_STARTED]


def copies_waiting() -> float | None:
    return REGISTRY.get_sample_value("sediment_rlm_copies_waiting_for_rsm")


def test_a_copy_that_waits_for_long_is_logged_once(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    rsm.before_copy = refused_times(20)
    retry = replace(AT_ONCE_AGAIN, warn_after_s=0.005)
    ship(
        [stack.log_dir], rsm, stack.rlmm, replace(ONE_TRY, limits=CopyLimits(throttle_retry=retry))
    )
    (reported,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "RSM_COPY_THREADS" in reported
    assert "no place" in reported


@pytest.mark.parametrize("error", [RetriableRemoteStorageError, RemoteStorageError])
def test_a_store_that_takes_nothing_is_left_no_more_than_two_attempts(
    stack: Stack, error: type[RemoteStorageError]
) -> None:
    files = three_segments(stack.log_dir)
    rsm = FailingRsm(stack.rsm)
    refuse = raising(error("refused"))
    rsm.before_copy, rsm.before_delete = refuse, refuse
    rlm = stack.rlm(rsm=rsm, limits=AT_ONCE)
    take_turns(rlm, rounds=5)
    assert 0 < len(stack.segments()) <= 1 + MAX_DANGLING_COPIES
    files.snapshot(25)
    files.segment(25, [batch(25)])
    rsm.before_copy, rsm.before_delete = (lambda _: None), (lambda: None)
    take_turns(rlm)
    assert stack.ranges() == [(0, 9), (10, 19), (20, 24)]
    assert len(stack.keys()) == 3 * 3


class MovedClock:
    """The host's, moved."""

    def __init__(self) -> None:
        self.moved_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.moved_ms


@pytest.mark.parametrize("error", [RetriableRemoteStorageError, RemoteStorageError])
def test_of_a_store_that_takes_nothing_one_more_attempt_is_left_every_ten_minutes(
    stack: Stack, error: type[RemoteStorageError]
) -> None:
    three_segments(stack.log_dir)
    rsm, now_ms = FailingRsm(stack.rsm), MovedClock()
    rsm.before_copy = raising(error("refused"))
    rsm.before_delete = raising(error("refused"))
    rlm = BrokerRemoteLogManager([stack.log_dir], rsm, stack.rlmm, AT_ONCE, now_ms=now_ms)
    take_turns(rlm, rounds=3)
    for more in range(3):
        assert len(stack.segments()) == 1 + MAX_DANGLING_COPIES + more
        now_ms.moved_ms += DANGLING_PAUSE_MS
        take_turns(rlm, rounds=3)


def test_clean_up_blocked_by_a_former_store_stops_no_copy(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    rsm, now_ms = FailingRsm(stack.rsm), MovedClock()
    rsm.before_copy = raising(RetriableRemoteStorageError("refused"))
    rsm.before_delete = raising(RetriableRemoteStorageError("the store of before is away"))
    rlm = BrokerRemoteLogManager([stack.log_dir], rsm, stack.rlmm, AT_ONCE, now_ms=now_ms)
    take_turns(rlm, rounds=3)
    assert len(stack.segments()) == 1 + MAX_DANGLING_COPIES
    rsm.before_copy = lambda _: None  # RSM has another location now
    now_ms.moved_ms += DANGLING_PAUSE_MS
    take_turns(rlm)
    assert finished(stack) == [(0, 9), (10, 19)]
    # From then on without any wait.
    files.snapshot(25)
    files.segment(25, [batch(25)])
    take_turns(rlm)
    assert finished(stack) == [(0, 9), (10, 19), (20, 24)]
    rsm.before_delete = lambda: None
    take_turns(rlm)
    assert stack.ranges() == [(0, 9), (10, 19), (20, 24)]
    assert len(stack.keys()) == 3 * 3


def test_an_attempt_that_a_copy_got_through_after_counts_no_more(stack: Stack) -> None:
    """Each of the copies fails once, and no attempt can be cleaned up."""
    three_segments(stack.log_dir)
    rsm, failed = FailingRsm(stack.rsm), set[int]()

    def once(metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.start_offset not in failed:
            failed.add(metadata.start_offset)
            raise RetriableRemoteStorageError("refused")

    rsm.before_copy = once
    rsm.before_delete = raising(RetriableRemoteStorageError("the store of before is away"))
    rlm = stack.rlm(rsm=rsm, limits=AT_ONCE)
    take_turns(rlm, rounds=3)
    assert finished(stack) == [(0, 9), (10, 19)]
    assert len(stack.segments()) == 2 + 2


def finished(stack: Stack) -> list[tuple[int, int]]:
    return [(s.start_offset, s.end_offset) for s in stack.segments() if s.state is FINISHED]
