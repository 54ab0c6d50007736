"""Test fetches of several partitions, which are read in parallel: none holds the others."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    IsolationLevel,
)
from services.rlm.fetch.reads import ReadLimits
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from tests.harness.eventually import eventually
from tests.harness.ship_stack import EVERYTHING, Stack, fetch, lose_rolled_segments
from tests.harness.troubles import GIVE_UP_S, Hang, TroubledPartition, partition_of
from tests.harness.wrapper import Wrapper
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments

NAMES = [replace(NAME, partition=number) for number in range(4)]
SICK = NAMES[0]
SIZE = len(batch(0, 5))
PATIENT = RlmLimits(read=ReadLimits(wait_s=GIVE_UP_S))
HASTY = RlmLimits(read=ReadLimits(wait_s=0.5))
COMMITTED = IsolationLevel.READ_COMMITTED


@pytest.fixture
def shipped(stack: Stack) -> Stack:
    """Four partitions, each with two segments in the tier, and no log here."""
    for name in NAMES:
        three_segments(stack.log_dir, name)
    stack.ship()
    return stack


def of_all(offset: int = 0, max_bytes: int = EVERYTHING, **request: Any) -> FetchRequest:
    wanted = tuple(FetchPartition(name, offset, EVERYTHING) for name in NAMES)
    return FetchRequest(wanted, max_bytes, **request)


def in_time(rlm: BrokerRemoteLogManager, request: FetchRequest) -> list[FetchPart]:
    """Fetch; fail if the answer takes as long as a call that hangs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: list(rlm.fetch(request))).result(timeout=GIVE_UP_S / 2)


def partitions_of(parts: Sequence[FetchPart]) -> list[TopicIdPartition]:
    return [part.topic_id_partition for part in parts]


def test_requests_to_the_store_overlap_and_the_order_is_kept(shipped: Stack) -> None:
    all_at_once = Barrier(len(NAMES), timeout=GIVE_UP_S)

    class Meeting(Wrapper[Any]):
        """The real RSM, which answers only if a request of each partition waits."""

        def fetch_log_segment(self, metadata: Any, *positions: int) -> Iterator[bytes]:
            all_at_once.wait()
            bytes_read: Iterator[bytes] = self.real.fetch_log_segment(metadata, *positions)
            return bytes_read

    parts = in_time(shipped.tier_reader(rsm=Meeting(shipped.rsm), limits=PATIENT), of_all())
    assert partitions_of(parts) == NAMES
    # As in Kafka, a read of one of several partitions ends with its segment.
    assert [part.record_batches for part in parts] == [batch(0, 5) + batch(5, 5)] * len(NAMES)


def served(rlm: BrokerRemoteLogManager, request: FetchRequest) -> list[FetchPart]:
    """Fetch until all but the troubled partition are served: the machine may be busy."""
    found: list[FetchPart] = []

    def others_have_records() -> bool:
        found[:] = in_time(rlm, request)
        assert partitions_of(found) == NAMES
        return all(part.record_batches for part in found[1:])

    eventually(others_have_records)
    return found


TROUBLED = [
    pytest.param("rlmm", "list_remote_log_segments", 5, id="state in RLMM"),
    pytest.param("rlmm", "next_segment_with_txn_index", 5, id="look-up of transactions"),
    pytest.param("rsm", "fetch_index", 5, id="index"),
    pytest.param("rsm", "fetch_log_segment", 0, id="records"),
]


def troubled(
    stack: Stack, manager: str, method: str, trouble: Callable[[], None], limits: RlmLimits
) -> BrokerRemoteLogManager:
    managers: dict[str, Any] = {"rsm": stack.rsm, "rlmm": stack.rlmm}
    managers[manager] = TroubledPartition(managers[manager], SICK, frozenset({method}), trouble)
    rlm = stack.tier_reader(**managers, limits=limits)
    if method == "next_segment_with_txn_index":
        # From the listing RLM knows of no index from offset 10 on; those before, RLMM has to find.
        eventually(lambda: all(part.record_batches for part in in_time(rlm, of_all(10))))
    return rlm


