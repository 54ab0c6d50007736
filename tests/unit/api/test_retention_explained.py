"""Test that explanations match plan_retention, now, later and for a larger partition."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.api.holds import Hold, HoldKind
from services.api.partitions import PartitionState
from services.api.retention import DeletionReason
from services.api.retention_explained import (
    Due,
    RetentionCase,
    SegmentExplanation,
    Standing,
    explain_partition,
    explain_segment,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.api.topic_config import TopicConfig
from tests.unit.api.any_partition import any_partitions, configs
from tests.unit.api.retention_partition import (
    DELETING,
    NOW_MS,
    STARTED,
    lineage,
    partition,
    segment,
)

HISTORY = lineage((0, 0), (2, 20))
# A case asks for hundreds of plans, and the machine may be busy.
unhurried = settings(deadline=None)


@st.composite
def cases(draw: st.DrawFn) -> RetentionCase:
    """Draw cases, some with a hold, an active copy or an old report."""
    segments, state = draw(any_partitions())
    ids = [id_of(s) for s in segments]
    copied = draw(st.lists(st.sampled_from(ids), max_size=2)) if draw(rarely) and ids else []
    leased = id_of(draw(st.sampled_from(segments))) if draw(rarely) and segments else None
    return RetentionCase(
        segments=[replace(s, copy_leased=id_of(s) == leased) for s in segments],
        state=replace(
            state,
            report=None if draw(rarely) else state.report,
            holds=tuple(draw(st.lists(holds, max_size=2))) if draw(rarely) else (),
        ),
        config=draw(configs),
        now_ms=NOW_MS,
        being_copied=frozenset(copied),
        max_report_age_ms=-1 if draw(rarely) else 1,
        earlier=draw(configs) if draw(rarely) else None,
        waits_until_ms=NOW_MS + draw(st.integers(0, 30)),
    )


rarely = st.sampled_from([False, False, False, True])
holds = st.builds(
    Hold,
    name=st.just("audit"),
    kind=st.sampled_from([HoldKind.OPERATOR, HoldKind.LEGAL, HoldKind.EXPORT]),
    first_offset=st.sampled_from([0, 0, 5, 20]),
    last_offset=st.sampled_from([None, None, 20, 25]),
    until_ms=st.sampled_from([None, NOW_MS, NOW_MS + 20]),
)


def id_of(of: RemoteLogSegmentMetadata) -> UUID:
    return of.remote_log_segment_id.id


def planned(case: RetentionCase) -> dict[UUID, DeletionReason]:
    return {id_of(d.segment): d.reason for d in case.plan().deletions}


def larger(case: RetentionCase, more_bytes: int) -> RetentionCase:
    """Return the partition with `more_bytes` more that are only on the broker's disk."""
    report = case.state.report
    assert report is not None
    grown = replace(report, only_local_bytes=report.only_local_bytes + more_bytes)
    return replace(case, state=replace(case.state, report=grown))


def explained(case: RetentionCase) -> list[SegmentExplanation]:
    return [explain_segment(case, s) for s in case.segments]


def assert_due_from(case: RetentionCase, id: UUID, due: Due) -> None:
    assert planned(case.at(due.at_ms))[id] is due.deletion.reason
    assert due.at_ms == case.now_ms or id not in planned(case.at(due.at_ms - 1))


@unhurried
@given(cases())
def test_due_now_equals_the_deletions_of_the_plan_by_rule(case: RetentionCase) -> None:
    due = {
        id_of(e.segment): e.due.deletion.reason
        for e in explained(case)
        if e.standing is Standing.DUE and e.due is not None and e.due.at_ms == NOW_MS
    }
    assert due == planned(case)


@unhurried
@given(cases())
def test_segment_due_later_is_deleted_exactly_then(case: RetentionCase) -> None:
    for explanation in explained(case):
        if explanation.due is not None:
            assert_due_from(case, id_of(explanation.segment), explanation.due)


@unhurried
@given(cases())
def test_obstructed_segment_would_be_deleted_exactly_then(case: RetentionCase) -> None:
    for explanation in explained(case):
        if explanation.once_clear is not None:
            assert explanation.standing is Standing.OBSTRUCTED
            assert_due_from(case.unobstructed(), id_of(explanation.segment), explanation.once_clear)


@unhurried
@given(cases(), st.integers(0, 200))
def test_segment_never_due_is_never_deleted(case: RetentionCase, later_ms: int) -> None:
    never = {id_of(e.segment) for e in explained(case) if e.due is None}
    assert never.isdisjoint(planned(case.at(NOW_MS + later_ms)))


@unhurried
@given(cases())
def test_the_missing_bytes_are_the_fewest_that_delete_it(case: RetentionCase) -> None:
    clear = case.unobstructed()
    for explanation in explained(case):
        missing = explanation.bytes_missing
        if missing is not None:
            id = id_of(explanation.segment)
            assert id in planned(larger(clear, missing))
            assert id not in planned(larger(clear, missing - 1))


@unhurried
@given(cases())
def test_without_missing_bytes_no_growth_deletes_it(case: RetentionCase) -> None:
    clear = case.unobstructed()
    for explanation in explained(case):
        if explanation.bytes_missing is None and clear.is_judged:
            id = id_of(explanation.segment)
            assert (id in planned(clear)) == (id in planned(larger(clear, 10_000)))


@unhurried
@given(cases())
def test_explanation_names_the_segment_that_ends_the_scan_and_those_on_hold(
    case: RetentionCase,
) -> None:
    reported, unheld = explain_partition(case), case.without_holds().plan()
    assert reported.plan == case.plan()
    assert {*reported.plan.deletions, *reported.on_hold} == set(unheld.deletions)
    assert (reported.next and reported.next.segment) == unheld.stopped_at


