"""Test when retention must evaluate a partition's segments, and when it need not."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.holds import Hold, HoldKind
from services.api.retention import DEFAULT_COPY_GRACE_MS, NO_TIMESTAMP
from services.api.segments import RemoteLogSegmentMetadata
from services.api.topic_config import StoredTopicConfig, TopicConfig
from services.rlm.partition import NothingDue
from services.rlm.retention.snapshot import (
    LEASE_CHECK_MS,
    Snapshot,
    due_after_ms,
    due_at_bytes,
    may_be_due,
)
from services.rlm.tier import Tier
from tests.unit.api.any_partition import Partition, any_partitions, configs
from tests.unit.api.retention_partition import NOW_MS, lineage, partition, raised, without
from tests.unit.rlm.test_candidates import STARTED, remote


def settings(entries: Mapping[str, str], revision: int = 2) -> StoredTopicConfig:
    return StoredTopicConfig(UUID(int=1), "t", entries, revision)


NOTHING_SET = settings({})
BY_TIME = settings({"retention.ms": "1000"})
BY_SIZE = settings({"retention.bytes": "5000"})
BOTH_WAIT = replace(BY_TIME, waits_until_ms=9000, earlier={"retention.ms": "3000"})
FIRST_WAITS = replace(BY_TIME, waits_until_ms=9000)
TIER = Tier(known=True, revision=7, segments=3, size_bytes=3000)
LOOKED = NothingDue(revision=7, topic=BY_TIME, until_s=50.0, until_bytes=2001)


def due(
    tier: Tier = TIER,
    config: StoredTopicConfig = BY_TIME,
    *,
    only_local_bytes: int = 0,
    nothing_due: NothingDue | None = LOOKED,
    now_s: float = 49.0,
) -> bool:
    if nothing_due is not None and config.revision == 2 and config.waits_until_ms is None:
        nothing_due = replace(nothing_due, topic=config)
    return may_be_due(tier, only_local_bytes, config, nothing_due, now_s)


UNFINISHED = Tier(known=True, revision=7, unfinished=[remote(0, 9, (0, 0), state=STARTED)])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, False, id="it rests"),
        pytest.param(
            {"tier": Tier(known=True, revision=8), "nothing_due": None}, False, id="empty"
        ),
        pytest.param({"config": NOTHING_SET, "nothing_due": None}, False, id="no limits"),
        pytest.param({"nothing_due": None}, True, id="the first pass"),
        pytest.param({"tier": replace(TIER, revision=8)}, True, id="a changed partition"),
        pytest.param(
            {"tier": replace(TIER, revision=9, before_tails=7)}, False, id="only tails were added"
        ),
        pytest.param(
            {
                "tier": replace(TIER, revision=9, before_tails=7),
                "nothing_due": replace(LOOKED, until_s=None),
            },
            True,
            id="a tail that nothing before it becomes due with",
        ),
        pytest.param({"config": replace(BY_TIME, revision=3)}, True, id="changed settings"),
        pytest.param({"config": BOTH_WAIT}, True, id="settings that have waited"),
        pytest.param({"config": FIRST_WAITS, "nothing_due": None}, False, id="a first limit waits"),
        pytest.param({"now_s": 49.9}, False, id="too early"),
        pytest.param({"now_s": 50.0}, True, id="in time"),
        pytest.param({"config": BY_SIZE, "only_local_bytes": 2000}, False, id="too small"),
        pytest.param({"config": BY_SIZE, "only_local_bytes": 2001}, True, id="large enough"),
        pytest.param(
            {
                "config": BY_SIZE,
                "only_local_bytes": 2**60,
                "nothing_due": replace(LOOKED, until_bytes=None),
            },
            False,
            id="growth without bounds that size does not count",
        ),
        pytest.param(
            {"tier": UNFINISHED, "config": NOTHING_SET, "nothing_due": None}, True, id="unfinished"
        ),
    ],
)
def test_what_is_checked(given: dict[str, Any], expected: bool) -> None:
    assert due(**given) is expected


def test_unfinished_segments_are_not_checked_before_something_may_be_due() -> None:
    left = replace(TIER, unfinished=[remote(0, 9, (0, 0), state=STARTED)])
    assert not due(left, NOTHING_SET, now_s=49.9)
    assert due(left, NOTHING_SET, now_s=50.0)


def test_a_deletion_that_only_raised_the_log_start_is_always_checked() -> None:
    raised = replace(TIER, has_finished_below_log_start=True)
    assert due(raised, NOTHING_SET, nothing_due=None)
    assert not due(raised, NOTHING_SET)


def a_segment(
    base: int = 0, *, newest_ms: int = NO_TIMESTAMP, **changes: Any
) -> RemoteLogSegmentMetadata:
    return replace(remote(base, base + 9, (0, base)), max_timestamp_ms=newest_ms, **changes)


def an_attempt(at_ms: int, *, copy_leased: bool = False) -> RemoteLogSegmentMetadata:
    attempt = remote(0, 9, (0, 0), state=STARTED)
    return replace(attempt, event_timestamp_ms=at_ms, copy_leased=copy_leased)


def due_after(
    *segments: RemoteLogSegmentMetadata,
    now_ms: int = 0,
    config: StoredTopicConfig = NOTHING_SET,
    being_copied: Collection[UUID] = (),
    holds: tuple[Hold, ...] = (),
) -> int | None:
    state = partition(lineage((0, 0)), log_end_offset=90)
    state = replace(state, read_at_ms=now_ms, holds=holds)
    snapshot = Snapshot(state, segments, revision=7)
    planned = snapshot.plan(config, being_copied)
    return due_after_ms(snapshot, planned, config, being_copied)


def test_the_first_that_stays_says_when_time_makes_it_due() -> None:
    segments = a_segment(0, newest_ms=700), a_segment(10, newest_ms=500)
    # Strictly older than retention.ms: 700 is at 1701, and the other one goes with it.
    assert due_after(*segments, now_ms=1200, config=BY_TIME) == 501
    assert due_after(*segments, now_ms=1600, config=BY_TIME) == 101


def test_a_copy_is_checked_when_it_ceases_to_count_as_in_progress() -> None:
    attempts = an_attempt(2000), an_attempt(1000)
    assert due_after(*attempts, now_ms=2500) == DEFAULT_COPY_GRACE_MS - 1500
    later_ms = 1000 + DEFAULT_COPY_GRACE_MS  # the older one is judged as any other from here on
    assert due_after(*attempts, now_ms=later_ms) == 1000
    assert due_after(*attempts, now_ms=later_ms + 1000) is None


def test_an_old_copy_that_is_leased_is_checked_again_soon() -> None:
    later_ms = 2000 + DEFAULT_COPY_GRACE_MS
    assert due_after(an_attempt(1000), now_ms=later_ms) is None
    leased = an_attempt(1000, copy_leased=True)
    assert due_after(leased, now_ms=later_ms) == LEASE_CHECK_MS
    young_ms = DEFAULT_COPY_GRACE_MS - LEASE_CHECK_MS
    assert due_after(leased, now_ms=young_ms) == LEASE_CHECK_MS + 1000


@pytest.mark.parametrize(("number", "expected"), [(0, LEASE_CHECK_MS), (1, None)])
def test_segment_being_copied_here_is_checked_again_soon(number: int, expected: int | None) -> None:
    here, elsewhere = a_segment(0, newest_ms=500), a_segment(10, newest_ms=500)
    ids = [s.remote_log_segment_id.id for s in (here, elsewhere)]
    assert due_after(here, now_ms=9000, being_copied=[ids[number]]) == expected


@pytest.mark.parametrize(("next_offset", "expected"), [(9, LEASE_CHECK_MS), (10, None)])
def test_a_segment_that_a_hold_keeps_is_checked_again_soon(
    next_offset: int, expected: int | None
) -> None:
    lake = Hold("lake", HoldKind.EXPORT, first_offset=next_offset, until_ms=9_000_000)
    old = a_segment(newest_ms=500)
    assert due_after(old, now_ms=9000, config=BY_TIME, holds=(lake,)) == expected


@pytest.mark.parametrize("config", [NOTHING_SET, BY_SIZE])
def test_without_a_limit_of_time_it_never_is(config: StoredTopicConfig) -> None:
    assert due_after(a_segment(), config=config) is None


def test_nothing_in_the_tier_never_is() -> None:
    assert due_after(config=BY_TIME) is None


def test_a_segment_without_a_time_is_due_by_its_latest_event() -> None:
    timeless = a_segment(event_timestamp_ms=2000)
    assert due_after(timeless, now_ms=2500, config=BY_TIME) == 501


def bytes_until_due(config: StoredTopicConfig = BY_SIZE, **changes: Any) -> int | None:
    """Return the bytes until retention of two segments of 1000 bytes each."""
    segments = tuple(a_segment(base, segment_size_in_bytes=1000) for base in (0, 10))
    state = partition(lineage((0, 0)), log_end_offset=90, **changes)
    return due_at_bytes(Snapshot(state, segments, revision=7).plan(config), config)


def test_while_a_change_waits_the_earlier_settings_say_when() -> None:
    segments = a_segment(0, newest_ms=700), a_segment(10, newest_ms=500)
    assert due_after(*segments, now_ms=1600, config=BOTH_WAIT) == 101  # by now, which then waits
    assert due_after(*segments, now_ms=1800, config=BOTH_WAIT) == 3701 - 1800


def test_the_size_rule_has_to_have_room_for_the_first_segment() -> None:
    assert bytes_until_due() == 5000 - 2000 + 1000
    assert bytes_until_due(only_local_bytes=3999) == 4000


def test_if_the_size_rule_was_not_applied_any_excess_is_checked() -> None:
    assert bytes_until_due(only_local_bytes=9000, copied_through_offset=9) == 3001


def test_without_a_limit_by_size_no_growth_makes_it_due() -> None:
    assert bytes_until_due(BY_TIME, only_local_bytes=2**60) is None


def waiting(config: TopicConfig, earlier: TopicConfig) -> StoredTopicConfig:
    return replace(settings(limits(config)), waits_until_ms=NOW_MS + 1000, earlier=limits(earlier))


def limits(config: TopicConfig) -> dict[str, str]:
    return {
        "retention.ms": str(config.retention_ms),
        "retention.bytes": str(config.retention_bytes),
    }


@st.composite
def partitions_of_any_age(draw: st.DrawFn) -> Partition:
    """Draw partitions with attempts to copy, active for a while yet, or no longer."""
    segments, state = draw(any_partitions())
    ages_ms = st.integers(DEFAULT_COPY_GRACE_MS - 50, DEFAULT_COPY_GRACE_MS + 50)
    return [replace(s, event_timestamp_ms=NOW_MS - draw(ages_ms)) for s in segments], state


@given(st.data(), partitions_of_any_age(), st.builds(waiting, configs, configs))
def test_nothing_becomes_due_before_it_is_checked(
    data: st.DataObject, known: Partition, config: StoredTopicConfig
) -> None:
    segments, state = known
    ids = [s.remote_log_segment_id.id for s in segments]
    copied = data.draw(st.lists(st.sampled_from(ids), max_size=1)) if ids else []
    while (planned := Snapshot(state, tuple(segments), 7).plan(config, copied)).deletions:
        segments, state = without(segments, planned), raised(state, planned)
    now = Snapshot(state, tuple(segments), 7)
    after_ms = due_after_ms(now, planned, config, copied)
    limit_ms = 100 if after_ms is None else min(after_ms - 1, 100)
    at_ms = state.read_at_ms + data.draw(st.integers(0, limit_ms))
    at_bytes = due_at_bytes(planned, config)
    most_bytes = 2000 if at_bytes is None else max(at_bytes - 1, 0)
    assert state.report is not None
    report = replace(state.report, only_local_bytes=data.draw(st.integers(0, most_bytes)))
    later = replace(now, state=replace(state, read_at_ms=at_ms, report=report))
    assert later.plan(config, copied).deletions == ()