@pytest.mark.deep
@pytest.mark.parametrize("waits", [{}, {"max_wait_ms": 60_000, "min_bytes": 1}], ids=["", "waits"])
@pytest.mark.parametrize(("manager", "method", "offset"), TROUBLED)
def test_a_silent_partition_is_empty_and_the_others_have_their_records(
    shipped: Stack, manager: str, method: str, offset: int, waits: dict[str, int]
) -> None:
    hang = Hang()
    rlm = troubled(shipped, manager, method, hang, HASTY)
    try:
        parts = served(rlm, of_all(offset, isolation_level=COMMITTED, **waits))
    finally:
        hang.let_go()
    assert {part.error for part in parts} == {FetchError.NONE}
    assert [bool(part.record_batches) for part in parts] == [False, True, True, True]
    assert parts[0].throttle_time_ms > 0
    eventually(lambda: rlm.tier_calls.queue.idle_ratio == 1)
    assert eventually(lambda: fetch(rlm, offset, SICK, isolation=COMMITTED)[0].record_batches)


@pytest.mark.parametrize(("manager", "method", "offset"), TROUBLED)
def test_a_failing_partition_has_its_error_and_the_others_their_records(
    shipped: Stack, manager: str, method: str, offset: int
) -> None:
    def away() -> None:
        raise RetriableRemoteStorageError("away")

    rlm = troubled(shipped, manager, method, away, HASTY)
    expected = [FetchError.TIERED_STORAGE_NOT_AVAILABLE, *[FetchError.NONE] * 3]

    def has_errors() -> bool:
        # The last try may end as late as the wait for it: then the answer is empty, as if it hung.
        parts = served(rlm, of_all(offset, isolation_level=COMMITTED))
        return [part.error for part in parts] == expected

    assert eventually(has_errors)


def test_a_full_queue_is_the_answer_of_each_partition_that_needs_the_tier(stack: Stack) -> None:
    """The others have their records; what is refused says when to come back."""
    for name in NAMES:
        three_segments(stack.log_dir, name)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    limits = RlmLimits(read=ReadLimits(threads=1, max_waiting=0, wait_s=GIVE_UP_S))
    rlm = stack.rlm(limits=limits)
    at = {NAMES[0]: 20, NAMES[1]: 0, NAMES[2]: 20, NAMES[3]: 20}
    wanted = tuple(FetchPartition(name, offset, EVERYTHING) for name, offset in at.items())
    with rlm.tier_calls.queue.acquire():
        parts = in_time(rlm, FetchRequest(wanted, EVERYTHING))
    assert partitions_of(parts) == NAMES
    refused = FetchError.TIERED_STORAGE_NOT_AVAILABLE
    assert [part.error for part in parts] == [FetchError.NONE, refused, *[FetchError.NONE] * 2]
    assert [bool(part.record_batches) for part in parts] == [True, False, True, True]
    assert [part.throttle_time_ms for part in parts] == [0, 1000, 0, 0]


@pytest.mark.deep
def test_all_partitions_together_wait_for_a_silent_store_once(shipped: Stack) -> None:
    hang = Hang()

    class Silent(Wrapper[Any]):
        def fetch_log_segment(self, *_: Any) -> Iterator[bytes]:
            hang()
            return iter(())

    limits = RlmLimits(read=ReadLimits(wait_s=2.0))
    began_s = time.monotonic()
    try:
        parts = in_time(shipped.tier_reader(rsm=Silent(shipped.rsm), limits=limits), of_all())
        assert time.monotonic() - began_s < 3 * 2.0  # One after another they would wait for 8 s.
    finally:
        hang.let_go()
    assert [(part.error, part.record_batches) for part in parts] == [(FetchError.NONE, b"")] * 4


