"""Test that retention counts no record twice: neither superseded segments nor tails."""

from dataclasses import replace

from services.api.ids import RemoteLogSegmentId, tail_uuid
from services.api.retention import DeletionReason, RetentionPlan, plan_retention
from services.api.segments import RemoteLogSegmentMetadata
from services.api.topic_config import TopicConfig
from tests.unit.api.retention_partition import NOW_MS, SIZE, lineage, partition, segment
from tests.unit.rlm.kafka_bytes import NAME

EPOCHS = [(0, 0)]
DAY = TopicConfig(retention_ms=24 * 60 * 60 * 1000)
OLD_MS = 2 * 24 * 60 * 60 * 1000


def tail(start: int, end: int, age_ms: int = 0) -> RemoteLogSegmentMetadata:
    id = RemoteLogSegmentId(NAME, tail_uuid())
    return replace(segment(start, end, [(0, start)], age_ms=age_ms), remote_log_segment_id=id)


def plan(config: TopicConfig, *segments: RemoteLogSegmentMetadata) -> RetentionPlan:
    state = partition(lineage((0, 0)), 1000, only_local_bytes=0)
    return plan_retention(segments, state, config, config, now_ms=NOW_MS)


def ranges(planned: RetentionPlan) -> list[tuple[int, int]]:
    return [(d.segment.start_offset, d.segment.end_offset) for d in planned.deletions]


def test_a_superseded_segment_raises_no_log_start_and_is_not_counted() -> None:
    whole = segment(0, 19, [(0, 0)])
    old = [tail(0, 4, age_ms=OLD_MS), tail(5, 9, age_ms=OLD_MS), segment(10, 14, [(0, 10)])]
    for config in (DAY, TopicConfig(retention_bytes=SIZE)):
        planned = plan(config, whole, *old)
        assert (ranges(planned), planned.log_start_offset) == ([], None)
    assert plan(TopicConfig(retention_bytes=1), whole, *old).counted_bytes == SIZE


def test_it_goes_with_the_one_that_has_its_records() -> None:
    whole, parts = segment(0, 19, [(0, 0)], age_ms=OLD_MS), [tail(0, 4), tail(5, 9)]
    planned = plan(DAY, *parts, whole, segment(20, 29, [(0, 20)]))
    assert ranges(planned) == [(0, 19), (0, 4), (5, 9)]
    assert planned.log_start_offset == 20
    assert [d.reason for d in planned.deletions[1:]] == [DeletionReason.LOG_START_OFFSET] * 2


def test_a_tail_is_not_counted_and_does_not_go_by_size() -> None:
    whole, last = segment(0, 19, [(0, 0)]), tail(20, 29)
    planned = plan(TopicConfig(retention_bytes=0), whole, last)
    assert ranges(planned) == [(0, 19)]
    assert planned.counted_bytes == SIZE


def test_a_tail_goes_by_time() -> None:
    planned = plan(DAY, tail(0, 9, age_ms=OLD_MS), tail(10, 14))
    assert (ranges(planned), planned.log_start_offset) == ([(0, 9)], 10)
