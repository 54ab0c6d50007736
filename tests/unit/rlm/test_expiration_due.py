"""When retention must look at a partition's segments, and when it need not."""

from dataclasses import replace

import pytest

from services.api.partition_state import PartitionState
from services.api.retention import DEFAULT_COPY_GRACE_MS
from services.api.segments import RemoteLogSegmentMetadata
from services.api.topic_config import TopicConfig, topic_config
from services.rlm.expiration.due import (
    LOOK_AT_LEASES_MS,
    NothingDue,
    due_after_ms,
    may_be_due,
)
from services.rlm.expiration.snapshot import Snapshot
from services.rlm.tier_view.tier import Tier
from tests.unit.rlm.test_candidates import STARTED, remote

NOTHING_SET = TopicConfig()
BY_TIME = topic_config({"retention.ms": "1000"})
BY_SIZE = topic_config({"retention.bytes": "5000"})
TIER = Tier(known=True, revision=7, segments=3, size_bytes=3000)
LOOKED = NothingDue(revision=7, config_revision=2, until_s=50.0)


def due(
    tier: Tier = TIER,
    config: TopicConfig = BY_TIME,
    *,
    only_local_bytes: int = 0,
    config_revision: int = 2,
    nothing_due: NothingDue | None = LOOKED,
    now_s: float = 49.0,
) -> bool:
    return may_be_due(tier, only_local_bytes, config, config_revision, nothing_due, now_s)


def test_a_partition_that_rests_is_left_alone() -> None:
    assert not due()


def test_an_empty_tier_has_nothing_to_delete() -> None:
    assert not due(Tier(known=True, revision=8), nothing_due=None)


def test_without_limits_there_is_nothing_to_look_for() -> None:
    assert not due(config=NOTHING_SET, nothing_due=None)


def test_the_first_pass_looks() -> None:
    assert due(nothing_due=None)


def test_a_change_of_the_partition_is_looked_at() -> None:
    assert due(replace(TIER, revision=8))


def test_a_change_of_the_settings_is_looked_at() -> None:
    assert due(config_revision=3)


@pytest.mark.parametrize(("now_s", "expected"), [(49.9, False), (50.0, True)])
def test_time_makes_it_due(now_s: float, expected: bool) -> None:
    assert due(now_s=now_s) is expected


@pytest.mark.parametrize(("only_local_bytes", "expected"), [(2000, False), (2001, True)])
def test_a_local_log_that_grows_makes_it_due(only_local_bytes: int, expected: bool) -> None:
    looked = replace(LOOKED, until_s=None)
    assert due(config=BY_SIZE, only_local_bytes=only_local_bytes, nothing_due=looked) is expected


def test_what_is_unfinished_is_looked_at_whatever_is_set() -> None:
    left = Tier(known=True, revision=7, unfinished=[remote(0, 9, (0, 0), state=STARTED)])
    assert due(left, NOTHING_SET, nothing_due=None)


def test_what_is_unfinished_is_looked_at_no_sooner_than_something_may_be_due() -> None:
    left = replace(TIER, unfinished=[remote(0, 9, (0, 0), state=STARTED)])
    assert not due(left, NOTHING_SET, now_s=49.9)
    assert due(left, NOTHING_SET, now_s=50.0)


def test_a_deletion_that_raised_the_log_start_only_is_looked_at_whatever_is_set() -> None:
    raised = replace(TIER, has_finished_below_log_start=True)
    assert due(raised, NOTHING_SET, nothing_due=None)
    assert not due(raised, NOTHING_SET)


def snapshot(*segments: RemoteLogSegmentMetadata, now_ms: int = 0) -> Snapshot:
    return Snapshot(PartitionState(read_at_ms=now_ms), segments, revision=7)


def test_the_oldest_record_says_when_time_makes_it_due() -> None:
    segments = (
        replace(remote(0, 9, (0, 0)), max_timestamp_ms=700),
        replace(remote(10, 19, (0, 10)), max_timestamp_ms=500),
    )
    # Strictly older than retention.ms: 500 is at 1501.
    assert due_after_ms(snapshot(*segments, now_ms=1200), BY_TIME) == 301
    assert due_after_ms(snapshot(*segments, now_ms=9000), BY_TIME) == 1


def test_a_copy_is_looked_at_when_it_ceases_to_count_as_under_way() -> None:
    attempts = [
        replace(remote(0, 9, (0, 0), state=STARTED), event_timestamp_ms=at_ms)
        for at_ms in (2000, 1000)
    ]
    due_ms = due_after_ms(snapshot(*attempts, now_ms=2500), NOTHING_SET)
    assert due_ms == DEFAULT_COPY_GRACE_MS - 1500
    later_ms = 1000 + DEFAULT_COPY_GRACE_MS  # the older one is judged as any other from here on
    assert due_after_ms(snapshot(*attempts, now_ms=later_ms), NOTHING_SET) == 1000
    assert due_after_ms(snapshot(*attempts, now_ms=later_ms + 1000), NOTHING_SET) is None


def test_an_old_copy_that_is_leased_is_looked_at_again_soon() -> None:
    attempt = replace(remote(0, 9, (0, 0), state=STARTED), event_timestamp_ms=1000)
    leased = replace(attempt, copy_leased=True)
    later_ms = 2000 + DEFAULT_COPY_GRACE_MS
    assert due_after_ms(snapshot(attempt, now_ms=later_ms), NOTHING_SET) is None
    assert due_after_ms(snapshot(leased, now_ms=later_ms), NOTHING_SET) == LOOK_AT_LEASES_MS
    young_ms = DEFAULT_COPY_GRACE_MS - LOOK_AT_LEASES_MS
    young = due_after_ms(snapshot(leased, now_ms=young_ms), NOTHING_SET)
    assert young == LOOK_AT_LEASES_MS + 1000


@pytest.mark.parametrize("config", [NOTHING_SET, BY_SIZE])
def test_without_a_limit_of_time_it_never_is(config: TopicConfig) -> None:
    assert due_after_ms(snapshot(remote(0, 9, (0, 0))), config) is None


def test_nothing_in_the_tier_never_is() -> None:
    assert due_after_ms(snapshot(), BY_TIME) is None


def test_a_segment_without_a_time_is_due_by_its_latest_event() -> None:
    timeless = replace(remote(0, 9, (0, 0)), event_timestamp_ms=2000)
    assert due_after_ms(snapshot(timeless, now_ms=2500), BY_TIME) == 501
