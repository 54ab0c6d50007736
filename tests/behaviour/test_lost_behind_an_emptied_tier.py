"""Test a tier that retention emptied before the broker deleted the next, uncopied segments."""

import pytest

from services.api.errors import RemoteStorageError
from services.api.partitions import EventPage, EventQuery, OffsetGap, PartitionEvent
from services.api.remote_log_manager import ProblemKind
from services.api.remote_log_metadata_manager import all_events, latest_event
from services.rlm.copy.ship import ShipOutcome, ship
from services.rlm.manager import BrokerRemoteLogManager
from tests.behaviour.test_lost_before_copy import lose_before_copy
from tests.behaviour.test_tiered_again import forget_events
from tests.harness.invariants import assert_invariants
from tests.harness.retained_log import AT_ONCE, Changed, hourly_log, keep_hours, take_turns
from tests.harness.ship_stack import ONE_TRY, Stack, description, read
from tests.harness.troubles import GapsRefused, SilentRlmm
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles

LOST = OffsetGap(60, 69)


@pytest.fixture
def lost(stack: Stack) -> PartitionFiles:
    """Provide a log: 0 to 59 were copied and expired, 60 to 69 are lost, 70 to 74 are rolled."""
    files = hourly_log(stack.log_dir)
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(0), now=True)
    take_turns(rlm)
    assert stack.segments() == []
    files.epochs((2, 60))
    lose_before_copy(files, 70)
    stack.rlmm.put_topic_config(NAME.topic_id, {})
    return files


def gaps(stack: Stack) -> tuple[OffsetGap, ...]:
    return stack.rlmm.partition_state(NAME).value.gaps


def test_it_is_named_recorded_and_passed(stack: Stack, lost: PartitionFiles) -> None:
    (partition,) = (report := stack.ship()).partitions
    assert report.outcome is ShipOutcome.PARTIAL
    (problem,) = partition.recorded
    assert (problem.kind, problem.offset) == (ProblemKind.LOST_BEFORE_COPY, 60)
    assert "offsets 60 to 69 " in problem.message
    assert (stack.ranges(), gaps(stack)) == ([(70, 74)], (LOST,))
    assert stack.ship().partitions[0].known_gaps == ((60, 69),)
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    assert description(rlm).copied_through_offset == 74
    assert read(rlm, 62) == read(rlm, 70)
    assert_invariants(stack.rlmm, [NAME])


def test_it_is_named_before_anything_behind_it_is_rolled(
    stack: Stack, lost: PartitionFiles
) -> None:
    lost.file(70, ".log").unlink()
    (partition,) = stack.ship().partitions
    assert len(partition.recorded) == 1
    assert (stack.ranges(), gaps(stack)) == ([], (OffsetGap(60, 74),))


@pytest.mark.deep
def test_the_watermark_stays_before_it_until_it_is_recorded(
    stack: Stack, lost: PartitionFiles
) -> None:
    (partition,) = ship([stack.log_dir], stack.rsm, GapsRefused(stack.rlmm), ONE_TRY).partitions
    assert (partition.copied_segments, partition.recorded) == (1, ())
    found = description(rlm := stack.rlm())
    assert found.copied_through_offset == 59
    assert [(p.kind, p.offset) for p in found.problems] == [(ProblemKind.LOST_BEFORE_COPY, 60)]
    assert description(stack.tier_reader()).copied_through_offset == 59
    stack.ship()
    assert description(rlm).copied_through_offset == 74


def test_watermark_stays_before_the_loss_while_events_cannot_be_read(
    stack: Stack, lost: PartitionFiles
) -> None:
    ship([stack.log_dir], stack.rsm, GapsRefused(stack.rlmm), ONE_TRY)

    def no_events(*_: object, **__: object) -> None:
        raise RemoteStorageError("no")

    rlm = BrokerRemoteLogManager(
        [stack.log_dir], stack.rsm, Changed(stack.rlmm, list_events=no_events)
    )
    assert description(rlm).copied_through_offset == 59
    silent = SilentRlmm(stack.rlmm)
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, silent)
    assert description(rlm).copied_through_offset == 59
    silent.is_silent = True
    assert description(rlm).copied_through_offset == 59


def test_loss_is_recorded_without_the_event_that_raised_the_log_start(
    stack: Stack, lost: PartitionFiles, database_url: str
) -> None:
    forget_events(database_url)
    assert "LOG_START" not in {e.kind for e in all_events(stack.rlmm, EventQuery(NAME))}
    stack.ship()
    assert gaps(stack) == (LOST,)


def test_the_event_of_the_log_start_is_read_only_if_something_is_missing_behind_it(
    stack: Stack,
) -> None:
    asked: list[object] = []

    def list_events(query: EventQuery, *, page_size: int = 0, page_token: str = "") -> EventPage:
        asked.append(query)
        return stack.rlmm.list_events(query, page_size=page_size, page_token=page_token)

    hourly_log(stack.log_dir)
    rlmm = Changed(stack.rlmm, list_events=list_events)
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, rlmm, AT_ONCE)
    take_turns(rlm)
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(3), now=True)
    take_turns(rlm, 3)
    assert description(rlm).log_start_offset == 30
    assert asked == []


def test_the_latest_event_is_found_however_far_back_it_is(
    stack: Stack, lost: PartitionFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.api.remote_log_metadata_manager._LATEST_EVENTS", 2)
    revision = stack.rlmm.partition_state(NAME).revision
    query = EventQuery(NAME)

    def latest(kind: str, query: EventQuery, revision: int) -> PartitionEvent | None:
        return latest_event(stack.rlmm, query, revision, lambda event: event.kind == kind)

    (raised,) = [e for e in all_events(stack.rlmm, query) if e.kind == "LOG_START"]
    assert raised.revision < revision - 10
    assert latest("LOG_START", query, revision) == raised
    assert latest("LOG_START", query, raised.revision) == raised
    assert latest("LOG_START", query, raised.revision - 1) is None
    assert latest("LOG_START", EventQuery(NAME, raised.revision), revision) is None
    assert latest("GAP", query, revision) is None
