"""Test the properties of every plan, for any partition."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.api.holds import Hold, HoldKind
from services.api.lineage import Lineage
from services.api.partitions import PartitionState
from services.api.retention import DeletionReason, RetentionPlan, plan_retention
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from services.api.topic_config import TopicConfig, deletes_more
from tests.unit.api.any_partition import Partition, any_partitions, configs
from tests.unit.api.retention_partition import (
    DELETING,
    FINISHED,
    NOW_MS,
    partition,
    raised,
    segment,
    without,
)

BY_RETENTION = {DeletionReason.RETENTION_TIME, DeletionReason.RETENTION_SIZE}


@st.composite
def clean_partitions(draw: st.DrawFn) -> Partition:
    """Draw partitions copied without a gap, an overlap or an accident."""
    history = Lineage(segment_leader_epochs([(0, 0), (2, 25), (3, 60)]))
    segments, start = [], 0
    for records in draw(st.lists(st.integers(1, 20), max_size=8)):
        epochs = [(e.leader_epoch, e.start_offset) for e in history.between(start, start + records)]
        size, age_ms = draw(st.integers(0, 100)), draw(st.integers(0, 40))
        segments.append(segment(start, start + records - 1, epochs, size=size, age_ms=age_ms))
        start += records
    log_end, only_local_bytes = start + 10, draw(st.integers(0, 100))
    state = partition(history.before(log_end), log_end, only_local_bytes=only_local_bytes)
    return segments, state


def plan(
    segments: Sequence[RemoteLogSegmentMetadata], state: PartitionState, config: TopicConfig
) -> RetentionPlan:
    return plan_retention(segments, state, config, config, now_ms=NOW_MS)


@given(any_partitions(), configs)
def test_segments_expired_by_time_or_size_end_below_the_new_log_start(
    known: Partition, config: TopicConfig
) -> None:
    segments, state = known
    planned = plan(segments, state, config)
    log_start = planned.log_start_offset or state.log_start_offset
    by_retention = [d.segment for d in planned.deletions if d.reason in BY_RETENTION]
    assert all(expired.end_offset < log_start for expired in by_retention)


@given(any_partitions(), configs)
def test_log_start_only_rises_to_the_end_of_an_expired_segment(
    known: Partition, config: TopicConfig
) -> None:
    segments, state = known
    planned = plan(segments, state, config)
    after = {d.segment.end_offset + 1 for d in planned.deletions if d.reason in BY_RETENTION}
    assert planned.log_start_offset is None or (
        planned.log_start_offset > state.log_start_offset and planned.log_start_offset == max(after)
    )


@given(any_partitions(), configs)
def test_each_segment_goes_once(known: Partition, config: TopicConfig) -> None:
    segments, state = known
    ids = [d.segment.remote_log_segment_id for d in plan(segments, state, config).deletions]
    assert len(ids) == len(set(ids))


@given(st.data(), any_partitions(), configs)
def test_the_order_of_the_list_does_not_matter(
    data: st.DataObject, known: Partition, config: TopicConfig
) -> None:
    segments, state = known
    shuffled = data.draw(st.permutations(segments))
    assert plan(shuffled, state, config) == plan(segments, state, config)


@given(st.data(), any_partitions(), configs)
def test_segment_being_copied_is_never_deleted(
    data: st.DataObject, known: Partition, config: TopicConfig
) -> None:
    segments, state = known
    ids = [s.remote_log_segment_id.id for s in segments]
    copied = set(data.draw(st.lists(st.sampled_from(ids)))) if ids else set()
    planned = plan_retention(segments, state, config, config, being_copied=copied, now_ms=NOW_MS)
    assert copied.isdisjoint(d.segment.remote_log_segment_id.id for d in planned.deletions)


@given(any_partitions(), configs, configs)
def test_what_now_and_earlier_settings_both_want_goes_and_the_rest_waits(
    known: Partition, config: TopicConfig, earlier: TopicConfig
) -> None:
    segments, state = known
    planned = plan_retention(segments, state, config, earlier, now_ms=NOW_MS)
    now, before = plan(segments, state, config), plan(segments, state, earlier)
    wanted = {d.segment for d in before.deletions}
    assert planned.deletions == tuple(d for d in now.deletions if d.segment in wanted)
    assert planned.waiting == tuple(d for d in now.deletions if d.segment not in wanted)
    starts = [p.log_start_offset or state.log_start_offset for p in (now, before)]
    assert (planned.log_start_offset or state.log_start_offset) == min(starts)
    if not deletes_more(config, earlier):
        assert planned == now


@given(any_partitions(), configs)
def test_on_hold_nothing_new_goes(known: Partition, config: TopicConfig) -> None:
    segments, state = known
    hold = Hold("audit", HoldKind.OPERATOR, reason="test")
    planned = plan(segments, replace(state, holds=(hold,)), config)
    assert {d.segment for d in planned.deletions} == {s for s in segments if s.state is DELETING}
    assert planned.log_start_offset is None


@given(any_partitions(), configs)
def test_plan_after_plan_comes_to_an_end(known: Partition, config: TopicConfig) -> None:
    segments, state = known
    for _ in range(len(segments) + 1):
        planned = plan(segments, state, config)
        segments, state = without(segments, planned), raised(state, planned)
    assert plan(segments, state, config).deletions == ()


@given(clean_partitions(), configs)
def test_once_a_plan_is_carried_out_nothing_more_goes(
    known: Partition, config: TopicConfig
) -> None:
    segments, state = known
    planned = plan(segments, state, config)
    again = plan(without(segments, planned), raised(state, planned), config)
    assert again == RetentionPlan(())


@given(st.data(), clean_partitions(), configs)
def test_a_plan_that_was_carried_out_in_part_is_finished_and_no_more(
    data: st.DataObject, known: Partition, config: TopicConfig
) -> None:
    """The log start is raised; some segments are gone, some marked, some unchanged."""
    segments, state = known
    planned = plan(segments, state, config)
    fates = st.sampled_from([None, FINISHED, DELETING])
    fate_of = {d.segment: data.draw(fates) for d in planned.deletions}
    kept = without(segments, planned)
    left = [replace(s, state=fate) for s, fate in fate_of.items() if fate is not None]
    again = plan([*left, *kept], raised(state, planned), config)
    assert {d.segment for d in again.deletions} == set(left)
    assert again.log_start_offset is None


@given(any_partitions(), configs)
def test_no_more_is_counted_than_has_finished(known: Partition, config: TopicConfig) -> None:
    segments, state = known
    finished = sum(max(s.segment_size_in_bytes, 0) for s in segments if s.state is FINISHED)
    counted = plan(segments, state, config).counted_bytes
    assert counted is not None
    assert 0 <= counted <= finished


@given(clean_partitions(), configs)
def test_without_an_accident_all_is_counted(known: Partition, config: TopicConfig) -> None:
    segments, state = known
    sizes = sum(s.segment_size_in_bytes for s in segments)
    assert plan(segments, state, config).counted_bytes == sizes


@given(clean_partitions(), st.integers(0, 300))
def test_the_size_rule_takes_as_much_as_fits_and_never_more(
    known: Partition, retention_bytes: int
) -> None:
    segments, state = known
    assert state.report is not None
    planned = plan(segments, state, TopicConfig(retention_bytes=retention_bytes))
    kept = without(segments, planned)
    kept_bytes = state.report.only_local_bytes + sum(s.segment_size_in_bytes for s in kept)
    excess = kept_bytes - retention_bytes
    assert not planned.deletions or excess >= 0
    assert not kept or excess <= 0 or kept[0].segment_size_in_bytes > excess
