"""Test that concurrent changes share a transaction, each with the outcome that it has alone."""

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    CorruptMetadataError,
    InvalidStateTransitionError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.segment_batches import SegmentAddition
from services.rlmm.changes.batch import Outcomes, Requested, SegmentBatch, change_in
from services.rlmm.changes.group_commit import MAX_ROWS
from services.rlmm.changes.locked_partitions import LockedPartitions
from services.rlmm.changes.segment_changes import update
from services.rlmm.database.db import Transactions
from services.rlmm.database.engine import DatabaseLimits, create_database_engine
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    add,
    revision_of,
    segment,
)
from tests.harness.databases import OwnRlmm, events, waiting
from tests.harness.eventually import eventually
from tests.harness.gates import Gated, result_of, to

pytestmark = pytest.mark.deep

LOCK_FIRST = text("SELECT 1 FROM partitions WHERE topic_id = :id AND partition = 0 FOR UPDATE")


@pytest.fixture
def gated(engine: Engine) -> Iterator[Gated]:
    with closing(Gated(engine)) as gated:
        yield gated


def test_changes_that_meet_share_a_transaction_and_each_event_names_its_own_call(
    rlmm: OwnRlmm, gated: Gated
) -> None:
    finishes = [to(FINISHED, add(rlmm, segment(tp, 0, 9))) for tp in rlmm.tps]
    adds = [SegmentAddition(segment(tp, 10, 19)) for tp in rlmm.tps]
    results = gated.meeting(*finishes[:3], *adds[3:])
    assert results == [MutationOutcome(applied=True, revision=3)] * len(rlmm.tps)
    assert gated.sizes == [len(rlmm.tps)]
    for number, tp in enumerate(rlmm.tps):
        last = events(rlmm.engine, tp)[-1]
        assert last.to_state == ("COPY_SEGMENT_FINISHED" if number < 3 else "COPY_SEGMENT_STARTED")
        assert (last.revision, last.actor, last.call_id) == (3, "broker", f"call-{number}")


def test_a_caller_that_finds_a_free_place_does_not_wait(rlmm: OwnRlmm, gated: Gated) -> None:
    made = [add(rlmm, segment(tp, 0, 9)) for tp in rlmm.tps]
    for metadata in made:
        assert gated.group_commit.change(to(FINISHED, metadata)).applied
    assert gated.sizes == [1] * len(rlmm.tps)


def test_a_refusal_reaches_its_own_caller(rlmm: OwnRlmm, gated: Gated) -> None:
    made = [add(rlmm, segment(tp, 0, 9)) for tp in rlmm.tps]
    first, *rest = [to(FINISHED, metadata) for metadata in made]
    refused = to(DELETE_FINISHED, made[0])
    results = gated.meeting(refused, *rest)
    assert isinstance(results[0], InvalidStateTransitionError)
    assert results[1:] == [MutationOutcome(applied=True, revision=3)] * len(rest)
    assert gated.group_commit.change(first).applied


def test_two_changes_of_a_partition_are_judged_one_after_the_other(
    rlmm: OwnRlmm, gated: Gated
) -> None:
    one, other = (add(rlmm, segment(rlmm.tps[0], start, start + 9)) for start in (0, 10))
    expects = MutationContext(expected_revision=revision_of(rlmm, rlmm.tps[0]))
    results = gated.meeting(to(FINISHED, one, expects), to(FINISHED, other, expects))
    assert results[0] == MutationOutcome(applied=True, revision=4)
    assert isinstance(results[1], ConcurrentUpdateError)
    assert gated.sizes == [2]


def test_changes_of_one_partition_share_a_transaction_each_with_its_own_outcome(
    rlmm: OwnRlmm, gated: Gated
) -> None:
    tp = rlmm.tps[0]
    one, other, done, open_copy = (add(rlmm, segment(tp, n, n + 9)) for n in (0, 10, 20, 30))
    rlmm.update_remote_log_segment_metadata(to(FINISHED, done).update)
    results = gated.meeting(
        to(FINISHED, one),
        to(DELETE_FINISHED, open_copy),  # Refused: its deletion has not started.
        SegmentAddition(segment(tp, 40, 49)),
        to(FINISHED, done),  # A repeat.
        to(FINISHED, other),
    )
    assert gated.sizes == [5]
    assert isinstance(results.pop(1), InvalidStateTransitionError)
    assert results == [
        MutationOutcome(applied=True, revision=8),  # Additions are applied first.
        MutationOutcome(applied=True, revision=7),
        MutationOutcome(applied=False, revision=6),
        MutationOutcome(applied=True, revision=9),
    ]
    assert [each.call_id for each in events(rlmm.engine, tp)][6:] == ["call-2", "call-0", "call-4"]
    found = [rlmm.remote_log_segment_metadata(tp, 0, offset).value for offset in (0, 10, 20)]
    assert [each and each.remote_log_segment_id for each in found] == [
        each.remote_log_segment_id for each in (one, other, done)
    ]


