"""Compare a batch of updates with the same single updates: equal rows, events and outcomes."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass, replace
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.calls import MutationOutcome
from services.api.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    SegmentUpdate,
    UpdateOutcome,
)
from services.api.segment_batches import SegmentAddition
from services.rlmm.database.engine import DatabaseLimits, create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    finished,
    revision_of,
    segment,
    update_to,
)
from tests.deep.histories.draws import Draw, Draws
from tests.deep.histories.model import Model
from tests.deep.histories.operations import (
    Change,
    Move,
    MoveBatch,
    Operation,
    SetHold,
    outcomes_in,
)
from tests.deep.histories.space import Space
from tests.harness.databases import OwnRlmm, statements_sent, waiting
from tests.harness.eventually import eventually

pytestmark = pytest.mark.deep

OPERATIONS = 60
TABLES = {
    "segments": "segment_id",
    "segment_epochs": "segment_id, leader_epoch",
    "highest_offsets": "leader_epoch",
    "events": "revision",
    "request_outcomes": "request_id",
    "partitions": "revision",
}
NOT_COMPARED = {
    *("at", "created_at", "changed_at", "reported_at"),
    *("topic_id", "key", "body_digest"),
    *("copy_lease_until", "kept_until", "transaction_id"),
}
"""Clocks, what is made from the topic's id, and transactions: a batch is one."""


def stored(engine: Engine, tp: TopicIdPartition) -> dict[str, list[dict[str, Any]]]:
    """Read every row of the partition."""
    with engine.connect() as connection:
        return {
            table: [
                {name: value for name, value in row.items() if name not in NOT_COMPARED}
                for row in connection.execute(
                    text(f"SELECT * FROM {table} WHERE topic_id = :id ORDER BY {order}"),
                    {"id": tp.topic_id},
                ).mappings()
            ]
            for table, order in TABLES.items()
        }


class BatchDraws(Draws):
    """Draw copies that begin in the first partition, and batches that move them."""

    def _draws(self) -> dict[Draw, float]:
        return {self._add: 2, self._move_batch: 1}

    def _tp(self) -> int:
        return 0

    def _any_tp(self) -> int:
        return 0


@pytest.mark.parametrize("is_held", [False, True], ids=["free", "on hold"])
def test_batch_equals_the_same_single_updates(rlmm: OwnRlmm, is_held: bool) -> None:
    model, space, apart = Model(), Space.of_two_topics(), 2
    draws, replies = BatchDraws(random.Random(1), model, space), set[object]()
    for number in range(OPERATIONS):
        drawn = draws.next()
        singles: Sequence[Operation] = [drawn]
        if isinstance(drawn, MoveBatch):
            moves = tuple(comparable(move) for move in drawn.moves)
            singles, drawn = moves, MoveBatch(moves)
        reply = drawn.reply(rlmm, space)
        if drawn.reply(model, space) is not InvalidRequestError:
            singly = [elsewhere(each, apart).reply(rlmm, space) for each in singles]
            assert outcomes_in(reply) == tuple(singly)
        if is_held and number == OPERATIONS // 2:
            for tp, manager in ((0, rlmm), (apart, rlmm), (0, model)):
                SetHold(tp).answer(manager, space)
        assert stored(rlmm.engine, space.partitions[0]) == stored(
            rlmm.engine, space.partitions[apart]
        )
        replies.update(type(each) if is_dataclass(each) else each for each in outcomes_in(reply))
    assert len(replies) >= 4  # the updates met more than one refusal


def elsewhere(operation: Operation, tp: int) -> Operation:
    assert isinstance(operation, Change)
    return replace(operation, tp=tp)


def comparable(move: Move) -> Move:
    """Return the move with a plan, and without a revision, which a batch has only one of."""
    why = replace(move.why, expected_revision=None, rule_detail="1 < 2", plan_id="plan")
    return replace(move, why=why)


def missing(tp: TopicIdPartition, count: int) -> list[SegmentUpdate]:
    return [SegmentUpdate(update_to(segment(tp, 0, 0), DELETE_STARTED)) for _ in range(count)]


def test_partitions_are_changed_in_the_order_of_their_key(rlmm: OwnRlmm) -> None:
    topic_id = uuid4()
    tps = [TopicIdPartition(topic_id, "orders", partition) for partition in (3, 0, 2, 1)]
    updates = [SegmentUpdate(update_to(finished(rlmm, tp, 0, 9), DELETE_STARTED)) for tp in tps]
    rlmm.update_remote_log_segment_metadata_batch(updates)
    with rlmm.engine.connect() as connection:
        query = "SELECT partition FROM events WHERE to_state = :state ORDER BY at"
        order = connection.scalars(text(query), {"state": DELETE_STARTED.value}).all()
    assert order == [0, 1, 2, 3]


def test_of_the_same_batch_sent_by_several_one_is_applied(rlmm: OwnRlmm) -> None:
    tp = TopicIdPartition(uuid4(), "orders", 0)
    segments = [finished(rlmm, tp, start, start) for start in range(20)]
    updates = [SegmentUpdate(update_to(metadata, DELETE_STARTED)) for metadata in segments]
    start = Barrier(4)

    def send() -> list[UpdateOutcome]:
        start.wait(timeout=10)
        return rlmm.update_remote_log_segment_metadata_batch(updates)

    with ThreadPoolExecutor(4) as pool:
        answers = [each.result() for each in [pool.submit(send) for _ in range(4)]]
    applied, repeated = (
        [MutationOutcome(applied=is_applied, revision=revision) for revision in range(41, 61)]
        for is_applied in (True, False)
    )
    assert [answer == applied for answer in answers].count(True) == 1
    assert [answer == repeated for answer in answers].count(True) == 3
    events = stored(rlmm.engine, tp)["events"][40:]
    assert [event["repeat_count"] for event in events] == [3] * 20


