"""Test fetches of one partition while RLMM, an index or the store is silent, or fails once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from prometheus_client import REGISTRY

from services.api.calls import IN_PROCESS, serving
from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.offset_queries import EpochQuery, OffsetAnswer, OffsetQueries, OffsetQuery
from services.api.remote_log_manager import FetchError, FetchPartition, FetchRequest, IsolationLevel
from services.rlm.fetch.reads import ReadLimits
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from tests.harness.broker_answers import BrokerFetch
from tests.harness.doors import DOORS, Door, opened
from tests.harness.eventually import eventually
from tests.harness.ship_stack import (
    EVERYTHING,
    Stack,
    fetch,
    fetch_once,
    lose_rolled_segments,
    read,
)
from tests.harness.troubles import GIVE_UP_S, FailingOnce, Hang, TroubledPartition
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments

SICK, HEALTHY = NAME, replace(NAME, partition=1)
COMMITTED = IsolationLevel.READ_COMMITTED
ONE_READER = RlmLimits(read=ReadLimits(threads=1, wait_s=0.5))
HASTY = RlmLimits(read=ReadLimits(wait_s=0.1))
PATIENT = RlmLimits(read=ReadLimits(wait_s=GIVE_UP_S))

TROUBLED = [
    pytest.param("rlmm", "list_remote_log_segments", 5, id="state in RLMM"),
    pytest.param("rsm", "fetch_index", 5, id="index"),
    pytest.param("rsm", "fetch_log_segment", 0, id="records"),
]


@pytest.fixture
def shipped(stack: Stack) -> Stack:
    """Two partitions, each with two segments in the tier, and no log here."""
    for name in (SICK, HEALTHY):
        three_segments(stack.log_dir, name)
    stack.ship()
    return stack


def troubled(
    stack: Stack, manager: str, method: str, trouble: Callable[..., None], limits: RlmLimits
) -> BrokerRemoteLogManager:
    managers: dict[str, Any] = {"rsm": stack.rsm, "rlmm": stack.rlmm}
    managers[manager] = TroubledPartition(managers[manager], SICK, frozenset({method}), trouble)
    return stack.tier_reader(**managers, limits=limits)


def fetched(door: Door, offset: int, name: TopicIdPartition = SICK) -> BrokerFetch:
    """Fetch; fail if the answer takes as long as a call that hangs."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(door.fetch, name, offset, EVERYTHING, COMMITTED)
        return answer.result(timeout=GIVE_UP_S / 2)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("manager", "method", "offset"), TROUBLED)
def test_a_silent_part_holds_up_no_fetch_and_no_reader(
    shipped: Stack, manager: str, method: str, offset: int, door: str
) -> None:
    hang = Hang()
    rlm = troubled(shipped, manager, method, hang, ONE_READER)
    with opened(door, rlm) as asked:
        try:
            answer = fetched(asked, offset)
            assert (answer.error, answer.records) == (0, b"")
            # The only slot is free while the call still hangs.
            assert rlm.tier_calls.queue.idle_ratio == 1
            assert eventually(lambda: fetched(asked, offset, HEALTHY).records)
        finally:
            hang.let_go()
        assert eventually(lambda: fetched(asked, offset).records)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("manager", "method", "offset"), TROUBLED)
def test_one_transient_failure_is_not_seen_by_the_reader(
    shipped: Stack, manager: str, method: str, offset: int, door: str
) -> None:
    once = FailingOnce(RetriableRemoteStorageError("503: slow down"))
    rlm = troubled(shipped, manager, method, once, PATIENT)
    with opened(door, rlm) as asked:
        answer = fetched(asked, offset)
    assert (answer.error, answer.records[:4]) == (0, batch(offset, 5)[:4])
    assert len(once.calls) > 1


@pytest.mark.parametrize(("manager", "method", "offset"), TROUBLED[:3])
def test_a_wait_for_records_ends_in_spite_of_a_silent_part(
    shipped: Stack, manager: str, method: str, offset: int
) -> None:
    hang = Hang()
    rlm = troubled(shipped, manager, method, hang, ONE_READER)
    wanted = FetchPartition(SICK, offset, EVERYTHING)
    request = FetchRequest((wanted,), EVERYTHING, COMMITTED, max_wait_ms=60_000, min_bytes=1)
    try:
        with ThreadPoolExecutor(1) as pool:
            (part,) = pool.submit(lambda: list(rlm.fetch(request))).result(timeout=GIVE_UP_S / 2)
    finally:
        hang.let_go()
    assert part.record_batches == b""
    assert part.throttle_time_ms > 0


def test_a_read_goes_on_without_the_next_segment_while_rlmm_is_silent(shipped: Stack) -> None:
    """The second segment of one fetch needs a look-up; what was read before it is returned."""
    hang = Hang()
    rlm = troubled(shipped, "rlmm", "remote_log_segment_metadata", hang, ONE_READER)
    try:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(lambda: eventually(lambda: read(rlm, 0)))
            assert answer.result(timeout=GIVE_UP_S / 2) == batch(0, 5) + batch(5, 5)
    finally:
        hang.let_go()


