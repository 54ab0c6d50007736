"""Test leaders' reports, their order, and the resulting lineage."""

from typing import Any

import pytest

from services.api.calls import MutationContext
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import NOTHING_COPIED, PartitionReport, PartitionState, PolledLog
from services.api.remote_log_metadata_manager import (
    MAX_REPORTS,
    PartitionLeadership,
    RemoteLogMetadataManager,
)
from services.api.segments import segment_leader_epochs
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import (
    BROKER,
    MARKED,
    OTHER_BROKER,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    put_deletion,
    segment,
)


def lineage(*pairs: tuple[int, int]) -> Lineage:
    return Lineage(segment_leader_epochs(pairs))


def report_of(tp: TopicIdPartition, number: int = 1, **fields: Any) -> PartitionReport:
    """Return a report of leader epoch 3, with figures that all differ."""
    values: dict[str, Any] = {
        "broker_id": BROKER,
        "leader_epoch": 3,
        "lineage": lineage((0, 0), (3, 50)),
        "local_log_start_offset": 40,
        "log_end_offset": 100,
        "high_watermark": 90,
        "last_stable_offset": 80,
        "only_local_bytes": 70,
        "copied_through_offset": 60,
        "lag_bytes": 30,
        **fields,
    }
    return PartitionReport(tp, report_number=number, **values)


def polled(tp: TopicIdPartition, **fields: Any) -> PolledLog:
    values: dict[str, Any] = {
        "broker_id": BROKER,
        "leader_epoch": 3,
        "lineage": lineage((0, 0), (2, 50)),
        "log_start_offset": 40,
        "high_watermark": 90,
        **fields,
    }
    return PolledLog(tp, **values)


def taken(rlmm: RemoteLogMetadataManager, report: PartitionReport) -> PartitionState:
    [outcome] = rlmm.report_partition_state([report])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.value


