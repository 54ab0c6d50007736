"""Test logs whose files are larger than they are: the broker preallocates (log.preallocate)."""

import os
from pathlib import Path

import pytest

from tests.harness.retained_log import AT_ONCE, hourly_log, take_turns
from tests.harness.ship_stack import Stack, bytes_of, description, read
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch

PREALLOCATED_BYTES = 8 * 1024 * 1024


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.files = hourly_log(stack.log_dir)
    return stack


def preallocate(path: Path) -> None:
    os.truncate(path, path.stat().st_size + PREALLOCATED_BYTES)


def bytes_from(files: PartitionFiles, *bases: int) -> int:
    return sum(files.file(base, ".log").stat().st_size for base in bases)


def test_retention_by_size_deletes_what_it_deletes_without(stack: Stack) -> None:
    limit_bytes = bytes_from(stack.files, 20, 30, 40, 50, 60)
    preallocate(stack.files.file(60, ".log"))
    rlm = stack.rlm(limits=AT_ONCE)
    take_turns(rlm)
    stack.rlmm.put_topic_config(NAME.topic_id, {"retention.bytes": str(limit_bytes)}, now=True)
    take_turns(rlm, rounds=3)
    assert stack.ranges() == [(20, 29), (30, 39), (40, 49), (50, 59)]
    assert description(rlm).log_start_offset == 20


def test_descriptions_reads_and_copies_are_as_without(stack: Stack) -> None:
    written = bytes_of(stack.files.path)
    sizes = [bytes_from(stack.files, base) for base in range(0, 60, 10)]
    rlm = stack.rlm()
    before = description(rlm)
    for base in (0, 30, 50, 60):
        preallocate(stack.files.file(base, ".log"))
    for found in (rlm, stack.rlm()):
        assert description(found) == before
        assert read(found, 0) == written
    assert before.local_size_bytes == len(written)
    take_turns(rlm)
    assert [segment.segment_size_in_bytes for segment in stack.segments()] == sizes
    assert description(rlm).problems == ()
    with stack.files.file(60, ".log").open("r+b") as active:
        active.seek(bytes_from(stack.files, 60) - PREALLOCATED_BYTES)
        active.write(batch(65, 5))
    assert read(rlm, 60) == written[-len(batch(60, 5)) :] + batch(65, 5)
    assert description(rlm).log_end_offset == 70
    assert stack.ranges(NAME)[-1] == (50, 59)