def test_what_is_known_is_read_while_rlmm_is_silent(shipped: Stack) -> None:
    hang = Hang()
    is_silent = False

    def trouble() -> None:
        if is_silent:
            hang()

    limits = RlmLimits(read=replace(ONE_READER.read, recent_s=0.0))
    rlm = troubled(shipped, "rlmm", "list_remote_log_segments", trouble, limits)
    assert read(rlm, 5)
    is_silent = True
    try:
        with ThreadPoolExecutor(1) as pool:
            (part,) = pool.submit(fetch, rlm, 5, max_bytes=1).result(timeout=GIVE_UP_S / 2)
    finally:
        hang.let_go()
    assert part.record_batches == batch(5, 5)
    assert part.metadata_age_ms is not None


@pytest.mark.deep
def test_a_search_for_aborted_transactions_over_many_epochs_ends(stack: Stack) -> None:
    """It asks RLMM for each leader epoch, which takes longer than a fetch may wait.

    They are more than RLM stores of a listing, which answers these searches otherwise.
    """
    epochs = 300
    files = PartitionFiles(stack.log_dir)
    files.epochs(*((epoch, epoch) for epoch in range(epochs)))
    files.segment(0, [batch(offset, leader_epoch=offset) for offset in range(epochs)])
    files.snapshot(epochs)
    files.segment(epochs, [batch(epochs, leader_epoch=epochs - 1)])
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    asked: list[None] = []

    def be_slow() -> None:
        asked.append(None)
        Event().wait(0.005)

    rlmm: Any = TroubledPartition(
        stack.rlmm, NAME, frozenset({"next_segment_with_txn_index"}), be_slow
    )
    limits = RlmLimits(read=ReadLimits(wait_s=0.4))
    rlm = stack.rlm(rlmm=rlmm, limits=limits)
    first = eventually(lambda: fetch(rlm, 0, isolation=COMMITTED)[0].record_batches)
    assert first.startswith(batch(0))
    assert len(asked) >= epochs


IN_LIST_OFFSETS = [
    pytest.param("rlmm", "list_remote_log_segments", id="segments in RLMM"),
    pytest.param("rsm", "fetch_index", id="index"),
    pytest.param("rsm", "fetch_log_segment", id="records"),
]

FOUND = FetchError.CORRUPT_MESSAGE
"""A search by time decodes the records that it found, and those of these logs are opaque bytes."""


def listed(rlm: BrokerRemoteLogManager, name: TopicIdPartition = SICK) -> OffsetAnswer:
    """Find the first record; fail if the answer takes as long as a call that hangs."""
    queries = OffsetQueries((OffsetQuery(name, 0),), COMMITTED)
    with ThreadPoolExecutor(1) as pool:
        (answer,) = pool.submit(rlm.list_offsets, queries).result(timeout=GIVE_UP_S / 2)
    return answer


def slow() -> None:
    Event().wait(0.5)


@pytest.mark.parametrize(("manager", "method"), IN_LIST_OFFSETS)
def test_list_offsets_waits_for_a_slow_part(shipped: Stack, manager: str, method: str) -> None:
    """It may take the time of its request, not only that of a fetch."""
    limits = RlmLimits(read=ReadLimits(wait_s=0.1, list_offsets_timeout_s=GIVE_UP_S))
    rlm = troubled(shipped, manager, method, slow, limits)
    assert listed(rlm).error is FOUND


def counted(name: str) -> float:
    return REGISTRY.get_sample_value(f"sediment_rlm_{name}") or 0.0


def test_a_fetch_waits_as_long_as_its_request_says_and_what_expires_is_counted(
    shipped: Stack,
) -> None:
    rlm = troubled(shipped, "rsm", "fetch_log_segment", slow, HASTY)
    wanted = FetchPartition(SICK, 0, EVERYTHING)
    before = counted("expired_fetches_total"), counted("remote_read_seconds_count")
    (late,) = rlm.fetch(FetchRequest((wanted,), EVERYTHING))
    assert (late.record_batches, late.throttle_time_ms) == (b"", 1)
    assert counted("expired_fetches_total") == before[0] + 1
    rlm = troubled(shipped, "rsm", "fetch_log_segment", slow, HASTY)
    timeout_ms = int(GIVE_UP_S * 1000)
    parts = list(rlm.fetch(FetchRequest((wanted,), EVERYTHING, timeout_ms=timeout_ms)))
    assert b"".join(part.record_batches for part in parts)[:4] == batch(0, 5)[:4]
    assert counted("expired_fetches_total") == before[0] + 1
    assert counted("remote_read_seconds_count") > before[1]


