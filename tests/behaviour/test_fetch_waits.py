"""Test that a fetch waits for min_bytes, and what ends the wait."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    RemoteLogManager,
)
from services.rlm.fetch.reads import ReadLimits
from services.rlm.manager import RlmLimits
from tests.harness.eventually import eventually
from tests.harness.ship_stack import EVERYTHING, Stack
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, high_watermarks, three_segments

LONG_MS = 60_000
SOON_S = 30.0


def wait_for(
    rlm: RemoteLogManager,
    offset: int,
    min_bytes: int,
    max_wait_ms: int = LONG_MS,
    name: TopicIdPartition = NAME,
) -> list[FetchPart]:
    wanted = (FetchPartition(name, offset, EVERYTHING),)
    request = FetchRequest(wanted, EVERYTHING, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
    return list(rlm.fetch(request))


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    return three_segments(log_dir)


def append(files: PartitionFiles, data: bytes) -> None:
    with files.file(20, ".log").open("ab") as file:
        file.write(data)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("offset", "min_bytes"), [(0, 2**31 - 1), (20, 1), (20, len(batch(20, 5)))]
)
def test_what_is_there_needs_no_wait(stack: Stack, offset: int, min_bytes: int) -> None:
    (part, *_) = wait_for(stack.rlm(), offset, min_bytes)
    assert part.record_batches


def test_new_records_of_the_log_end_the_wait(stack: Stack, files: PartitionFiles) -> None:
    rlm = stack.rlm()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(wait_for, rlm, 25, 2 * len(batch(25)))
        append(files, batch(25))
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.3)
        append(files, batch(26))
        (part,) = answer.result(timeout=SOON_S)
    assert part.record_batches == batch(25) + batch(26)


def test_a_higher_high_watermark_ends_the_wait(stack: Stack, files: PartitionFiles) -> None:
    here = (NAME.topic, NAME.partition)
    high_watermarks(stack.log_dir, {here: 20})
    rlm = stack.rlm()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(wait_for, rlm, 20, 1)
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.3)
        high_watermarks(stack.log_dir, {here: 25})
        (part,) = answer.result(timeout=SOON_S)
    assert part.record_batches == batch(20, 5)


def test_new_segments_of_the_tier_end_the_wait(stack: Stack, files: PartitionFiles) -> None:
    stack.ship()
    rlm = stack.tier_reader()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(wait_for, rlm, 20, 1)
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.3)
        files.snapshot(25)
        files.segment(25, [batch(25)])
        stack.ship()
        (part,) = answer.result(timeout=SOON_S)
    assert part.record_batches == batch(20, 5)


@pytest.mark.usefixtures("files")
def test_the_wait_ends_in_time_without_records(stack: Stack) -> None:
    began = time.monotonic()
    (part,) = wait_for(stack.rlm(), 25, 1, max_wait_ms=200)
    assert (part.error, part.record_batches) == (FetchError.NONE, b"")
    assert 0.2 <= time.monotonic() - began < SOON_S


@pytest.mark.usefixtures("files")
def test_an_error_is_answered_at_once(stack: Stack) -> None:
    rlm, began = stack.rlm(), time.monotonic()
    assert wait_for(rlm, 26, 1)[0].error is FetchError.OFFSET_OUT_OF_RANGE
    unknown = TopicIdPartition(NAME.topic_id, NAME.topic, 5)
    assert wait_for(rlm, 0, 1, name=unknown)[0].error is FetchError.UNKNOWN_TOPIC_ID
    assert time.monotonic() - began < SOON_S


@pytest.mark.usefixtures("files")
def test_beyond_the_limit_of_waiting_fetches_one_is_answered_at_once(stack: Stack) -> None:
    rlm = stack.rlm(limits=RlmLimits(read=ReadLimits(max_delayed_fetches=1)))
    with ThreadPoolExecutor(1) as pool:
        before = delayed_fetches()
        waiting: Future[list[FetchPart]] = pool.submit(wait_for, rlm, 25, 1)
        eventually(lambda: delayed_fetches() == before + 1)
        wait_for(rlm, 25, 1)
        assert not waiting.done()
        rlm.end_waits()
        (part,) = waiting.result(timeout=SOON_S)
    assert part.record_batches == b""


def delayed_fetches() -> float:
    return REGISTRY.get_sample_value("sediment_rlm_delayed_fetches") or 0.0


@pytest.mark.parametrize(("max_wait_ms", "min_bytes"), [(-1, 0), (60_001, 0), (0, -1)])
def test_waits_are_bounded(max_wait_ms: int, min_bytes: int) -> None:
    wanted = (FetchPartition(NAME, 0, 1),)
    with pytest.raises(InvalidRequestError, match=r"max_wait_ms|min_bytes"):
        FetchRequest(wanted, 1, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
