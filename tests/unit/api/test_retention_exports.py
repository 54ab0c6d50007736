"""Test that retention stops at the first segment that an export has yet to read."""

from dataclasses import replace

import pytest

from services.api.partitions import PartitionState
from services.api.retention import RetentionPlan, plan_retention
from services.api.retention_explained import RetentionCase, Standing, explain_segment
from services.api.segments import ExportPosition, export_that_keeps
from services.api.topic_config import TopicConfig
from tests.unit.api.retention_partition import NOW_MS, SIZE, lineage, partition, segment

HOUR_MS = 3_600_000
UNTIL_MS = NOW_MS + HOUR_MS
LAKE = ExportPosition("lake", 250, UNTIL_MS)
SEGMENTS = [segment(start, start + 99, age_ms=2 * HOUR_MS) for start in range(0, 500, 100)]
STATE = partition(lineage((0, 0)), 501)
BY_TIME = TopicConfig(retention_ms=HOUR_MS)
BY_SIZE = TopicConfig(retention_bytes=SIZE)


def kept(*exports: ExportPosition, log_start_offset: int = 0) -> PartitionState:
    return replace(STATE, export_positions=exports, log_start_offset=log_start_offset)


def plan(state: PartitionState, config: TopicConfig, now_ms: int = NOW_MS) -> RetentionPlan:
    return plan_retention(SEGMENTS, state, config, now_ms=now_ms)


def starts(planned: RetentionPlan) -> list[int]:
    return [deletion.segment.start_offset for deletion in planned.deletions]


@pytest.mark.parametrize("config", [BY_TIME, BY_SIZE], ids=["time", "size"])
def test_what_is_exported_goes_and_the_note_names_the_export(config: TopicConfig) -> None:
    planned = plan(kept(LAKE), config)
    assert starts(planned) == [0, 100]
    assert planned.log_start_offset == 200
    assert planned.stopped_at == SEGMENTS[2]
    assert planned.kept_for == LAKE
    [note] = planned.notes
    assert note.startswith("stopped at a segment that is due: 200-")
    assert note.endswith("; export lake keeps offsets from 250 on until 2023-11-14T23:13:20+00:00")


@pytest.mark.parametrize(("next_offset", "wanted"), [(199, [0]), (200, [0, 100])])
def test_a_segment_goes_if_it_ends_below_the_position(next_offset: int, wanted: list[int]) -> None:
    assert starts(plan(kept(replace(LAKE, next_offset=next_offset)), BY_TIME)) == wanted


def test_the_lowest_position_counts_and_none_whose_lease_is_over() -> None:
    further = ExportPosition("further", 450, UNTIL_MS + 1)
    over = ExportPosition("over", 0, NOW_MS)
    assert starts(plan(kept(further, LAKE, over), BY_TIME)) == [0, 100]
    assert starts(plan(kept(further, LAKE), BY_TIME, now_ms=UNTIL_MS)) == [0, 100, 200, 300]
    assert starts(plan(kept(LAKE), BY_TIME, now_ms=UNTIL_MS)) == [0, 100, 200, 300, 400]


def test_what_is_below_the_log_start_goes_whatever_was_exported() -> None:
    planned = plan(kept(replace(LAKE, next_offset=0), log_start_offset=200), BY_TIME)
    assert starts(planned) == [0, 100]
    assert planned.log_start_offset is None


def test_a_segment_that_is_not_due_is_not_said_to_be_kept() -> None:
    planned = plan(kept(LAKE), TopicConfig(retention_ms=10 * HOUR_MS))
    assert (planned.deletions, planned.notes, planned.kept_for) == ((), (), None)


def test_of_several_exports_that_keep_a_segment_the_last_to_let_go_is_named() -> None:
    longer = ExportPosition("longer", 260, UNTIL_MS + 1)
    assert export_that_keeps([longer, LAKE], 299, 0) == longer
    assert export_that_keeps([longer, LAKE], 255, 0) == LAKE
    assert export_that_keeps([longer, LAKE], 249, 0) is None
    assert export_that_keeps([longer, LAKE], 299, 300) is None


def test_an_explanation_has_the_time_at_which_the_lease_ends() -> None:
    case = RetentionCase(SEGMENTS, kept(LAKE), BY_TIME, NOW_MS)
    explained = explain_segment(case, SEGMENTS[3])
    assert explained.standing is Standing.LATER
    assert explained.due is not None
    assert explained.due.at_ms == UNTIL_MS
    assert explained.waits_for == SEGMENTS[2]
