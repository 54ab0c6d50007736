"""Test the limits of reads of the tier: quota, queue, and what is known while RLMM is away."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import Any

import pytest

from services.api.errors import RetriableRemoteStorageError, every_error_class
from services.api.remote_log_manager import FetchError, FetchPartition, FetchRequest
from services.api.replicas import AuxStateQuery
from services.client.records import decoded
from services.common.fair_queue import MOST_CHARGED_S, QuotaLimit
from services.rlm.fetch.reads import ReadLimits
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from tests.harness.eventually import eventually
from tests.harness.published import growth
from tests.harness.ship_stack import (
    EVERYTHING,
    Stack,
    bytes_of,
    fetch,
    fetch_once,
    lose_rolled_segments,
    read,
)
from tests.harness.synthetic_log import honest_batch
from tests.harness.troubles import Hanging, raising
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments


def test_reads_beyond_the_quota_are_empty_and_say_how_long_to_wait(stack: Stack) -> None:
    whole = bytes_of(three_segments(stack.log_dir).path)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    quota = QuotaLimit(max_bytes_per_second=1, windows=1)
    rlm = stack.rlm(limits=RlmLimits(read=ReadLimits(quota=quota)))
    first = len(b"".join(part.record_batches for part in fetch(rlm, 0)))
    assert 0 < first < len(whole)
    grown = growth(*(f"sediment_rlm_remote_fetch_throttle_seconds_{n}" for n in ("count", "sum")))
    (part,) = fetch(rlm, 0)
    assert (part.error, part.record_batches) == (FetchError.NONE, b"")
    number, seconds = grown()
    assert number == 1
    assert seconds == pytest.approx(part.throttle_time_ms / 1000, abs=0.01)
    # A batch may be larger than what was reserved, but what is owed for it is bounded.
    assert 9_000 <= part.throttle_time_ms <= 2_000 * MOST_CHARGED_S
    assert part.high_watermark == 25
    (local,) = fetch(rlm, 20)
    assert local.throttle_time_ms == 0
    assert local.record_batches


def test_the_quota_holds_for_readers_who_come_together(stack: Stack) -> None:
    """Nothing is returned before each of them has begun, or was refused."""
    three_segments(stack.log_dir)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    one, readers = len(batch(0, 5)), 32
    quota = QuotaLimit(max_bytes_per_second=one, windows=3, window_s=1)
    rsm = Hanging(stack.rsm, "fetch_log_segment", Semaphore(0))
    limits = RlmLimits(read=ReadLimits(threads=readers, wait_s=60.0, quota=quota))
    rlm = stack.rlm(rsm=rsm, limits=limits)
    read(rlm, 20)
    began_s = time.monotonic()
    with ThreadPoolExecutor(readers) as pool:
        reads = [pool.submit(fetch_once, rlm, 0, max_bytes=one) for _ in range(readers)]
        reading = rlm.tier_calls.queue
        eventually(lambda: reading.in_use + sum(each.done() for each in reads) == readers)
        rsm.let_go()
        parts = [each.result()[0] for each in reads]
    earned = 4 + (time.monotonic() - began_s)
    assert sum(bool(part.record_batches) for part in parts) <= earned
    assert max(part.throttle_time_ms for part in parts) <= 1000 * MOST_CHARGED_S


def test_reads_beyond_the_queue_are_refused_at_once(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    hanging = Semaphore(0)
    rlmm: Any = Hanging(stack.rlmm, "remote_log_segment_metadata", hanging)
    limits = RlmLimits(read=ReadLimits(threads=1, wait_s=60.0, max_waiting=0))
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, rlmm, limits)
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(read, rlm, 0)
        try:
            assert hanging.acquire(timeout=30.0)
            (part,) = fetch(rlm, 10)
        finally:
            rlmm.let_go()
        assert part.error is FetchError.TIERED_STORAGE_NOT_AVAILABLE
        assert part.throttle_time_ms == 1000
        assert "the queue is full" in part.error_message
        assert isinstance(stuck.result(timeout=30.0), bytes)


@pytest.mark.deep
def test_a_read_without_a_slot_in_time_is_empty_whatever_it_did_before(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    hanging = Semaphore(0)
    rsm = Hanging(stack.rsm, "fetch_index", hanging)
    limits = RlmLimits(read=ReadLimits(threads=1, wait_s=3.0))
    rlm = stack.rlm(rsm=rsm, limits=limits)
    slots = rlm.tier_calls.queue
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(fetch_once, rlm, 15)
        try:
            assert hanging.acquire(timeout=30.0)
            # Next in line: the read gets its index, and then no slot to read records.
            following = pool.submit(slots.acquire)
            eventually(lambda: slots.waiting == 1)
        finally:
            rsm.let_go()
        with following.result(timeout=60.0):
            (found,) = late.result(timeout=60.0)
            (at_once,) = fetch_once(rlm, 15)
            for part in (found, at_once):
                assert (part.error, part.error_message) == (FetchError.NONE, "")
                assert (part.record_batches, part.throttle_time_ms) == (b"", 1)
            with pytest.raises(RetriableRemoteStorageError, match="no turn within 3 s"):
                rlm.build_remote_log_aux_state(AuxStateQuery(NAME, 20))
    assert isinstance(read(rlm, 15), bytes)


def test_a_throttled_reader_of_records_waits_and_gets_all(stack: Stack) -> None:
    files = PartitionFiles(stack.log_dir)
    for offset in range(3):
        files.segment(offset, [honest_batch(offset, [b"value"])])
        files.snapshot(offset + 1)
    files.segment(3, [honest_batch(3, [b"value"])])
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    quota = QuotaLimit(max_bytes_per_second=1000, windows=1)
    rlm = stack.rlm(limits=RlmLimits(read=ReadLimits(quota=quota)))
    use_up_savings(rlm)
    assert [record.offset for record in decoded(rlm, NAME, 0)] == [0, 1, 2, 3]


def use_up_savings(rlm: BrokerRemoteLogManager) -> None:
    """Use up what the idle quota had saved up."""
    while not fetch(rlm, 0, max_bytes=1)[0].throttle_time_ms:
        pass


def test_errors_that_stay_in_rlm_are_not_taken_for_those_of_services() -> None:
    """A client finds the class of an error by its reason."""
    reasons = Counter(cls.reason for cls in every_error_class())
    assert [reason for reason, count in reasons.items() if count > 1] == []


class Sometimes:
    """The real RLMM, which is unreachable while `is_away`."""

    def __init__(self, rlmm: object) -> None:
        self.rlmm = rlmm
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if self.is_away:
            return raising(RetriableRemoteStorageError("away"))
        return getattr(self.rlmm, name)


@pytest.mark.parametrize("stale_s", [300.0, 0.0])
def test_known_segments_are_read_while_rlmm_is_away(stack: Stack, stale_s: float) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    rlmm: Any = Sometimes(stack.rlmm)
    limits = RlmLimits(read=ReadLimits(recent_s=0.0, stale_s=stale_s))
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, rlmm, limits)
    found = fetch(rlm, 0, max_bytes=1)[0]
    assert found.metadata_age_ms is None
    rlmm.is_away = True
    for _ in range(2):
        (part,) = fetch(rlm, 5, max_bytes=1)
        (unknown,) = fetch(rlm, 15, max_bytes=1)
        assert unknown.error is FetchError.TIERED_STORAGE_NOT_AVAILABLE
        if stale_s:
            assert part.record_batches == batch(5, 5)
            assert part.metadata_age_ms is not None
        else:
            assert part.error is FetchError.TIERED_STORAGE_NOT_AVAILABLE
    rlmm.is_away = False
    eventually(lambda: isinstance(read(rlm, 15), bytes))


def test_an_offset_beyond_what_is_known_is_not_out_of_range_while_rlmm_is_away(
    stack: Stack,
) -> None:
    """The tier may have grown: a consumer would begin again at another offset."""
    three_segments(stack.log_dir)
    stack.ship()
    rlmm: Any = Sometimes(stack.rlmm)
    limits = RlmLimits(read=ReadLimits(stale_s=300.0))
    rlm = BrokerRemoteLogManager([], stack.rsm, rlmm, limits)
    (beyond,) = fetch(rlm, 25)
    assert beyond.error is FetchError.OFFSET_OUT_OF_RANGE
    rlmm.is_away = True
    (beyond,) = fetch(rlm, 25)
    assert beyond.error is FetchError.TIERED_STORAGE_NOT_AVAILABLE
    (at_end,) = fetch(rlm, 20)
    assert at_end.error is FetchError.NONE


@pytest.mark.parametrize("min_bytes", [0, 1])
def test_a_silent_rlmm_keeps_one_reader_of_a_known_partition(stack: Stack, min_bytes: int) -> None:
    """Others are served with what is known, also if they would wait for records."""
    three_segments(stack.log_dir)
    stack.ship()
    rlmm: Any = Sometimes(stack.rlmm)
    limits = RlmLimits(read=ReadLimits(wait_s=60.0, recent_s=0.0))
    rlm = BrokerRemoteLogManager([], stack.rsm, rlmm, limits)
    assert read(rlm, 5)
    hanging = Semaphore(0)
    rlmm.rlmm = silent = Hanging(stack.rlmm, "list_remote_log_segments", hanging)
    wanted = FetchRequest(
        (FetchPartition(NAME, 5, 1),), EVERYTHING, max_wait_ms=60_000, min_bytes=min_bytes
    )
    with ThreadPoolExecutor(2) as pool:
        stuck = pool.submit(read, rlm, 5)
        try:
            assert hanging.acquire(timeout=30.0)
            for _ in range(2):
                (part,) = pool.submit(lambda: list(rlm.fetch(wanted))).result(timeout=30.0)
                assert part.record_batches == batch(5, 5)
                assert part.metadata_age_ms is not None
            assert not hanging.acquire(blocking=False)
            assert not stuck.done()
        finally:
            silent.let_go()
        assert isinstance(stuck.result(timeout=30.0), bytes)
