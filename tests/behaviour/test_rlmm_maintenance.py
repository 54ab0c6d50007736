"""Test which rows `db maintain` purges and keeps, beside traffic and beside itself."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.calls import MutationContext
from services.api.errors import (
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.operations import RunCounts, RunKind, ToolRun
from services.api.remote_log_metadata_manager import PartitionLeadership, all_tool_runs
from services.api.segment_batches import SegmentImport
from services.api.topic_config import RetentionOwner
from services.rlmm.database.tables import METADATA
from services.rlmm.operations import maintenance
from services.rlmm.operations.deployment_state import read_deployment_state
from services.rlmm.operations.maintenance import (
    DAY_MS,
    MaintenancePlan,
    MaintenanceReport,
    maintain,
)
from services.workflows.deployment_state import Head, refusal
from tests.contract.rlmm.anomalies import anomaly
from tests.contract.rlmm.partition_states import report_of
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    finished,
    move,
    put_deletion,
    segment,
)
from tests.harness.databases import OwnRlmm, events, waiting
from tests.harness.eventually import eventually
from tests.harness.holds import hold, hold_of

pytestmark = pytest.mark.deep

TP = TopicIdPartition(uuid4(), "orders", 0)
OTHER = TopicIdPartition(TP.topic_id, "orders", 1)
NOTHING = MaintenanceReport(already_running=False)


def age(engine: Engine, statement: str, **values: object) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement), values)


def age_events(engine: Engine, tp: TopicIdPartition, through_revision: int, days: int) -> None:
    age(
        engine,
        "UPDATE events SET at = at - make_interval(days => :days)"
        " WHERE topic_id = :id AND partition = :partition AND revision <= :revision",
        days=days,
        id=tp.topic_id,
        partition=tp.partition,
        revision=through_revision,
    )


def revisions(engine: Engine, tp: TopicIdPartition) -> list[object]:
    return [event.revision for event in events(engine, tp)]


def count(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        rows: int = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
    return rows


def test_nothing_old_is_nothing_purged(rlmm: OwnRlmm) -> None:
    move(rlmm, finished(rlmm, TP, 0, 9), DELETE_STARTED, DELETE_FINISHED)
    assert maintain(rlmm.database_url, MaintenancePlan()) == NOTHING
    assert count(rlmm.engine, "segments") == 1
    assert revisions(rlmm.engine, TP) == [1, 2, 3, 4]


def test_kept_tombstones_stay_until_their_objects_are_gone(rlmm: OwnRlmm) -> None:
    only = finished(rlmm, TP, 0, 9)
    rlmm.put_topic_config(TP.topic_id, {"sediment.delete.grace.ms": "1"})
    by_broker = MutationContext(retention_owner=RetentionOwner.BROKER)
    move(rlmm, only, DELETE_STARTED, DELETE_FINISHED, context=by_broker)
    age(rlmm.engine, "UPDATE segments SET changed_at = changed_at - interval '1000 days'")
    assert maintain(rlmm.database_url, MaintenancePlan()) == NOTHING
    eventually(lambda: rlmm.list_kept_segments(due_only=True).segments)
    by_rlm = MutationContext(retention_owner=RetentionOwner.RLM)
    assert move(rlmm, only, DELETE_FINISHED, context=by_rlm).applied
    assert maintain(rlmm.database_url, MaintenancePlan()) == NOTHING
    age(rlmm.engine, "UPDATE segments SET changed_at = changed_at - interval '25 hours'")
    assert maintain(rlmm.database_url, MaintenancePlan()).tombstones == 1


def test_tombstones_go_when_they_are_older_than_the_retention(rlmm: OwnRlmm) -> None:
    finished(rlmm, TP, 100, 109)
    old, young = finished(rlmm, TP, 200, 209), finished(rlmm, TP, 10, 19)
    for each in (old, young):
        move(rlmm, each, DELETE_STARTED, DELETE_FINISHED)
    age(
        rlmm.engine,
        "UPDATE segments SET changed_at = changed_at - interval '25 hours'"
        " WHERE start_offset <> 10",
    )
    assert maintain(rlmm.database_url, MaintenancePlan()).tombstones == 1
    assert maintain(rlmm.database_url, MaintenancePlan()) == NOTHING
    with pytest.raises(RemoteResourceNotFoundError):
        move(rlmm, old, DELETE_FINISHED)
    assert not move(rlmm, young, DELETE_FINISHED).applied
    assert [each.start_offset for each in rlmm.list_remote_log_segments(TP).segments] == [100]
    # Its highest offset outlives the row; its id may be added again.
    assert rlmm.highest_offset_for_epoch(TP, 0).value == old.end_offset
    assert rlmm.add_remote_log_segment_metadata(old).applied
    assert maintain(rlmm.database_url, MaintenancePlan(delete_retention_ms=0)).tombstones == 1


def test_request_ids_are_forgotten_after_a_day(rlmm: OwnRlmm) -> None:
    for number, name in enumerate(["old", "young"]):
        context = MutationContext(request_id=name)
        rlmm.add_remote_log_segment_metadata(segment(TP, number, number), context)
    age(
        rlmm.engine,
        "UPDATE request_outcomes SET at = at - interval '25 hours' WHERE request_id = 'old'",
    )
    assert maintain(rlmm.database_url, MaintenancePlan()).request_outcomes == 1
    with rlmm.engine.connect() as connection:
        left = connection.scalars(text("SELECT request_id FROM request_outcomes")).all()
    assert left == ["young"]


def test_the_audit_trail_keeps_its_days_and_has_no_gaps(rlmm: OwnRlmm) -> None:
    for start in range(0, 50, 10):
        finished(rlmm, TP, start, start + 9)
        finished(rlmm, OTHER, start, start + 9)
    age_events(rlmm.engine, TP, through_revision=7, days=91)
    assert maintain(rlmm.database_url, MaintenancePlan()).events == 7
    assert revisions(rlmm.engine, TP) == [8, 9, 10]
    assert revisions(rlmm.engine, OTHER) == list(range(1, 11))
    assert maintain(rlmm.database_url, MaintenancePlan(events_retention_ms=92 * DAY_MS)) == NOTHING


def test_an_old_event_after_a_young_one_stays(rlmm: OwnRlmm) -> None:
    # The clock of the database was once set back.
    for start in range(0, 30, 10):
        finished(rlmm, TP, start, start + 9)
    age_events(rlmm.engine, TP, through_revision=5, days=91)
    age(rlmm.engine, "UPDATE events SET at = now() WHERE revision = 3")
    assert maintain(rlmm.database_url, MaintenancePlan()).events == 2
    assert revisions(rlmm.engine, TP) == [3, 4, 5, 6]


def test_the_latest_event_of_a_partition_stays_however_old(rlmm: OwnRlmm) -> None:
    finished(rlmm, TP, 0, 9)
    age_events(rlmm.engine, TP, through_revision=2, days=1_000)
    assert maintain(rlmm.database_url, MaintenancePlan()).events == 1
    assert revisions(rlmm.engine, TP) == [2]
    assert maintain(rlmm.database_url, MaintenancePlan()) == NOTHING


def test_many_batches_purge_all_of_it(rlmm: OwnRlmm) -> None:
    finished(rlmm, TP, 0, 9)
    extra = 2 * maintenance.BATCH + 5
    age(
        rlmm.engine,
        "INSERT INTO events"
        " (topic_id, partition, revision, kind, actor, call_id, reason, broker_id)"
        " SELECT topic_id, partition, n, 'LINEAGE', '', '', '', 1"
        " FROM partitions, generate_series(3, :last) AS n",
        last=extra + 2,
    )
    age(rlmm.engine, "UPDATE partitions SET revision = :last", last=extra + 2)
    age_events(rlmm.engine, TP, through_revision=extra, days=91)
    reported: list[tuple[str, int]] = []
    report = maintain(rlmm.database_url, MaintenancePlan(), lambda *step: reported.append(step))
    assert report.events == extra
    assert revisions(rlmm.engine, TP) == [extra + 1, extra + 2]
    assert reported == [
        ("events", maintenance.BATCH),
        ("events", 2 * maintenance.BATCH),
        ("events", extra),
    ]


def test_repeats_of_purged_changes_are_answered(rlmm: OwnRlmm) -> None:
    kept = finished(rlmm, TP, 0, 9)
    put_deletion(rlmm, TP, MARKED)
    move(rlmm, kept, DELETE_STARTED, DELETE_FINISHED)
    put_deletion(rlmm, TP, PARTITION_STARTED, PARTITION_FINISHED)
    last = len(revisions(rlmm.engine, TP))
    age_events(rlmm.engine, TP, through_revision=last, days=91)
    maintain(rlmm.database_url, MaintenancePlan())
    assert revisions(rlmm.engine, TP) == [last]
    for repeat in (
        put_deletion(rlmm, TP, MARKED),
        put_deletion(rlmm, TP, PARTITION_FINISHED),
        move(rlmm, kept, DELETE_FINISHED),
    ):
        assert not repeat.applied
        assert 0 < repeat.revision <= last
    # The mark's event is gone; the last one is of DELETE_PARTITION_FINISHED, and repeated once.
    assert [event.repeat_count for event in events(rlmm.engine, TP)] == [1]


def remove(rlmm: OwnRlmm, tp: TopicIdPartition, days: int) -> None:
    """Let a partition have a segment and all else that it may have, removed so many days ago."""
    only = finished(rlmm, tp, 0, 9)
    rlmm.report_partition_state([report_of(tp)])
    rlmm.raise_log_start_offset(tp, 5)
    put_deletion(rlmm, tp, MARKED)
    move(rlmm, only, DELETE_STARTED, DELETE_FINISHED)
    put_deletion(rlmm, tp, PARTITION_STARTED, PARTITION_FINISHED)
    for table, time in (("partitions", "changed_at"), ("segments", "changed_at"), ("events", "at")):
        age(
            rlmm.engine,
            f"UPDATE {table} SET {time} = now() - make_interval(days => :days)"
            " WHERE topic_id = :id AND partition = :partition",
            days=days,
            id=tp.topic_id,
            partition=tp.partition,
        )


def test_a_removed_topic_leaves_one_row_and_is_answered_as_before(rlmm: OwnRlmm) -> None:
    remove(rlmm, TP, days=91)
    remove(rlmm, OTHER, days=91)
    before = read_deployment_state(rlmm.database_url)
    late: dict[str, Callable[[TopicIdPartition], object]] = {
        "addition": lambda tp: rlmm.add_remote_log_segment_metadata(segment(tp, 10, 19)),
        "import": lambda tp: rlmm.import_remote_log_segments([SegmentImport((segment(tp, 1, 2),))]),
    }
    for _ in ("before the purge", "after it"):
        for call in late.values():
            with pytest.raises(InvalidStateTransitionError):
                call(TP)
        [outcome] = rlmm.report_partition_state([report_of(TP, 2)])
        assert isinstance(outcome, InvalidStateTransitionError)
        rlmm.on_partition_leadership_changes([PartitionLeadership(OTHER, 7)], [], 1)
        assert not put_deletion(rlmm, TP, MARKED).applied
        assert rlmm.list_partitions().partitions == ()
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.partition_state(TP)
        report = maintain(rlmm.database_url, MaintenancePlan())
    assert report == NOTHING
    left = {table.name: count(rlmm.engine, table.name) for table in METADATA.sorted_tables}
    # The run is that of the maintenance.
    left = {name: rows for name, rows in left.items() if rows}
    assert left == {"topics": 1, "deployment": 1, "tool_runs": 1}
    with pytest.raises(InvalidRequestError, match="another topic"):
        rlmm.add_remote_log_segment_metadata(segment(replace(TP, topic="payments"), 10, 19))
    with pytest.raises(RemoteResourceNotFoundError):
        rlmm.put_topic_config(TP.topic_id, {"retention.ms": "1"})
    # What the bucket keeps of the topic does not count as newer than the database.
    after = read_deployment_state(rlmm.database_url)
    kept = Head(before.deployment_id, before.changes, kept_at_ms=1, slot="a", parts=1)
    assert before.topics
    assert after == replace(before, topics=(), purged=frozenset({TP.topic_id}))
    assert refusal(kept, after, before.topics) == ""


@pytest.mark.parametrize("other", ["young", "living"])
def test_a_topic_of_which_a_partition_is_young_or_lives_is_not_purged(
    rlmm: OwnRlmm, other: str
) -> None:
    remove(rlmm, TP, days=91)
    if other == "young":
        remove(rlmm, OTHER, days=89)
    else:
        finished(rlmm, OTHER, 0, 9)
    assert maintain(rlmm.database_url, MaintenancePlan()).removed_topics == 0
    assert count(rlmm.engine, "partitions") == 2
    assert revisions(rlmm.engine, TP) == [10]


def test_topics_are_purged_a_batch_at_a_time(rlmm: OwnRlmm) -> None:
    most = maintenance.TOPICS_PER_STATEMENT
    age(
        rlmm.engine,
        "WITH made AS (INSERT INTO topics (topic_id, name)"
        " SELECT gen_random_uuid(), 'old' FROM generate_series(1, :topics) RETURNING topic_id)"
        " INSERT INTO partitions (topic_id, partition, revision, delete_state, changed_at)"
        " SELECT topic_id, n, 1, 'DELETE_PARTITION_FINISHED', now() - interval '91 days'"
        " FROM made, generate_series(0, 1) AS n",
        topics=2 * most + 1,
    )
    reported: list[tuple[str, int]] = []
    maintain(rlmm.database_url, MaintenancePlan(), lambda *step: reported.append(step))
    name = "removed_topics"
    assert reported == [(name, most), (name, 2 * most), (name, 2 * most + 1)]
    assert count(rlmm.engine, "partitions") == 0


@pytest.mark.deep
def test_a_purge_that_the_database_ends_in_a_deadlock_is_done_again(rlmm: OwnRlmm) -> None:
    finished(rlmm, TP, 0, 9)
    finished(rlmm, TP, 10, 19)
    age_events(rlmm.engine, TP, through_revision=3, days=91)
    repeat = "UPDATE events SET repeat_count = 1 WHERE revision = {}"
    with rlmm.engine.connect() as connection:
        # Sessions to come look for a deadlock when they have waited for so long.
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '9s'"))
        connection.commit()
        connection.execute(text("SET LOCAL deadlock_timeout = '1h'"))
        connection.execute(text(repeat.format(2)))
        with ThreadPoolExecutor(1) as pool:
            purge = pool.submit(maintain, rlmm.database_url, MaintenancePlan())
            eventually(lambda: waiting(rlmm.engine) == 1, deadline_ms=60_000)
            connection.execute(text(repeat.format(1)))
            connection.commit()
            assert purge.result().events == 3
    assert revisions(rlmm.engine, TP) == [4]


def test_a_second_maintenance_leaves_it_to_the_first(database_url: str, engine: Engine) -> None:
    with engine.connect() as first:
        first.detach()  # closed with its lock, not given back to the pool
        first.execute(text(f"SELECT pg_advisory_lock({maintenance._ADVISORY_LOCK})"))
        report = maintain(database_url, MaintenancePlan())
        assert report == MaintenanceReport(already_running=True)
    assert maintain(database_url, MaintenancePlan()) == NOTHING


@pytest.mark.deep
def test_beside_traffic_nothing_is_lost(rlmm: OwnRlmm) -> None:
    plan = MaintenancePlan(delete_retention_ms=0)

    def change(partition: int) -> None:
        tp = TopicIdPartition(TP.topic_id, "orders", partition)
        copies = [finished(rlmm, tp, s, s + 9, txn_idx_empty=True) for s in range(0, 200, 10)]
        for copy in copies[:10]:
            move(rlmm, copy, DELETE_STARTED, DELETE_FINISHED)

    with ThreadPoolExecutor(6) as pool:
        changes = [pool.submit(change, partition) for partition in range(4)]
        while not all(each.done() for each in changes):
            for report in [pool.submit(maintain, rlmm.database_url, plan) for _ in range(2)]:
                report.result()
        for each in changes:
            each.result()
    maintain(rlmm.database_url, plan)
    for partition in range(4):
        tp = TopicIdPartition(TP.topic_id, "orders", partition)
        assert len(rlmm.list_remote_log_segments(tp).segments) == 10
        assert revisions(rlmm.engine, tp) == list(range(1, 61))
    assert count(rlmm.engine, "segments") == 40


def test_anomalies_go_when_no_run_has_seen_them_for_long(rlmm: OwnRlmm) -> None:
    gone, seen = anomaly(TP.topic_id), anomaly(TP.topic_id)
    rlmm.report_anomalies([gone, seen], "run-1")
    age(
        rlmm.engine,
        "UPDATE anomalies SET first_seen = first_seen - interval '91 days',"
        " last_seen = last_seen - interval '91 days'",
    )
    rlmm.report_anomalies([seen], "run-2")
    assert (
        maintain(rlmm.database_url, MaintenancePlan(anomalies_retention_ms=92 * DAY_MS)) == NOTHING
    )
    assert maintain(rlmm.database_url, MaintenancePlan()).anomalies == 1
    assert [each.anomaly for each in rlmm.list_anomalies().anomalies] == [seen]
    assert maintain(rlmm.database_url, MaintenancePlan()) == NOTHING


def test_parts_of_a_check_go_and_what_a_whole_run_read_stays(rlmm: OwnRlmm) -> None:
    finished(rlmm, TP, 0, 9)
    for part, parts in ((1, 1), (1, 2), (2, 2)):
        run = ToolRun(RunKind.SCRUB, "run", part=part, parts=parts)
        rlmm.report_tool_run(run, [RunCounts(TP.topic_id)])
        if (part, parts) != (2, 2):
            age(rlmm.engine, "UPDATE tool_runs SET ended_at = ended_at - interval '91 days'")
    assert (
        maintain(rlmm.database_url, MaintenancePlan(anomalies_retention_ms=200 * DAY_MS)) == NOTHING
    )
    assert maintain(rlmm.database_url, MaintenancePlan()).tool_runs == 1
    checks = [each for each in all_tool_runs(rlmm) if each.kind is RunKind.SCRUB]
    assert [(each.parts, each.ended_parts) for each in checks] == [(1, 1)]
    assert maintain(rlmm.database_url, MaintenancePlan()) == NOTHING


def test_holds_go_a_day_after_their_end(rlmm: OwnRlmm) -> None:
    finished(rlmm, TP, 0, 9)
    for name in ("old", "young"):
        rlmm.set_hold(hold_of(TP, name=name), 1)
    later_ms = hold(rlmm, TP, name="endless").set_at_ms + DAY_MS
    hold(rlmm, TP, name="later", until_ms=later_ms)
    age(rlmm.engine, "UPDATE holds SET until = until - interval '25 hours' WHERE name = 'old'")
    age(rlmm.engine, "UPDATE holds SET set_at = set_at - interval '1000 days'")
    assert maintain(rlmm.database_url, MaintenancePlan()).holds == 1
    with rlmm.engine.connect() as connection:
        left = connection.scalars(text("SELECT name FROM holds ORDER BY name")).all()
    assert left == ["endless", "later", "young"]
    assert maintain(rlmm.database_url, MaintenancePlan()) == NOTHING


def test_only_the_last_maintenance_is_recorded(rlmm: OwnRlmm) -> None:
    assert list(all_tool_runs(rlmm)) == []
    maintain(rlmm.database_url, MaintenancePlan())
    [first] = all_tool_runs(rlmm)
    maintain(rlmm.database_url, MaintenancePlan())
    [last] = all_tool_runs(rlmm)
    assert (first.kind, last.kind) == (RunKind.MAINTENANCE, RunKind.MAINTENANCE)
    assert last.run_id != first.run_id
    assert last.ended_ms > first.ended_ms


@pytest.mark.parametrize(
    ("retention_ms", "days", "anomalies_days"),
    [(-1, 90, 90), (10**15, 90, 90), (0, 0, 90), (0, 10**6, 90), (0, 90, 0), (0, 90, 10**6)],
)
def test_a_plan_that_makes_no_sense_is_refused(
    retention_ms: int, days: int, anomalies_days: int
) -> None:
    with pytest.raises(InvalidRequestError):
        MaintenancePlan(retention_ms, days * DAY_MS, anomalies_days * DAY_MS)


def test_a_database_without_the_schema_is_not_maintained(empty_database_url: str) -> None:
    with pytest.raises(RetriableRemoteStorageError, match="db upgrade"):
        maintain(empty_database_url, MaintenancePlan())
