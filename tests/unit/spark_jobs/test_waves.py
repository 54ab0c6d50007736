"""Test how a plan is split into waves, and what may stop the next one."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.options import SweepOptions
from spark_jobs.sweeps.budget import Permission, over_budget, topics_over_budget
from spark_jobs.sweeps.planning import NO_OWNER
from spark_jobs.sweeps.waves import Head, Wave, skipped_head, waves_of

A, B = (str(UUID(int=number)) for number in (1, 2))


def head(topic_id: str, partition: int, segments: int, *, tier: int = 0, resumed: int = 0) -> Head:
    new = segments - resumed
    key = (f"t{topic_id[-1]}", topic_id, partition)
    return Head(key, None, (), None, segments, segments * 10, new, new * 10, tier, tier * 10)


@given(
    sizes=st.lists(st.integers(0, 30), max_size=20),
    refused=st.sets(st.integers(0, 19)),
    limit=st.integers(1, 25),
)
def test_waves_have_each_segment_once_in_order_and_never_too_many(
    sizes: list[int], refused: set[int], limit: int
) -> None:
    heads = [head(A, number, size) for number, size in enumerate(sizes)]

    def refusal_of(each: Head) -> str | None:
        return "no" if each.key[2] in refused else None

    found: list[tuple[int, int]] = []
    last = -1
    for wave in waves_of(heads, refusal_of, limit):
        first, end = wave.first[2], wave.last[2]
        assert first >= last
        last = end
        assert wave.segments <= limit
        inside = [each for each in heads[first : end + 1] if each.has_work]
        assert {refusal_of(each) for each in inside} == {wave.refusal}
        if wave.positions is None:
            assert wave.segments == sum(each.planned_segments for each in inside)
            found += [(each.key[2], p) for each in inside for p in range(each.planned_segments)]
        else:
            found += [(first, position) for position in wave.positions]
            assert wave.is_end == (wave.positions.stop == sizes[first])
    assert found == [(n, p) for n, size in enumerate(sizes) for p in range(size)]


def test_partitions_without_work_begin_no_wave() -> None:
    empty = skipped_head(("a", A, 0), "paused")
    assert list(waves_of([empty, head(A, 1, 0)], lambda _: None, 10)) == []
    removed = Head(("a", A, 2), None, (), None, 0, 0, 0, 0, 0, 0, is_removed=True)
    [wave] = waves_of([empty, removed], lambda _: None, 10)
    assert wave == Wave(removed.key, removed.key, 0)


def test_settings_stop_the_waves_that_have_not_begun() -> None:
    why: list[str | None] = [None]
    permission = Permission(lambda _: why[0], {})
    heads = [head(A, number, 5) for number in range(3)]
    refusals = []
    for wave in waves_of(heads, permission.refusal_of, 5):
        refusals.append(wave.refusal)
        permission.next_wave()
        why[0] = NO_OWNER
    assert refusals == [None, NO_OWNER, NO_OWNER]


def test_what_an_earlier_run_has_marked_is_finished_whatever_the_settings_are() -> None:
    permission = Permission(lambda _: NO_OWNER, {})
    marked = Head(("t", A, 0), NO_OWNER, (), None, 5, 50, 0, 0, 5, 50)
    assert permission.refusal_of(marked) is None
    assert permission.refusal_of(head(A, 1, 5)) == NO_OWNER


def test_a_budget_counts_what_no_earlier_run_has_marked() -> None:
    heads = [head(A, 0, 6, resumed=2), head(A, 1, 7)]
    assert over_budget(heads, options(max_segments=11)) is None
    assert "names 11 new segments" in str(over_budget(heads, options(max_segments=10)))
    assert over_budget(heads, options(max_segments=11, max_bytes=110)) is None
    assert "110 bytes" in str(over_budget(heads, options(max_segments=11, max_bytes=109)))


@pytest.mark.parametrize(("percent", "refused"), [(50.0, set()), (49.9, {A}), (None, set())])
def test_a_topic_may_lose_a_share_of_its_segments(percent: float | None, refused: set[str]) -> None:
    heads = [head(A, 0, 4, tier=6), head(A, 1, 1, tier=4), head(B, 0, 1, tier=10)]
    assert set(topics_over_budget(heads, percent, {})) == refused


def test_a_share_is_of_all_partitions_of_a_topic() -> None:
    heads = [head(A, 0, 4, tier=4), skipped_head(("t1", A, 1), "within its grace period")]
    uncounted = {("t1", A, 0): (9, 9), ("t1", A, 1): (2, 20), ("t1", A, 2): (2, 20)}
    assert not topics_over_budget(heads, 50.0, uncounted)
    assert "4 of the topic's 8 segments" in topics_over_budget(heads, 49.9, uncounted)[A]


def options(**more: int) -> SweepOptions:
    return SweepOptions("rsm:1", "rlmm:1", **more)  # type: ignore[arg-type]  # integers alone
