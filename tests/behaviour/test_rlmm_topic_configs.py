"""Test a topic's settings against concurrent changes: after a put, the new settings apply."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from services.api.calls import NO_CONTEXT, Call, MutationContext, MutationOutcome, serving
from services.api.errors import ConcurrentUpdateError, DeletionRefusedError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership, SegmentUpdate
from services.api.topic_config import StoredTopicConfig
from services.rlmm.changes import topic_configs
from services.rlmm.changes.batch import Requested
from services.rlmm.changes.segment_changes import apply_unlocked
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_STARTED,
    finished,
    id_at,
    id_of,
    move,
    segment,
    update_to,
)
from tests.harness.databases import OwnRlmm, waiting
from tests.harness.eventually import eventually

OWNED = {"sediment.retention.owner": "sweep"}


def test_a_put_waits_for_a_mark_of_any_partition_and_refuses_the_next(rlmm: OwnRlmm) -> None:
    for tp in rlmm.tps:
        under_way, next_one = finished(rlmm, tp, 0, 9), finished(rlmm, tp, 10, 19)
        rlmm.put_topic_config(tp.topic_id, {})
        with ThreadPoolExecutor(1) as pool:
            with rlmm.engine.begin() as connection:
                mark = Requested(SegmentUpdate(update_to(under_way, DELETE_STARTED)))
                [outcome] = apply_unlocked(connection, {0: mark}).values()
                assert isinstance(outcome, MutationOutcome)
                put = pool.submit(rlmm.put_topic_config, tp.topic_id, OWNED)
                eventually(lambda: waiting(rlmm.engine) == 1)
                assert not put.done()
            assert put.result(timeout=30).entries == OWNED
        assert id_at(rlmm, tp, 0, 5) is None
        with pytest.raises(DeletionRefusedError):
            move(rlmm, next_one, DELETE_STARTED)
        assert id_at(rlmm, tp, 0, 15) == id_of(next_one)


def test_a_mark_that_waited_for_a_put_is_judged_by_the_new_settings(rlmm: OwnRlmm) -> None:
    only = finished(rlmm, rlmm.tps[1], 0, 9)
    with ThreadPoolExecutor(1) as pool:
        with rlmm.engine.begin() as connection:
            topic_configs.put(connection, rlmm.tps[1].topic_id, OWNED, None, NO_CONTEXT, False)
            mark = pool.submit(move, rlmm, only, DELETE_STARTED)
            eventually(lambda: waiting(rlmm.engine) == 1)
        with pytest.raises(DeletionRefusedError):
            mark.result(timeout=30)


def test_a_new_partition_waits_for_the_new_settings(rlmm: OwnRlmm) -> None:
    new = TopicIdPartition(rlmm.tps[0].topic_id, "orders", 9)
    with ThreadPoolExecutor(1) as pool:
        with rlmm.engine.begin() as connection:
            topic_configs.put(connection, new.topic_id, OWNED, None, NO_CONTEXT, False)
            add = pool.submit(rlmm.add_remote_log_segment_metadata, segment(new, 0, 9))
            eventually(lambda: waiting(rlmm.engine) == 1)
            assert not add.done()
        assert add.result(timeout=30).applied


def test_settings_change_while_partitions_of_the_topic_are_announced(rlmm: OwnRlmm) -> None:
    topic_id = rlmm.tps[0].topic_id

    def announce(round_number: int) -> None:
        # Known and new partitions in turn: both kinds of lock in one transaction.
        numbers = range(round_number % 2, 10 * (round_number + 1), 2)
        leaders = [
            PartitionLeadership(TopicIdPartition(topic_id, "orders", number), round_number)
            for number in numbers
        ]
        rlmm.on_partition_leadership_changes(leaders, [], BROKER)

    def put(round_number: int) -> None:
        rlmm.put_topic_config(topic_id, {"retention.ms": str(round_number)})

    with ThreadPoolExecutor(4) as pool:
        rounds = [pool.submit(step, n) for n in range(8) for step in (announce, put)]
    for each in rounds:
        each.result()
    assert rlmm.topic_config(topic_id).revision == 8


def test_of_two_puts_that_expect_the_same_revision_one_is_refused(rlmm: OwnRlmm) -> None:
    topic_id = rlmm.tps[0].topic_id

    def put(retention_ms: str) -> StoredTopicConfig | ConcurrentUpdateError:
        try:
            return rlmm.put_topic_config(topic_id, {"retention.ms": retention_ms}, 0)
        except ConcurrentUpdateError as e:
            return e

    with ThreadPoolExecutor(2) as pool:
        with rlmm.engine.begin() as holder:
            holder.execute(text("SELECT 1 FROM topics FOR UPDATE"))
            futures = [pool.submit(put, retention_ms) for retention_ms in ("1", "2")]
            eventually(lambda: waiting(rlmm.engine) == 2)
        results = [future.result(timeout=30) for future in futures]
    [stored] = [each for each in results if isinstance(each, StoredTopicConfig)]
    assert rlmm.topic_config(topic_id) == stored
    assert stored.revision == 1


def test_each_version_is_kept_with_its_actor_and_reason(rlmm: OwnRlmm) -> None:
    topic_id = rlmm.tps[0].topic_id
    with serving(Call(actor="operator", request_id="call-1")):
        rlmm.put_topic_config(topic_id, OWNED, context=MutationContext(reason="case 17"))
        rlmm.put_topic_config(topic_id, OWNED, context=MutationContext(reason="again"))
    with serving(Call(actor="another", request_id="call-2")):
        rlmm.put_topic_config(topic_id, {})
    with rlmm.engine.connect() as connection:
        rows = connection.execute(text("SELECT * FROM topic_config_events ORDER BY revision")).all()
    assert [(each.topic_id, each.revision, each.config) for each in rows] == [
        (topic_id, 1, OWNED),
        (topic_id, 2, {}),
    ]
    assert [(each.actor, each.call_id, each.reason) for each in rows] == [
        ("operator", "call-1", "case 17"),
        ("another", "call-2", ""),
    ]
    assert rows[0].at <= rows[1].at
