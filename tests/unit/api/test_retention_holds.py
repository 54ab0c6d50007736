"""Test that retention stops at the first segment that a hold keeps, and which hold is named."""

from dataclasses import replace
from uuid import UUID

import pytest

from services.api.holds import Hold, HoldKind, Mark, keeping_hold
from services.api.partitions import PartitionState
from services.api.retention import RetentionPlan, plan_retention
from services.api.retention_explained import RetentionCase, Standing, explain_segment
from services.api.topic_config import TopicConfig
from tests.unit.api.retention_partition import NOW_MS, SIZE, lineage, partition, segment

HOUR_MS = 3_600_000
UNTIL_MS = NOW_MS + HOUR_MS
TOPIC_ID = UUID(int=1)


def export(name: str, first_offset: int, until_ms: int = UNTIL_MS) -> Hold:
    topic = TOPIC_ID, "orders", 0
    return Hold(name, HoldKind.EXPORT, *topic, first_offset, until_ms=until_ms)


def legal(first_offset: int, last_offset: int | None = None) -> Hold:
    return Hold("case", HoldKind.LEGAL, None, "", None, first_offset, last_offset, "case 7")


LAKE = export("lake", 250)
SEGMENTS = [segment(start, start + 99, age_ms=2 * HOUR_MS) for start in range(0, 500, 100)]
STATE = partition(lineage((0, 0)), 501)
BY_TIME = TopicConfig(retention_ms=HOUR_MS)
BY_SIZE = TopicConfig(retention_bytes=SIZE)


def kept(*holds: Hold, log_start_offset: int = 0) -> PartitionState:
    return replace(STATE, holds=holds, log_start_offset=log_start_offset)


def plan(state: PartitionState, config: TopicConfig, now_ms: int = NOW_MS) -> RetentionPlan:
    return plan_retention(SEGMENTS, state, config, config, now_ms=now_ms)


def starts(planned: RetentionPlan) -> list[int]:
    return [deletion.segment.start_offset for deletion in planned.deletions]


@pytest.mark.parametrize("config", [BY_TIME, BY_SIZE], ids=["time", "size"])
def test_what_is_exported_goes_and_the_note_names_the_export(config: TopicConfig) -> None:
    planned = plan(kept(LAKE), config)
    assert starts(planned) == [0, 100]
    assert planned.log_start_offset == 200
    assert planned.stopped_at == SEGMENTS[2]
    assert planned.retained_for == LAKE
    [note] = planned.notes
    assert note.startswith("stopped at a segment that is due: 200-")
    assert note.endswith(
        "; hold lake (export) keeps offsets from 250 on until 2023-11-14T23:13:20Z"
    )


@pytest.mark.parametrize(("first_offset", "wanted"), [(199, [0]), (200, [0, 100])])
def test_a_segment_goes_if_it_ends_below_the_position(first_offset: int, wanted: list[int]) -> None:
    assert starts(plan(kept(replace(LAKE, first_offset=first_offset)), BY_TIME)) == wanted


def test_the_lowest_position_counts_and_none_whose_lease_is_over() -> None:
    further = export("further", 450, UNTIL_MS + 1)
    over = export("over", 0, NOW_MS)
    assert starts(plan(kept(further, LAKE, over), BY_TIME)) == [0, 100]
    assert starts(plan(kept(further, LAKE), BY_TIME, now_ms=UNTIL_MS)) == [0, 100, 200, 300]
    assert starts(plan(kept(LAKE), BY_TIME, now_ms=UNTIL_MS)) == [0, 100, 200, 300, 400]


def test_what_is_below_the_log_start_goes_whatever_was_exported() -> None:
    planned = plan(kept(replace(LAKE, first_offset=0), log_start_offset=200), BY_TIME)
    assert starts(planned) == [0, 100]
    assert planned.log_start_offset is None


def test_a_segment_that_is_not_due_is_not_said_to_be_kept() -> None:
    planned = plan(kept(LAKE), TopicConfig(retention_ms=10 * HOUR_MS))
    assert (planned.deletions, planned.notes, planned.retained_for) == ((), (), None)


def test_of_several_holds_that_keep_a_segment_the_last_to_let_go_is_named() -> None:
    longer, mark = export("longer", 260, UNTIL_MS + 1), Mark.SEGMENT
    assert keeping_hold([longer, LAKE], mark, 200, 299) == longer
    assert keeping_hold([longer, LAKE], mark, 200, 255) == LAKE
    assert keeping_hold([longer, LAKE], mark, 200, 249) is None
    assert keeping_hold([longer, LAKE], mark, 200, 299, log_start_offset=300) is None
    assert keeping_hold([longer, legal(0, 210)], mark, 200, 299) == legal(0, 210)


def test_a_range_ends_the_scan_at_the_first_segment_with_one_of_its_offsets() -> None:
    planned = plan(kept(legal(199, 200)), BY_TIME)
    assert (starts(planned), planned.log_start_offset) == ([0], 100)
    assert (planned.stopped_at, planned.retained_for) == (SEGMENTS[1], legal(199, 200))
    assert starts(plan(kept(legal(500)), BY_TIME)) == [0, 100, 200, 300, 400]


def test_the_log_start_rises_over_no_held_offset_that_no_segment_has() -> None:
    segments = [SEGMENTS[0], SEGMENTS[2]]
    planned = plan_retention(segments, kept(legal(150, 160)), BY_TIME, BY_TIME, now_ms=NOW_MS)
    assert (starts(planned), planned.log_start_offset) == ([0], 100)
    assert planned.stopped_at == SEGMENTS[2]


def test_a_legal_hold_keeps_what_is_below_the_log_start_and_what_nothing_refers_to() -> None:
    planned = plan(kept(legal(100, 100), log_start_offset=300), BY_TIME)
    assert starts(planned) == [0]
    unreferenced = replace(kept(legal(0, 99), log_start_offset=200), lineage=lineage((3, 200)))
    assert starts(plan(unreferenced, TopicConfig())) == [100]


def test_an_explanation_has_the_time_at_which_the_lease_ends() -> None:
    case = RetentionCase(SEGMENTS, kept(LAKE), BY_TIME, NOW_MS)
    explained = explain_segment(case, SEGMENTS[3])
    assert explained.standing is Standing.LATER
    assert explained.due is not None
    assert explained.due.at_ms == UNTIL_MS
    assert explained.waits_for == SEGMENTS[2]
