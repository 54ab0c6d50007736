"""Two callers at once on one partition: the database decides, and the audit trail has no gap.

A test holds the partition's lock until both callers, of two RLMMs, wait for it, so that they truly
meet: one RLMM would apply their changes together.
"""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Barrier
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from services.api.calls import Call, MutationContext, MutationOutcome, serving
from services.api.errors import (
    FencedLeaderEpochError,
    InvalidStateTransitionError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.rlmm.database.db import Transactions
from services.rlmm.database.engine import DatabaseLimits, create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    OTHER_BROKER,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    add,
    finished,
    id_at,
    id_of,
    move,
    put_deletion,
    revision_of,
    segment,
)
from tests.harness.databases import events, waiting
from tests.harness.eventually import eventually

Change = Callable[[SqlRemoteLogMetadataManager], MutationOutcome]
Result = MutationOutcome | RemoteStorageError


@pytest.fixture
def tp(rlmm: SqlRemoteLogMetadataManager) -> TopicIdPartition:
    tp = TopicIdPartition(uuid4(), "orders", 0)
    rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 1)], [], BROKER)
    return tp


def meeting(engine: Engine, tp: TopicIdPartition, *changes: Change) -> list[Result]:
    """Run the changes, each in an RLMM of its own; all wait for the lock before one goes on."""
    with ThreadPoolExecutor(len(changes)) as pool:
        with engine.begin() as holder:
            holder.execute(
                text("SELECT 1 FROM partitions WHERE topic_id = :id FOR UPDATE"),
                {"id": tp.topic_id},
            )
            futures = [
                pool.submit(change, SqlRemoteLogMetadataManager(engine)) for change in changes
            ]
            eventually(lambda: waiting(engine) == len(changes))
        return [result_of(future) for future in futures]


def result_of(future: "Future[MutationOutcome]") -> Result:
    try:
        return future.result(timeout=30)
    except RemoteStorageError as e:
        return e


