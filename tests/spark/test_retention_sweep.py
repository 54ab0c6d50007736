"""The retention sweep on a cluster of processes, against the real services."""

from pathlib import Path
from uuid import UUID

import pyarrow.parquet as pq
import pytest

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition, uuid_from_text
from services.api.lineage import Lineage
from services.api.partitions import NOTHING_COPIED, EventQuery
from services.api.remote_log_metadata_manager import all_events, all_segments
from services.api.remote_storage_manager import IndexType
from services.api.retention import plan_retention
from services.api.segments import RemoteLogSegmentState, segment_leader_epochs
from services.api.topic_config import RetentionOwner
from services.workflows.deletion import Deleter, finish_deletion
from spark_jobs.sweeps.planning import NO_OWNER, NO_REPORT
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.holds import end_export, export, hold
from tests.harness.tier import HOUR_MS, OFFSETS, SIZE_BYTES, Tier, a_topic, ids, now_ms, segment
from tests.spark.jobs import Done, Jobs
from tests.spark.tiers import due_partitions

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1_500),
    pytest.mark.parametrize("jobs", ["local", "spark"], indirect=True),
]
BY_TIME = {"retention.ms": str(HOUR_MS)}
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


def online_plan(tier: Tier, tp: TopicIdPartition) -> dict[UUID, str]:
    """What an RLM would delete, and why."""
    state = tier.rlmm.partition_state(tp).value
    topic = tier.rlmm.topic_config(tp.topic_id)
    segments = list(all_segments(tier.rlmm, tp))
    made = plan_retention(
        segments, state, topic.config, topic.earlier_config, now_ms=state.read_at_ms
    )
    return {d.segment.remote_log_segment_id.id: d.reason.name for d in made.deletions}


def planned(done: Done, tp: TopicIdPartition) -> dict[UUID, str]:
    of_partition = {
        s["segment_id"]
        for s in done.document["segments"]
        if (s["topic"], s["partition"]) == (tp.topic, tp.partition)
    }
    reasons = {s["segment_id"]: s["reason"] for s in done.document["segments"]}
    by_id = dict(zip(reasons, done.segments("reason").items(), strict=True))
    return dict(by_id[text] for text in of_partition)