class Requested(Wrapper[Any]):
    """The real RSM, and the partitions whose records are requested."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.rsm)
        self.requested: list[int] = []

    def fetch_log_segment(self, metadata: Any, *positions: int) -> Iterator[bytes]:
        self.requested.append(partition_of(metadata).partition)
        bytes_read: Iterator[bytes] = self.real.fetch_log_segment(metadata, *positions)
        return bytes_read


@pytest.mark.deep
@pytest.mark.parametrize(
    ("max_bytes", "batches", "requested"),
    [
        (1, [1, 0, 0, 0], [0]),
        (SIZE, [1, 0, 0, 0], [0]),
        (2 * SIZE, [2, 0, 0, 0], [0]),
        (3 * SIZE, [2, 1, 0, 0], [0, 1]),
        (2**28, [2, 2, 2, 2], [0, 1, 2, 3]),
    ],
)
def test_the_first_may_exceed_the_limit_and_later_ones_get_what_is_left(
    shipped: Stack, max_bytes: int, batches: list[int], requested: list[int]
) -> None:
    """What gets nothing is not requested from the store, and has its offsets all the same."""
    rsm = Requested(shipped)
    parts = in_time(shipped.tier_reader(rsm=rsm, limits=PATIENT), of_all(max_bytes=max_bytes))
    assert partitions_of(parts) == NAMES
    assert [len(part.record_batches) // SIZE for part in parts] == batches
    assert sorted(rsm.requested) == requested
    bounds = [(part.high_watermark, part.log_start_offset) for part in parts]
    assert bounds == [(20, 0)] * 4


def test_an_empty_partition_leaves_the_first_batch_to_the_next_one(shipped: Stack) -> None:
    wanted = [FetchPartition(NAMES[0], 20, EVERYTHING), FetchPartition(NAMES[1], 0, EVERYTHING)]
    rlm = shipped.tier_reader(limits=PATIENT)
    parts = in_time(rlm, FetchRequest(tuple(wanted), 1))
    assert [part.record_batches for part in parts] == [b"", batch(0, 5)]


def test_a_client_that_takes_nothing_more_holds_no_reader(stack: Stack) -> None:
    files = PartitionFiles(stack.log_dir)
    payload = b"x" * 700_000
    files.segment(0, [batch(offset, payload=payload) for offset in range(4)])
    files.snapshot(4)
    files.segment(4, [batch(4)])
    stack.ship()
    limits = RlmLimits(read=ReadLimits(threads=1, max_waiting=0, wait_s=GIVE_UP_S))
    rlm = stack.tier_reader(limits=limits)
    request = FetchRequest((FetchPartition(NAME, 0, EVERYTHING),), EVERYTHING)
    parts = rlm.fetch(request)
    assert next(parts).record_batches == batch(0, payload=payload)
    assert rlm.tier_calls.queue.idle_ratio == 1
    assert fetch(rlm, 2, max_bytes=1)[0].record_batches
    assert next(parts).record_batches == batch(1, payload=payload)
    del parts
    assert rlm.tier_calls.queue.idle_ratio == 1


def test_a_batch_of_several_parts_is_whole_though_no_slot_is_free_after_its_first(
    stack: Stack,
) -> None:
    long = batch(0, payload=b"x" * 1_500_000)
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [long, batch(1)])
    files.snapshot(2)
    files.segment(2, [batch(2)])
    stack.ship()
    limits = RlmLimits(read=ReadLimits(threads=1, max_waiting=0, wait_s=GIVE_UP_S))
    rlm = stack.tier_reader(limits=limits)
    parts = rlm.fetch(FetchRequest((FetchPartition(NAME, 0, EVERYTHING),), EVERYTHING))
    first = next(parts)
    assert len(first.record_batches) < len(long)
    with rlm.tier_calls.queue.acquire():
        rest = list(parts)
    assert b"".join(part.record_batches for part in (first, *rest)) == long
    assert {part.error for part in rest} == {FetchError.NONE}
