"""Test gaps, offsets that the tier will never have: recorded, repeated, and refused."""

import pytest

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import LOST_BEFORE_COPY, EventQuery, OffsetGap, PartitionEvent
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    all_events,
)
from services.api.validation import INT64_MAX
from tests.contract.rlmm.partition_states import lineage, report_of, taken
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    id_of,
)

WRONG_EXPECTATIONS = [
    pytest.param(MutationContext(expected_revision=9), id="revision"),
    pytest.param(MutationContext(expected_config_revision=9), id="config_revision"),
]


def known(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, epoch: int | None = None) -> None:
    rlmm.on_partition_leadership_changes([PartitionLeadership(tp, epoch)], [], BROKER)


def record(
    rlmm: RemoteLogMetadataManager,
    tp: TopicIdPartition,
    start: int,
    end: int,
    context: MutationContext | None = None,
) -> MutationOutcome:
    return rlmm.record_gap(tp, OffsetGap(start, end), BROKER, context or MutationContext())


def gaps(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> list[tuple[int, int]]:
    found = rlmm.partition_state(tp).value.gaps
    assert {gap.kind for gap in found} <= {LOST_BEFORE_COPY}
    return [(gap.start_offset, gap.end_offset) for gap in found]


def last_event(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> PartitionEvent:
    return list(all_events(rlmm, EventQuery(tp)))[-1]


class RecordedGaps(RlmmContractPart):
    def test_a_gap_is_recorded_read_and_in_the_audit_trail(self) -> None:
        known(self.rlmm, self.tp, 4)
        why = MutationContext(reason="deleted early", rule_detail="d", broker_leader_epoch=4)
        outcome = record(self.rlmm, self.tp, 10, 19, why)
        assert outcome == MutationOutcome(True, 2)
        state = self.rlmm.partition_state(self.tp)
        assert state.value.gaps == (OffsetGap(10, 19, LOST_BEFORE_COPY),)
        assert state.revision == self.revision() == 2
        event = last_event(self.rlmm, self.tp)
        assert (event.revision, event.kind) == (2, "GAP")
        assert (event.from_state, event.to_state) == ("", "LOST_BEFORE_COPY 10-19")
        assert (event.broker_id, event.broker_leader_epoch) == (BROKER, 4)
        assert (event.reason, event.rule_detail) == ("deleted early", "d")

    def test_gaps_are_listed_in_ascending_order(self) -> None:
        known(self.rlmm, self.tp)
        for start in (40, 0, 20):
            record(self.rlmm, self.tp, start, start + 4)
        assert gaps(self.rlmm, self.tp) == [(0, 4), (20, 24), (40, 44)]

    @pytest.mark.parametrize(("start", "end"), [(10, 19), (10, 10), (19, 19), (12, 15)])
    def test_a_range_within_a_recorded_one_is_a_repeat(self, start: int, end: int) -> None:
        known(self.rlmm, self.tp)
        first = record(self.rlmm, self.tp, 10, 19)
        last = record(self.rlmm, self.tp, 30, 39)
        assert record(self.rlmm, self.tp, start, end) == MutationOutcome(False, first.revision)
        assert self.revision() == last.revision
        assert gaps(self.rlmm, self.tp) == [(10, 19), (30, 39)]
        events = list(all_events(self.rlmm, EventQuery(self.tp)))
        assert [event.repeat_count for event in events] == [0, 1, 0]

    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (0, 8, [(0, 8), (10, 19), (30, 39)]),
            (0, 9, [(0, 19), (30, 39)]),
            (0, 15, [(0, 19), (30, 39)]),
            (15, 25, [(10, 25), (30, 39)]),
            (20, 20, [(10, 20), (30, 39)]),
            (21, 28, [(10, 19), (21, 28), (30, 39)]),
            (20, 29, [(10, 39)]),
            (5, 50, [(5, 50)]),
            (0, INT64_MAX, [(0, INT64_MAX)]),
        ],
    )
    def test_ranges_that_overlap_or_touch_become_one(
        self, start: int, end: int, expected: list[tuple[int, int]]
    ) -> None:
        known(self.rlmm, self.tp)
        record(self.rlmm, self.tp, 10, 19)
        record(self.rlmm, self.tp, 30, 39)
        assert record(self.rlmm, self.tp, start, end).applied
        assert gaps(self.rlmm, self.tp) == expected
        assert last_event(self.rlmm, self.tp).to_state == f"LOST_BEFORE_COPY {start}-{end}"

    def test_repeat_of_a_merged_gap_returns_the_revision_of_the_merged_gap(self) -> None:
        known(self.rlmm, self.tp)
        record(self.rlmm, self.tp, 10, 19)
        whole = record(self.rlmm, self.tp, 20, 29)
        assert record(self.rlmm, self.tp, 10, 19) == MutationOutcome(False, whole.revision)

    def test_the_log_start_takes_gaps_along(self) -> None:
        self.finished(0, 9)
        self.finished(40, 49)
        record(self.rlmm, self.tp, 10, 19)
        record(self.rlmm, self.tp, 30, 39)
        self.rlmm.raise_log_start_offset(self.tp, 19)
        assert gaps(self.rlmm, self.tp) == [(19, 19), (30, 39)]
        self.rlmm.raise_log_start_offset(self.tp, 35)
        assert gaps(self.rlmm, self.tp) == [(35, 39)]
        before = self.revision()
        for start, end in ((0, 9), (10, 34), (10, 39), (35, 39)):
            assert not record(self.rlmm, self.tp, start, end).applied
        assert self.revision() == before

    def test_gap_is_not_checked_below_the_log_start(self) -> None:
        self.finished(0, 9)
        self.finished(40, 49)
        self.rlmm.raise_log_start_offset(self.tp, 20)
        assert record(self.rlmm, self.tp, 5, 25).applied
        assert gaps(self.rlmm, self.tp) == [(20, 25)]

    def test_the_answer_to_a_report_leaves_gaps_out(self) -> None:
        known(self.rlmm, self.tp)
        record(self.rlmm, self.tp, 10, 19)
        for number in (1, 2):
            assert taken(self.rlmm, report_of(self.tp, number)).gaps == ()
        assert gaps(self.rlmm, self.tp) == [(10, 19)]

    @pytest.mark.parametrize(
        ("start_of_epoch_5", "expected"),
        [
            (10, []),
            (15, [(10, 14)]),
            (19, [(10, 18)]),
            (20, [(10, 19)]),
            (35, [(10, 19), (30, 34)]),
            (45, [(10, 19), (30, 39)]),
        ],
    )
    def test_offsets_written_again_by_a_later_leader_are_no_gap(
        self, start_of_epoch_5: int, expected: list[tuple[int, int]]
    ) -> None:
        taken(self.rlmm, report_of(self.tp, lineage=lineage((0, 0), (3, 5))))
        record(self.rlmm, self.tp, 10, 19, MutationContext(broker_leader_epoch=3))
        record(self.rlmm, self.tp, 30, 39)  # of the partition's highest
        history = lineage((0, 0), (3, 5), (5, start_of_epoch_5))
        taken(self.rlmm, report_of(self.tp, leader_epoch=5, lineage=history))
        assert gaps(self.rlmm, self.tp) == expected

    def test_a_gap_that_is_found_before_its_epoch_is_reported_stays(self) -> None:
        taken(self.rlmm, report_of(self.tp, lineage=lineage((0, 0))))
        known(self.rlmm, self.tp, 5)
        record(self.rlmm, self.tp, 10, 19, MutationContext(broker_leader_epoch=5))
        taken(self.rlmm, report_of(self.tp, leader_epoch=5, lineage=lineage((0, 0), (5, 8))))
        assert gaps(self.rlmm, self.tp) == [(10, 19)]

    def test_of_ranges_that_became_one_the_earliest_epoch_counts(self) -> None:
        known(self.rlmm, self.tp, 3)
        record(self.rlmm, self.tp, 20, 29, MutationContext(broker_leader_epoch=3))
        record(self.rlmm, self.tp, 10, 19, MutationContext(broker_leader_epoch=5))
        taken(self.rlmm, report_of(self.tp, leader_epoch=5, lineage=lineage((0, 0), (5, 15))))
        assert gaps(self.rlmm, self.tp) == [(10, 14)]

    def test_of_a_gap_of_no_known_epoch_nothing_is_dropped(self) -> None:
        known(self.rlmm, self.tp)
        record(self.rlmm, self.tp, 10, 19)
        taken(self.rlmm, report_of(self.tp, leader_epoch=5, lineage=lineage((0, 0), (5, 15))))
        assert gaps(self.rlmm, self.tp) == [(10, 19)]

    def test_a_copy_may_still_finish_in_a_recorded_gap(self) -> None:
        under_way = self.add(self.segment(10, 19))
        record(self.rlmm, self.tp, 10, 19)
        assert self.move(under_way, FINISHED).applied
        assert self.id_at(0, 12) == id_of(under_way)
        assert gaps(self.rlmm, self.tp) == [(10, 19)]
        assert not record(self.rlmm, self.tp, 10, 19).applied

    def test_a_gap_hides_nothing_and_raises_nothing(self) -> None:
        first, last = self.finished(0, 9), self.finished(20, 29)
        record(self.rlmm, self.tp, 10, 19)
        assert [self.id_at(0, offset) for offset in (9, 10, 19, 20)] == [
            id_of(first),
            None,
            None,
            id_of(last),
        ]
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 29
        assert self.rlmm.earliest_log_offset(self.tp).value == 0