def test_it_plans_what_the_online_path_plans(jobs: Jobs, tier: Tier) -> None:
    """Every rule of retention, each in a topic of its own, and what keeps a sweep away."""
    [by_time] = a_topic()
    tier.fill(by_time, 3)
    tier.fill(by_time, 2, first=3, age_ms=0)
    tier.settings(by_time.topic_id, BY_TIME)

    [by_size] = a_topic()
    tier.fill(by_size, 5, age_ms=0)
    tier.settings(by_size.topic_id, {"retention.bytes": str(2 * SIZE_BYTES)})

    [both] = a_topic()
    tier.fill(both, 1)
    tier.fill(both, 4, first=1, age_ms=0)
    tier.settings(both.topic_id, {**BY_TIME, "retention.bytes": str(3 * SIZE_BYTES)})

    [below] = a_topic()
    tier.fill(below, 4, age_ms=0)
    tier.settings(below.topic_id, {})

    [unreferenced] = a_topic()
    tier.fill(unreferenced, 2, age_ms=0)
    of_epoch_3 = segment_leader_epochs([(3, 2 * OFFSETS)])
    tier.fill(unreferenced, 2, first=2, age_ms=0, segment_leader_epochs=of_epoch_3)
    tier.settings(unreferenced.topic_id, {})

    [twice] = a_topic()
    tier.fill(twice, 2)
    tier.fill(twice, 2)
    tier.fill(twice, 2, first=2, age_ms=0)
    tier.settings(twice.topic_id, BY_TIME)

    [dangling] = a_topic()
    tier.rlmm.add_remote_log_segment_metadata(
        segment(dangling, 0, event_timestamp_ms=1, max_timestamp_ms=now_ms() - 10 * HOUR_MS)
    )
    unfinished = tier.fill(dangling, 2, first=1)[0]
    tier.move(unfinished, DELETE_STARTED)
    tier.settings(dangling.topic_id, BY_TIME)

    [held] = a_topic()
    tier.fill(held, 2)
    tier.settings(held.topic_id, BY_TIME)
    hold(tier.rlmm, held)

    [unfit] = a_topic()
    tier.fill(unfit, 3, age_ms=0)
    tier.settings(unfit.topic_id, {"retention.bytes": "1"})

    compared = [by_time, by_size, both, below, unreferenced, twice, dangling, held, unfit]
    for tp in compared:
        if tp != unreferenced:
            tier.report(tp, 5)
    tier.report(unreferenced, 5, leader_epoch=3, lineage=lineage((3, 2 * OFFSETS)))
    tier.report(unfit, 5, copied_through_offset=NOTHING_COPIED)
    as_sweep = MutationContext(retention_owner=RetentionOwner.SWEEP)
    tier.rlmm.raise_log_start_offset(below, 2 * OFFSETS, as_sweep)
    tier.rlmm.raise_log_start_offset(unreferenced, OFFSETS, as_sweep)

    [unreported] = a_topic()
    tier.fill(unreported, 1)
    tier.settings(unreported.topic_id, BY_TIME)
    [nobodys], [rlms] = a_topic(), a_topic()
    for tp in (nobodys, rlms):
        tier.fill(tp, 1)
        tier.report(tp, 1)
    tier.rlmm.put_topic_config(nobodys.topic_id, BY_TIME, now=True)
    tier.settings(rlms.topic_id, {**BY_TIME, "sediment.retention.owner": "rlm"})

    left_alone = [unreported, nobodys, rlms]
    done = jobs.retention([tp.topic for tp in [*compared, *left_alone]])
    expected = {tp: online_plan(tier, tp) for tp in compared}
    assert {tp: planned(done, tp) for tp in compared} == expected
    reasons = {reason for plan in expected.values() for reason in plan.values()}
    assert reasons == {
        "RETENTION_TIME",
        "RETENTION_SIZE",
        "LOG_START_OFFSET",
        "UNREFERENCED",
        "DELETION_NOT_FINISHED",
    }
    # Of the two segments of an epoch before the lineage, the one that is below the log start.
    assert list(expected[unreferenced].values()) == ["UNREFERENCED"]
    assert sorted(expected[twice].values()) == [
        "LOG_START_OFFSET",
        "LOG_START_OFFSET",
        *2 * ["RETENTION_TIME"],
    ]
    assert expected[held] == expected[unfit] == {}
    skipped = {tp: done.partition(tp)["skipped"] for tp in [*compared, *left_alone]}
    assert {tp: why for tp, why in skipped.items() if why is not None} == {
        unreported: NO_REPORT,
        nobodys: NO_OWNER,
        rlms: "sediment.retention.owner is rlm",
    }
    assert "retention.bytes not applied" in done.partition(unfit)["notes"][0]
    assert "hold audit (operator) keeps all offsets" in done.partition(held)["notes"][0]
    assert done.partition(by_time)["log_start_offset"] == 3 * OFFSETS
    assert done.totals["skipped_partitions"] == 3


def lineage(*pairs: tuple[int, int]) -> Lineage:
    return Lineage(segment_leader_epochs(pairs))


