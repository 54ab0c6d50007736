"""Test tails of logs that Kafka wrote: together they are the segment, whatever their borders."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.remote_storage_manager import SegmentFile
from services.records.batches import FileWindow, walk_batches
from services.records.index_files import OffsetIndex, parse_aborted_txns, producer_entries
from services.rlm.copy.inspection import InspectedSegment, inspect
from services.rlm.copy.tails import Tail, TailAge, inspect_tail
from services.rlm.kafka_log.partition_dir import LocalSegment, list_segments, read_lineage
from services.rlm.kafka_log.transactions import ProducerReplay
from tests.harness.clocks import Clock
from tests.harness.ship_stack import BUNDLED

FOLDERS = sorted(path.parent for path in BUNDLED.rglob("leader-epoch-checkpoint"))
FOLDERS = [folder for folder in FOLDERS if len(list(folder.glob("*.log"))) > 1]


def borders(segment: LocalSegment) -> list[int]:
    """Return the offsets behind the batches of a segment."""
    with FileWindow(segment.log_path) as window:
        batches = walk_batches(window, 0, segment.size_bytes, segment.base_offset, verify=False)
        return [each.last_offset + 1 for each in batches]


def tails_of(folder: Path, segment: LocalSegment, ends: list[int]) -> Iterator[InspectedSegment]:
    """Inspect the tails that end below these offsets, as passes of one process."""
    producers, segments, lineage = ProducerReplay(), list_segments(folder), read_lineage(folder)
    start, log_start = segment.base_offset, lineage.entries[0].start_offset
    for end in ends:
        tail = inspect_tail(Tail(segment, start, end), segments, lineage, log_start, producers)
        assert tail is not None
        assert (tail.start_offset, tail.end_offset) == (start, end - 1)
        alone = ProducerReplay().snapshot_at(segments, lineage, end)
        assert tail.side_files[SegmentFile.PRODUCER_SNAPSHOT] == alone
        yield tail
        start = end


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_tails_of_a_segment_have_what_it_has(folder: Path) -> None:
    segments, lineage = list_segments(folder), read_lineage(folder)
    for segment in segments[:-1]:
        whole = inspect(segments, segment, lineage, lineage.entries[0].start_offset)
        every = [end for end in borders(segment) if end > lineage.entries[0].start_offset]
        some = random.Random(segment.base_offset).sample(every[:-1], min(5, len(every) - 1))
        tails = list(tails_of(folder, segment, sorted({*some, every[-1]})))
        log, at = segment.log_path.read_bytes(), 0
        for tail in tails:
            assert tail.first_position == at
            at += tail.size_bytes
            index = tail.side_files[SegmentFile.OFFSET]
            for offset, position in OffsetIndex(index, tail.start_offset, tail.size_bytes):
                base = int.from_bytes(log[tail.first_position + position :][:8], "big")
                assert tail.start_offset <= base <= offset <= tail.end_offset
        assert at == whole.size_bytes
        assert max(tail.max_timestamp_ms for tail in tails) == whole.max_timestamp_ms
        assert aborted(*tails) == aborted(whole)
        last, broker = (
            {each.producer_id: each for each in producer_entries(snapshot)}
            for snapshot in (
                tails[-1].side_files[SegmentFile.PRODUCER_SNAPSHOT],
                whole.side_files[SegmentFile.PRODUCER_SNAPSHOT],
            )
        )
        assert {id: last.get(id) for id in broker} == broker


def aborted(*segments: InspectedSegment) -> list[tuple[int, int, int]]:
    return [
        (each.producer_id, each.first_offset, each.last_offset)
        for segment in segments
        for each in parse_aborted_txns(segment.side_files.get(SegmentFile.TRANSACTION, b""))
    ]


def test_a_tail_is_as_old_as_the_time_since_it_was_first_seen() -> None:
    clock = Clock()
    age, segment = TailAge(clock), LocalSegment(Path(), 0, 100, None)
    tail = Tail(segment, 10, 20)
    assert not age.is_due(tail, 5_000)
    clock.now_s += 4.9
    assert not age.is_due(Tail(segment, 10, 90), 5_000)  # more records do not make it younger
    clock.now_s += 0.1
    assert age.is_due(tail, 5_000)
    assert not age.is_due(Tail(segment, 20, 30), 5_000)  # another one begins
    assert not age.is_due(None, 5_000)
    clock.now_s += 60
    assert not age.is_due(Tail(segment, 20, 30), 5_000)
    assert not age.is_due(tail, None)
