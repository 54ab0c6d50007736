"""Two callers at once on one partition: the database decides, and the audit trail has no gap.

A test holds the partition's lock until both callers, of two RLMMs, wait for it, so that they truly
meet: one RLMM would apply their changes together. The checker of histories judges what they did.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from services.api.calls import Call, MutationContext, serving
from services.api.errors import (
    FencedLeaderEpochError,
    InvalidStateTransitionError,
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
    id_of,
    move,
    put_deletion,
    revision_of,
    segment,
)
from tests.deep.histories.checker import check
from tests.deep.histories.history import History, Recorder, trail_of
from tests.deep.histories.operations import (
    HighestOffset,
    ListSegments,
    LookUp,
    Move,
    Operation,
    PutDeletion,
    changes_in,
)
from tests.deep.histories.space import Space
from tests.deep.histories.stories import add as add_of
from tests.deep.histories.stories import announce, once
from tests.harness.databases import OwnRlmm, events, waiting
from tests.harness.eventually import eventually


@pytest.fixture
def tp(rlmm: OwnRlmm) -> TopicIdPartition:
    tp = TopicIdPartition(uuid4(), "orders", 0)
    rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 1)], [], BROKER)
    return tp


PAIRS = {
    "the same move": (Move(0, 1, FINISHED), Move(0, 1, FINISHED), 1),
    "the same add": (add_of(3), add_of(3), 1),
    "one request id": (Move(0, 1, FINISHED, why=once("one")),) * 2 + (2,),
    "finishes that overlap": (Move(0, 1, FINISHED), Move(0, 2, FINISHED), 2),
    "finish and delete": (Move(0, 1, FINISHED), Move(0, 1, DELETE_STARTED), None),
    "add and mark": (add_of(3), PutDeletion(0, MARKED), None),
}
"""Two operations, and how many of them are answered as applied; None: one or both."""


@pytest.mark.parametrize(("first", "second", "applied"), PAIRS.values(), ids=PAIRS)
def test_two_that_wait_for_one_lock_take_effect_one_after_the_other(
    engine: Engine, first: Operation, second: Operation, applied: int | None
) -> None:
    space, recorder = Space.of_partitions(1), Recorder()
    [tp] = space.partitions

    def perform(operation: Operation) -> object:
        manager = SqlRemoteLogMetadataManager(engine)
        return recorder.perform("a", operation, lambda: operation.reply(manager, space))

    for operation in (announce(1), add_of(1), add_of(2)):
        perform(operation)
    with ThreadPoolExecutor(2) as pool:
        with engine.begin() as holder:
            statement = "SELECT 1 FROM partitions WHERE topic_id = :id FOR UPDATE"
            holder.execute(text(statement), {"id": tp.topic_id})
            futures = [pool.submit(perform, operation) for operation in (first, second)]
            eventually(lambda: waiting(engine) == 2)
        replies = [future.result(timeout=30) for future in futures]
    for read in (ListSegments(0), HighestOffset(0, 0), LookUp(0, 0, 5)):
        perform(read)
    check(History(space, recorder.records(), {0: trail_of(engine, tp)}))
    assert applied in (None, sum(each.applied for each in changes_in(tuple(replies))))


def test_a_first_add_and_a_first_mark_make_one_partition(rlmm: OwnRlmm) -> None:
    for _ in range(10):
        new = TopicIdPartition(uuid4(), "new", 0)
        with ThreadPoolExecutor(4) as pool:
            futures = [
                pool.submit(rlmm.add_remote_log_segment_metadata, segment(new, 10 * n, 10 * n + 9))
                for n in range(4)
            ]
        for each in futures:
            each.result(timeout=30)
        assert [each.revision for each in events(rlmm.engine, new)] == [1, 2, 3, 4]


def test_leadership_sent_by_many_in_any_order_ends_at_the_highest_epoch(rlmm: OwnRlmm) -> None:
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

    def work(connection: Connection, *, first: int) -> None:
        runs[first] += 1
        lock = text("SELECT pg_advisory_xact_lock(:key)")
        connection.execute(lock, {"key": first})
        if runs[first] == 1:
            both_hold_one.wait(timeout=30)
        connection.execute(lock, {"key": 3 - first})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda first: transactions.change(partial(work, first=first)), (1, 2)))
    assert sorted(runs.values()) == [1, 2]


def test_a_lock_that_does_not_come_free_is_retriable_and_changes_nothing(
    rlmm: OwnRlmm, tp: TopicIdPartition
) -> None:
    before = revision_of(rlmm, tp)
    impatient = create_database_engine(rlmm.database_url, DatabaseLimits(lock_timeout_ms=50))
    with rlmm.engine.begin() as holder:
        holder.execute(text("SELECT 1 FROM partitions FOR UPDATE"))
        with pytest.raises(RetriableRemoteStorageError):
            add(SqlRemoteLogMetadataManager(impatient), segment(tp, 0, 9))
    impatient.dispose()
    assert revision_of(rlmm, tp) == before


def test_a_lost_connection_is_retriable_and_the_next_call_has_a_new_one(
    rlmm: OwnRlmm, tp: TopicIdPartition
) -> None:
    rlmm.list_partitions()
    killer = create_database_engine(rlmm.engine.url.render_as_string(hide_password=False))
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
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        only = segment(tp, 0, 9, broker_leader_epoch=4)
        why = MutationContext("r-1", "retention.ms breached", "9 > 7", "plan-7", 5)
        with serving(Call(actor="broker-1", request_id="call-1")):
            rlmm.add_remote_log_segment_metadata(only)
            move(rlmm, only, FINISHED)
            move(rlmm, only, DELETE_STARTED, context=why, broker_id=OTHER_BROKER)
            move(rlmm, only, DELETE_FINISHED)
            put_deletion(rlmm, tp, MARKED, PARTITION_STARTED)
        trail = events(rlmm.engine, tp)
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
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        move(rlmm, only, FINISHED)
        move(rlmm, only, FINISHED)
        put_deletion(rlmm, tp, MARKED)
        put_deletion(rlmm, tp, PARTITION_STARTED)
        put_deletion(rlmm, tp, MARKED)
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 1)], [], BROKER)
        assert [each.repeat_count for each in events(rlmm.engine, tp)] == [0, 0, 2, 1, 0]

    def test_leadership_of_a_deleted_partition_is_no_event(
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        put_deletion(rlmm, tp, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 9)], [], BROKER)
        assert [each.revision for each in events(rlmm.engine, tp)] == [1, 2, 3, 4]

    def test_a_refused_call_leaves_nothing(self, rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        why = MutationContext(request_id="refused")
        with pytest.raises(InvalidStateTransitionError):
            move(rlmm, only, DELETE_FINISHED, context=why)
        assert len(events(rlmm.engine, tp)) == 2
        with rlmm.engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM request_outcomes")) == 0

    def test_without_an_epoch_the_key_ends_in_minus_one(
        self, rlmm: OwnRlmm, tp: TopicIdPartition
    ) -> None:
        add(rlmm, segment(tp, 0, 9))
        assert events(rlmm.engine, tp)[-1].key == f"{uuid_to_text(tp.topic_id)}:0:9:-1"


def test_a_request_id_is_forgotten_after_a_day(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    why = MutationContext(request_id="yesterday")
    rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9), why)
    with rlmm.engine.begin() as connection:
        connection.execute(text("UPDATE request_outcomes SET at = at - interval '25 hours'"))
    assert rlmm.add_remote_log_segment_metadata(segment(tp, 10, 19), why).applied
    with rlmm.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM request_outcomes")) == 1
