"""The removal sweep on a cluster of processes, against the real services."""

from io import BytesIO

import pytest
from sqlalchemy import text

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import all_partitions
from services.api.segments import RemoteLogSegmentState
from services.workflows.deletion import Deleter
from services.workflows.removal import begin_removal
from spark_jobs.sweeps.planning import IN_GRACE, ON_HOLD
from tests.harness.holds import export, hold, release
from tests.harness.tier import HOUR_MS, Tier, a_topic, ids, now_ms, segment
from tests.spark.jobs import Jobs

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1_500),
    pytest.mark.parametrize("jobs", ["local", "spark"], indirect=True),
]


def known(tier: Tier, topic: str) -> set[int]:
    summaries = all_partitions(tier.rlmm, topic=topic)
    return {summary.topic_id_partition.partition for summary in summaries}


def test_partitions_go_from_whatever_state_they_are_in(jobs: Jobs, tier: Tier) -> None:
    partitions = a_topic(partitions=5)
    [marked, empty, started, half, living] = partitions
    [again] = a_topic(marked.topic)
    for tp in (marked, started, half, living, again):
        tier.fill(tp, 3)
    tier.rlmm.add_remote_log_segment_metadata(segment(marked, 3))
    kept = {tp: ids(tier.rows(tp)) for tp in (living, again)}
    for tp in (marked, empty, started, half):
        tier.mark_deleted(tp)
        tier.mark_deleted(tp)
    for tp in (started, half):
        begin_removal(tier.rlmm, tp, Deleter(plan_id="earlier"), now_ms())
    tier.move(tier.rows(half)[0], RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    rows = {tp: tier.rows(tp) for tp in partitions}
    objects = tier.objects(marked.topic_id, again.topic_id)

    dry = jobs.removal([marked.topic])
    assert dry.outcome == "PLANNED"
    assert dry.totals["planned_segments"] == 10
    assert {tp: tier.rows(tp) for tp in partitions} == rows
    assert tier.objects(marked.topic_id, again.topic_id) == objects

    within = jobs.removal([marked.topic], grace_ms=3_600_000, apply=True)
    assert within.partition(marked)["skipped"] == within.partition(empty)["skipped"] == IN_GRACE
    assert within.partition(started)["outcome"] == within.partition(half)["outcome"] == "DONE"
    assert within.totals["deleted_segments"] == 6
    assert within.partition(half)["resumed_segments"] == within.totals["resumed_segments"] == 1
    assert known(tier, marked.topic) == {0, 1, 4}

    rest = jobs.removal([marked.topic], apply=True)
    assert rest.outcome == "DONE"
    assert rest.totals["deleted_segments"] == 4
    assert rest.partition(empty)["outcome"] == "DONE"
    assert known(tier, marked.topic) == {0, 4}
    assert {tp: ids(tier.rows(tp)) for tp in (living, again)} == kept
    assert len(tier.objects(marked.topic_id, again.topic_id)) == 2 * 3 * 3
    assert jobs.removal([marked.topic], apply=True).document["partitions"] == []


def test_a_share_of_a_topic_counts_partitions_that_stay(jobs: Jobs, tier: Tier) -> None:
    marked, living = a_topic(partitions=2)
    for tp in (marked, living):
        tier.fill(tp, 2)
    tier.mark_deleted(marked)
    refused = jobs.removal([marked.topic], apply=True, max_topic_percent=49.0)
    assert (refused.outcome, refused.exit_code) == ("REFUSED", 2)
    assert "2 of the topic's 4 segments" in refused.partition(marked)["error"]
    done = jobs.removal([marked.topic], apply=True, max_topic_percent=51.0)
    assert (done.outcome, done.totals["deleted_segments"]) == ("DONE", 2)


def test_on_hold_a_partition_stays(jobs: Jobs, tier: Tier) -> None:
    held, late = a_topic()[0], a_topic()[0]
    for tp in (held, late):
        tier.fill(tp, 2)
        tier.mark_deleted(tp)
    hold(tier.rlmm, held)
    rows = tier.rows(held, late)
    names = [held.topic, late.topic]

    left = jobs.removal([held.topic], apply=True)
    assert (left.outcome, left.exit_code) == ("DONE", 0)
    assert left.partition(held)["outcome"] == "SKIPPED"
    assert left.partition(held)["skipped"] == ON_HOLD

    after_the_plan = {"marking": lambda: hold(tier.rlmm, late)}
    refused = jobs.removal(names, after_the_plan, apply=True)
    assert (refused.outcome, refused.exit_code) == ("REFUSED", 2)
    assert refused.partition(late)["outcome"] == "REFUSED"
    assert "hold audit (operator)" in refused.partition(late)["error"]
    assert list(refused.segments().values()) == ["REFUSED"] * 2
    assert tier.rows(held, late) == rows

    for tp in (held, late):
        release(tier.rlmm, tp)
    assert jobs.removal(names, apply=True).totals["deleted_segments"] == 4


def test_only_a_hold_over_the_partition_that_is_no_exports_skips_it(jobs: Jobs, tier: Tier) -> None:
    partitions = held, exported, beside = a_topic(partitions=3)
    for tp in partitions:
        tier.fill(tp, 1)
        tier.mark_deleted(tp)
    hold(tier.rlmm, held, partition=held.partition, first_offset=1_000)
    export(tier.rlmm, exported, 0)
    dry = jobs.removal([held.topic])
    skipped = {tp: dry.partition(tp)["skipped"] for tp in partitions}
    assert skipped == {held: ON_HOLD, exported: None, beside: None}
    done = jobs.removal([held.topic], apply=True)
    assert (done.outcome, done.totals["skipped_partitions"]) == ("DONE", 1)
    assert known(tier, held.topic) == {held.partition}


def test_a_hold_half_way_leaves_what_remains_for_the_next_run(jobs: Jobs, tier: Tier) -> None:
    [tp] = a_topic()
    tier.fill(tp, 2)
    tier.mark_deleted(tp)
    begin_removal(tier.rlmm, tp, Deleter(), now_ms())
    done = jobs.removal([tp.topic], {"marking": lambda: hold(tier.rlmm, tp)}, apply=True)
    assert done.partition(tp)["outcome"] == done.outcome == "REFUSED"
    assert "hold audit (operator)" in done.partition(tp)["error"]
    assert done.totals["refused_segments"] == 2
    assert len(tier.rows(tp)) == 2


def test_a_leased_copy_is_left_for_the_next_run(jobs: Jobs, tier: Tier) -> None:
    [tp] = a_topic()
    tier.fill(tp, 1)
    copied = segment(tp, 1)
    tier.rlmm.add_remote_log_segment_metadata(copied, lease_ms=3_600_000)
    tier.mark_deleted(tp)
    done = jobs.removal([tp.topic], apply=True)
    assert (done.outcome, done.exit_code) == ("PARTIAL", 1)
    assert done.partition(tp)["outcome"] == "REMAINING"
    assert done.segments()[copied.remote_log_segment_id.id] == "FAILED"
    assert "under a lease" in done.segments("error")[copied.remote_log_segment_id.id]
    assert tier.rows(tp) == [copied]
    tier.finish(copied)
    assert jobs.removal([tp.topic], apply=True).outcome == "DONE"


def test_what_is_marked_again_after_the_plan_keeps_its_grace_period(jobs: Jobs, tier: Tier) -> None:
    anew, back, started = (a_topic()[0] for _ in range(3))
    for tp in (anew, back, started):
        tier.fill(tp, 2)
        tier.mark_deleted(tp)
    marked_long_ago(tier, anew, back, started)
    rows = tier.rows(anew, back)

    def meanwhile() -> None:
        tier.rlmm.undelete_partition(anew)
        tier.mark_deleted(anew)
        tier.rlmm.undelete_partition(back)
        begin_removal(tier.rlmm, started, Deleter(), now_ms())

    topics = [tp.topic for tp in (anew, back, started)]
    done = jobs.removal(topics, {"marking": meanwhile}, grace_ms=HOUR_MS, apply=True)
    assert (done.outcome, done.exit_code) == ("REFUSED", 2)
    for tp, why in ((anew, IN_GRACE), (back, "no longer marked for deletion")):
        assert done.partition(tp)["outcome"] == "REFUSED"
        assert why in done.partition(tp)["error"]
        assert done.partition(tp)["refused_segments"] == 2
    assert done.partition(started)["outcome"] == "DONE"
    assert tier.rows(anew, back) == rows
    assert jobs.removal(topics, grace_ms=HOUR_MS, apply=True).partition(anew)["skipped"] == IN_GRACE


def marked_long_ago(tier: Tier, *partitions: TopicIdPartition) -> None:
    query = "UPDATE partitions SET marked_at = now() - interval '2 hours' WHERE topic_id = :id"
    with tier.engine.begin() as connection:
        for tp in partitions:
            connection.execute(text(query), {"id": tp.topic_id})


def test_a_copy_that_ends_between_plan_and_mark_goes_too(jobs: Jobs, tier: Tier) -> None:
    [tp] = a_topic()
    late = segment(tp, 0)
    tier.rlmm.add_remote_log_segment_metadata(late)
    tier.mark_deleted(tp)
    done = jobs.removal([tp.topic], {"marking": lambda: tier.finish(late)}, apply=True)
    assert done.outcome == "DONE"
    assert tier.objects(tp.topic_id) == {}
    assert known(tier, tp.topic) == set()


def test_a_partition_with_an_object_that_no_segment_names_is_not_finished(
    jobs: Jobs, tier: Tier
) -> None:
    [tp] = a_topic()
    [made] = tier.fill(tp, 1)
    key = next(iter(tier.objects(tp.topic_id)))
    stray = key.replace(made.remote_log_segment_id.id.hex, "1" * 32)
    tier.s3.client().put_object(tier.bucket, stray, BytesIO(b"stray"), 5)
    tier.mark_deleted(tp)
    done = jobs.removal([tp.topic], apply=True)
    assert (done.outcome, done.exit_code) == ("PARTIAL", 1)
    assert done.partition(tp)["outcome"] == "REMAINING"
    assert stray in done.partition(tp)["error"]
    assert "`sediment reconcile`" in done.partition(tp)["error"]
    assert done.totals["deleted_segments"] == 1
    assert known(tier, tp.topic) == {0}
    tier.s3.client().remove_object(tier.bucket, stray)
    assert jobs.removal([tp.topic], apply=True).outcome == "DONE"
