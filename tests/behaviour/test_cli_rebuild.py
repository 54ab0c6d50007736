"""Test `sediment db rebuild` and `sediment db confirm-rebuild` over real services."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from services.api.deployment_state import TopicState
from services.api.errors import DeletionRefusedError
from services.api.holds import Hold, HoldKind
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import all_holds, all_partitions, all_segments
from services.api.segments import RemoteLogSegmentState
from services.rlmm.operations.deployment_state import read_deployment_state
from services.workflows.deployment_state import HEAD, read_head, store_state
from tests.contract.remote_storage_manager_contract import Files
from tests.harness import served_fixtures
from tests.harness.clocks import now_ms
from tests.harness.databases import Databases
from tests.harness.holds import REBUILD, export, hold
from tests.harness.processes import RlmmProcess, serving_rlmm
from tests.harness.served import ServedRsm
from tests.harness.tier import SIZE_BYTES, SmallTier, a_topic, segment

CONFIRM = ("db", "confirm-rebuild", "--reason", "checked")
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED

rlmm, rsm, store = served_fixtures.rlmm_with_rsm, served_fixtures.rsm, served_fixtures.store


def rebuild(rlmm: RlmmProcess, *options: str) -> tuple[int, dict[str, Any]]:
    done = rlmm.sediment("db", "rebuild", *options, "-o", "json")
    return done.returncode, json.loads(done.stdout)


def frozen_since_ms(rlmm: RlmmProcess, database_url: str) -> int | None:
    [shown] = rlmm.answers("db", "current", "--database-url", database_url)
    found: int | None = shown["deletions_frozen_since_ms"]
    return found


def test_a_dry_run_reports_and_apply_imports_until_the_rebuild_is_confirmed(
    rlmm: RlmmProcess, rsm: ServedRsm, database_url: str
) -> None:
    (tp,) = a_topic("orders")
    lost = segment(tp, 0)
    rsm.client.copy_log_segment_data(lost, Files(bytes(SIZE_BYTES)).data())
    code, dry = rebuild(rlmm)
    assert (code, dry["apply"], dry["imported"], dry["freeze"]) == (0, False, 0, None)
    assert [(each["kind"], each["topic"], each["end_offset"]) for each in dry["differences"]] == [
        ("ONLY_IN_BUCKET", "orders", lost.end_offset)
    ]
    assert frozen_since_ms(rlmm, database_url) is None
    code, applied = rebuild(rlmm, "--apply")
    assert (code, applied["imported"], applied["freeze"]["reason"]) == (0, 1, "rebuild")
    assert [each.state for each in SmallTier(rsm.client, rlmm.client).rows(tp)] == [FINISHED]
    assert frozen_since_ms(rlmm, database_url) == applied["freeze"]["since_ms"]
    [ended] = rlmm.answers(*CONFIRM)
    assert ended == {"ended": applied["freeze"], "log_starts": 0, "marks": 0, "refused": []}
    again = rlmm.sediment(*CONFIRM)
    assert (again.returncode, "not frozen" in again.stderr) == (0, True)


def test_what_is_only_in_the_metadata_has_its_own_exit_code(
    rlmm: RlmmProcess, rsm: ServedRsm
) -> None:
    (tp,) = a_topic("orders")
    (only,) = SmallTier(rsm.client, rlmm.client).fill(tp, 1)
    rsm.client.delete_log_segment_data(only)
    done = rlmm.sediment("db", "rebuild", "--apply")
    assert done.returncode == 1
    assert "ONLY_IN_METADATA" in done.stdout
    assert "confirm-rebuild" in done.stderr


def maintain(rlmm: RlmmProcess, database_url: str) -> tuple[int, int | None, str]:
    """Keep the database's state in the bucket; return exit code, topics and the reason if not."""
    done = rlmm.sediment("db", "maintain", "--database-url", database_url, "-o", "json")
    shown = json.loads(done.stdout)
    return done.returncode, shown["kept_topics"], shown["not_kept"]


def as_listed(rlmm: RlmmProcess) -> list[dict[str, Any]]:
    """Return all segments but for the time of the last event, which a rebuild declares."""
    partitions = [each.topic_id_partition for each in all_partitions(rlmm.client)]
    listed = [each for tp in partitions for each in all_segments(rlmm.client, tp)]
    return [asdict(replace(each, event_timestamp_ms=0)) for each in listed]


def delete_states(rlmm: RlmmProcess) -> dict[TopicIdPartition, RemotePartitionDeleteState | None]:
    found = rlmm.client.list_partitions().partitions
    return {each.topic_id_partition: each.delete_state for each in found}


