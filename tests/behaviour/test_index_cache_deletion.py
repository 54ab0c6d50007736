"""Test that segments which RLM deletes from the tier also leave its index cache, by every task."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.calls import MutationContext
from services.api.ids import RemoteLogSegmentId
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.rlm.fetch.index_files import IndexFileLimits
from services.rlm.fetch.reads import ReadLimits
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.scheduler import Lane
from tests.harness.retained_log import AT_ONCE, DEADLINE_S, hourly_log, keep_hours, take_turns
from tests.harness.ship_stack import Stack, lose_rolled_segments, read
from tests.unit.rlm.kafka_bytes import NAME


def turn(lane: Lane) -> None:
    lane.tick()
    assert lane.wait_idle(DEADLINE_S)


@pytest.fixture
def index_dir(tmp_path: Path) -> Path:
    return tmp_path / "indexes"


@pytest.fixture
def rlm(stack: Stack, index_dir: Path) -> Iterator[BrokerRemoteLogManager]:
    """Provide an RLM that has read the whole tier, which the disk has lost."""
    hourly_log(stack.log_dir)
    limits = replace(
        AT_ONCE,
        read=ReadLimits(index_files=IndexFileLimits(index_dir)),
        deletion_grace_ms=0,
    )
    limits = replace(limits, remover_interval_s=0.0)
    made = BrokerRemoteLogManager([stack.log_dir], stack.rsm, stack.rlmm, limits)
    turn(made.lanes.index_cache)
    take_turns(made)
    lose_rolled_segments(stack.log_dir)
    for segment in stack.segments():
        # The first offset of a segment needs no index.
        assert isinstance(read(made, segment.start_offset + 1), bytes)
    yield made
    made.stop(0.0)


def kept(index_dir: Path) -> set[str]:
    return {path.name for path in index_dir.iterdir()}


def names(ids: list[RemoteLogSegmentId]) -> set[str]:
    return {f"{each.id.hex}.offset" for each in ids}


def ids_of(stack: Stack, where: Callable[[int], bool]) -> list[RemoteLogSegmentId]:
    return [s.remote_log_segment_id for s in stack.segments() if where(s.start_offset)]


def test_retention_deletes_from_the_index_cache(
    stack: Stack, rlm: BrokerRemoteLogManager, index_dir: Path
) -> None:
    assert kept(index_dir) == names(ids_of(stack, lambda start: True))
    stack.rlmm.put_topic_config(NAME.topic_id, keep_hours(2), now=True)
    staying = ids_of(stack, lambda start: start >= 40)
    take_turns(rlm, rounds=2)
    assert kept(index_dir) == names(staying)


@pytest.mark.deep
def test_topic_removal_deletes_from_the_index_cache(
    stack: Stack, rlm: BrokerRemoteLogManager, index_dir: Path
) -> None:
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    event = RemotePartitionDeleteMetadata(NAME, marked, 1, -1)
    stack.rlmm.put_remote_partition_delete_metadata(event, MutationContext(reason="a test"))
    for _ in range(4):
        turn(rlm.lanes.removal)
    assert kept(index_dir) == set()