def test_a_dry_run_changes_nothing_and_apply_deletes_exactly_its_plan(
    jobs: Jobs, tier: Tier
) -> None:
    partitions = a_topic(partitions=3)
    [tp, other, empty] = partitions
    doomed = [*tier.fill(tp, 5), *tier.fill(tp, 1), *tier.fill(other, 2)]
    kept = [*tier.fill(tp, 3, first=5, age_ms=0), *tier.fill(other, 1, first=2, age_ms=0)]
    for each in partitions:
        tier.report(each, 8)
    tier.settings(tp.topic_id, BY_TIME)
    rows, objects = tier.rows(*partitions), tier.objects(tp.topic_id)
    revisions = [tier.rlmm.partition_state(each).revision for each in partitions]

    dry = jobs.retention([tp.topic])
    assert dry.segments() == dict.fromkeys(ids(doomed), "PLANNED")
    assert dry.outcome == "PLANNED"
    assert tier.rows(*partitions) == rows
    assert tier.objects(tp.topic_id) == objects
    assert [tier.rlmm.partition_state(each).revision for each in partitions] == revisions

    applied = jobs.retention([tp.topic], apply=True)
    assert applied.segments() == dict.fromkeys(ids(doomed), "DELETED")
    assert applied.outcome == "DONE"
    assert applied.totals["deleted_bytes"] == 8 * SIZE_BYTES
    assert ids(tier.rows(*partitions)) == ids(kept)
    assert {row.state for row in tier.rows(*partitions)} == {FINISHED}
    left = tier.objects(tp.topic_id)
    names = [each.hex for each in ids(kept)]
    assert left == {key: tag for key, tag in objects.items() if any(n in key for n in names)}
    assert len(left) == 3 * len(kept)
    assert tier.rlmm.partition_state(tp).value.log_start_offset == 5 * OFFSETS
    assert tier.rlmm.partition_state(empty).value.log_start_offset == 0

    again = jobs.retention([tp.topic], apply=True)
    assert again.document["segments"] == []
    assert again.outcome == "DONE"


def test_a_plan_over_the_budget_is_shown_and_not_executed(jobs: Jobs, tier: Tier) -> None:
    [tp] = a_topic()
    made = tier.fill(tp, 4)
    tier.move(made[0], DELETE_STARTED)
    tier.report(tp, 4)
    tier.settings(tp.topic_id, BY_TIME)
    rows = tier.rows(tp)
    # What an earlier run has marked is not new: it does not count.
    for segments, size_bytes in ((2, None), (3, 3 * SIZE_BYTES - 1)):
        refused = jobs.retention(
            [tp.topic], apply=True, max_segments=segments, max_bytes=size_bytes
        )
        assert (refused.outcome, refused.exit_code) == ("REFUSED", 2)
        assert set(refused.segments().values()) == {"REFUSED"}
        assert "nothing was marked" in refused.document["error"]
    assert tier.rows(tp) == rows
    assert jobs.retention([tp.topic], max_segments=2).exit_code == 2
    within = jobs.retention([tp.topic], apply=True, max_segments=3, max_bytes=3 * SIZE_BYTES)
    assert within.totals["deleted_segments"] == 4
    assert within.totals["resumed_segments"] == 1
    assert tier.rows(tp) == []


def test_settings_that_forbid_it_after_the_plan_refuse_the_partition(
    jobs: Jobs, tier: Tier
) -> None:
    held, given = a_topic()[0], a_topic()[0]
    for tp in (held, given):
        made = tier.fill(tp, 3)
        tier.move(made[0], DELETE_STARTED)
        tier.report(tp, 3)
        tier.settings(tp.topic_id, BY_TIME)

    def forbid() -> None:
        hold(tier.rlmm, held)
        tier.settings(given.topic_id, {**BY_TIME, "sediment.retention.owner": "rlm"})

    done = jobs.retention([held.topic, given.topic], {"marking": forbid}, apply=True)
    assert (done.outcome, done.exit_code) == ("REFUSED", 2)
    assert done.totals["refused_segments"] == 4
    errors = set(done.segments("error").values())
    assert dict(done.errors) == {error: 2 for error in errors if error}
    assert len([error for error in errors if error and "hold audit" in error]) == 1
    assert len([error for error in errors if error and "owner is rlm" in error]) == 1
    for tp in (held, given):
        assert tier.rlmm.partition_state(tp).value.log_start_offset == 0
        assert [row.state for row in tier.rows(tp)][-2:] == [FINISHED] * 2