def test_two_changes_of_a_segment_take_two_transactions(rlmm: OwnRlmm, gated: Gated) -> None:
    made = add(rlmm, segment(rlmm.tps[0], 0, 9))
    results = gated.meeting(to(FINISHED, made), to(DELETE_STARTED, made), to(FINISHED, made))
    assert gated.sizes == [1, 1, 1]
    assert results[:2] == [MutationOutcome(applied=True, revision=n) for n in (3, 4)]
    assert isinstance(results[2], InvalidStateTransitionError)


def test_changes_of_a_locked_partition_wait_together(rlmm: OwnRlmm, gated: Gated) -> None:
    made = [add(rlmm, segment(rlmm.tps[0], n, n)) for n in range(12)]
    with rlmm.engine.begin() as holder:
        holder.execute(LOCK_FIRST, {"id": rlmm.tps[0].topic_id})
        futures = [gated.submit(to(FINISHED, metadata)) for metadata in made]
        eventually(
            lambda: (
                waiting(rlmm.engine) == 1
                and gated.group_commit.waiting_for_locks() == len(made) - 1
            )
        )
    results = [result_of(future) for future in futures]
    assert {each.revision for each in results if isinstance(each, MutationOutcome)} == set(
        range(14, 26)
    )
    assert gated.locked_sizes == [1, len(made) - 1]


def test_changes_of_a_partition_that_stays_locked_fail_together(rlmm: OwnRlmm) -> None:
    made = [add(rlmm, segment(rlmm.tps[0], n, n)) for n in range(4)]
    impatient = create_database_engine(rlmm.database_url, DatabaseLimits(lock_timeout_ms=200))
    with closing(Gated(impatient)) as gated, rlmm.engine.begin() as holder:
        holder.execute(LOCK_FIRST, {"id": rlmm.tps[0].topic_id})
        futures = [gated.submit(to(FINISHED, metadata)) for metadata in made]
        results = [result_of(future) for future in futures]
    impatient.dispose()
    assert [type(each) for each in results] == [RetriableRemoteStorageError] * len(made)
    assert sum(gated.locked_sizes) == len(made)


def test_the_first_segments_of_a_partition_that_meet_create_it_once(
    engine: Engine, gated: Gated
) -> None:
    tp = TopicIdPartition(uuid4(), "new", 0)
    results = gated.meeting(*(SegmentAddition(segment(tp, n, n)) for n in range(4)))
    revisions = {each.revision for each in results if isinstance(each, MutationOutcome)}
    assert revisions == {1, 2, 3, 4}
    assert [each.revision for each in events(engine, tp)] == [1, 2, 3, 4]


def test_locked_partition_does_not_delay_the_others(rlmm: OwnRlmm, gated: Gated) -> None:
    made = [add(rlmm, segment(tp, 0, 9)) for tp in rlmm.tps]
    with rlmm.engine.begin() as holder:
        holder.execute(LOCK_FIRST, {"id": rlmm.tps[0].topic_id})
        with gated.place_taken():
            futures = [gated.submit(to(FINISHED, metadata)) for metadata in made]
            eventually(lambda: gated.group_commit.waiting() == len(made))
        assert [result_of(each) for each in futures[1:]] == [
            MutationOutcome(applied=True, revision=3)
        ] * len(futures[1:])
        for metadata in made[1:]:
            assert gated.group_commit.change(to(DELETE_STARTED, metadata)).applied
        assert not futures[0].done()
    assert result_of(futures[0]) == MutationOutcome(applied=True, revision=3)


def test_a_change_that_has_waited_for_long_runs_alone(rlmm: OwnRlmm) -> None:
    only = add(rlmm, segment(rlmm.tps[0], 0, 9))
    with closing(Gated(rlmm.engine, max_wait_s=0.05)) as gated:
        with gated.place_taken():
            assert gated.group_commit.change(to(FINISHED, only)).applied
            assert gated.group_commit.waiting() == 0
        assert gated.group_commit.change(to(DELETE_STARTED, only)).applied