@pytest.mark.parametrize(("manager", "method"), IN_LIST_OFFSETS)
def test_list_offsets_of_a_silent_part_times_out(shipped: Stack, manager: str, method: str) -> None:
    hang = Hang()
    limits = RlmLimits(read=ReadLimits(threads=1, list_offsets_timeout_s=0.5))
    rlm = troubled(shipped, manager, method, hang, limits)
    before = counted("expired_list_offsets_total")
    try:
        assert listed(rlm).error is FetchError.REQUEST_TIMED_OUT
        assert counted("expired_list_offsets_total") == before + 1
        assert rlm.tier_calls.queue.idle_ratio == 1
        assert eventually(lambda: listed(rlm, HEALTHY).error is FOUND)
    finally:
        hang.let_go()


def test_searches_of_a_silent_store_leave_slots_to_fetches(shipped: Stack) -> None:
    """However many of them there are, for as long as ListOffsets may take."""
    hang = Hang()
    read = ReadLimits(threads=2, wait_s=GIVE_UP_S / 2, list_offsets_timeout_s=GIVE_UP_S)
    limits = RlmLimits(read=read)
    rlm = troubled(shipped, "rlmm", "list_remote_log_segments", hang, limits)
    queries = OffsetQueries((OffsetQuery(SICK, 0),), COMMITTED)
    try:
        with ThreadPoolExecutor(4) as pool:
            try:
                asked = [pool.submit(rlm.list_offsets, queries) for _ in range(3)]
                asked_epochs = pool.submit(rlm.offsets_for_leader_epochs, (EpochQuery(SICK, 0),))
                eventually(lambda: rlm.tier_calls.queue.idle_ratio < 1)
                (part, *_) = fetch(rlm, 5, name=HEALTHY, max_bytes=1)
                assert (part.error, part.record_batches) == (FetchError.NONE, batch(5, 5))
                assert not any(each.done() for each in asked)
                assert not asked_epochs.done()
            finally:
                hang.let_go()
            assert [each.result()[0].error for each in asked] == [FOUND] * 3
            assert asked_epochs.result()[0].error is FetchError.NONE
    finally:
        hang.let_go()


@pytest.mark.deep
def test_searches_of_a_partition_with_late_calls_hold_up_no_others(shipped: Stack) -> None:
    """They are not begun, and take no place among those that are."""
    hang = Hang()
    limits = RlmLimits(read=ReadLimits(threads=2, wait_s=0.1, list_offsets_timeout_s=5.0))
    hanging: list[None] = []

    def hang_and_count() -> None:
        hanging.append(None)
        hang()

    rlm = troubled(shipped, "rsm", "fetch_index", hang_and_count, limits)
    sick = OffsetQueries((OffsetQuery(SICK, 0),), COMMITTED)
    healthy = OffsetQueries((OffsetQuery(HEALTHY, 0),), COMMITTED, timeout_ms=1_000)
    try:
        for offset in (5, 15):  # Of two segments: each has an index of its own.
            fetch_once(rlm, offset, SICK)
        eventually(lambda: len(hanging) == 2)
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(rlm.list_offsets, sick)
            asked_epochs = pool.submit(rlm.offsets_for_leader_epochs, (EpochQuery(SICK, 0),))

            def is_found_meanwhile() -> bool:
                (answer,) = rlm.list_offsets(healthy)
                return answer.error is FOUND and not asked.done() and not asked_epochs.done()

            for _ in range(3):
                assert eventually(is_found_meanwhile)
            assert asked.result()[0].error is FetchError.REQUEST_TIMED_OUT
            assert asked_epochs.result()[0].error is FetchError.REQUEST_TIMED_OUT
    finally:
        hang.let_go()


def test_an_epochs_end_for_which_no_turn_comes_times_out(shipped: Stack) -> None:
    hang = Hang()
    limits = RlmLimits(read=ReadLimits(threads=2, list_offsets_timeout_s=GIVE_UP_S))
    rlm = troubled(shipped, "rlmm", "list_remote_log_segments", hang, limits)
    by_time = OffsetQueries((OffsetQuery(SICK, 0),), COMMITTED)
    try:
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(rlm.list_offsets, by_time)
            eventually(lambda: rlm.tier_calls.queue.idle_ratio < 1)
            with serving(replace(IN_PROCESS, left_s=lambda: 0.2)):
                (answer,) = rlm.offsets_for_leader_epochs((EpochQuery(HEALTHY, 0),))
            assert answer.error is FetchError.REQUEST_TIMED_OUT
            assert not asked.done()
            hang.let_go()
    finally:
        hang.let_go()


def test_an_epochs_end_that_the_tier_does_not_tell_in_time_times_out(shipped: Stack) -> None:
    hang = Hang()
    limits = RlmLimits(read=ReadLimits(list_offsets_timeout_s=0.5))
    rlm = troubled(shipped, "rlmm", "list_remote_log_segments", hang, limits)
    queries = (EpochQuery(SICK, 0), EpochQuery(SICK, 1))
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(rlm.offsets_for_leader_epochs, queries)
            answers = asked.result(timeout=GIVE_UP_S / 2)
    finally:
        hang.let_go()
    assert [answer.error for answer in answers] == [FetchError.REQUEST_TIMED_OUT] * 2
