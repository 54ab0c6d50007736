"""Test which rows `db maintain` purges and keeps, beside traffic and beside itself."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.calls import MutationContext
from services.api.errors import (
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.operations import VerificationKind, VerificationRun, VerifiedTopic
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rlmm.operations import maintenance
from services.rlmm.operations.maintenance import MaintenancePlan, MaintenanceReport, maintain
from tests.contract.rlmm.anomalies import anomaly
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
from tests.harness.databases import events, waiting
from tests.harness.eventually import eventually

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


def test_nothing_old_is_nothing_purged(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    move(rlmm, finished(rlmm, TP, 0, 9), DELETE_STARTED, DELETE_FINISHED)
    assert maintain(database_url, MaintenancePlan()) == NOTHING
    assert count(engine, "segments") == 1
    assert revisions(engine, TP) == [1, 2, 3, 4]


def test_tombstones_go_when_they_are_older_than_the_retention(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    live = finished(rlmm, TP, 100, 109)
    old, young = finished(rlmm, TP, 0, 9), finished(rlmm, TP, 10, 19)
    for each in (old, young):
        move(rlmm, each, DELETE_STARTED, DELETE_FINISHED)
    age(
        engine,
        "UPDATE segments SET changed_at = changed_at - interval '25 hours'"
        " WHERE start_offset <> 10",
    )
    assert maintain(database_url, MaintenancePlan()).tombstones == 1
    assert maintain(database_url, MaintenancePlan()) == NOTHING
    with pytest.raises(RemoteResourceNotFoundError):
        move(rlmm, old, DELETE_FINISHED)
    assert not move(rlmm, young, DELETE_FINISHED).applied
    assert [each.start_offset for each in rlmm.list_remote_log_segments(TP).segments] == [100]
    # Its highest offset outlives the row.
    assert rlmm.highest_offset_for_epoch(TP, 0).value == live.end_offset
    assert maintain(database_url, MaintenancePlan(delete_retention_ms=0)).tombstones == 1


def test_request_ids_are_forgotten_after_a_day(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    for number, name in enumerate(["old", "young"]):
        context = MutationContext(request_id=name)
        rlmm.add_remote_log_segment_metadata(segment(TP, number, number), context)
    age(
        engine,
        "UPDATE request_outcomes SET at = at - interval '25 hours' WHERE request_id = 'old'",
    )
    assert maintain(database_url, MaintenancePlan()).request_outcomes == 1
    with engine.connect() as connection:
        left = connection.scalars(text("SELECT request_id FROM request_outcomes")).all()
    assert left == ["young"]


def test_the_audit_trail_keeps_its_days_and_has_no_gaps(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    for start in range(0, 50, 10):
        finished(rlmm, TP, start, start + 9)
        finished(rlmm, OTHER, start, start + 9)
    age_events(engine, TP, through_revision=7, days=91)
    assert maintain(database_url, MaintenancePlan()).events == 7
    assert revisions(engine, TP) == [8, 9, 10]
    assert revisions(engine, OTHER) == list(range(1, 11))
    assert maintain(database_url, MaintenancePlan(events_days=92)) == NOTHING


def test_an_old_event_after_a_young_one_stays(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    # The clock of the database was once set back.
    for start in range(0, 30, 10):
        finished(rlmm, TP, start, start + 9)
    age_events(engine, TP, through_revision=5, days=91)
    age(engine, "UPDATE events SET at = now() WHERE revision = 3")
    assert maintain(database_url, MaintenancePlan()).events == 2
    assert revisions(engine, TP) == [3, 4, 5, 6]


def test_the_latest_event_of_a_partition_stays_however_old(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    finished(rlmm, TP, 0, 9)
    age_events(engine, TP, through_revision=2, days=1_000)
    assert maintain(database_url, MaintenancePlan()).events == 1
    assert revisions(engine, TP) == [2]
    assert maintain(database_url, MaintenancePlan()) == NOTHING


def test_many_batches_purge_all_of_it(
    rlmm: RemoteLogMetadataManager,
    database_url: str,
    engine: Engine,
) -> None:
    finished(rlmm, TP, 0, 9)
    extra = 2 * maintenance.BATCH + 5
    age(
        engine,
        "INSERT INTO events"
        " (topic_id, partition, revision, kind, actor, call_id, reason, broker_id)"
        " SELECT topic_id, partition, n, 'LINEAGE', '', '', '', 1"
        " FROM partitions, generate_series(3, :last) AS n",
        last=extra + 2,
    )
    age(engine, "UPDATE partitions SET revision = :last", last=extra + 2)
    age_events(engine, TP, through_revision=extra, days=91)
    reported: list[tuple[str, int]] = []
    report = maintain(database_url, MaintenancePlan(), lambda *step: reported.append(step))
    assert report.events == extra
    assert revisions(engine, TP) == [extra + 1, extra + 2]
    assert reported == [
        ("events", maintenance.BATCH),
        ("events", 2 * maintenance.BATCH),
        ("events", extra),
    ]


def test_repeats_of_purged_changes_are_answered(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    kept = finished(rlmm, TP, 0, 9)
    put_deletion(rlmm, TP, MARKED)
    move(rlmm, kept, DELETE_STARTED, DELETE_FINISHED)
    put_deletion(rlmm, TP, PARTITION_STARTED, PARTITION_FINISHED)
    last = len(revisions(engine, TP))
    age_events(engine, TP, through_revision=last, days=91)
    maintain(database_url, MaintenancePlan())
    assert revisions(engine, TP) == [last]
    for repeat in (
        put_deletion(rlmm, TP, MARKED),
        put_deletion(rlmm, TP, PARTITION_FINISHED),
        move(rlmm, kept, DELETE_FINISHED),
    ):
        assert not repeat.applied
        assert 0 < repeat.revision <= last
    # The mark's event is gone; the last one is of DELETE_PARTITION_FINISHED, and repeated once.
    assert [event.repeat_count for event in events(engine, TP)] == [1]


@pytest.mark.deep
def test_a_purge_that_the_database_ends_in_a_deadlock_is_done_again(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    finished(rlmm, TP, 0, 9)
    finished(rlmm, TP, 10, 19)
    age_events(engine, TP, through_revision=3, days=91)
    repeat = "UPDATE events SET repeat_count = 1 WHERE revision = {}"
    with engine.connect() as connection:
        # Sessions to come look for a deadlock when they have waited for so long.
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '9s'"))
        connection.commit()
        connection.execute(text("SET LOCAL deadlock_timeout = '1h'"))
        connection.execute(text(repeat.format(2)))
        with ThreadPoolExecutor(1) as pool:
            purge = pool.submit(maintain, database_url, MaintenancePlan())
            eventually(lambda: waiting(engine) == 1, deadline_ms=60_000)
            connection.execute(text(repeat.format(1)))
            connection.commit()
            assert purge.result().events == 3
    assert revisions(engine, TP) == [4]


def test_a_second_maintenance_leaves_it_to_the_first(database_url: str, engine: Engine) -> None:
    with engine.connect() as first:
        first.detach()  # closed with its lock, not given back to the pool
        first.execute(text(f"SELECT pg_advisory_lock({maintenance._ADVISORY_LOCK})"))
        report = maintain(database_url, MaintenancePlan())
        assert report == MaintenanceReport(already_running=True)
    assert maintain(database_url, MaintenancePlan()) == NOTHING


@pytest.mark.deep
def test_beside_traffic_nothing_is_lost(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    plan = MaintenancePlan(delete_retention_ms=0)

    def change(partition: int) -> None:
        tp = TopicIdPartition(TP.topic_id, "orders", partition)
        copies = [finished(rlmm, tp, s, s + 9, txn_idx_empty=True) for s in range(0, 200, 10)]
        for copy in copies[:10]:
            move(rlmm, copy, DELETE_STARTED, DELETE_FINISHED)

    with ThreadPoolExecutor(6) as pool:
        changes = [pool.submit(change, partition) for partition in range(4)]
        while not all(each.done() for each in changes):
            for report in [pool.submit(maintain, database_url, plan) for _ in range(2)]:
                report.result()
        for each in changes:
            each.result()
    maintain(database_url, plan)
    for partition in range(4):
        tp = TopicIdPartition(TP.topic_id, "orders", partition)
        assert len(rlmm.list_remote_log_segments(tp).segments) == 10
        assert revisions(engine, tp) == list(range(1, 61))
    assert count(engine, "segments") == 40


def test_anomalies_go_when_no_run_has_seen_them_for_long(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    gone, seen = anomaly(TP.topic_id), anomaly(TP.topic_id)
    rlmm.report_anomalies([gone, seen], "run-1")
    age(
        engine,
        "UPDATE anomalies SET first_seen = first_seen - interval '91 days',"
        " last_seen = last_seen - interval '91 days'",
    )
    rlmm.report_anomalies([seen], "run-2")
    assert maintain(database_url, MaintenancePlan(anomalies_days=92)) == NOTHING
    assert maintain(database_url, MaintenancePlan()).anomalies == 1
    assert [each.anomaly for each in rlmm.list_anomalies().anomalies] == [seen]
    assert maintain(database_url, MaintenancePlan()) == NOTHING


def test_parts_of_a_verification_go_and_what_a_whole_run_verified_stays(
    rlmm: RemoteLogMetadataManager, database_url: str, engine: Engine
) -> None:
    finished(rlmm, TP, 0, 9)
    for part, parts in ((1, 1), (1, 2), (2, 2)):
        run = VerificationRun(VerificationKind.SCRUB, "run", part, parts)
        rlmm.report_verification(run, [VerifiedTopic(TP.topic_id)])
        if (part, parts) != (2, 2):
            age(engine, "UPDATE verifications SET ended_at = ended_at - interval '91 days'")
    assert maintain(database_url, MaintenancePlan(anomalies_days=200)) == NOTHING
    assert maintain(database_url, MaintenancePlan()).verifications == 1
    assert count(engine, "verifications") == 2
    assert maintain(database_url, MaintenancePlan()) == NOTHING


@pytest.mark.parametrize(
    ("retention_ms", "days", "anomalies_days"),
    [(-1, 90, 90), (10**15, 90, 90), (0, 0, 90), (0, 10**6, 90), (0, 90, 0), (0, 90, 10**6)],
)
def test_a_plan_that_makes_no_sense_is_refused(
    retention_ms: int, days: int, anomalies_days: int
) -> None:
    with pytest.raises(InvalidRequestError):
        MaintenancePlan(retention_ms, days, anomalies_days)


def test_a_database_without_the_schema_is_not_maintained(empty_database_url: str) -> None:
    with pytest.raises(RetriableRemoteStorageError, match="db upgrade"):
        maintain(empty_database_url, MaintenancePlan())