def test_what_changed_since_the_plan_is_planned_again_and_only_what_both_name_is_deleted(
    jobs: Jobs, tier: Tier
) -> None:
    longer, copied, shorter = a_topic()[0], a_topic()[0], a_topic()[0]
    old, young = 10 * HOUR_MS, 5 * HOUR_MS
    for tp in (longer, copied, shorter):
        tier.fill(tp, 2, age_ms=old)
        tier.fill(tp, 2, first=2, age_ms=young)
        tier.report(tp, 5)
        tier.settings(tp.topic_id, BY_TIME)
    tier.settings(shorter.topic_id, {"retention.ms": str(7 * HOUR_MS)})

    def change() -> None:
        tier.settings(longer.topic_id, {"retention.ms": str(7 * HOUR_MS)})
        tier.fill(copied, 1, first=4, age_ms=old)
        tier.settings(shorter.topic_id, BY_TIME)

    names = [tp.topic for tp in (longer, copied, shorter)]
    done = jobs.retention(names, {"marking": change}, apply=True)
    # Of `longer` less is due now; of the others more is, which the plan did not name.
    assert [done.partition(tp)["deleted_segments"] for tp in (longer, copied, shorter)] == [2, 4, 2]
    assert [done.partition(tp)["refused_segments"] for tp in (longer, copied, shorter)] == [2, 0, 0]
    assert "changed since the plan" in str(done.segments("error").values())
    starts = [
        tier.rlmm.partition_state(tp).value.log_start_offset for tp in (longer, copied, shorter)
    ]
    assert starts == [2 * OFFSETS, 4 * OFFSETS, 2 * OFFSETS]
    assert [len(tier.rows(tp)) for tp in (longer, copied, shorter)] == [2, 1, 2]


def test_a_copy_in_progress_is_left_alone_and_one_left_behind_is_not(
    jobs: Jobs, tier: Tier
) -> None:
    [tp] = a_topic()
    going = segment(tp, 0, max_timestamp_ms=1)
    tier.rlmm.add_remote_log_segment_metadata(going)
    tier.report(tp, 1)
    tier.settings(tp.topic_id, BY_TIME)
    assert jobs.retention([tp.topic]).document["segments"] == []
    left_behind = jobs.retention([tp.topic], copy_grace_ms=0)
    assert left_behind.segments("reason") == {going.remote_log_segment_id.id: "RETENTION_TIME"}
    leased = [going.remote_log_segment_id]
    assert tier.rlmm.renew_copy_leases(leased, 3_600_000, going.broker_id) == [None]
    kept = jobs.retention([tp.topic], copy_grace_ms=0)
    assert kept.segments("reason") == {}
    assert "stopped at a segment that is being copied" in str(kept.partition(tp)["notes"])


def test_what_was_marked_long_ago_is_finished_and_nothing_else(jobs: Jobs, tier: Tier) -> None:
    nobodys, rlms = a_topic()[0], a_topic()[0]
    everywhere = (nobodys, rlms)
    for tp in everywhere:
        made = tier.fill(tp, 2)
        tier.report(tp, 2)
        tier.move(made[0], DELETE_STARTED)
    tier.rlmm.put_topic_config(nobodys.topic_id, BY_TIME, now=True)
    tier.settings(rlms.topic_id, {**BY_TIME, "sediment.retention.owner": "rlm"})
    names = [tp.topic for tp in everywhere]

    young = jobs.retention(names, apply=True)
    assert (young.outcome, young.document["segments"]) == ("DONE", [])
    assert {young.partition(tp)["outcome"] for tp in everywhere} == {"SKIPPED"}

    done = jobs.retention(names, copy_grace_ms=0, apply=True)
    assert done.outcome == "DONE"
    assert set(done.segments("reason").values()) == {"DELETION_NOT_FINISHED"}
    assert [[row.start_offset for row in tier.rows(tp)] for tp in everywhere] == [[OFFSETS]] * 2
    assert {tier.rlmm.partition_state(tp).value.log_start_offset for tp in everywhere} == {0}