class GapRefusals(RlmmContractPart):
    @pytest.mark.parametrize(
        ("start", "end"), [(20, 29), (0, 20), (29, 40), (25, 25), (0, 60), (57, 58)]
    )
    def test_offsets_of_a_finished_segment_cannot_be_a_gap(self, start: int, end: int) -> None:
        self.finished(20, 29)
        # Among others, so that one that begins far below has to be found.
        self.finished(45, 59, {3: 45})
        self.finished(50, 51, {4: 50})
        before = self.revision()
        with pytest.raises(InvalidStateTransitionError, match=r"^gap: offsets .* holds \d+ to \d+"):
            record(self.rlmm, self.tp, start, end)
        assert (gaps(self.rlmm, self.tp), self.revision()) == ([], before)

    @pytest.mark.parametrize(("start", "end"), [(0, 19), (30, 44), (60, 99)])
    def test_offsets_beside_finished_segments_can_be_a_gap(self, start: int, end: int) -> None:
        self.finished(20, 29)
        self.finished(45, 59, {3: 45})
        assert record(self.rlmm, self.tp, start, end).applied

    def test_offsets_deleted_from_the_tier_can_be_a_gap(self) -> None:
        going, gone = self.finished(0, 9), self.finished(10, 19)
        self.move(going, DELETE_STARTED)
        self.move(gone, DELETE_STARTED, DELETE_FINISHED)
        assert record(self.rlmm, self.tp, 0, 19).applied

    def test_an_older_leader_may_not_record(self) -> None:
        known(self.rlmm, self.tp, 7)
        older, same = (MutationContext(broker_leader_epoch=epoch) for epoch in (6, 7))
        with pytest.raises(FencedLeaderEpochError):
            record(self.rlmm, self.tp, 10, 19, older)
        assert gaps(self.rlmm, self.tp) == []
        assert record(self.rlmm, self.tp, 10, 19, same).applied
        assert not record(self.rlmm, self.tp, 10, 19, older).applied

    def test_a_newer_leader_epoch_is_not_taken_from_it(self) -> None:
        known(self.rlmm, self.tp, 7)
        record(self.rlmm, self.tp, 10, 19, MutationContext(broker_leader_epoch=9))
        self.add(self.segment(0, 9, broker_leader_epoch=8))

    @pytest.mark.parametrize("wrong", WRONG_EXPECTATIONS)
    def test_another_revision_than_the_expected_one_is_refused_and_a_repeat_is_not(
        self, wrong: MutationContext
    ) -> None:
        known(self.rlmm, self.tp)
        with pytest.raises(ConcurrentUpdateError):
            record(self.rlmm, self.tp, 10, 19, wrong)
        assert gaps(self.rlmm, self.tp) == []
        right = MutationContext(expected_revision=1, expected_config_revision=0)
        assert record(self.rlmm, self.tp, 10, 19, right).applied
        assert not record(self.rlmm, self.tp, 10, 19, wrong).applied

    def test_a_gap_that_is_recorded_by_the_same_request_again_is_answered_as_before(self) -> None:
        known(self.rlmm, self.tp)
        why = MutationContext(request_id="one")
        first = record(self.rlmm, self.tp, 10, 19, why)
        record(self.rlmm, self.tp, 20, 29)
        assert record(self.rlmm, self.tp, 10, 19, why) == first
        with pytest.raises(InvalidRequestError, match="request_id"):
            record(self.rlmm, self.tp, 10, 18, why)
        with pytest.raises(InvalidRequestError, match="request_id"):
            self.rlmm.record_gap(self.tp, OffsetGap(10, 19), BROKER + 1, why)

    def test_nothing_is_recorded_of_an_unknown_or_a_deleted_partition(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
            record(self.rlmm, self.tp, 10, 19)
        known(self.rlmm, self.tp)
        record(self.rlmm, self.tp, 10, 19)
        self.put_deletion(MARKED, PARTITION_STARTED)
        assert record(self.rlmm, self.tp, 30, 39).applied
        self.put_deletion(PARTITION_FINISHED)
        for start in (10, 50):
            with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
                record(self.rlmm, self.tp, start, start + 9)

    def test_a_gap_is_returned_as_recorded(self) -> None:
        known(self.rlmm, self.tp)
        for gap, broker_id, message in (
            (
                OffsetGap(0, 9, "HOLE"),
                BROKER,
                r"^gap\.kind: must be LOST_BEFORE_COPY, ",
            ),
            (OffsetGap(0, 9, ""), BROKER, r"^gap\.kind: "),
            (OffsetGap(0, 9), -2, "^broker_id: "),
        ):
            with pytest.raises(InvalidRequestError, match=message):
                self.rlmm.record_gap(self.tp, gap, broker_id)
        with pytest.raises(InvalidRequestError, match=r"^context\.reason: must not contain NUL"):
            record(self.rlmm, self.tp, 0, 9, MutationContext(reason="\0"))
        renamed = TopicIdPartition(self.tp.topic_id, "payments", 0)
        with pytest.raises(InvalidRequestError, match="topic: topic id"):
            record(self.rlmm, renamed, 0, 9)
        assert gaps(self.rlmm, self.tp) == []
