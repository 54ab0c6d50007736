"""Test that no deletion begins beside the setting of a hold, whatever its scope."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from services.api.calls import MutationOutcome
from services.api.errors import DeletionRefusedError
from services.api.holds import Hold, HoldKind
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import SegmentUpdate
from services.rlmm.changes import holds
from services.rlmm.changes.batch import Requested
from services.rlmm.changes.segment_changes import apply_unlocked
from tests.contract.rlmm.segments import (
    DELETE_STARTED,
    MARKED,
    PARTITION_STARTED,
    finished,
    id_at,
    id_of,
    move,
    put_deletion,
    segment,
    update_to,
)
from tests.harness.databases import OwnRlmm, waiting
from tests.harness.eventually import eventually
from tests.harness.holds import hold_of

SCOPES: dict[str, Callable[[TopicIdPartition], Hold]] = {
    "partition": lambda tp: hold_of(tp, partition=tp.partition),
    "topic": hold_of,
    "all topics": lambda _: Hold("all", HoldKind.LEGAL, reason="test"),
}


@pytest.fixture(params=SCOPES)
def scoped(request: pytest.FixtureRequest) -> Callable[[TopicIdPartition], Hold]:
    return SCOPES[request.param]


def test_a_hold_waits_for_a_mark_and_refuses_the_next(
    rlmm: OwnRlmm, scoped: Callable[[TopicIdPartition], Hold]
) -> None:
    tp = rlmm.tps[1]
    under_way, next_one = finished(rlmm, tp, 0, 9), finished(rlmm, tp, 10, 19)
    with ThreadPoolExecutor(1) as pool:
        with rlmm.engine.begin() as connection:
            mark = Requested(SegmentUpdate(update_to(under_way, DELETE_STARTED)))
            [outcome] = apply_unlocked(connection, {0: mark}).values()
            assert isinstance(outcome, MutationOutcome)
            held = pool.submit(rlmm.set_hold, scoped(tp))
            eventually(lambda: waiting(rlmm.engine) == 1)
            assert not held.done()
        held.result(timeout=30)
    assert id_at(rlmm, tp, 0, 5) is None
    with pytest.raises(DeletionRefusedError):
        move(rlmm, next_one, DELETE_STARTED)
    assert id_at(rlmm, tp, 0, 15) == id_of(next_one)


def test_a_mark_that_waited_for_a_hold_is_refused(
    rlmm: OwnRlmm, scoped: Callable[[TopicIdPartition], Hold]
) -> None:
    tp = rlmm.tps[1]
    only = finished(rlmm, tp, 0, 9)
    with ThreadPoolExecutor(1) as pool:
        with rlmm.engine.begin() as connection:
            holds.set_hold(connection, scoped(tp), None)
            mark = pool.submit(move, rlmm, only, DELETE_STARTED)
            eventually(lambda: waiting(rlmm.engine) == 1)
        with pytest.raises(DeletionRefusedError):
            mark.result(timeout=30)


def test_the_start_of_a_removal_that_waited_for_a_hold_is_refused(
    rlmm: OwnRlmm, scoped: Callable[[TopicIdPartition], Hold]
) -> None:
    tp = rlmm.tps[1]
    put_deletion(rlmm, tp, MARKED)
    with ThreadPoolExecutor(1) as pool:
        with rlmm.engine.begin() as connection:
            holds.set_hold(connection, scoped(tp), None)
            start = pool.submit(put_deletion, rlmm, tp, PARTITION_STARTED)
            eventually(lambda: waiting(rlmm.engine) == 1)
        with pytest.raises(DeletionRefusedError):
            start.result(timeout=30)


def test_a_new_partition_waits_for_a_hold_of_its_topic(rlmm: OwnRlmm) -> None:
    new = TopicIdPartition(rlmm.tps[0].topic_id, "orders", 9)
    with ThreadPoolExecutor(1) as pool:
        with rlmm.engine.begin() as connection:
            holds.set_hold(connection, hold_of(new), None)
            add = pool.submit(rlmm.add_remote_log_segment_metadata, segment(new, 0, 9))
            eventually(lambda: waiting(rlmm.engine) == 1)
            assert not add.done()
        assert add.result(timeout=30).applied


def test_two_that_set_the_same_hold_leave_one(rlmm: OwnRlmm) -> None:
    one = hold_of(rlmm.tps[0])
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(rlmm.set_hold, replace(one, first_offset=n)) for n in range(12)]
    results = [each.result() for each in made]
    assert len({each.set_at_ms for each in results}) == 1
    with rlmm.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM holds")).scalar_one() == 1