def test_doctor_says_how_old_the_state_in_the_bucket_is(
    rlmm: RlmmProcess, rsm: ServedRsm, database_url: str
) -> None:
    def found() -> dict[str, str]:
        [document] = [json.loads(rlmm.sediment("doctor", "-o", "json").stdout)]
        [kept] = [each for each in document["findings"] if each["check"] == "kept state"]
        return {name: str(kept[name]) for name in ("level", "text", "next")}

    never = found()
    assert (never["level"], never["text"][:10]) == ("SKIP", "never kept")
    assert maintain(rlmm, database_url)[0] == 0
    assert found()["level"] == "OK"
    head = json.loads(rsm.objects.deployment_state(HEAD))
    old = json.dumps({**head, "kept_at_ms": head["kept_at_ms"] - 3 * 86_400_000})
    rsm.objects.put_deployment_state(HEAD, old.encode())
    late = found()
    assert (late["level"], "3 d ago" in late["text"]) == ("WARN", True)
    assert "sediment db maintain" in late["next"]


@pytest.mark.deep
def test_a_database_that_was_lost_has_its_settings_log_starts_and_marks_again(
    rlmm: RlmmProcess, rsm: ServedRsm, database_url: str, databases: Databases
) -> None:
    tier = SmallTier(rsm.client, rlmm.client)
    orders, deleted, gone = a_topic("orders", 3)
    (held,) = a_topic("held")
    for tp in (orders, deleted, held):
        tier.fill(tp, 3, txn_idx_empty=True)
    rlmm.client.put_topic_config(orders.topic_id, {"retention.ms": "1"}, now=True)
    rlmm.client.put_topic_config(orders.topic_id, {"retention.ms": "3600000"}, now=True)
    (swept,), (by_rlm,) = a_topic("swept"), a_topic("by-rlm")
    for tp in (swept, by_rlm):
        tier.fill(tp, 1)
    for tp in (orders, held, swept, by_rlm):
        rlmm.client.raise_log_start_offset(tp, 50 if tp in (swept, by_rlm) else 150)
    settings = {
        held: {"retention.ms": "1"},
        swept: {"sediment.retention.owner": "sweep"},
        by_rlm: {"sediment.retention.owner": "rlm"},
    }
    for tp, entries in settings.items():
        rlmm.client.put_topic_config(tp.topic_id, entries, now=True)
    for tp in (deleted, gone):  # gone has no segment
        tier.mark_deleted(tp)
    holds = [
        hold(rlmm.client, held, kind=HoldKind.LEGAL, first_offset=200, last_offset=250),
        hold(rlmm.client, orders, partition=0, until_ms=now_ms() + 86_400_000),
        rlmm.client.set_hold(Hold("all", HoldKind.OPERATOR, reason="a test")),
    ]
    export(rlmm.client, orders, 200)
    assert maintain(rlmm, database_url) == (0, 4, "")

    url = databases.take()
    with serving_rlmm(url) as served:
        empty = served.beside(SEDIMENT_RSM=rsm.address)
        code, _, reason = maintain(empty, url)
        assert (code, "sediment db rebuild --apply" in reason) == (1, True)
        code, applied = rebuild(empty, "--apply")
        assert (code, applied["imported"]) == (0, 11)
        kept = {"settings": 4, "holds": 4, "log_starts": 4, "marks": 2, "refused": []}
        assert applied["kept"].items() >= kept.items()
        assert maintain(empty, url)[0] == 1  # not confirmed
        done = empty.sediment(*CONFIRM, "-o", "json")
        shown = json.loads(done.stdout)
        assert (done.returncode, shown["log_starts"], shown["marks"]) == (0, 4, 1)
        assert shown["refused"] == []

        assert "lake" in {each.name for each in all_holds(empty.client, orders.topic)}
        found = [replace(each, set_at_ms=0) for each in all_holds(empty.client)]
        assert {replace(each, set_at_ms=0) for each in holds} <= {*found}
        assert as_listed(empty) == as_listed(rlmm)
        for topic in (orders, *settings):
            before, after = (r.client.topic_config(topic.topic_id) for r in (rlmm, empty))
            assert before.entries == after.entries
        for tp, start in ((orders, 150), (held, 150), (swept, 50), (by_rlm, 50)):
            assert empty.client.partition_state(tp).value.log_start_offset == start
        assert delete_states(empty) | {gone: MARKED} == delete_states(rlmm)
        empty.client.undelete_partition(deleted)
        code, again = rebuild(empty, "--apply")
        assert (code, again["kept"]["settings"]) == (0, 0)
        assert json.loads(empty.sediment(*CONFIRM, "-o", "json").stdout)["marks"] == 0
        assert maintain(empty, url) == (0, 4, "")


def test_a_log_start_that_is_refused_leaves_deletions_frozen_and_the_state_in_the_bucket(
    rlmm: RlmmProcess, rsm: ServedRsm, database_url: str
) -> None:
    orders, renamed = a_topic("orders", 2)
    tier = SmallTier(rsm.client, rlmm.client)
    for tp in (orders, renamed):
        tier.fill(tp, 1)
    state = read_deployment_state(database_url)
    topic = TopicState(orders.topic_id, "not-orders", log_starts={0: 50})
    store_state(rsm.objects, replace(state, topics=(topic,)), None)
    rebuild(rlmm, "--apply")
    for _ in range(2):
        done = rlmm.sediment(*CONFIRM)
        assert (done.returncode, "not confirmed" in done.stderr) == (1, True)
        assert "refused: log start 50 of not-orders-0" in done.stderr
    head = read_head(rsm.objects)
    assert head is not None
    assert not head.is_settled
    with pytest.raises(DeletionRefusedError, match="hold rebuild"):
        rlmm.client.raise_log_start_offset(orders, 50)
    store_state(rsm.objects, replace(state, topics=(replace(topic, topic=orders.topic),)), head)
    assert rlmm.sediment(*CONFIRM).returncode == 0
    assert rlmm.client.partition_state(orders).value.log_start_offset == 50