def test_an_owner_stops_the_waves_that_have_not_begun(jobs: Jobs, tier: Tier) -> None:
    why, owned = "sediment.retention.owner is rlm", {"sediment.retention.owner": "rlm"}
    [tp] = due_partitions(tier, 5)
    at = {"deleting": lambda: tier.settings(tp.topic_id, owned)}
    done = jobs.retention([tp.topic], at, apply=True, wave_segments=2)
    assert (done.outcome, done.exit_code) == ("REFUSED", 2)
    assert (done.totals["deleted_segments"], done.totals["refused_segments"]) == (2, 3)
    assert dict(done.errors) == {why: 3}
    assert done.partition(tp)["error"] == why
    assert [row.state for row in tier.rows(tp)] == [FINISHED] * 3
    assert tier.rlmm.partition_state(tp).value.log_start_offset == 2 * OFFSETS


def test_a_hold_stops_the_waves_that_have_not_begun(jobs: Jobs, tier: Tier) -> None:
    [tp] = due_partitions(tier, 5)
    at = {"deleting": lambda: hold(tier.rlmm, tp, first_offset=2 * OFFSETS)}
    done = jobs.retention([tp.topic], at, apply=True, wave_segments=2)
    assert (done.outcome, done.exit_code) == ("REFUSED", 2)
    assert (done.totals["deleted_segments"], done.totals["refused_segments"]) == (2, 3)
    assert "hold audit (operator) keeps offsets from 200 on" in "".join(done.errors)
    assert [row.state for row in tier.rows(tp)] == [FINISHED] * 3
    assert tier.rlmm.partition_state(tp).value.log_start_offset == 2 * OFFSETS


def test_what_an_export_has_yet_to_read_is_kept_and_the_report_names_it(
    jobs: Jobs, tier: Tier
) -> None:
    [tp] = due_partitions(tier, 5)
    export(tier.rlmm, tp, 2 * OFFSETS + 1)
    done = jobs.retention([tp.topic], apply=True)
    assert (done.outcome, done.totals["deleted_segments"]) == ("DONE", 2)
    [note] = done.partition(tp)["notes"]
    assert "; hold lake (export) keeps offsets from 201 on until 20" in note
    assert [row.start_offset for row in tier.rows(tp)] == [200, 300, 400]
    end_export(tier.rlmm, tp)

    def keep() -> object:
        return export(tier.rlmm, tp, 300, "late")

    late = jobs.retention([tp.topic], {"marking": keep}, apply=True)
    assert (late.outcome, late.exit_code) == ("REFUSED", 2)
    assert "hold late (export) keeps offsets from 300 on until 20" in "".join(late.errors)
    assert len(tier.rows(tp)) == 3


def test_each_deletion_is_in_the_trail_with_its_figures(jobs: Jobs, tier: Tier) -> None:
    [tp] = due_partitions(tier, 2)
    done = jobs.retention([tp.topic], apply=True)
    trail = list(all_events(tier.rlmm, EventQuery(tp, plan_id=done.plan_id)))
    marks = [event for event in trail if event.to_state == DELETE_STARTED.value]
    assert [event.reason for event in marks] == ["retention.ms breached"] * 2
    assert all(str(HOUR_MS) in event.rule_detail for event in marks)
    gone = [event for event in trail if event.to_state == "DELETE_SEGMENT_FINISHED"]
    assert {event.segment_id for event in gone} == {event.segment_id for event in marks}


def test_what_a_broker_finishes_after_the_sweep_marked_it_is_reported_as_its_own(
    jobs: Jobs, tier: Tier
) -> None:
    [tp] = due_partitions(tier, 5)

    def finish() -> None:
        list(finish_deletion(tier.rlmm, tier.rsm, tier.rows(tp), Deleter(broker_id=1), now_ms()))

    done = jobs.retention([tp.topic], {"deleting": finish}, apply=True)
    assert (done.outcome, done.totals["deleted_segments"]) == ("DONE", 5)
    assert done.totals["deleted_by_another_segments"] == 0


