"""Test which finished segments are superseded by another one of the lineage."""

from dataclasses import replace

from services.api.ids import RemoteLogSegmentId, is_tail_uuid, random_uuid, tail_uuid
from services.api.lineage import Lineage, SegmentLineage
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.api.superseded import is_tail, superseded
from tests.unit.rlm.kafka_bytes import NAME

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
LINEAGE = SegmentLineage(Lineage(segment_leader_epochs([(0, 0), (2, 100), (5, 200)])), 300)


def segment(
    start: int, end: int, *epochs: tuple[int, int], tail: bool = False, at_ms: int = 0
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(NAME, tail_uuid() if tail else random_uuid()),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=at_ms,
        segment_leader_epochs=segment_leader_epochs(epochs or [(0, start)]),
        segment_size_in_bytes=1,
        state=FINISHED,
    )


def found(
    *segments: RemoteLogSegmentMetadata, lineage: SegmentLineage = LINEAGE
) -> list[RemoteLogSegmentMetadata]:
    """Return what is superseded, with every order of equal start offsets."""
    ordered = sorted(segments, key=lambda s: s.start_offset)
    one = [worse for worse, _ in superseded(ordered, lineage)]
    ordered.sort(key=lambda s: (s.start_offset, -segments.index(s)))
    other = [worse for worse, _ in superseded(ordered, lineage)]
    assert sorted(map(id, one)) == sorted(map(id, other))
    return sorted(one, key=lambda s: (s.start_offset, s.end_offset))


def test_what_another_one_contains_is_superseded() -> None:
    tails = [segment(0, 9), segment(10, 14), segment(15, 19)]
    assert found(*tails, segment(0, 19)) == tails
    assert found(*tails) == []


def test_what_overlaps_in_part_stays() -> None:
    assert found(segment(0, 9), segment(5, 14), segment(14, 20)) == []


def test_of_nested_ones_the_longest_stays() -> None:
    inner, middle = segment(3, 4), segment(3, 9)
    assert found(inner, middle, segment(0, 19)) == [inner, middle]


def test_equal_offsets_of_another_epoch_are_other_records() -> None:
    assert found(segment(100, 109, (0, 100)), segment(100, 109, (2, 100))) == []
    part = segment(95, 99)
    assert found(part, segment(90, 109, (0, 90), (2, 100))) == [part]
    assert found(segment(100, 109, (1, 100)), segment(90, 109, (0, 90), (2, 100))) == []


def test_one_that_is_not_of_the_lineage_supersedes_nothing() -> None:
    beyond_its_epoch = segment(90, 120, (0, 90))
    assert found(segment(90, 99), beyond_its_epoch) == []
    beyond_the_log = segment(200, 300, (5, 200))
    assert found(segment(200, 209, (5, 200)), beyond_the_log) == []


def test_only_finished_ones_count() -> None:
    deleting = replace(segment(0, 19), state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    copying = replace(segment(0, 19), state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
    assert found(segment(0, 9), deleting, copying) == []


def test_of_equal_ones_exactly_one_stays() -> None:
    tail, older, newer = (
        segment(0, 9, tail=True, at_ms=3),
        segment(0, 9, at_ms=1),
        segment(0, 9, at_ms=2),
    )
    assert len(found(tail, older, newer)) == 2
    assert newer not in found(tail, older, newer)
    of_later_leader = replace(segment(0, 9), broker_leader_epoch=7)
    assert of_later_leader not in found(newer, of_later_leader)
    assert len(found(*(segment(0, 9) for _ in range(5)))) == 4


def test_the_id_shows_a_tail() -> None:
    assert is_tail(segment(0, 9, tail=True))
    assert not is_tail(segment(0, 9))
    assert not any(is_tail_uuid(random_uuid()) for _ in range(100))
    assert len({tail_uuid() for _ in range(100)}) == 100