# By hand


def case_of(
    *segments: RemoteLogSegmentMetadata, state: PartitionState | None = None, **settings: object
) -> RetentionCase:
    config = TopicConfig(**settings)  # type: ignore[arg-type]  # names and values of a test
    return RetentionCase(segments, state or partition(HISTORY, 50), config, NOW_MS)


OLD = segment(0, 9, age_ms=100)
YOUNG = segment(10, 19, age_ms=10)
MIDDLE = segment(20, 29, [(2, 20)], age_ms=50)


def test_a_segment_behind_a_younger_one_waits_for_it() -> None:
    reported = explain_segment(case_of(OLD, YOUNG, MIDDLE, retention_ms=60), MIDDLE)
    assert reported.standing is Standing.LATER
    # Its own records are too old 11 ms from now.
    assert reported.due is not None
    assert reported.due.at_ms == NOW_MS + 51
    assert reported.due.deletion.reason is DeletionReason.RETENTION_TIME
    assert reported.waits_for == YOUNG
    itself = explain_segment(case_of(OLD, YOUNG, MIDDLE, retention_ms=60), YOUNG)
    assert (itself.standing, itself.waits_for) == (Standing.LATER, None)


def test_copy_in_progress_obstructs_the_segments_behind_it() -> None:
    copied = replace(YOUNG, state=STARTED, copy_leased=True)
    reported = explain_segment(case_of(OLD, copied, MIDDLE, retention_ms=30), MIDDLE)
    assert (reported.standing, reported.due, reported.waits_for) == (
        Standing.OBSTRUCTED,
        None,
        copied,
    )
    assert reported.once_clear is not None
    assert reported.once_clear.at_ms == NOW_MS + 21


def test_hold_keeps_segments_that_would_be_due() -> None:
    state = replace(partition(HISTORY, 50), holds=(Hold("audit", HoldKind.OPERATOR),))
    reported = explain_partition(case_of(OLD, YOUNG, state=state, retention_ms=60))
    assert reported.plan.deletions == ()
    assert [d.segment for d in reported.on_hold] == [OLD]
    assert reported.next is not None
    assert (reported.next.segment, reported.next.standing) == (YOUNG, Standing.OBSTRUCTED)


def test_an_own_clean_up_waits_only_for_itself() -> None:
    cleaning = replace(YOUNG, state=DELETING, copy_leased=True)
    reported = explain_segment(case_of(cleaning, state=PartitionState()), cleaning)
    assert reported.standing is Standing.OBSTRUCTED


def test_segment_does_not_wait_for_those_behind_it() -> None:
    stray = segment(0, 5, [(1, 0)])
    reported = explain_segment(case_of(stray, YOUNG, retention_bytes=10_000), stray)
    assert (reported.standing, reported.waits_for) == (Standing.KEPT, None)


def test_without_a_limit_time_takes_nothing() -> None:
    reported = explain_segment(case_of(OLD), OLD)
    assert (reported.standing, reported.due, reported.bytes_missing) == (Standing.KEPT, None, None)


def test_bytes_missing_for_the_size_rule_are_shown() -> None:
    state = partition(HISTORY, 50, only_local_bytes=50)
    reported = explain_segment(case_of(OLD, YOUNG, state=state, retention_bytes=2000), OLD)
    # 2 * 1024 + 50 is 98 over, and the segment does not fit into that.
    assert (reported.standing, reported.bytes_missing) == (Standing.KEPT, 1024 - 98)


def test_without_a_report_only_unfinished_deletions_are_planned() -> None:
    begun = replace(YOUNG, state=DELETING)
    case = case_of(OLD, begun, state=PartitionState(), retention_ms=0)
    assert explain_segment(case, OLD).standing is Standing.NOT_JUDGED
    assert explain_segment(case, begun).standing is Standing.DUE
    assert explain_segment(case, OLD).divergence is None


@pytest.mark.parametrize(
    ("epochs", "start", "end", "epoch", "why"),
    [
        ([(0, 40)], 40, 50, 0, "it ends at 50, and the log before 50"),
        ([(1, 12)], 12, 15, 1, "the lineage has no such epoch"),
        ([(2, 15)], 15, 22, 2, "it has offset 15, in the lineage it begins at 20"),
        ([(0, 10)], 10, 25, 0, "it reaches 25, in the lineage 2 at 20 comes"),
        ([(0, 10), (3, 15)], 10, 25, 3, "it follows 0 at 15, in the lineage 2 at 20"),
        ([(2, 25), (3, 30)], 25, 35, 3, "it follows 2 at 30, in the lineage nothing"),
    ],
)
def test_the_epoch_by_which_a_segment_is_off_the_lineage_is_named(
    epochs: list[tuple[int, int]], start: int, end: int, epoch: int, why: str
) -> None:
    off = segment(start, end, epochs)
    reported = explain_segment(case_of(off, retention_ms=0), off)
    assert reported.standing is Standing.KEPT
    assert reported.divergence is not None
    assert reported.divergence.leader_epoch == epoch
    assert reported.divergence.why.endswith(why)


def test_epochs_before_the_lineage_are_named_too() -> None:
    old = segment(30, 35, [(0, 30)])
    state = partition(lineage((2, 20)), 50, log_start_offset=20)
    reported = explain_segment(case_of(old, state=state, retention_ms=0), old)
    assert reported.divergence is not None
    assert reported.divergence.why == "it is before 2, the lineage's first"
