"""Test RLM's metrics of Kafka's names after successful and failed copies, deletions and reads.

RSM is on files, RLMM on PostgreSQL, without gRPC.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Semaphore
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError, ThrottledError
from services.api.ids import RemoteLogSegmentId
from services.api.remote_log_manager import FetchError
from services.api.segment_batches import imports_of
from services.rlm.collectors import PoolCollector, TopicCollector
from services.rlm.fetch.reads import ReadLimits
from services.rlm.kafka_log.partition_dir import SegmentVanishedError
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.metrics import OTHER_TOPICS
from tests.harness.callback_rlm import FOLLOWER, LEADER, REASSIGNED, callback_rlm, send_role, stop
from tests.harness.eventually import eventually
from tests.harness.published import growth
from tests.harness.retained_log import AT_ONCE, Changed, hourly_log, keep_hours, take_turns
from tests.harness.ship_stack import Stack, bytes_of, fetch, lose_rolled_segments, read
from tests.harness.troubles import (
    CutWhileCopied,
    FailingOnce,
    FailingRlmm,
    FailingRsm,
    Hanging,
    raising,
)
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments

pytestmark = pytest.mark.deep

AWAY = RetriableRemoteStorageError("away")
REFUSED = RemoteStorageError("no bucket")
OTHER = replace(NAME, topic="other", topic_id=UUID(int=77))
ROLLED = ((0, 9), (10, 19))
COPY = "sediment_rlm_remote_copy_"
DELETE = "sediment_rlm_remote_delete_"
FETCH = "sediment_rlm_remote_fetch_"


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    return three_segments(log_dir)


@pytest.fixture
def rsm(stack: Stack) -> FailingRsm:
    return FailingRsm(stack.rsm)


@pytest.fixture
def rlm(stack: Stack, files: PartitionFiles, rsm: FailingRsm) -> Any:
    """Provide an RLM that has copied nothing yet."""
    return stack.rlm(rsm=rsm, limits=AT_ONCE)


@pytest.fixture
def shipped(stack: Stack, rlm: BrokerRemoteLogManager) -> Any:
    """Provide an RLM whose rolled segments are only in the tier."""
    take_turns(rlm)
    assert stack.ranges() == list(ROLLED)
    lose_rolled_segments(stack.log_dir)
    return rlm


def counts(rlm: BrokerRemoteLogManager, prefix: str, topic: str = "t") -> dict[str, float]:
    """Return the counts with this prefix that are not 0, by the rest of their names."""
    return {
        name.removeprefix(prefix).removesuffix("_total"): value
        for name, labels, value in samples(rlm.topic_counts)
        if name.startswith(prefix) and labels == {"topic": topic} and value
    }


def samples(collector: Any) -> list[tuple[str, dict[str, str], float]]:
    registry = CollectorRegistry()
    registry.register(collector)
    return [(s.name, s.labels, s.value) for family in registry.collect() for s in family.samples]


def topics(rlm: BrokerRemoteLogManager) -> set[str]:
    return {labels["topic"] for _, labels, _ in samples(rlm.topic_counts)}


def size_bytes(*logs: Path) -> int:
    return sum(log.stat().st_size for log in logs)


def test_copies_that_work(rlm: BrokerRemoteLogManager, files: PartitionFiles) -> None:
    assert topics(rlm) == {"t", OTHER_TOPICS}
    assert counts(rlm, COPY) == {}
    grown = growth("sediment_rlm_copied_segments_total", "sediment_rlm_copied_bytes_total")
    take_turns(rlm, rounds=3)
    copied = size_bytes(files.file(0, ".log"), files.file(10, ".log"))
    assert counts(rlm, COPY) == {"requests": 2, "bytes": copied}
    assert grown() == [2, copied]
    assert counts(rlm, DELETE) == counts(rlm, FETCH) == {}


def test_copies_that_fail_for_good(rlm: BrokerRemoteLogManager, rsm: FailingRsm) -> None:
    rsm.before_copy = raising(REFUSED)
    take_turns(rlm, rounds=2)
    assert counts(rlm, COPY) == {"requests": 2, "errors": 2}
    assert counts(rlm, DELETE) == {"requests": 2}


@pytest.mark.parametrize(
    ("error", "requests", "failures"),
    [(AWAY, 3, 1), (SegmentVanishedError("gone"), 3, 1), (ThrottledError("no place"), 2, 0)],
)
def test_copies_that_fail_or_wait_for_now(
    rlm: BrokerRemoteLogManager, rsm: FailingRsm, error: Exception, requests: int, failures: int
) -> None:
    rsm.before_copy = FailingOnce(error)
    take_turns(rlm, rounds=2)
    found = counts(rlm, COPY)
    assert (found.pop("requests"), found.pop("retriable_errors", 0)) == (requests, failures)
    assert found.keys() == {"bytes"}


def test_copy_of_a_file_truncated_meanwhile_fails(stack: Stack) -> None:
    files = PartitionFiles(stack.log_dir)
    log = files.segment(0, [batch(0, payload=b"x" * 3_000_000)])
    files.snapshot(1)
    files.segment(1, [batch(1)])
    rlm = stack.rlm(rsm=CutWhileCopied(stack.rsm, log), limits=AT_ONCE)
    take_turns(rlm)
    assert counts(rlm, COPY) == {"requests": 1, "errors": 1}


def test_a_copy_that_was_to_stop_did_not_fail(stack: Stack) -> None:
    hanging = Semaphore(0)
    rsm = Hanging(stack.rsm, "copy_log_segment_data", hanging)
    three_segments(stack.log_dir)
    rlm = stack.rlm(rsm=rsm)
    rlm.lanes.copies.tick()
    assert hanging.acquire(timeout=30.0)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(rlm.stop, 0.1)
        eventually(rlm._cancelled.is_set)
        rsm.let_go()
        stopping.result(timeout=30.0)
    assert rlm.lanes.copies.wait_idle(30.0)
    assert counts(rlm, COPY) == {"requests": 1}


def test_deletions_that_work(stack: Stack) -> None:
    hourly_log(stack.log_dir)
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    sizes = [segment.segment_size_in_bytes for segment in stack.segments()]
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(2), now=True)
    grown = growth("sediment_rlm_deleted_segments_total", "sediment_rlm_deleted_bytes_total")
    take_turns(rlm, rounds=3)
    assert stack.ranges() == [(40, 49), (50, 59)]
    assert counts(rlm, DELETE) == {"requests": 4}
    assert grown() == [4, sum(sizes[:4])]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AWAY, {"requests": 8, "retriable_errors": 4}),
        (REFUSED, {"requests": 8, "errors": 4}),
    ],
)
@pytest.mark.parametrize("is_whole_batch", [True, False])
def test_deletions_that_fail_once(
    stack: Stack, error: RemoteStorageError, expected: dict[str, int], *, is_whole_batch: bool
) -> None:
    hourly_log(stack.log_dir)
    calls: list[int] = []

    def delete(metadatas: Any) -> Any:
        calls.append(len(metadatas))
        if len(calls) > 1:
            return stack.rsm.delete_log_segment_data_batch(metadatas)
        if is_whole_batch:
            raise error
        return [error] * len(metadatas)

    rsm = Changed(stack.rsm, delete_log_segment_data_batch=delete)
    rlm = stack.rlm(rsm=rsm, limits=AT_ONCE)
    take_turns(rlm)
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(2), now=True)
    take_turns(rlm, rounds=3)
    assert calls == [4, 4]
    assert counts(rlm, DELETE) == expected


def test_reads_of_the_tier_count_and_local_ones_do_not(
    stack: Stack, shipped: BrokerRemoteLogManager, files: PartitionFiles
) -> None:
    local = read(shipped, 20)
    assert counts(shipped, FETCH) == {}
    both = read(shipped, 0)
    assert isinstance(local, bytes)
    assert isinstance(both, bytes)
    assert counts(shipped, FETCH) == {"requests": 1, "bytes": len(both) - len(local)}
    fetch(shipped, 10, max_bytes=1)
    assert counts(shipped, FETCH)["requests"] == 2
    assert read(shipped, 99) is FetchError.OFFSET_OUT_OF_RANGE
    assert counts(shipped, FETCH).keys() == {"requests", "bytes"}


def test_a_lost_or_damaged_object_is_an_error_of_the_tier(
    stack: Stack, shipped: BrokerRemoteLogManager
) -> None:
    lost, damaged = map(stack.object_of, stack.segments())
    lost.unlink()
    content = bytearray(damaged.read_bytes())
    content[20] ^= 0xFF
    damaged.write_bytes(content)
    assert read(shipped, 0) is FetchError.UNKNOWN_SERVER_ERROR
    assert counts(shipped, FETCH) == {"requests": 1, "errors": 1}
    assert read(shipped, 10) is FetchError.CORRUPT_MESSAGE
    assert counts(shipped, FETCH) == {"requests": 2, "errors": 2}


@pytest.mark.parametrize("is_rsm", [True, False])
def test_a_service_that_is_away_is_an_error_of_the_tier(
    stack: Stack, shipped: BrokerRemoteLogManager, *, is_rsm: bool
) -> None:
    dead: Any = Changed(stack.rsm, fetch_log_segment=raising(AWAY), fetch_index=raising(AWAY))
    rlm = BrokerRemoteLogManager(
        [stack.log_dir],
        dead if is_rsm else stack.rsm,
        stack.rlmm if is_rsm else FailingRlmm(stack.rlmm),
    )
    assert read(rlm, 0) is FetchError.TIERED_STORAGE_NOT_AVAILABLE
    assert counts(rlm, FETCH) == {"requests": 1, "errors": 1}
    assert isinstance(read(rlm, 20), bytes)
    assert counts(rlm, FETCH) == {"requests": 1, "errors": 1}


def test_a_topic_has_counters_while_it_is_led(stack: Stack, files: PartitionFiles) -> None:
    three_segments(stack.log_dir, OTHER)
    rlm = callback_rlm(stack)
    assert topics(rlm) == {OTHER_TOPICS}
    send_role(rlm, LEADER, 3)
    send_role(rlm, FOLLOWER, 3, OTHER)
    take_turns(rlm)
    assert topics(rlm) == {"t", OTHER_TOPICS}
    assert counts(rlm, COPY)["requests"] == 2
    send_role(rlm, LEADER, 4, OTHER)
    assert topics(rlm) == {"t", "other", OTHER_TOPICS}
    assert stop(rlm, REASSIGNED, 5) is None
    assert topics(rlm) == {"other", OTHER_TOPICS}
    send_role(rlm, FOLLOWER, 5, OTHER)
    assert topics(rlm) == {OTHER_TOPICS}


def test_reads_of_topics_that_are_led_elsewhere_count_as_one(
    stack: Stack, shipped: BrokerRemoteLogManager
) -> None:
    reader = BrokerRemoteLogManager([], stack.rsm, stack.rlmm)
    found = read(reader, 0)
    assert isinstance(found, bytes)
    assert counts(reader, FETCH, OTHER_TOPICS) == {"requests": 1, "bytes": len(found)}
    assert topics(reader) == {OTHER_TOPICS}


def percents_of(rlm: BrokerRemoteLogManager) -> dict[str, float]:
    found = [s for s in samples(TopicCollector(rlm.led_partitions)) if s[0].endswith("_percent")]
    assert all(labels == {"topic": "t", "partition": "0"} for _, labels, _ in found)
    return {name.removeprefix("sediment_rlm_"): value for name, _, value in found}


def test_how_full_a_partition_is(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles
) -> None:
    def percents() -> dict[str, float]:
        return percents_of(rlm)

    take_turns(rlm, rounds=2)
    assert percents() == {}
    whole = len(bytes_of(files.path))
    limits = {"retention.bytes": str(2 * whole), "local.retention.bytes": str(whole + 1)}
    stack.rlmm.put_topic_config(NAME.topic_id, limits, now=True)
    take_turns(rlm)
    assert percents() == {"retention_size_percent": 50, "local_retention_size_percent": 99}
    lose_rolled_segments(files.path.parent)
    take_turns(rlm)
    local = size_bytes(files.file(20, ".log")) * 100 // (whole + 1)
    assert percents() == {"retention_size_percent": 50, "local_retention_size_percent": local}
    stack.rlmm.put_topic_config(NAME.topic_id, {"retention.bytes": str(whole)}, now=True)
    take_turns(rlm)
    local = size_bytes(files.file(20, ".log")) * 100 // whole
    assert percents() == {"retention_size_percent": 100, "local_retention_size_percent": local}
    stack.rlmm.put_topic_config(NAME.topic_id, {"local.retention.bytes": str(whole)}, now=True)
    take_turns(rlm)
    assert percents() == {"local_retention_size_percent": local}


def test_a_superseded_copy_is_deleted_and_fills_nothing(
    stack: Stack, rlm: BrokerRemoteLogManager, files: PartitionFiles
) -> None:
    take_turns(rlm)
    limit = {"retention.bytes": str(2 * len(bytes_of(files.path)))}
    stack.rlmm.put_topic_config(NAME.topic_id, limit, now=True)
    second = RemoteLogSegmentId(NAME, UUID(int=78))
    copied = replace(stack.segments()[0], remote_log_segment_id=second)
    stack.rlmm.import_remote_log_segments(imports_of([copied]))
    take_turns(rlm, rounds=2)
    assert len(stack.segments()) == 2
    assert percents_of(rlm)["retention_size_percent"] == 50


def test_how_long_listing_for_sizes_takes(rlm: BrokerRemoteLogManager) -> None:
    def listing_s() -> float:
        found = samples(TopicCollector(rlm.led_partitions))
        (value,) = (v for name, _, v in found if name.endswith("size_computation_seconds"))
        return value

    assert listing_s() == 0
    take_turns(rlm)
    assert 0 < listing_s() < 30


def test_how_busy_the_pools_are(stack: Stack, files: PartitionFiles) -> None:
    with held(stack, "copy_log_segment_data") as (rsm, hanging):
        rlm = stack.rlm(rsm=rsm, limits=replace(AT_ONCE, copier_threads=4))
        assert set(pools(rlm).values()) == {1}
        rlm.lanes.copies.tick()
        assert hanging.acquire(timeout=30.0)
        found = pools(rlm)
        assert (found.pop("copier"), set(found.values())) == (0.75, {1})
        assert {"expiration", "follower", "remover"} < found.keys()
    assert rlm.lanes.copies.wait_idle(30.0)
    assert set(pools(rlm).values()) == {1}


def test_how_busy_the_readers_of_the_tier_are(
    stack: Stack, shipped: BrokerRemoteLogManager
) -> None:
    read_limits = ReadLimits(threads=2, wait_s=60.0)
    with held(stack, "fetch_log_segment") as (rsm, hanging), ThreadPoolExecutor(3) as pool:
        rlm = stack.rlm(rsm=rsm, limits=replace(AT_ONCE, read=read_limits))
        assert readers(rlm) == (1, 0)
        first = pool.submit(read, rlm, 0)
        assert hanging.acquire(timeout=30.0)
        assert readers(rlm) == (0.5, 0)
        others = [pool.submit(read, rlm, 0) for _ in range(2)]
        eventually(lambda: readers(rlm) == (0, 1))
        rsm.let_go()
        for each in (first, *others):
            assert isinstance(each.result(timeout=30.0), bytes)
    assert readers(rlm) == (1, 0)


@contextmanager
def held(stack: Stack, method: str) -> Iterator[tuple[Hanging, Semaphore]]:
    """Provide an RSM that hangs in a method until the block ends."""
    hanging = Semaphore(0)
    rsm = Hanging(stack.rsm, method, hanging)
    try:
        yield rsm, hanging
    finally:
        rsm.let_go()


def pools(rlm: BrokerRemoteLogManager) -> dict[str, float]:
    found = samples(PoolCollector(rlm.scheduler.lanes, rlm.tier_calls.queue))
    return {
        labels["pool"]: value
        for name, labels, value in found
        if name == "sediment_rlm_tasks_idle_ratio"
    }


def readers(rlm: BrokerRemoteLogManager) -> tuple[float, float]:
    """Return the readers' idle ratio, and the number of waiting reads."""
    found = samples(PoolCollector(rlm.scheduler.lanes, rlm.tier_calls.queue))
    values = {name: value for name, labels, value in found if not labels}
    prefix = "sediment_rlm_remote_log_reader_"
    return values[f"{prefix}idle_ratio"], values[f"{prefix}task_queue_size"]
