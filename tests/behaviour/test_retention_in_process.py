"""Test retention by RLM, step by step: RSM on files, RLMM on PostgreSQL, without gRPC."""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import RemoteLogSegmentId
from services.api.partitions import PartitionReport, PartitionState
from services.api.remote_log_manager import FetchError
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlm import reporting
from services.rlm.copy.segment import CopyLimits, SegmentCopier
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.reporting import Reporter, report_of
from services.rlm.retention.snapshot import read_snapshot
from services.rlmm.database.engine import create_database_engine
from tests.harness.holds import end_export, export, hold, release
from tests.harness.retained_log import (
    AT_ONCE,
    DEADLINE_S,
    HOUR_MS,
    Changed,
    expire,
    hourly_log,
    keep_hours,
    take_turns,
)
from tests.harness.ship_stack import FINISHED, Stack, bytes_of, description, fetch, read
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
EVERYTHING_EXPIRES = {"retention.ms": "0"}
BROKER_ID = 7


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.files = hourly_log(stack.log_dir)
    return stack


def rlm_of(stack: Stack, rsm: object = None, rlmm: object = None) -> Any:
    return BrokerRemoteLogManager([stack.log_dir], rsm or stack.rsm, rlmm or stack.rlmm, AT_ONCE)  # type: ignore[arg-type]


@pytest.fixture
def rlm(stack: Stack) -> BrokerRemoteLogManager:
    """Provide an RLM that has copied all rolled segments, without settings."""
    made: BrokerRemoteLogManager = rlm_of(stack)
    take_turns(made)
    assert stack.ranges() == [(base, base + 9) for base in range(0, 60, 10)]
    return made


def put(stack: Stack, *settings: dict[str, str]) -> None:
    entries = {name: value for some in settings for name, value in some.items()}
    stack.rlmm.put_topic_config(NAME.topic_id, entries, now=True)


def state(stack: Stack) -> PartitionState:
    return stack.rlmm.partition_state(NAME).value


def stored_report(stack: Stack) -> PartitionReport:
    report = state(stack).report
    assert report is not None
    return report


def due(stack: Stack) -> list[tuple[int, int]]:
    """Return the deletions of a dry run."""
    snapshot = read_snapshot(stack.rlmm, NAME, stack.rlmm.partition_state(NAME))
    deletions = snapshot.plan(stack.rlmm.topic_config(NAME.topic_id)).deletions
    return [(d.segment.start_offset, d.segment.end_offset) for d in deletions]


