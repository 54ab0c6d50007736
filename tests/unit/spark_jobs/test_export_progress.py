"""Which offsets an export commits next."""

import pytest

from services.api.errors import InvalidRangeError
from services.api.ids import TopicIdPartition, random_uuid, uuid_to_text
from spark_jobs.export.progress import application_id, begin_of, ranges

TP = TopicIdPartition(random_uuid(), "orders", 3)


def test_the_position_of_a_partition_outlives_the_name_of_its_topic() -> None:
    again = TopicIdPartition(random_uuid(), "orders", 3)
    assert application_id(TP) == f"sediment-export:{uuid_to_text(TP.topic_id)}:3"
    assert application_id(again) != application_id(TP)


@pytest.mark.parametrize(("position", "first"), [(None, 7), (7, 7)])
def test_an_export_begins_at_its_position_or_at_the_tier_s_first_offset(
    position: int | None, first: int
) -> None:
    assert begin_of(position, first, skip_lost=False) == 7


def test_offsets_that_are_gone_are_named_unless_they_may_be_skipped() -> None:
    with pytest.raises(InvalidRangeError, match=r"offsets 5 to 8 .*--skip-lost"):
        begin_of(5, 9, skip_lost=False)
    assert begin_of(5, 9, skip_lost=True) == 9


@pytest.mark.parametrize(
    ("begin", "end", "wanted"),
    [
        (0, 0, []),
        (5, 4, []),
        (0, 10, [(0, 10)]),
        (3, 24, [(3, 13), (13, 23), (23, 24)]),
    ],
)
def test_each_commit_has_a_bounded_range(
    begin: int, end: int, wanted: list[tuple[int, int]]
) -> None:
    assert list(ranges(begin, end, 10)) == wanted