class Reports(RlmmContractPart):
    def test_partition_without_a_report_has_an_empty_state(self) -> None:
        self.finished(0, 9)
        found = self.rlmm.partition_state(self.tp)
        assert found.revision == self.revision()
        assert found.value == PartitionState(read_at_ms=found.value.read_at_ms)
        assert found.value.read_at_ms > 0
        assert found.value.report_age_ms is None

    def test_a_polled_log_is_shown_and_changes_nothing_else(self) -> None:
        self.finished(0, 9)
        before = self.rlmm.partition_state(self.tp)
        log = polled(self.tp)
        assert self.rlmm.report_partition_state([], [log]) == []
        found = self.rlmm.partition_state(self.tp)
        assert (found.value.polled_log, found.revision) == (log, before.revision)
        assert (found.value.report, found.value.lineage) == (None, Lineage())
        assert found.value.highest_broker_leader_epoch == before.value.highest_broker_leader_epoch
        assert found.value.polled_at_ms is not None
        assert found.value.polled_at_ms <= found.value.read_at_ms

    def test_a_polled_log_of_an_earlier_leader_is_ignored(self) -> None:
        self.finished(0, 9)
        later = polled(self.tp, leader_epoch=4)
        for log in (later, polled(self.tp)):
            self.rlmm.report_partition_state([], [log])
        assert self.rlmm.partition_state(self.tp).value.polled_log == later

    def test_a_polled_log_makes_no_partition_known(self) -> None:
        self.rlmm.report_partition_state([], [polled(self.tp)])
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.partition_state(self.tp)

    def test_too_many_polled_logs_are_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="polled_logs"):
            self.rlmm.report_partition_state([], [polled(self.tp)] * (MAX_REPORTS + 1))

    def test_a_report_makes_the_partition_known_and_is_its_state(self) -> None:
        report = report_of(self.tp)
        [answer] = self.rlmm.report_partition_state([report])
        assert not isinstance(answer, Exception)
        found = self.rlmm.partition_state(self.tp)
        assert answer.revision == found.revision
        for state in (answer.value, found.value):
            assert (state.report, state.lineage) == (report, report.lineage)
            assert state.log_start_offset == 0
        assert found.value.reported_at_ms == answer.value.reported_at_ms
        assert found.value.report_age_ms is not None
        assert found.value.report_age_ms >= 0

    def test_a_report_of_an_empty_partition_is_kept(self) -> None:
        report = PartitionReport(self.tp, -1, 0, 0, Lineage(), 0, 0, 0, 0, 0, NOTHING_COPIED)
        assert taken(self.rlmm, report).lineage == Lineage()
        assert self.rlmm.partition_state(self.tp).value.report == report

    def test_a_later_report_replaces_the_earlier_one(self) -> None:
        later = report_of(
            self.tp, 7, broker_id=OTHER_BROKER, log_end_offset=200, high_watermark=150
        )
        taken(self.rlmm, report_of(self.tp, 1))
        taken(self.rlmm, later)
        assert self.rlmm.partition_state(self.tp).value.report == later

    def test_a_new_leader_epoch_begins_its_own_numbers(self) -> None:
        taken(self.rlmm, report_of(self.tp, 1_000))
        first = report_of(self.tp, 0, leader_epoch=4)
        taken(self.rlmm, first)
        assert self.rlmm.partition_state(self.tp).value.report == first

    def test_the_same_report_again_is_seen_again(self) -> None:
        first = taken(self.rlmm, report_of(self.tp))
        before = self.revision()
        again = taken(self.rlmm, report_of(self.tp))
        assert (again.report, again.lineage) == (first.report, first.lineage)
        assert again.reported_at_ms is not None
        assert first.reported_at_ms is not None
        assert again.reported_at_ms >= first.reported_at_ms
        assert self.revision() == before

    @pytest.mark.parametrize(
        "late",
        [
            {"number": 4},
            {"number": 5, "broker_id": OTHER_BROKER},
            {"number": 5, "lineage": lineage((3, 50))},
            {"number": 5, "local_log_start_offset": 41},
            {"number": 5, "log_end_offset": 101},
            {"number": 5, "high_watermark": 91},
            {"number": 5, "last_stable_offset": 81},
            {"number": 5, "only_local_bytes": 71},
            {"number": 5, "copied_through_offset": 61},
            {"number": 5, "lag_bytes": 31},
        ],
        ids=str,
    )
    def test_an_earlier_report_and_another_of_this_number_are_refused_with_the_number(
        self, late: dict[str, Any]
    ) -> None:
        stored = taken(self.rlmm, report_of(self.tp, 5))
        with pytest.raises(ConcurrentUpdateError, match=r"stored report 5\b"):
            taken(self.rlmm, report_of(self.tp, **late))
        found = self.rlmm.partition_state(self.tp).value
        assert (found.report, found.lineage) == (stored.report, stored.lineage)
        assert found.reported_at_ms == stored.reported_at_ms

    def _give_local_records_to(self, owner: str) -> None:
        self.finished(0, 9)
        entries = {"sediment.local.retention.owner": owner}
        self.rlmm.put_topic_config(self.tp.topic_id, entries, None)

    def test_a_recorded_trim_never_falls_whoever_reports(self) -> None:
        self._give_local_records_to("rlm")
        taken(self.rlmm, report_of(self.tp, 1, local_trim_offset=40))
        before = self.revision()
        for late in (report_of(self.tp, 2), report_of(self.tp, 1, leader_epoch=4)):
            state = taken(self.rlmm, late)
            assert state.report is not None
            assert state.report.local_trim_offset == 40
            found = self.rlmm.partition_state(self.tp).value
            assert found.report == state.report
        # The first report of epoch 4 is a change; a trim is none.
        assert self.revision() == before + 1

    @pytest.mark.parametrize("owner", [None, "broker"])
    def test_a_trim_is_refused_unless_local_records_are_rlms(self, owner: str | None) -> None:
        if owner is not None:
            self._give_local_records_to(owner)
        with pytest.raises(DeletionRefusedError, match="owner is not rlm"):
            taken(self.rlmm, report_of(self.tp, local_trim_offset=40))
        taken(self.rlmm, report_of(self.tp))

    def test_a_trim_stays_recorded_when_the_brokers_delete_again(self) -> None:
        self._give_local_records_to("rlm")
        taken(self.rlmm, report_of(self.tp, 1, local_trim_offset=40))
        self.rlmm.put_topic_config(self.tp.topic_id, {}, 1)
        taken(self.rlmm, report_of(self.tp, 2, local_trim_offset=40))
        with pytest.raises(DeletionRefusedError):
            taken(self.rlmm, report_of(self.tp, 3, local_trim_offset=41))

    def test_a_trim_of_a_partition_that_is_to_be_removed_is_refused(self) -> None:
        self._give_local_records_to("rlm")
        put_deletion(self.rlmm, self.tp, MARKED)
        with pytest.raises(DeletionRefusedError, match="to be removed"):
            taken(self.rlmm, report_of(self.tp, local_trim_offset=40))

    def test_a_broker_may_not_copy_what_rlm_looks_after(self) -> None:
        self._give_local_records_to("rlm")
        copy = segment(self.tp, 10, 19)
        by_broker = MutationContext(retention_owner=RetentionOwner.BROKER)
        with pytest.raises(InvalidStateTransitionError, match="owner=rlm"):
            self.rlmm.add_remote_log_segment_metadata(copy, by_broker)
        assert self.rlmm.add_remote_log_segment_metadata(copy).applied
        self._give_local_records_to("broker")
        other = segment(self.tp, 20, 29)
        assert self.rlmm.add_remote_log_segment_metadata(other, by_broker).applied

    def test_a_trim_under_an_older_leader_epoch_is_fenced(self) -> None:
        self._give_local_records_to("rlm")
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 4)], [], BROKER)
        with pytest.raises(FencedLeaderEpochError):
            taken(self.rlmm, report_of(self.tp, local_trim_offset=40))

    def test_the_report_of_an_older_leader_is_fenced(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 4)], [], BROKER)
        with pytest.raises(FencedLeaderEpochError):
            taken(self.rlmm, report_of(self.tp, 9))
        taken(self.rlmm, report_of(self.tp, 1, leader_epoch=4))

    def test_a_report_fences_older_leaders(self) -> None:
        taken(self.rlmm, report_of(self.tp, leader_epoch=6))
        with pytest.raises(FencedLeaderEpochError):
            self.add(self.segment(0, 9, broker_leader_epoch=5))
        with pytest.raises(FencedLeaderEpochError):
            taken(self.rlmm, report_of(self.tp, 2, leader_epoch=5))

    def test_only_a_new_lineage_or_epoch_raises_the_revision(self) -> None:
        taken(self.rlmm, report_of(self.tp, 1))
        known = self.revision()
        taken(self.rlmm, report_of(self.tp, 2, log_end_offset=500, only_local_bytes=1))
        assert self.revision() == known
        taken(self.rlmm, report_of(self.tp, 3, lineage=lineage((0, 0), (3, 45))))
        grown = self.revision()
        assert grown > known
        taken(self.rlmm, report_of(self.tp, 1, lineage=lineage((3, 45)), leader_epoch=4))
        assert self.revision() > grown

    def test_a_partition_being_deleted_is_still_reported(self) -> None:
        self.put_deletion(MARKED, PARTITION_STARTED)
        assert taken(self.rlmm, report_of(self.tp)).report == report_of(self.tp)

    def test_a_deleted_partition_stays_deleted(self) -> None:
        taken(self.rlmm, report_of(self.tp))
        self.put_deletion(MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        with pytest.raises(InvalidStateTransitionError):
            taken(self.rlmm, report_of(self.tp, 2))
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.partition_state(self.tp)

    def test_an_unknown_partition_has_no_state(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
            self.rlmm.partition_state(self.tp)

    def test_refused_report_does_not_stop_the_others(self) -> None:
        tps = [
            TopicIdPartition(self.tp.topic_id, self.tp.topic, partition) for partition in range(4)
        ]
        misnamed = TopicIdPartition(self.tp.topic_id, "invoices", 1)
        put_deletion(self.rlmm, tps[2], MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        reports = [report_of(each) for each in (tps[3], misnamed, tps[2], tps[0])]
        outcomes = self.rlmm.report_partition_state([*reports, report_of(tps[3], 0)])
        errors = [type(each) if isinstance(each, Exception) else None for each in outcomes]
        assert errors == [
            None,
            InvalidRequestError,
            InvalidStateTransitionError,
            None,
            ConcurrentUpdateError,
        ]
        for each in (tps[0], tps[3]):
            assert self.rlmm.partition_state(each).value.report == report_of(each)
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.partition_state(tps[1])

    @pytest.mark.parametrize("count", [0, MAX_REPORTS + 1])
    def test_no_report_and_too_many_are_refused(self, count: int) -> None:
        with pytest.raises(InvalidRequestError, match=f"^reports.* are {count}"):
            self.rlmm.report_partition_state([report_of(self.tp)] * count)


class ReportedLineage(RlmmContractPart):
    @pytest.mark.parametrize(
        ("stored", "reported", "expected"),
        [
            (((0, 0), (1, 10)), ((0, 0), (1, 10), (2, 20)), ((0, 0), (1, 10), (2, 20))),
            # The broker has lost the beginning.
            (((0, 0), (1, 10), (2, 20)), ((1, 15), (2, 20)), ((0, 0), (1, 10), (2, 20))),
            (((0, 0), (1, 10), (2, 20)), ((2, 25),), ((0, 0), (1, 10), (2, 20))),
            # Its own replaces what diverges.
            (((0, 0), (1, 10), (2, 20)), ((1, 15), (3, 18)), ((0, 0), (1, 10), (3, 18))),
            (((0, 0), (2, 20)), ((1, 15),), ((0, 0), (1, 15))),
            # It tells of nothing.
            (((0, 0), (1, 10)), (), ((0, 0), (1, 10))),
        ],
    )
    def test_reported_lineage_is_merged_with_the_stored_one(
        self,
        stored: tuple[tuple[int, int], ...],
        reported: tuple[tuple[int, int], ...],
        expected: tuple[tuple[int, int], ...],
    ) -> None:
        taken(self.rlmm, report_of(self.tp, 1, lineage=lineage(*stored)))
        answered = taken(self.rlmm, report_of(self.tp, 2, lineage=lineage(*reported)))
        found = self.rlmm.partition_state(self.tp).value
        assert answered.lineage == found.lineage == lineage(*expected)
        assert found.report is not None
        assert found.report.lineage == lineage(*reported)

    def test_the_lineage_begins_at_the_log_start(self) -> None:
        taken(self.rlmm, report_of(self.tp, 1))
        self.rlmm.raise_log_start_offset(self.tp, 45)
        assert self.rlmm.partition_state(self.tp).value.lineage == lineage((0, 45), (3, 50))
        self.rlmm.raise_log_start_offset(self.tp, 60)
        before = self.revision()
        # The broker still tells of what lies below.
        state = taken(self.rlmm, report_of(self.tp, 2))
        assert (state.lineage, state.log_start_offset) == (lineage((3, 60)), 60)
        assert self.revision() == before

    def test_the_first_report_is_cut_too(self) -> None:
        self.finished(0, 99)
        self.rlmm.raise_log_start_offset(self.tp, 60)
        assert taken(self.rlmm, report_of(self.tp)).lineage == lineage((3, 60))