def test_expired_segments_are_deleted_on_schedule(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    put(stack, keep_hours(2))
    take_turns(rlm)
    assert stack.ranges() == [(40, 49), (50, 59)]
    assert len(stack.keys()) == 3 * 2
    assert state(stack).log_start_offset == 40


def test_dry_run_lists_exactly_the_later_deletions(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    before = stack.ranges()
    put(stack, keep_hours(2))
    announced = due(stack)
    assert announced == [(0, 9), (10, 19), (20, 29), (30, 39)]
    take_turns(rlm)
    assert sorted(set(before) - set(stack.ranges())) == announced
    assert due(stack) == []


def test_nothing_below_the_log_start_can_be_read_though_the_broker_has_it(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    put(stack, keep_hours(2))
    take_turns(rlm)
    answers = [fetch(rlm, offset)[0].error for offset in (0, 39, 40, 64)]
    assert answers == [FetchError.OFFSET_OUT_OF_RANGE] * 2 + [FetchError.NONE] * 2
    assert fetch(rlm, 40)[0].log_start_offset == 40
    found = description(rlm)
    assert (found.log_start_offset, found.local_log_start_offset) == (40, 40)
    assert (found.copied_through_offset, found.problems) == (59, ())


def test_expired_segments_are_not_shipped_again(stack: Stack, rlm: BrokerRemoteLogManager) -> None:
    put(stack, EVERYTHING_EXPIRES)
    take_turns(rlm)
    assert stack.ranges() == []
    take_turns(rlm, rounds=3)
    (shipped,) = stack.ship().partitions
    assert (shipped.copied_segments, shipped.complete, shipped.problems) == (0, True, ())
    assert stack.keys() == []
    found = description(rlm)
    assert (found.lag_segments, found.copied_through_offset) == (0, 59)


def test_segment_rolled_after_all_expired_is_shipped(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    put(stack, EVERYTHING_EXPIRES)
    take_turns(rlm)
    put(stack)
    roll(stack.files)
    take_turns(rlm)
    assert stack.ranges() == [(60, 64)]


def test_segments_below_the_log_start_are_deleted_and_not_copied(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    copied: list[int] = []

    def noted(metadata: RemoteLogSegmentMetadata, data: Any) -> bytes | None:
        copied.append(metadata.start_offset)
        return stack.rsm.copy_log_segment_data(metadata, data)

    take_turns(rlm)
    roll(stack.files)
    stack.rlmm.raise_log_start_offset(NAME, stored_report(stack).high_watermark)
    take_turns(rlm_of(stack, rsm=Changed(stack.rsm, copy_log_segment_data=noted)))
    assert copied == []
    assert stack.ranges() == []


def roll(files: PartitionFiles) -> None:
    files.snapshot(65)
    files.segment(65, [])


def test_segments_expired_before_their_local_deletion_are_not_lost(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    put(stack, keep_hours(2))
    take_turns(rlm)
    lose(stack.files, 0, 10, 20, 30, 40)
    take_turns(rlm)
    assert description(rlm).problems == ()


def lose(files: PartitionFiles, *bases: int) -> None:
    for base in bases:
        for path in files.path.glob(f"{base:020}.*"):
            path.unlink()


def test_size_limit_counts_local_and_tiered_bytes_once(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    sizes = [segment.segment_size_in_bytes for segment in stack.segments()]
    active = stack.files.file(60, ".log").stat().st_size
    put(stack, {"retention.bytes": str(sum(sizes[3:]) + active)})
    take_turns(rlm)
    assert stack.ranges() == [(30, 39), (40, 49), (50, 59)]


@pytest.mark.deep
def test_a_log_that_grows_makes_a_size_limit_due(stack: Stack, rlm: BrokerRemoteLogManager) -> None:
    sizes = [segment.segment_size_in_bytes for segment in stack.segments()]
    active = stack.files.file(60, ".log")
    put(stack, {"retention.bytes": str(sum(sizes) + active.stat().st_size)})
    take_turns(rlm, rounds=2)
    assert len(stack.segments()) == 6
    stack.files.segment(60, [active.read_bytes(), batch(65, payload=bytes(sizes[0]))])
    take_turns(rlm)
    assert len(stack.segments()) == 5


@pytest.mark.deep
def test_a_broker_that_keeps_little_deletes_nothing_from_the_tier(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    """The trap: its checkpoint forgets the epochs of what it no longer has."""
    put(stack, {"retention.ms": str(1000 * HOUR_MS), "retention.bytes": str(2**40)})
    take_turns(rlm)
    lose(stack.files, 0, 10, 20, 30, 40, 50)
    stack.files.epochs((2, 60))
    take_turns(rlm, rounds=10)
    assert stack.ranges() == [(base, base + 9) for base in range(0, 60, 10)]
    assert [e.leader_epoch for e in state(stack).lineage.entries] == [0, 2]
    assert read(rlm, 0) != FetchError.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    "setting",
    [{"sediment.retention.owner": "sweep"}, {"sediment.retention.owner": "broker"}],
)
def test_if_settings_forbid_it_nothing_is_deleted(
    stack: Stack, rlm: BrokerRemoteLogManager, setting: dict[str, str]
) -> None:
    put(stack, EVERYTHING_EXPIRES, setting)
    take_turns(rlm, rounds=3)
    assert len(stack.ranges()) == 6
    assert state(stack).log_start_offset == 0
    put(stack, EVERYTHING_EXPIRES, {"sediment.retention.owner": "rlm"})
    take_turns(rlm)
    assert stack.ranges() == []


@pytest.mark.parametrize(
    ("keep", "logged"),
    [
        (hold, "hold audit (operator) keeps all offsets"),
        (partial(export, first_offset=0), "hold lake (export) keeps all offsets until 20"),
    ],
)
def test_what_keeps_segments_after_the_plan_was_made_keeps_them(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    caplog: pytest.LogCaptureFixture,
    keep: Callable[..., object],
    logged: str,
) -> None:
    put(stack, EVERYTHING_EXPIRES)

    def keep_first(*args: Any, **kwargs: Any) -> Any:
        keep(stack.rlmm, NAME)
        return stack.rlmm.raise_log_start_offset(*args, **kwargs)

    take_turns(rlm_of(stack, rlmm=Changed(stack.rlmm, raise_log_start_offset=keep_first)))
    assert len(stack.ranges()) == 6
    assert state(stack).log_start_offset == 0
    assert logged in caplog.text


def test_what_an_export_has_yet_to_read_stays_until_its_lease_is_over(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    export(stack.rlmm, NAME, 25)
    put(stack, EVERYTHING_EXPIRES)
    take_turns(rlm, rounds=2)
    assert stack.ranges() == [(base, base + 9) for base in range(20, 60, 10)]
    assert state(stack).log_start_offset == 20
    end_export(stack.rlmm, NAME)
    put(stack, EVERYTHING_EXPIRES, {"sediment.retention.owner": "rlm"})
    take_turns(rlm)
    assert stack.ranges() == []


def test_a_hold_that_ends_lets_go_with_the_next_check(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    hold(stack.rlmm, NAME, first_offset=25, last_offset=30)
    put(stack, EVERYTHING_EXPIRES)
    take_turns(rlm, rounds=2)
    assert stack.ranges() == [(base, base + 9) for base in range(20, 60, 10)]
    release(stack.rlmm, NAME)
    put(stack, EVERYTHING_EXPIRES, {"sediment.owner": "team"})
    take_turns(rlm)
    assert stack.ranges() == []


@pytest.mark.deep
@pytest.mark.parametrize("error", [RetriableRemoteStorageError, MemoryError, SystemExit])
def test_a_deletion_that_failed_however_is_finished_later(
    stack: Stack, rlm: BrokerRemoteLogManager, error: type[BaseException]
) -> None:
    put(stack, EVERYTHING_EXPIRES)
    outcomes: Iterator[Callable[..., Any]] = iter([raising(error), raising(error)])

    def fail_twice(segments: Sequence[RemoteLogSegmentMetadata]) -> Any:
        return next(outcomes, stack.rsm.delete_log_segment_data_batch)(segments)

    failing = rlm_of(stack, rsm=Changed(stack.rsm, delete_log_segment_data_batch=fail_twice))
    take_turns(failing)
    assert {segment.state for segment in stack.segments()} == {DELETING}
    take_turns(failing, rounds=2)
    assert stack.ranges() == []
    assert stack.keys() == []


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error("on purpose")

    return fail


def begun_and_left(stack: Stack) -> None:
    """Mark four segments, then make the store unavailable."""
    away = raising(RetriableRemoteStorageError)
    put(stack, keep_hours(2))
    take_turns(rlm_of(stack, rsm=Changed(stack.rsm, delete_log_segment_data_batch=away)))
    assert [s.state for s in stack.segments()] == [DELETING] * 4 + [FINISHED] * 2


@pytest.mark.parametrize(
    "setting",
    [
        {"sediment.retention.owner": "broker"},
        {"sediment.retention.owner": "sweep"},
        {},
    ],
)
def test_a_deletion_that_has_begun_is_finished_under_a_new_owner(
    stack: Stack, rlm: BrokerRemoteLogManager, setting: dict[str, str]
) -> None:
    begun_and_left(stack)
    hold(stack.rlmm, NAME)
    put(stack, EVERYTHING_EXPIRES, setting)
    take_turns(rlm)
    assert stack.ranges() == [(40, 49), (50, 59)]
    assert len(stack.keys()) == 3 * 2


def test_a_deletion_that_has_begun_is_finished_without_leader_epochs(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    begun_and_left(stack)
    (stack.files.path / "leader-epoch-checkpoint").unlink()
    take_turns(rlm)
    assert stack.ranges() == [(40, 49), (50, 59)]


def test_an_attempt_of_this_broker_is_left_to_its_copy_pass(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    attempt = attempt_of(stack, stack.segments()[0], BROKER_ID, 2 * HOUR_MS)
    copier = SegmentCopier(stack.rsm, stack.rlmm, BROKER_ID, lambda: 0, CopyLimits())
    copier._end(attempt, DELETING, "copy not finished")
    hold(stack.rlmm, NAME)
    expire(rlm)
    assert len(stack.segments()) == 7
    take_turns(rlm)
    assert len(stack.segments()) == 6


def test_a_copy_in_progress_is_not_deleted(stack: Stack) -> None:
    copying, go_on = threading.Event(), threading.Event()

    def slowly(metadata: RemoteLogSegmentMetadata, data: Any) -> bytes | None:
        if metadata.start_offset == 30:
            copying.set()
            assert go_on.wait(DEADLINE_S)
        return stack.rsm.copy_log_segment_data(metadata, data)

    rlm = rlm_of(stack, rsm=Changed(stack.rsm, copy_log_segment_data=slowly))
    rlm.lanes.copies.tick()
    assert copying.wait(DEADLINE_S)
    put(stack, EVERYTHING_EXPIRES)
    expire(rlm)
    assert [(s.start_offset, s.state) for s in stack.segments()] == [(30, STARTED)]
    go_on.set()
    assert rlm.lanes.copies.wait_idle(DEADLINE_S)
    take_turns(rlm)
    assert stack.ranges() == []


def attempt_of(
    stack: Stack, segment: RemoteLogSegmentMetadata, broker_id: int, age_ms: int
) -> RemoteLogSegmentMetadata:
    """Add a copy of the segment's offsets that began some time ago and did not end."""
    attempt = replace(
        segment,
        remote_log_segment_id=RemoteLogSegmentId(NAME, UUID(int=1)),  # the first of its offset
        broker_id=broker_id,
        event_timestamp_ms=state(stack).read_at_ms - age_ms,
        custom_metadata=None,
        state=STARTED,
    )
    stack.rlmm.add_remote_log_segment_metadata(attempt)
    return attempt


@pytest.mark.parametrize(
    ("age_ms", "left"), [(HOUR_MS - 60_000, [STARTED] + [FINISHED] * 6), (HOUR_MS + 60_000, [])]
)
def test_an_attempt_of_another_broker_counts_as_in_progress_for_an_hour(
    stack: Stack, rlm: BrokerRemoteLogManager, age_ms: int, left: list[RemoteLogSegmentState]
) -> None:
    attempt_of(stack, stack.segments()[0], BROKER_ID + 1, age_ms)
    put(stack, EVERYTHING_EXPIRES)
    take_turns(rlm)
    assert sorted(s.state.value for s in stack.segments()) == sorted(s.value for s in left)


def test_a_finish_that_comes_between_plan_and_mark_is_not_taken_back(
    stack: Stack, rlm: BrokerRemoteLogManager, database_url: str
) -> None:
    """An old attempt of this broker finishes while retention evaluates it as abandoned."""
    first = stack.segments()[0]
    attempt = attempt_of(stack, first, BROKER_ID, 2 * HOUR_MS)
    put(stack, keep_hours(5))
    copier = SegmentCopier(stack.rsm, stack.rlmm, BROKER_ID, lambda: 0, CopyLimits())
    raised: list[object] = []

    def finish_first(*args: Any, **kwargs: Any) -> Any:
        raised.append(args)
        if len(raised) == 1:
            copier._end(attempt, FINISHED, "copy")
        return stack.rlmm.raise_log_start_offset(*args, **kwargs)

    expire(rlm_of(stack, rlmm=Changed(stack.rlmm, raise_log_start_offset=finish_first)))
    assert len(raised) == 2  # refused, and judged anew
    events = [(s.start_offset, s.state) for s in stack.segments()]
    assert events == [(base, FINISHED) for base in range(10, 60, 10)]
    assert transitions_of(database_url, attempt) == [
        "COPY_SEGMENT_STARTED",
        "COPY_SEGMENT_FINISHED",
        "DELETE_SEGMENT_STARTED",
        "DELETE_SEGMENT_FINISHED",
    ]


@pytest.mark.deep
def test_copies_that_never_end_give_way_to_retention(stack: Stack) -> None:
    """Each time retention has reported, there is another segment to copy."""
    copied: list[int] = []

    def report_then_copy(reports: Any) -> Any:
        answer = stack.rlmm.report_partition_state(reports)
        base = 65 + 5 * len(copied)
        if rlm.lanes.copies.wait_idle(0.0) and expiring:
            copied.append(base)
            stack.files.snapshot(base)
            stack.files.segment(base, [batch(base, 5)])
            rlm.lanes.copies.tick()
            assert rlm.lanes.copies.wait_idle(DEADLINE_S)
        return answer

    expiring: list[bool] = []
    changed = Changed(stack.rlmm, report_partition_state=report_then_copy)
    rlm = rlm_of(stack, rlmm=changed)
    take_turns(rlm)
    put(stack, keep_hours(2))
    expiring.append(True)
    expire(rlm)
    assert stack.ranges()[0] == (40, 49)
    assert len(copied) == 2  # the first was copied, and retention overtaken; the second waited
    expiring.clear()
    assert stack.ranges()[-1] == (60, 64)
    take_turns(rlm)
    assert stack.ranges()[-1] == (65, 69)


def transitions_of(database_url: str, segment: RemoteLogSegmentMetadata) -> list[str]:
    segment_id = segment.remote_log_segment_id.id
    return [to for _, to, of in audit_trail(database_url) if of == segment_id]


def audit_trail(database_url: str) -> list[Any]:
    """(kind, state reached, segment id) in order."""
    engine = create_database_engine(database_url)
    query = text("SELECT kind, to_state, segment_id FROM events ORDER BY revision")
    with engine.connect() as connection:
        found = list(connection.execute(query))
    engine.dispose()
    return found


def test_the_log_start_rises_before_anything_is_marked(
    stack: Stack, rlm: BrokerRemoteLogManager, database_url: str
) -> None:
    put(stack, keep_hours(4))
    take_turns(rlm)
    result = [(kind, to) for kind, to, _ in audit_trail(database_url)]
    raised = result.index(("LOG_START", "20"))
    assert (
        result[raised + 1 :]
        == [("SEGMENT", "DELETE_SEGMENT_STARTED")] * 2
        + [("SEGMENT", "DELETE_SEGMENT_FINISHED")] * 2
    )


def test_a_stop_begins_nothing(stack: Stack, rlm: BrokerRemoteLogManager) -> None:
    put(stack, EVERYTHING_EXPIRES)
    rlm._stopping.set()
    expire(rlm)
    assert len(stack.ranges()) == 6
    assert state(stack).log_start_offset == 0


@pytest.mark.parametrize("over_bytes", [-(2**40), 1])
def test_a_partition_that_rests_is_not_listed(stack: Stack, over_bytes: int) -> None:
    """A partition above its limit by less than its next segment is not listed either."""
    calls: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            answer = getattr(stack.rlmm, name)(*args, **kwargs)
            if not getattr(answer, "not_modified", False):
                calls.append(name)
            return answer

        return call

    names = ("list_remote_log_segments", "report_partition_state", "partition_state")
    counting = Changed(stack.rlmm, **{name: counted(name) for name in names})
    rlm = rlm_of(stack, rlmm=counting)
    take_turns(rlm)
    attempt_of(stack, stack.segments()[0], BROKER_ID + 1, age_ms=0)
    limit_bytes = len(bytes_of(stack.files.path)) - over_bytes
    put(stack, {**keep_hours(100), "retention.bytes": str(limit_bytes)})
    take_turns(rlm, rounds=2)
    calls.clear()
    take_turns(rlm, rounds=3)
    assert calls == []


def test_report_has_the_local_and_the_tiered_offsets(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    take_turns(rlm)
    result = stored_report(stack)
    assert (result.broker_id, result.leader_epoch) == (BROKER_ID, 2)
    assert (result.local_log_start_offset, result.log_end_offset) == (0, 65)
    assert (result.high_watermark, result.last_stable_offset) == (65, 65)
    assert result.copied_through_offset == 59
    assert result.only_local_bytes == stack.files.file(60, ".log").stat().st_size
    assert result.lag_bytes == 0


def test_before_anything_is_copied_all_of_it_is_local_only(stack: Stack) -> None:
    (found,) = rlm_of(stack).led_partitions()
    result = report_of(found, BROKER_ID)
    assert result is not None
    assert result.copied_through_offset == -1
    assert result.only_local_bytes == sum(p.stat().st_size for p in stack.files.path.glob("*.log"))
    assert result.only_local_bytes - result.lag_bytes == stack.files.file(60, ".log").stat().st_size


def test_numbers_grow_over_restarts_and_beside_another_reporter(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    take_turns(rlm)
    first = stored_report(stack).report_number
    restarted = rlm_of(stack)
    take_turns(restarted, rounds=2)
    second = stored_report(stack).report_number
    assert second > first
    # Has not seen the other's reports: the first number is too low.
    stack.files.segment(60, [stack.files.file(60, ".log").read_bytes(), batch(65)])
    take_turns(rlm, rounds=2)
    third = stored_report(stack)
    assert third.report_number > second
    assert third.only_local_bytes == stack.files.file(60, ".log").stat().st_size


def test_ship_reports_the_state_after_its_copies(stack: Stack) -> None:
    stack.ship()
    result = stored_report(stack)
    assert (result.copied_through_offset, result.report_number) == (59, 1)
    stack.ship()
    assert stored_report(stack).report_number == 2


def test_a_ship_that_cannot_report_has_shipped(stack: Stack) -> None:
    away = raising(RetriableRemoteStorageError)
    stack.rlmm = Changed(stack.rlmm, report_partition_state=away)  # type: ignore[assignment]
    (shipped,) = stack.ship().partitions
    assert (shipped.copied_segments, shipped.complete) == (6, True)


def test_without_leader_epochs_there_is_nothing_to_report(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    (stack.files.path / "leader-epoch-checkpoint").unlink()
    (found,) = rlm.led_partitions()
    assert report_of(found, BROKER_ID) is None
    put(stack, EVERYTHING_EXPIRES)
    take_turns(rlm)
    assert len(stack.ranges()) == 6


def reports_sent(stack: Stack, sent: list[int]) -> Changed:
    """Wrap the real RLMM; note the number of reports in each call."""

    def noted(reports: Sequence[PartitionReport]) -> Any:
        sent.append(len(reports))
        return stack.rlmm.report_partition_state(reports)

    return Changed(stack.rlmm, report_partition_state=noted)


def test_a_partition_at_rest_is_reported_again_before_its_report_is_too_old(stack: Stack) -> None:
    now_s, sent = [0.0], list[int]()
    reporter = Reporter(reports_sent(stack, sent), BROKER_ID, 300.0, lambda: now_s[0])
    (found,) = rlm_of(stack).led_partitions()
    found.tier.refresh()
    for now_s[0] in (0.0, 299.0, 300.0, 301.0):
        reporter.report_all([found])
    assert sent == [1, 1]


def test_if_its_age_does_not_matter_an_unchanged_report_is_sent_once(stack: Stack) -> None:
    now_s, sent = [0.0], list[int]()
    sending = reports_sent(stack, sent)
    reporter = Reporter(sending, BROKER_ID, 300.0, lambda: now_s[0], lambda name: name != NAME)
    (found,) = rlm_of(stack).led_partitions()
    found.tier.refresh()
    for now_s[0] in (0.0, 300.0, 3000.0):
        reporter.report_all([found])
    assert sent == [1]
    stack.files.segment(60, [batch(60, 5), batch(65, 5)])
    reporter.report_all([found])
    assert sent == [1, 1]


def test_a_call_brings_no_more_leader_epochs_than_it_may(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(stack.files.path)
    for number in range(5):  # of two epochs each
        hourly_log(stack.log_dir, replace(NAME, partition=number), rolled=1)
    sent: list[int] = []
    monkeypatch.setattr(reporting, "MAX_REPORTED_EPOCHS", 4)
    take_turns(rlm_of(stack, rlmm=reports_sent(stack, sent)))
    assert sent == [2, 2, 1]


def test_many_partitions_are_reported_in_one_call_and_one_that_is_refused_stops_no_other(
    stack: Stack,
) -> None:
    shutil.rmtree(stack.files.path)
    names = [replace(NAME, partition=number) for number in range(4)]
    for name in names:
        hourly_log(stack.log_dir, name, rolled=1)
    sent: list[int] = []
    rlm = rlm_of(stack, rlmm=reports_sent(stack, sent))
    rlm.lanes.copies.tick()
    rlm.lanes.copies.wait_idle(DEADLINE_S)
    led_elsewhere = PartitionLeadership(names[1], leader_epoch=9)
    stack.rlmm.on_partition_leadership_changes([led_elsewhere], [], BROKER_ID + 1)
    rlm.lanes.reports.tick()
    assert rlm.lanes.reports.wait_idle(DEADLINE_S)
    assert sent == [4]
    reported = [stack.rlmm.partition_state(name).value.report is not None for name in names]
    assert reported == [True, False, True, True]
