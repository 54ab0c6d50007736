"""Test the cost of reports and log starts in the database, and their audit trail."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.calls import Call, MutationContext, serving
from services.api.errors import (
    DeletionRefusedError,
    FencedLeaderEpochError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.rlmm.changes.partition_states import MAX_REPORTS_AT_ONCE
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.partition_states import lineage, report_of, taken
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_STARTED,
    MARKED,
    finished,
    move,
    put_deletion,
    revision_of,
)
from tests.harness.databases import OwnRlmm, events, statements_sent, waiting
from tests.harness.eventually import PATIENT, eventually


@pytest.fixture
def tp() -> TopicIdPartition:
    return TopicIdPartition(uuid4(), "orders", 0)


def hold(engine: Engine, tp: TopicIdPartition) -> None:
    """Set the hold behind RLMM's back: no lock, no event."""
    with engine.begin() as connection:
        connection.execute(
            text("""
                INSERT INTO holds
                    (hold_id, name, kind, topic_id, first_offset, reason, actor, set_at)
                VALUES (gen_random_uuid(), 'audit', 'OPERATOR', :id, 0, 'test', 'me', now())"""),
            {"id": tp.topic_id},
        )


class TestReports:
    def test_only_a_new_lineage_or_epoch_of_a_report_has_an_event(
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        with serving(Call(actor="rlm-1", request_id="call-1")):
            taken(rlmm, report_of(tp, 1))
        taken(rlmm, report_of(tp, 2, log_end_offset=200))
        taken(rlmm, report_of(tp, 2, log_end_offset=200))
        taken(rlmm, report_of(tp, 3, lineage=lineage((0, 0), (3, 45))))
        taken(rlmm, report_of(tp, 1, leader_epoch=4, lineage=lineage((0, 0), (3, 45))))
        trail = events(rlmm.engine, tp)
        assert [(each.revision, each.kind, each.broker_leader_epoch) for each in trail] == [
            (1, "LEADERSHIP", 3),
            (2, "LINEAGE", 3),
            (3, "LINEAGE", 3),
            (4, "LEADERSHIP", 4),
        ]
        assert [(each.from_state, each.to_state) for each in trail[1:3]] == [
            ("", "0:0 3:50"),
            ("3:50", "3:45"),
        ]
        assert {each.broker_id for each in trail} == {BROKER}
        assert [each.actor for each in trail[:2]] == ["rlm-1"] * 2
        assert {each.repeat_count for each in trail} == {0}
        assert revision_of(rlmm, tp) == 4

    def test_figures_cost_the_lock_and_one_statement(
        self, monkeypatch: pytest.MonkeyPatch, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        taken(rlmm, report_of(tp, 1))
        sent = statements_sent(monkeypatch)
        taken(rlmm, report_of(tp, 2, log_end_offset=200))
        assert [statement.split()[0] for statement in sent] == ["SELECT", "INSERT"]

    def test_of_two_reports_at_once_the_later_one_stays(
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 3)], [], BROKER)
        reports = [report_of(tp, number, log_end_offset=100 + number) for number in range(4)]
        with ThreadPoolExecutor(len(reports)) as pool:
            with rlmm.engine.begin() as holder:
                holder.execute(text("SELECT 1 FROM partitions FOR UPDATE"))
                calls = [pool.submit(rlmm.report_partition_state, [each]) for each in reports]
                eventually(lambda: waiting(rlmm.engine) == len(reports))
            for call in calls:
                call.result(timeout=30)
        assert rlmm.partition_state(tp).value.report == reports[-1]

    def test_lock_timeout_fails_the_call_and_keeps_committed_reports(
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        stored = MAX_REPORTS_AT_ONCE
        tps = [TopicIdPartition(tp.topic_id, tp.topic, number) for number in range(stored + 2)]
        rlmm.on_partition_leadership_changes([PartitionLeadership(each) for each in tps], [], 1)
        impatient = create_database_engine(rlmm.database_url, replace(PATIENT, lock_timeout_ms=50))
        with rlmm.engine.begin() as holder:
            lock = f"SELECT 1 FROM partitions WHERE partition = {stored} FOR UPDATE"
            holder.execute(text(lock))
            with pytest.raises(RetriableRemoteStorageError):
                SqlRemoteLogMetadataManager(impatient).report_partition_state(
                    [report_of(each) for each in tps]
                )
        impatient.dispose()
        reports = [rlmm.partition_state(each).value.report for each in tps]
        assert reports == [*map(report_of, tps[:stored]), None, None]

    def test_a_refused_report_stops_and_changes_no_other(
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        tps = [TopicIdPartition(tp.topic_id, tp.topic, number) for number in range(3)]
        rlmm.on_partition_leadership_changes([PartitionLeadership(tps[1], 9)], [], 1)
        outcomes = rlmm.report_partition_state([report_of(each) for each in tps])
        refused = [isinstance(each, FencedLeaderEpochError) for each in outcomes]
        assert refused == [False, True, False]
        reports = [rlmm.partition_state(each).value.report for each in tps]
        assert reports == [report_of(tps[0]), None, report_of(tps[2])]


class TestLogStart:
    def test_event_of_the_log_start_has_both_offsets_and_the_reason(
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 99)
        why = MutationContext("r-1", "retention.bytes breached", "9 > 7", "plan-7", 5)
        with serving(Call(actor="sweep", request_id="call-1")):
            rlmm.raise_log_start_offset(tp, 40, why)
        rlmm.raise_log_start_offset(tp, 60)
        first, second = events(rlmm.engine, tp)[2:]
        assert (first.kind, first.from_state, first.to_state) == ("LOG_START", "0", "40")
        assert (first.actor, first.call_id, first.request_id) == ("sweep", "call-1", "r-1")
        assert (first.reason, first.rule_detail) == ("retention.bytes breached", "9 > 7")
        assert (first.plan_id, first.broker_leader_epoch) == ("plan-7", 5)
        assert (second.from_state, second.to_state) == ("40", "60")

    def test_only_a_remembered_request_counts_as_its_repeat(
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 99)
        rlmm.raise_log_start_offset(tp, 40, MutationContext(request_id="one"))
        put_deletion(rlmm, tp, MARKED)
        rlmm.raise_log_start_offset(tp, 30)
        rlmm.raise_log_start_offset(tp, 40, MutationContext(request_id="one"))
        assert [each.repeat_count for each in events(rlmm.engine, tp)] == [0, 0, 1, 0]

    def test_of_two_that_raise_it_at_once_the_higher_one_stays(
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 99)
        with ThreadPoolExecutor(3) as pool:
            with rlmm.engine.begin() as holder:
                holder.execute(text("SELECT 1 FROM partitions FOR UPDATE"))
                raises = [pool.submit(rlmm.raise_log_start_offset, tp, at) for at in (20, 60, 40)]
                eventually(lambda: waiting(rlmm.engine) == len(raises))
            for each in raises:
                each.result(timeout=30)
        assert rlmm.partition_state(tp).value.log_start_offset == 60
        assert events(rlmm.engine, tp)[-1].to_state == "60"

    def test_a_refused_one_leaves_no_trace(self, rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
        finished(rlmm, tp, 0, 99)
        hold(rlmm.engine, tp)
        with pytest.raises(DeletionRefusedError):
            rlmm.raise_log_start_offset(tp, 40, MutationContext(request_id="refused"))
        assert [each.kind for each in events(rlmm.engine, tp)] == ["SEGMENT", "SEGMENT"]
        with rlmm.engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM request_outcomes")) == 0


def test_a_segment_marked_for_deletion_bears_the_plan_of_its_mark(
    rlmm: OwnRlmm, tp: TopicIdPartition
) -> None:
    planned, other = finished(rlmm, tp, 0, 9), finished(rlmm, tp, 10, 19)
    move(rlmm, planned, DELETE_STARTED, context=MutationContext(plan_id="plan-7"))
    move(rlmm, other, DELETE_STARTED)
    with rlmm.engine.connect() as connection:
        plans = connection.scalars(text("SELECT plan_id FROM segments ORDER BY start_offset")).all()
    assert plans == ["plan-7", None]
