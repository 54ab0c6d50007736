"""Test reads by metadata that RLM read a moment ago, while other processes change the tier."""

from typing import Any

import pytest

from services.api.calls import MutationContext
from services.api.offset_queries import OffsetQueries, OffsetQuery, RecordsToDelete, SpecialTime
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
)
from services.api.topic_config import RetentionOwner
from services.rlm.fetch.reads import ReadLimits
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.tier_state import TierState
from tests.harness.eventually import eventually
from tests.harness.ship_stack import EVERYTHING, Stack, fetch, lose_rolled_segments, read
from tests.harness.tier import SmallTier
from tests.harness.troubles import SilentRlmm
from tests.unit.rlm.kafka_bytes import NAME, batch, three_segments

OUT_OF_RANGE = FetchError.OFFSET_OUT_OF_RANGE
SWEEP = MutationContext(reason="sweep", retention_owner=RetentionOwner.SWEEP)


def limits(recent_s: float) -> RlmLimits:
    """Return limits with which each read needs the store."""
    return RlmLimits(read=ReadLimits(wait_s=60.0, recent_s=recent_s, chunk_memory_bytes=0))


@pytest.fixture
def stack(stack: Stack) -> Stack:
    """Offsets 0 to 9 and 10 to 19, which are in the tier, and 20 to 24."""
    stack.files = three_segments(stack.log_dir)
    stack.ship()
    return stack


@pytest.fixture
def rlmm(stack: Stack) -> Any:
    return SilentRlmm(stack.rlmm)


@pytest.fixture
def rlm(stack: Stack, rlmm: Any) -> BrokerRemoteLogManager:
    """An RLM without the log, which knows both segments for a minute."""
    rlm = stack.tier_reader(rlmm=rlmm, limits=limits(60.0))
    assert read(rlm, 0) == b"".join(batch(base, 5) for base in (0, 5, 10, 15))
    assert rlmm.lists == 1
    return rlm


def first_batch(rlm: BrokerRemoteLogManager, offset: int) -> bytes | FetchError:
    (part,) = fetch(rlm, offset, max_bytes=1)
    return part.record_batches if part.error is FetchError.NONE else part.error


def test_reads_in_known_segments_read_rlmm_once(rlm: BrokerRemoteLogManager, rlmm: Any) -> None:
    for offset in (0, 5, 10, 15):
        assert first_batch(rlm, offset) == batch(offset, 5)
        wanted = FetchPartition(NAME, offset, 1)
        waiting = FetchRequest((wanted,), EVERYTHING, max_wait_ms=60_000, min_bytes=1)
        assert [part.record_batches for part in rlm.fetch(waiting)] == [batch(offset, 5)]
    assert rlmm.lists == 1


def test_each_read_reads_rlmm_if_no_age_is_allowed(stack: Stack, rlmm: Any) -> None:
    rlm = stack.tier_reader(rlmm=rlmm, limits=limits(0.0))
    assert [first_batch(rlm, offset) for offset in (0, 5)] == [batch(0, 5), batch(5, 5)]
    assert rlmm.lists == 2


def test_rlmm_is_read_again_when_the_age_is_over(stack: Stack, rlmm: Any) -> None:
    rlm = stack.tier_reader(rlmm=rlmm, limits=limits(0.05))

    def has_read_again() -> bool:
        assert first_batch(rlm, 5) == batch(5, 5)
        return bool(rlmm.lists >= 3)

    eventually(has_read_again)


def test_the_end_of_the_tier_is_read_from_rlmm(stack: Stack, rlm: BrokerRemoteLogManager) -> None:
    assert fetch(rlm, 20)[0].record_batches == b""
    stack.files.snapshot(25)
    stack.files.segment(25, [batch(25)])
    stack.ship()
    assert first_batch(rlm, 20) == batch(20, 5)
    (part,) = fetch(rlm, 15, max_bytes=1)
    assert part.high_watermark == 25


def test_list_offsets_reads_rlmm(rlm: BrokerRemoteLogManager, rlmm: Any) -> None:
    for special in (SpecialTime.LATEST, SpecialTime.EARLIEST):
        before = rlmm.lists
        rlm.list_offsets(OffsetQueries((OffsetQuery(NAME, special),)))
        assert rlmm.lists > before


def test_a_segment_that_was_deleted_elsewhere_is_out_of_range(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    first, _ = stack.segments()
    stack.rlmm.raise_log_start_offset(NAME, 10, SWEEP)
    SmallTier(stack.rsm, stack.rlmm).delete(first)
    parts: list[FetchPart] = fetch(rlm, 5, max_bytes=1)
    assert [(p.error, p.log_start_offset) for p in parts] == [(OUT_OF_RANGE, 10)]
    assert first_batch(rlm, 10) == batch(10, 5)


def test_a_segment_that_another_one_replaced_is_read_from_that(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    """OFFSET_OUT_OF_RANGE would let a consumer begin again at an end of the log."""
    first, _ = stack.segments()
    SmallTier(stack.rsm, stack.rlmm).delete(first)
    stack.ship()
    assert first.remote_log_segment_id not in {s.remote_log_segment_id for s in stack.segments()}
    assert first_batch(rlm, 5) == batch(5, 5)


def test_a_read_goes_on_in_a_segment_that_replaced_the_next_one(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    _, second = stack.segments()
    SmallTier(stack.rsm, stack.rlmm).delete(second)
    stack.ship()
    assert read(rlm, 0) == b"".join(batch(base, 5) for base in (0, 5, 10, 15))


def test_what_this_rlm_deletes_is_gone_at_once(stack: Stack) -> None:
    lose_rolled_segments(stack.log_dir)
    rlm = stack.rlm(limits=limits(60.0))
    assert first_batch(rlm, 5) == batch(5, 5)
    rlm.delete_records((RecordsToDelete(NAME, 12),))
    assert first_batch(rlm, 5) is OUT_OF_RANGE
    assert first_batch(rlm, 15) == batch(15, 5)


def test_nothing_is_recent_while_this_process_changes_the_partition(stack: Stack) -> None:
    tier = TierState(stack.rsm, stack.rlmm, NAME)
    assert tier.recent(60.0) is None
    seen = tier.refresh()
    assert tier.recent(60.0) is seen
    tier.changed_here()
    assert tier.recent(60.0) is None
    tier.refresh()
    assert tier.recent(60.0) is seen
    assert tier.recent(0.0) is None
