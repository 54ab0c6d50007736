"""Kill RLMM at default settings: what RLM knows is read and marked, the rest is refused."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.offset_queries import OffsetQueries, OffsetQuery, SpecialTime
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    FetchRole,
    IsolationLevel,
)
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.eventually import eventually
from tests.harness.ship_stack import EVERYTHING, fetch, lose_rolled_segments
from tests.harness.world import World
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch

pytestmark = pytest.mark.deep

AWAY = FetchError.TIERED_STORAGE_NOT_AVAILABLE
OLD_MS = 1000
DUE_IN_MS = 10_000
INTERVAL_MS = 500
Rlm = RemoteLogManagerClient


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def world(deployment: World, log_dir: Path) -> World:
    """Offsets 0 to 9, which are old, and 10 to 19 in the tier only; 20 to 24 on the disk."""
    files = PartitionFiles(log_dir)
    for base, timestamp_ms in ((0, OLD_MS), (10, now_ms())):
        batches = [batch(at, 5, timestamp_ms=timestamp_ms) for at in (base, base + 5)]
        files.segment(base, batches)
        files.snapshot(base + 10)
    files.segment(20, [batch(20, 5)])
    deployment.log_dir = log_dir
    deployment.ship()
    lose_rolled_segments(log_dir)
    return deployment


@pytest.fixture
def rlm(world: World, tmp_path: Path) -> Iterator[Rlm]:
    settings = rlm_settings(world.rsm.address, world.rlmm.address, [world.log_dir], INTERVAL_MS)
    process = ServiceProcess("rlm", settings, tmp_path / "rlm")
    process.start()
    try:
        with open_channel(process.address, PLAINTEXT) as channel:
            yield RemoteLogManagerClient(channel, process.address)
    finally:
        process.kill()


def first_part(rlm: Rlm, offset: int) -> FetchPart:
    return fetch(rlm, offset, max_bytes=1)[0]


def as_replica(rlm: Rlm, offset: int) -> FetchPart:
    wanted = (FetchPartition(NAME, offset, EVERYTHING),)
    return next(rlm.fetch(FetchRequest(wanted, EVERYTHING, role=FetchRole.FOLLOWER)))


def is_marked(rlm: Rlm, offset: int) -> bool:
    """Read an offset of a known segment; return whether the answer is marked as stale."""
    part = first_part(rlm, offset)
    assert (part.error, part.record_batches[:8]) == (FetchError.NONE, offset.to_bytes(8))
    return part.metadata_age_ms is not None


def is_refused(part: FetchPart) -> bool:
    """Return whether there are no records, and the reader is asked to fetch again."""
    is_late = part.error is FetchError.NONE and part.throttle_time_ms > 0
    return not part.record_batches and (part.error is AWAY or is_late)


def test_reads_while_rlmm_is_away_and_after_it_is_back(world: World, rlm: Rlm) -> None:
    assert not is_marked(rlm, 0)
    assert not is_marked(rlm, 10)
    due_ms = now_ms() + DUE_IN_MS
    world.set_retention({"retention.ms": str(due_ms - OLD_MS)})
    world.rlmm.kill()
    stored = sorted(world.object_keys())
    assert now_ms() < due_ms, "the machine was too slow to kill RLMM in time"

    eventually(lambda: is_marked(rlm, 0))
    for offset in (5, 10, 15):
        assert is_marked(rlm, offset)
    assert is_refused(fetch(rlm, 5, isolation=IsolationLevel.READ_COMMITTED)[0])
    earliest = OffsetQueries((OffsetQuery(NAME, SpecialTime.EARLIEST),))
    assert [found.error for found in rlm.list_offsets(earliest)] == [AWAY]
    assert is_refused(as_replica(rlm, 5))
    assert as_replica(rlm, 20).record_batches == batch(20, 5)
    assert first_part(rlm, 20).record_batches == batch(20, 5)

    eventually(lambda: now_ms() > due_ms + 2 * INTERVAL_MS, 2 * DUE_IN_MS)
    assert sorted(world.object_keys()) == stored

    world.rlmm.start()
    eventually(lambda: not is_marked(rlm, 10))
    # It was due all the time.
    eventually(lambda: first_part(rlm, 5).error is FetchError.OFFSET_OUT_OF_RANGE, 60_000)
    eventually(lambda: len(world.object_keys()) < len(stored), 60_000)
    assert not is_marked(rlm, 15)