def test_an_unreachable_database_fails_the_whole_call() -> None:
    limits = DatabaseLimits(connect_timeout_ms=2_000, pool_timeout_ms=1_000)
    engine = create_database_engine("postgresql://nobody:x@127.0.0.1:1/none", limits)
    rlmm = SqlRemoteLogMetadataManager(engine)
    with pytest.raises(RetriableRemoteStorageError):
        rlmm.update_remote_log_segment_metadata_batch(
            missing(TopicIdPartition(uuid4(), "orders", 0), 2)
        )
    engine.dispose()


def test_batches_in_opposite_orders_never_wait_for_each_other(rlmm: OwnRlmm) -> None:
    tps = [TopicIdPartition(uuid4(), "orders", partition) for partition in range(4)]
    rounds, senders = 10, 4
    start = Barrier(senders)

    def send(sender: int) -> list[UpdateOutcome]:
        outcomes: list[UpdateOutcome] = []
        for number in range(rounds):
            in_order = tps if sender % 2 else tps[::-1]
            made = [segment(tp, number, number) for tp in in_order]
            start.wait(timeout=60)
            outcomes += rlmm.add_remote_log_segment_metadata_batch(list(map(SegmentAddition, made)))
            for state in (FINISHED, DELETE_STARTED):
                moves = [SegmentUpdate(update_to(metadata, state)) for metadata in made]
                start.wait(timeout=60)
                outcomes += rlmm.update_remote_log_segment_metadata_batch(moves)
        return outcomes

    with ThreadPoolExecutor(senders) as pool:
        answers = [each.result() for each in [pool.submit(send, n) for n in range(senders)]]
    assert {o.applied for answer in answers for o in answer if isinstance(o, MutationOutcome)} == {
        True
    }
    assert [len(answer) for answer in answers] == [3 * rounds * len(tps)] * senders
    assert [len(stored(rlmm.engine, tp)["events"]) for tp in tps] == [3 * rounds * senders] * len(
        tps
    )
    with rlmm.engine.connect() as connection:
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert connection.scalar(text(deadlocks)) == 0


def test_a_partition_that_the_database_refuses_stops_no_other(rlmm: OwnRlmm) -> None:
    tps = [TopicIdPartition(uuid4(), "orders", partition) for partition in range(3)]
    made = [finished(rlmm, tp, 0, 9) for tp in tps]
    with rlmm.engine.begin() as connection:
        # As if an event had been written without its revision.
        connection.execute(
            text(
                "INSERT INTO events (topic_id, partition, revision, kind, actor, call_id, reason, "
                "broker_id) VALUES (:id, 1, 3, 'SEGMENT', '', '', '', 1)"
            ),
            {"id": tps[1].topic_id},
        )
    updates = [SegmentUpdate(update_to(metadata, DELETE_STARTED)) for metadata in made]
    outcomes = rlmm.update_remote_log_segment_metadata_batch(updates)
    assert outcomes[0] == outcomes[2] == MutationOutcome(applied=True, revision=3)
    assert type(outcomes[1]) is CorruptMetadataError
    states = [stored(rlmm.engine, tp)["segments"][0]["state"] for tp in tps]
    assert states == ["DELETE_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED"]


def test_a_batch_over_many_partitions_takes_few_statements(
    rlmm: OwnRlmm, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = uuid4()
    tps = [TopicIdPartition(topic_id, "orders", partition) for partition in range(40)]
    rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 3) for tp in tps], [], BROKER)
    made = [segment(tp, 0, 9) for tp in tps]
    sent = statements_sent(monkeypatch)
    counts = []
    rlmm.add_remote_log_segment_metadata_batch(list(map(SegmentAddition, made)))
    counts.append(len(sent))
    for state in (FINISHED, DELETE_STARTED, DELETE_FINISHED):
        sent.clear()
        rlmm.update_remote_log_segment_metadata_batch(
            [SegmentUpdate(update_to(metadata, state)) for metadata in made]
        )
        counts.append(len(sent))
    assert min(counts) >= 4
    assert max(counts) <= 10


def test_the_leaders_of_many_partitions_take_few_statements(
    rlmm: OwnRlmm, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = uuid4()
    tps = [TopicIdPartition(topic_id, "orders", partition) for partition in range(40)]
    rlmm.check()  # The first statements of a connection belong to no change.
    sent = statements_sent(monkeypatch)
    counts = []
    for known, epoch in ((20, 3), (40, 3), (40, 3), (40, 4)):
        sent.clear()
        leaders = [PartitionLeadership(tp, epoch) for tp in tps[:known]]
        rlmm.on_partition_leadership_changes(leaders, [], BROKER)
        counts.append(len(sent))
    lock_topics_known_and_lock = 3
    assert min(counts) == lock_topics_known_and_lock
    assert max(counts) <= 10


def test_a_new_partition_is_not_created_before_the_known_ones_below_it_are_locked(
    rlmm: OwnRlmm,
) -> None:
    topic_id = uuid4()
    known, new = (TopicIdPartition(topic_id, "orders", partition) for partition in range(2))

    def announce(*tps: TopicIdPartition) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 3) for tp in tps], [], BROKER)

    announce(known)
    with ThreadPoolExecutor(1) as pool:
        with rlmm.engine.begin() as holder:
            holder.execute(text("SELECT 1 FROM partitions FOR UPDATE"))
            both = pool.submit(announce, known, new)
            eventually(lambda: waiting(rlmm.engine) == 1)
            announce(new)  # It would wait for the other call's new row.
            assert not both.done()
        both.result(timeout=30)
    assert [revision_of(rlmm, tp) for tp in (known, new)] == [1, 1]