def test_of_two_that_make_the_same_move_one_applies_and_one_repeats(
    engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    only = add(rlmm, segment(tp, 0, 9))
    results = meeting(engine, tp, *[lambda own: move(own, only, FINISHED)] * 2)
    outcomes = [each for each in results if isinstance(each, MutationOutcome)]
    assert sorted(each.applied for each in outcomes) == [False, True]
    assert len({each.revision for each in outcomes}) == 1


def test_of_two_that_add_the_same_segment_one_applies_and_one_repeats(
    engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    only = segment(tp, 0, 9)
    results = meeting(engine, tp, *[lambda own: own.add_remote_log_segment_metadata(only)] * 2)
    assert sorted(each.applied for each in results if isinstance(each, MutationOutcome)) == [
        False,
        True,
    ]


def test_of_two_calls_with_one_request_id_both_are_answered_with_the_one_change(
    engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    only, why = add(rlmm, segment(tp, 0, 9)), MutationContext(request_id="one")
    first, second = meeting(engine, tp, *[lambda own: move(own, only, FINISHED, context=why)] * 2)
    assert first == second
    assert [each.repeat_count for each in events(engine, tp)] == [0, 0, 1]


def test_of_two_overlapping_finishes_the_later_one_displaces_the_earlier(
    engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    copies = [add(rlmm, segment(tp, 0, 99)) for _ in range(2)]
    results = meeting(
        engine, tp, *[lambda own, copy=copy: move(own, copy, FINISHED) for copy in copies]
    )
    revisions = [each.revision for each in results if isinstance(each, MutationOutcome)]
    later = copies[revisions.index(max(revisions))]
    earlier = copies[revisions.index(min(revisions))]
    assert id_at(rlmm, tp, 0, 50) == id_of(later)
    move(rlmm, later, DELETE_STARTED)
    assert id_at(rlmm, tp, 0, 50) == id_of(earlier)


def test_finish_and_delete_of_one_copy_leave_one_of_two_orders(
    engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    only = add(rlmm, segment(tp, 0, 9))
    finish, delete = meeting(
        engine,
        tp,
        lambda own: move(own, only, FINISHED),
        lambda own: move(own, only, DELETE_STARTED),
    )
    assert isinstance(delete, MutationOutcome)
    if isinstance(finish, MutationOutcome):
        assert finish.revision < delete.revision
    else:
        assert isinstance(finish, InvalidStateTransitionError)
    assert id_at(rlmm, tp, 0, 5) is None


def test_an_add_that_meets_the_mark_of_deletion_is_before_it_or_refused(
    engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    added, marked = meeting(
        engine,
        tp,
        lambda own: own.add_remote_log_segment_metadata(segment(tp, 0, 9)),
        lambda own: put_deletion(own, tp, MARKED),
    )
    assert isinstance(marked, MutationOutcome)
    if isinstance(added, MutationOutcome):
        assert added.revision < marked.revision
    else:
        assert isinstance(added, InvalidStateTransitionError)


def test_a_first_add_and_a_first_mark_make_one_partition(
    engine: Engine, rlmm: SqlRemoteLogMetadataManager
) -> None:
    for _ in range(10):
        new = TopicIdPartition(uuid4(), "new", 0)
        with ThreadPoolExecutor(4) as pool:
            futures = [
                pool.submit(rlmm.add_remote_log_segment_metadata, segment(new, 10 * n, 10 * n + 9))
                for n in range(4)
            ]
        assert all(isinstance(result_of(each), MutationOutcome) for each in futures)
        assert [each.revision for each in events(engine, new)] == [1, 2, 3, 4]


def test_leadership_sent_by_many_in_any_order_ends_at_the_highest_epoch(
    rlmm: SqlRemoteLogMetadataManager,
) -> None:
    topic_id = uuid4()
    tps = [TopicIdPartition(topic_id, "many", n) for n in range(20)]

    def announce(epoch: int) -> None:
        order = tps if epoch % 2 else tps[::-1]
        rlmm.on_partition_leadership_changes(
            [PartitionLeadership(tp, epoch) for tp in order], [], BROKER
        )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(announce, range(1, 13)))
    for tp in tps:
        with pytest.raises(FencedLeaderEpochError):
            add(rlmm, segment(tp, 0, 9, broker_leader_epoch=11))
        add(rlmm, segment(tp, 0, 9, broker_leader_epoch=12))


def test_the_victim_of_a_deadlock_is_tried_again(engine: Engine, tp: TopicIdPartition) -> None:
    transactions, both_hold_one = Transactions(engine), Barrier(2)
    runs = Counter[int]()

    def work(session: Session, *, first: int) -> None:
        runs[first] += 1
        lock = text("SELECT pg_advisory_xact_lock(:key)")
        session.execute(lock, {"key": first})
        if runs[first] == 1:
            both_hold_one.wait(timeout=30)
        session.execute(lock, {"key": 3 - first})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda first: transactions.change(partial(work, first=first)), (1, 2)))
    assert sorted(runs.values()) == [1, 2]


def test_a_lock_that_does_not_come_free_is_retriable_and_changes_nothing(
    database_url: str, engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    before = revision_of(rlmm, tp)
    impatient = create_database_engine(database_url, DatabaseLimits(lock_timeout_ms=50))
    with engine.begin() as holder:
        holder.execute(text("SELECT 1 FROM partitions FOR UPDATE"))
        with pytest.raises(RetriableRemoteStorageError):
            add(SqlRemoteLogMetadataManager(impatient), segment(tp, 0, 9))
    impatient.dispose()
    assert revision_of(rlmm, tp) == before


def test_a_lost_connection_is_retriable_and_the_next_call_has_a_new_one(
    engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    rlmm.list_partitions()
    killer = create_database_engine(engine.url.render_as_string(hide_password=False))
    with killer.connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    killer.dispose()
    with pytest.raises(RetriableRemoteStorageError):
        rlmm.list_partitions()
    assert rlmm.is_ready(tp)


class TestAuditTrail:
    def test_each_revision_has_one_event_with_actor_time_and_reason(
        self, engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = segment(tp, 0, 9, broker_leader_epoch=4)
        why = MutationContext("r-1", "retention.ms breached", "9 > 7", "plan-7", 5)
        with serving(Call(actor="broker-1", request_id="call-1")):
            rlmm.add_remote_log_segment_metadata(only)
            move(rlmm, only, FINISHED)
            move(rlmm, only, DELETE_STARTED, context=why, broker_id=OTHER_BROKER)
            move(rlmm, only, DELETE_FINISHED)
            put_deletion(rlmm, tp, MARKED, PARTITION_STARTED)
        trail = events(engine, tp)
        assert [each.revision for each in trail] == list(range(1, 8))
        assert [(each.kind, each.from_state, each.to_state) for each in trail] == [
            ("LEADERSHIP", None, None),
            ("SEGMENT", None, "COPY_SEGMENT_STARTED"),
            ("SEGMENT", "COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"),
            ("SEGMENT", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED"),
            ("SEGMENT", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"),
            ("PARTITION_DELETE", None, "DELETE_PARTITION_MARKED"),
            ("PARTITION_DELETE", "DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED"),
        ]
        deletion = trail[3]
        assert (deletion.actor, deletion.call_id) == ("broker-1", "call-1")
        assert (deletion.request_id, deletion.reason) == ("r-1", "retention.ms breached")
        assert (deletion.rule_detail, deletion.plan_id) == ("9 > 7", "plan-7")
        assert (deletion.broker_id, deletion.broker_leader_epoch) == (OTHER_BROKER, 5)
        assert (deletion.segment_id, deletion.repeat_count) == (id_of(only), 0)
        assert deletion.key == f"{uuid_to_text(tp.topic_id)}:0:9:4"
        assert [each.at for each in trail] == sorted(each.at for each in trail)

    def test_a_repeat_counts_on_the_event_that_it_repeats(
        self, engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        move(rlmm, only, FINISHED)
        move(rlmm, only, FINISHED)
        put_deletion(rlmm, tp, MARKED)
        put_deletion(rlmm, tp, PARTITION_STARTED)
        put_deletion(rlmm, tp, MARKED)
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 1)], [], BROKER)
        assert [each.repeat_count for each in events(engine, tp)] == [0, 0, 2, 1, 0]

    def test_leadership_of_a_deleted_partition_is_no_event(
        self, engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        put_deletion(rlmm, tp, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 9)], [], BROKER)
        assert [each.revision for each in events(engine, tp)] == [1, 2, 3, 4]

    def test_a_refused_call_leaves_nothing(
        self, engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        why = MutationContext(request_id="refused")
        with pytest.raises(InvalidStateTransitionError):
            move(rlmm, only, DELETE_FINISHED, context=why)
        assert len(events(engine, tp)) == 2
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM request_outcomes")) == 0

    def test_without_an_epoch_the_key_ends_in_minus_one(
        self, engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        add(rlmm, segment(tp, 0, 9))
        assert events(engine, tp)[-1].key == f"{uuid_to_text(tp.topic_id)}:0:9:-1"


def test_a_request_id_is_forgotten_after_a_day(
    engine: Engine, rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition
) -> None:
    why = MutationContext(request_id="yesterday")
    rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9), why)
    with engine.begin() as connection:
        connection.execute(text("UPDATE request_outcomes SET at = at - interval '25 hours'"))
    assert rlmm.add_remote_log_segment_metadata(segment(tp, 10, 19), why).applied
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM request_outcomes")) == 1