def test_too_many_rows_are_split_into_two_transactions(rlmm: OwnRlmm, gated: Gated) -> None:
    epochs = {epoch: epoch for epoch in range(MAX_ROWS // 2)}
    adds = [SegmentAddition(segment(tp, 0, MAX_ROWS, epochs)) for tp in rlmm.tps[:3]]
    assert gated.meeting(*adds) == [MutationOutcome(applied=True, revision=2)] * 3
    assert gated.sizes == [2, 1]


def test_without_a_connection_no_change_is_retried(rlmm: OwnRlmm) -> None:
    made = [add(rlmm, segment(tp, 0, 9)) for tp in rlmm.tps]
    small = create_database_engine(
        rlmm.database_url, DatabaseLimits(pool_size=1, pool_timeout_ms=100)
    )
    with closing(Gated(small)) as gated, small.connect():
        results = [result_of(gated.submit(to(FINISHED, metadata))) for metadata in made]
    small.dispose()
    assert [type(each) for each in results] == [RetriableRemoteStorageError] * len(rlmm.tps)
    assert gated.locked_sizes == []


def test_interrupted_leader_leaves_no_change_waiting(rlmm: OwnRlmm, gated: Gated) -> None:
    made = [add(rlmm, segment(tp, 0, 9)) for tp in rlmm.tps]
    gated.fault = SystemExit
    leader, *others = gated.meeting(*(to(FINISHED, metadata) for metadata in made))
    assert isinstance(leader, SystemExit)
    assert [type(each) for each in others] == [RetriableRemoteStorageError] * len(others)
    gated.fault = None
    assert gated.group_commit.change(to(FINISHED, made[0])).applied


def test_a_process_that_falls_silent_with_locks_loses_them(rlmm: OwnRlmm) -> None:
    finish = Requested(to(FINISHED, add(rlmm, segment(rlmm.tps[0], 0, 9))))
    free = text(
        "SELECT 1 FROM partitions WHERE topic_id = :id AND partition = 0 FOR SHARE SKIP LOCKED"
    )

    def is_free() -> bool:
        with rlmm.engine.begin() as connection:
            return connection.scalar(free, {"id": rlmm.tps[0].topic_id}) is not None

    def silent(batch: SegmentBatch) -> Outcomes:
        assert rlmm.tps[0] in batch.partitions
        eventually(is_free)
        return update(batch, {0: finish})

    impatient = create_database_engine(
        rlmm.database_url, DatabaseLimits(idle_in_transaction_timeout_ms=500)
    )
    with pytest.raises(RetriableRemoteStorageError):
        Transactions(impatient).change(
            lambda connection: change_in(connection, LockedPartitions.lock, [finish], silent)
        )
    impatient.dispose()
    assert revision_of(rlmm, rlmm.tps[0]) == 2


def test_if_the_database_refuses_a_statement_only_the_item_at_fault_is_refused(
    rlmm: OwnRlmm, gated: Gated
) -> None:
    made = [add(rlmm, segment(tp, 0, 9)) for tp in rlmm.tps]
    with rlmm.engine.begin() as connection:
        # As if an event had been written without its revision.
        connection.execute(
            text(
                "INSERT INTO events (topic_id, partition, revision, kind, actor, call_id, reason, "
                "broker_id) VALUES (:id, 1, 3, 'SEGMENT', '', '', '', 1)"
            ),
            {"id": rlmm.tps[1].topic_id},
        )
    results = gated.meeting(*(to(FINISHED, metadata) for metadata in made))
    assert type(results.pop(1)) is CorruptMetadataError
    assert results == [MutationOutcome(applied=True, revision=3)] * (len(rlmm.tps) - 1)


def test_internal_error_leaves_no_change_waiting(rlmm: OwnRlmm, gated: Gated) -> None:
    made = [add(rlmm, segment(tp, 0, 9)) for tp in rlmm.tps]
    gated.fault = ZeroDivisionError
    results = gated.meeting(*(to(FINISHED, metadata) for metadata in made))
    assert results == [MutationOutcome(applied=True, revision=3)] * len(rlmm.tps)
    gated.fault = None
    assert gated.group_commit.change(to(DELETE_STARTED, made[0])).applied


def test_a_commit_without_an_answer_is_reported_to_all_its_callers(
    rlmm: OwnRlmm, gated: Gated
) -> None:
    made = [add(rlmm, segment(tp, 0, 9)) for tp in rlmm.tps]
    gated.lose_commits()
    why = MutationContext(request_id="finish")
    results = gated.meeting(*(to(FINISHED, metadata, why) for metadata in made))
    assert [type(each) for each in results] == [RetriableRemoteStorageError] * len(rlmm.tps)
    again = [gated.group_commit.change(to(FINISHED, metadata, why)) for metadata in made]
    assert again == [MutationOutcome(applied=True, revision=3)] * len(rlmm.tps)


@pytest.mark.deep
def test_many_at_once_are_all_answered_and_the_audit_trail_has_no_gap(
    rlmm: OwnRlmm, gated: Gated
) -> None:
    made = [add(rlmm, segment(tp, n, n)) for n in range(20) for tp in rlmm.tps]
    for state in (FINISHED, DELETE_STARTED, DELETE_FINISHED):
        futures = [gated.submit(to(state, metadata)) for metadata in made]
        assert all(isinstance(result_of(future), MutationOutcome) for future in futures)
    assert sum(gated.sizes) >= 3 * len(made) > len(gated.sizes)
    for tp in rlmm.tps:
        assert [each.revision for each in events(rlmm.engine, tp)] == list(range(1, 82))