def test_a_log_start_is_restored_only_while_deletions_are_frozen(
    rlmm: RlmmProcess, rsm: ServedRsm
) -> None:
    (tp,) = a_topic("orders")
    SmallTier(rsm.client, rlmm.client).fill(tp, 1)
    with pytest.raises(DeletionRefusedError, match="only while a rebuild keeps all topics"):
        rlmm.client.raise_log_start_offset(tp, 50, restores=True)
    rlmm.client.set_hold(REBUILD)
    rlmm.client.raise_log_start_offset(tp, 1_000_000, restores=True)
    (segment,) = all_segments(rlmm.client, tp)
    start = rlmm.client.partition_state(tp).value.log_start_offset
    assert start == segment.end_offset + 1


@pytest.mark.deep
def test_a_restored_database_does_not_replace_what_is_newer(
    rlmm: RlmmProcess, rsm: ServedRsm, database_url: str
) -> None:
    (tp,) = a_topic("orders")
    SmallTier(rsm.client, rlmm.client).fill(tp, 1)
    rlmm.client.put_topic_config(tp.topic_id, {"retention.ms": "1"}, now=True)
    assert maintain(rlmm, database_url) == (0, 1, "")
    state = read_deployment_state(database_url)
    newer = replace(state, changes=state.changes + 1)
    later = (replace(state.topics[0], settings_revision=2),)
    for kept in (newer, replace(state, topics=later)):
        store_state(rsm.objects, kept, read_head(rsm.objects))
        code, topics, reason = maintain(rlmm, database_url)
        assert (code, topics) == (1, None)
        assert "sediment db rebuild --apply" in reason


@pytest.mark.deep
def test_a_partition_that_was_undeleted_is_not_marked_again(
    rlmm: RlmmProcess, rsm: ServedRsm, database_url: str
) -> None:
    (tp,) = a_topic("orders")
    tier = SmallTier(rsm.client, rlmm.client)
    tier.fill(tp, 1)
    tier.mark_deleted(tp)
    assert maintain(rlmm, database_url) == (0, 1, "")
    assert rebuild(rlmm, "--apply")[0] == 0
    rlmm.client.undelete_partition(tp)
    [shown] = rlmm.answers(*CONFIRM)
    assert shown["marks"] == 0
    [found] = rlmm.client.list_partitions().partitions
    assert found.delete_state is None


@pytest.mark.deep
def test_another_rebuild_takes_no_hold_and_no_later_settings_away(
    rlmm: RlmmProcess, rsm: ServedRsm, database_url: str, databases: Databases
) -> None:
    (tp,) = a_topic("orders")
    SmallTier(rsm.client, rlmm.client).fill(tp, 1)
    for retention_ms in ("1", "2", "3", "4"):
        rlmm.client.put_topic_config(tp.topic_id, {"retention.ms": retention_ms}, now=True)
    assert maintain(rlmm, database_url) == (0, 1, "")
    url = databases.take()
    with serving_rlmm(url) as served:
        empty = served.beside(SEDIMENT_RSM=rsm.address)
        assert rebuild(empty, "--apply")[0] == 0
        held = hold(empty.client, tp)
        assert rebuild(empty, "--apply")[0] == 0
        assert set(all_holds(empty.client, tp.topic)) >= {held}
        empty.answers(*CONFIRM)
        empty.client.put_topic_config(tp.topic_id, {"retention.ms": "9"}, now=True)
        assert rebuild(empty, "--apply")[0] == 0
        assert empty.client.topic_config(tp.topic_id).entries == {"retention.ms": "9"}
    with serving_rlmm(databases.take()) as served:
        lost_again = served.beside(SEDIMENT_RSM=rsm.address)
        assert rebuild(lost_again, "--apply")[0] == 0
        assert lost_again.client.topic_config(tp.topic_id).entries == {"retention.ms": "4"}


@pytest.mark.deep
def test_a_damaged_state_in_the_bucket_does_not_keep_deletions_frozen(
    rlmm: RlmmProcess, rsm: ServedRsm, database_url: str
) -> None:
    rsm.objects.put_deployment_state("topics", b"{")
    code, applied = rebuild(rlmm, "--apply")
    assert (code, len(applied["kept"]["refused"])) == (1, 1)
    done = rlmm.sediment(*CONFIRM)
    assert (done.returncode, "cannot be read" in done.stderr) == (1, True)
    assert frozen_since_ms(rlmm, database_url) is None