def test_what_another_sweep_deletes_meanwhile_is_reported_as_that_of_another(
    jobs: Jobs, tier: Tier
) -> None:
    [tp] = due_partitions(tier, 5)
    others: list[Done] = []

    def delete_all() -> None:
        others.append(jobs.retention([tp.topic], apply=True))

    done = jobs.retention([tp.topic], {"deleting": delete_all}, apply=True)
    assert [each.totals["deleted_segments"] for each in (*others, done)] == [5, 0]
    assert (done.outcome, done.totals["deleted_by_another_segments"]) == ("DONE", 5)
    assert others[0].totals["resumed_segments"] == 5


def test_waves_delete_all_that_is_due(jobs: Jobs, tier: Tier) -> None:
    """Several partitions in a wave, several waves in a partition, at a rate."""
    partitions = a_topic(partitions=4)
    for tp, segments in zip(partitions, (1, 2, 5, 1), strict=True):
        tier.fill(tp, segments)
        tier.report(tp, segments)
    tier.settings(partitions[0].topic_id, BY_TIME)
    topic = partitions[0].topic
    done = jobs.retention([topic], apply=True, wave_segments=3, segments_per_s=1_000.0)
    assert (done.outcome, done.totals["deleted_segments"]) == ("DONE", 9)
    assert tier.rows(*partitions) == []
    assert tier.objects(partitions[0].topic_id) == {}


def test_a_topic_that_would_lose_too_large_a_share_is_refused_alone(jobs: Jobs, tier: Tier) -> None:
    large, small = a_topic()[0], a_topic()[0]
    for tp, segments in ((large, 3), (small, 1)):
        tier.fill(tp, segments)
        tier.fill(tp, 4 - segments, first=segments, age_ms=0)
        tier.report(tp, 4)
        tier.settings(tp.topic_id, BY_TIME)
    done = jobs.retention([large.topic, small.topic], apply=True, max_topic_percent=50.0)
    assert (done.outcome, done.exit_code) == ("REFUSED", 2)
    assert (done.partition(large)["outcome"], done.partition(small)["outcome"]) == (
        "REFUSED",
        "DONE",
    )
    assert "3 of the topic's 4 segments" in done.partition(large)["error"]
    assert len(tier.rows(large)) == 4


def test_a_topic_that_would_lose_too_large_a_share_of_its_bytes_is_refused(
    jobs: Jobs, tier: Tier
) -> None:
    [tp] = a_topic()
    large = segment(
        tp, 0, segment_size_in_bytes=9 * SIZE_BYTES, max_timestamp_ms=now_ms() - 10 * HOUR_MS
    )
    tier.copy(large, Files(bytes(9 * SIZE_BYTES), dict.fromkeys(IndexType, b"index")))
    tier.fill(tp, 3, first=1, age_ms=0)
    tier.report(tp, 4)
    tier.settings(tp.topic_id, BY_TIME)
    done = jobs.retention([tp.topic], apply=True, max_topic_percent=50.0)
    assert (done.outcome, done.exit_code) == ("REFUSED", 2)
    assert "9000 of the topic's 12000 bytes" in done.partition(tp)["error"]
    assert len(tier.rows(tp)) == 4


def test_many_segments_are_reported_in_a_file_beside_the_report(
    jobs: Jobs, tier: Tier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("spark_jobs.sweeps.report.INLINE_SEGMENTS", 2)
    [tp] = due_partitions(tier, 3)
    made = tier.rows(tp)
    done = jobs.retention([tp.topic], apply=True, report=tmp_path / "night.json")
    assert done.document["segments_file"] == "night.json.segments.parquet"
    [file] = tmp_path.glob("*/report.json.segments.parquet")
    rows = pq.read_table(file).to_pylist()
    assert [uuid_from_text(row["segment_id"], "id") for row in rows] == ids(made)
    assert {row["outcome"] for row in rows} == {"DELETED"}
    assert done.document["segments"] == []
