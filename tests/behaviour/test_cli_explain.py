"""Test `sediment explain` and `sediment retention`: what stays, expires or was deleted, and why."""

from dataclasses import dataclass
from typing import Any

import pytest

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.lineage import Lineage
from services.api.partitions import OffsetGap, PartitionReport, PolledLog
from services.api.remote_log_metadata_manager import PartitionLeadership, all_segments
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from services.views.documents import as_json
from services.views.partition_facts import partition_case
from services.workflows.deletion import Deleter, begin_deletion
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    MARKED,
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
from tests.harness import served_fixtures
from tests.harness.holds import export, hold
from tests.harness.processes import RlmmProcess
from tests.harness.tier import a_topic

HOUR_MS = 3_600_000

rlmm = served_fixtures.rlmm


@dataclass(frozen=True)
class Log:
    """A partition with segments of 100 bytes.

    0-9 and 10-19 are two hours old, 20-29 is of `now_ms`; its leader has reported an end of 45 and
    50 bytes more.
    """

    rlmm: RlmmProcess
    tp: TopicIdPartition
    now_ms: int
    segments: list[RemoteLogSegmentMetadata]

    @property
    def text(self) -> str:
        return f"{self.tp.topic}-{self.tp.partition}"

    @property
    def full_text(self) -> str:
        """Return the name that is also accepted after the partition's removal."""
        return f"{uuid_to_text(self.tp.topic_id)}:{self.text}"

    def set(self, **settings: str) -> None:
        entries = {key.replace("_", "."): value for key, value in settings.items()}
        self.rlmm.client.put_topic_config(self.tp.topic_id, entries, now=True)

    def copied(self, start: int, end: int, max_timestamp_ms: int) -> RemoteLogSegmentMetadata:
        return finished(self.rlmm.client, self.tp, start, end, **self._fields(max_timestamp_ms))

    def begun(self, start: int, end: int) -> RemoteLogSegmentMetadata:
        fields = self._fields(self.now_ms - HOUR_MS)
        return add(self.rlmm.client, segment(self.tp, start, end, **fields))

    def _fields(self, max_timestamp_ms: int) -> dict[str, Any]:
        return {
            "max_timestamp_ms": max_timestamp_ms,
            "event_timestamp_ms": self.now_ms,
            "segment_size_in_bytes": 100,
        }

    def report(self) -> None:
        lineage = Lineage(segment_leader_epochs([(0, 0)]))
        report = PartitionReport(self.tp, BROKER, 0, 1, lineage, 0, 45, 45, 45, 50, 29)
        self.rlmm.client.report_partition_state([report])

    def delete_what_is_due(self) -> None:
        """Delete due segments as retention does, with its reasons, but not their objects."""
        rlmm, plan = self.rlmm.client, partition_case(self.rlmm.client, self.tp).case.plan()
        start, deleter = plan.log_start_offset, Deleter(BROKER, plan_id="plan-7")
        begin_deletion(rlmm, self.tp, plan.deletions, start, None, deleter, self.now_ms)

    def due(self) -> dict[str, Any]:
        """Return what `sediment retention` prints of the partition."""
        (answer,) = self.rlmm.answers("retention", self.text)
        return answer

    def explained(self, *arguments: str) -> dict[str, Any]:
        (answer,) = self.rlmm.answers("explain", self.full_text, *arguments)
        return answer

    def explained_segment(self, of: RemoteLogSegmentMetadata) -> dict[str, Any]:
        return self.explained(str(id_of(of)))

    def shown(self, *arguments: str) -> str:
        done = self.rlmm.sediment("explain", self.text, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def log(rlmm: RlmmProcess) -> Log:
    (tp,) = a_topic("orders")
    rlmm.client.on_partition_leadership_changes([PartitionLeadership(tp)], [], broker_id=BROKER)
    now_ms = rlmm.client.partition_state(tp).value.read_at_ms
    log = Log(rlmm, tp, now_ms, [])
    for start, age_ms in ((0, 2 * HOUR_MS), (10, 2 * HOUR_MS), (20, 0)):
        log.segments.append(log.copied(start, start + 9, now_ms - age_ms))
    log.report()
    return log


# A partition


def test_due_segments_are_shown_with_their_rule_and_the_next_one(log: Log) -> None:
    log.set(retention_ms=str(HOUR_MS))
    before = list(all_segments(log.rlmm.client, log.tp)), revision_of(log.rlmm.client, log.tp)
    result, due = log.explained(), log.due()
    assert [d["start_offset"] for d in due["deletions"]] == [0, 10]
    for key in ("segment_id", "reason"):
        assert [d[key] for d in result["due"]] == [d[key] for d in due["deletions"]]
    assert {d["reason"] for d in due["deletions"]} == {"retention.ms breached"}
    assert f"max_timestamp {log.segments[0].max_timestamp_ms}" in due["deletions"][0]["detail"]
    assert (due["log_start_offset"], due["new_log_start_offset"]) == (0, 20)
    assert due["deleted_size_bytes"] == 200
    assert 0 <= due["report_age_ms"] < 60_000
    assert result["settings"]["retention.ms"] == {"value": str(HOUR_MS), "is_set": True}
    assert result["settings"]["sediment.retention.owner"] == {"value": "rlm", "is_set": False}
    assert result["next"]["segment"]["start_offset"] == 20
    assert result["next"]["standing"] == "LATER"
    assert result["next"]["due"]["at_ms"] == log.now_ms + HOUR_MS + 1
    after = list(all_segments(log.rlmm.client, log.tp)), revision_of(log.rlmm.client, log.tp)
    assert after == before


def test_retention_for_people(log: Log) -> None:
    log.set(retention_ms=str(HOUR_MS))
    done = log.rlmm.sediment("retention", log.text)
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()[:2]] == [
        ["PARTITION", "DUE", "SIZE", "RETENTION", "OWNER", "REPORT"],
        [log.text, "2", "200", "B", "rlm", "0", "s"],
    ]
    assert "10-19" in done.stdout
    assert done.stderr.splitlines() == ["due: 2 segments (200 B); nothing was changed"]
    first = log.rlmm.sediment("retention", log.text, "--limit=1")
    assert "0-9" in first.stdout
    assert "10-19" not in first.stdout
    assert first.stderr.splitlines() == [
        f"shown: the first 1 of 2 due segments of {log.text}; --limit 0 shows all",
        "due: 2 segments (200 B); nothing was changed",
    ]


def test_retention_without_names_lists_all_that_are_not_being_deleted(log: Log) -> None:
    gone = TopicIdPartition(log.tp.topic_id, log.tp.topic, 1)
    put_deletion(log.rlmm.client, gone, MARKED)
    listed = log.rlmm.answers("retention")
    assert [(each["topic"], each["partition"]) for each in listed] == [(log.tp.topic, 0)]


def test_the_bytes_that_the_size_rule_lacks_make_the_next_one_due(log: Log) -> None:
    log.set(retention_bytes="251")
    # 350 bytes are 99 too many, and a segment has 100.
    result = log.explained()
    assert (result["due"], result["next"]["bytes_missing"]) == ([], 1)
    log.set(retention_bytes="250")
    assert [d["reason"] for d in log.explained()["due"]] == ["retention.bytes breached"]
    assert [d["start_offset"] for d in log.due()["deletions"]] == [0]


def test_a_size_rule_that_cannot_be_applied_says_why(log: Log) -> None:
    log.copied(30, 39, log.now_ms)
    log.set(retention_bytes="0")
    result = log.explained()
    assert result["due"] == []
    assert result["size_note"].startswith("retention.bytes not applied: copied through 39")


def test_explain_shows_segments_kept_by_a_hold(log: Log) -> None:
    log.set(retention_ms=str(HOUR_MS), sediment_retention_owner="sweep")
    held = hold(log.rlmm.client, log.tp)
    result, due = log.explained(), log.due()
    assert (due["hold"], due["retention_owner"]) == (as_json(held), "sweep")
    assert result["holds"] == [as_json(held)]
    assert (due["deletions"], len(due["notes"])) == ([], 1)
    assert (result["due"], len(result["on_hold"])) == ([], 2)
    assert result["next"]["standing"] == "OBSTRUCTED"
    assert "Due now, kept by holds" in log.shown()


def test_the_event_that_raised_the_log_start_is_shown(log: Log) -> None:
    assert log.explained()["log_start_raised"] is None
    log.set(retention_ms=str(HOUR_MS))
    log.delete_what_is_due()
    result = log.explained()
    assert result["log_start_offset"] == 20
    raised = result["log_start_raised"]
    assert (raised["from_state"], raised["to_state"], raised["reason"]) == ("0", "20", "retention")


def test_a_partition_for_people(log: Log) -> None:
    gap = OffsetGap(30, 34)
    log.rlmm.client.record_gap(log.tp, gap, BROKER)
    sweep = {"retention_ms": str(HOUR_MS), "sediment_retention_owner": "sweep"}
    log.set(**sweep)
    log.set(**sweep, sediment_owner="team")
    shown = log.shown()
    for text in ("30-34 LOST_BEFORE_COPY", "sediment sweep retention", "2 segments (200 B)"):
        assert text in shown
    assert "set for the topic, settings of revision 2" in shown


def test_an_export_is_shown_with_what_it_keeps_until_its_lease_is_ended(log: Log) -> None:
    name = ("holds", "end", f"{log.tp.topic}-0", "lake")
    kept = export(log.rlmm.client, log.tp, 15)
    log.set(retention_ms=str(HOUR_MS))
    assert log.explained()["holds"] == [as_json(kept)]
    assert [each["start_offset"] for each in log.explained()["due"]] == [0]
    assert "hold lake (export) keeps offsets from 15 on until" in log.shown()
    assert log.rlmm.answers(*name) == [as_json(kept)]
    assert log.rlmm.sediment(*name).returncode == 2
    assert log.explained()["holds"] == []
    assert len(log.explained()["due"]) == 2


def test_what_a_hold_keeps_names_the_hold(log: Log) -> None:
    hold(log.rlmm.client, log.tp, first_offset=0, last_offset=5, reason="case 7")
    log.set(retention_ms=str(HOUR_MS))
    verdict = log.explained_segment(log.segments[0])["verdict"]
    assert verdict.startswith("blocked by hold audit (operator) keeps offsets 0-5 until")
    assert "case 7; otherwise due now" in verdict


def test_without_a_report_nothing_is_due_and_it_says_why(rlmm: RlmmProcess) -> None:
    (tp,) = a_topic("silent")
    one = finished(rlmm.client, tp, 0, 9)
    (result,) = rlmm.answers("explain", f"{tp.topic}-0", str(id_of(one)))
    assert result["retention"]["standing"] == "NOT_JUDGED"
    assert result["verdict"].startswith("no leader has reported")
    (due,) = rlmm.answers("retention", f"{tp.topic}-0")
    assert (due["deletions"], due["report_age_ms"]) == ([], None)
    assert "no leader has reported" in rlmm.sediment("retention", f"{tp.topic}-0").stderr


def test_of_a_topic_that_a_broker_tiers_it_shows_kafkas_log_and_lineage(rlmm: RlmmProcess) -> None:
    (tp,) = a_topic("plugin")
    old, new = (finished(rlmm.client, tp, start, start + 9) for start in (0, 10))
    lineage = Lineage(segment_leader_epochs([(0, 0), (4, 12)]))
    rlmm.client.report_partition_state([], [PolledLog(tp, 3, 7, lineage, 10, 25)])
    text = f"{tp.topic}-0"
    (result,) = rlmm.answers("explain", text)
    (due,) = rlmm.answers("retention", text)
    for polled in (result["polled_log"], due["polled_log"]):
        assert polled["leader_epochs"] == [[0, 0], [4, 12]]
        assert (polled["log_start_offset"], polled["high_watermark"]) == (10, 25)
        assert polled["expected_deletions"] == [uuid_to_text(id_of(old))]
    assert (result["due"], due["deletions"], due["report_age_ms"]) == ([], [], None)
    notes = rlmm.sediment("retention", text).stderr
    assert "Kafka is its retention owner" in notes
    assert "Kafka is expected to delete 1 segment (1.0 MiB) below its log start" in notes
    assert "no leader has reported" not in notes
    shown = rlmm.sediment("explain", text).stdout
    for part in ("Kafka, by its own retention settings", "high watermark 25", "0:0 4:12"):
        assert part in shown
    for one, verdict in ((old, "Kafka is expected to delete it"), (new, "kept until Kafka")):
        (result,) = rlmm.answers("explain", text, str(id_of(one)))
        assert result["verdict"].startswith(verdict)


# A segment


def test_why_a_segment_is_still_there(log: Log) -> None:
    log.set(retention_ms=str(3 * HOUR_MS))
    result = log.explained_segment(log.segments[1])
    assert result["retention"]["standing"] == "LATER"
    assert result["retention"]["due"]["reason"] == "retention.ms breached"
    assert result["since"]["to_state"] == "COPY_SEGMENT_FINISHED"
    assert "if nothing else changes" in result["verdict"]


def test_a_segment_waits_for_the_younger_one_before_it(log: Log) -> None:
    behind = log.copied(30, 39, log.now_ms - 2 * HOUR_MS)
    log.set(retention_ms=str(HOUR_MS))
    result = log.explained_segment(behind)["retention"]
    assert result["due"]["at_ms"] == log.now_ms + HOUR_MS + 1
    assert result["waits_for"]["start_offset"] == 20


def test_copy_in_progress_obstructs_the_segments_behind_it(log: Log) -> None:
    copy = log.begun(0, 19)
    log.set(retention_ms=str(HOUR_MS))
    result = log.explained_segment(log.segments[2])
    assert result["retention"]["standing"] == "OBSTRUCTED"
    assert f"the copy of 0-19 ({uuid_to_text(id_of(copy))})" in result["verdict"]
    assert result["retention"]["once_clear"]["at_ms"] == log.now_ms + HOUR_MS + 1


def test_the_epoch_that_puts_a_segment_off_the_lineage_is_named(log: Log) -> None:
    stray = finished(log.rlmm.client, log.tp, 10, 14, {3: 10})
    log.set(retention_ms="0")
    result = log.explained_segment(stray)
    assert result["retention"]["divergence"]["leader_epoch"] == 3
    shown = log.shown(str(id_of(stray)))
    assert "off it at epoch 3: the lineage has no such epoch" in shown
    assert "kept: off the lineage; deleted once the log start offset is above 14" in shown


def test_why_a_segment_was_deleted_with_rule_figures_and_plan(log: Log) -> None:
    log.set(retention_ms=str(HOUR_MS))
    log.delete_what_is_due()
    gone = log.segments[0]
    result = log.explained_segment(gone)
    assert result["deletion"]["reason"] == "retention.ms breached"
    assert result["deletion"]["plan_id"] == "plan-7"
    assert "the next deletion pass finishes it" in result["verdict"]
    move(log.rlmm.client, gone, DELETE_FINISHED)
    shown = log.shown(str(id_of(gone)))
    figures = f"retention.ms breached; max_timestamp {gone.max_timestamp_ms} <"
    for text in ("deleted: marked at", figures, "plan plan-7", "its objects were deleted at"):
        assert text in shown


def test_of_a_purged_segment_its_events_still_say_why(log: Log, database_url: str) -> None:
    gone = log.segments[0]
    why = MutationContext(request_id="r-1", reason="by hand", rule_detail="because")
    move(log.rlmm.client, gone, DELETE_STARTED, context=why)
    move(log.rlmm.client, gone, DELETE_FINISHED)
    purge = ("db", "maintain", "--database-url", database_url, "--delete-retention", "0")
    assert log.rlmm.sediment(*purge).returncode == 0
    result = log.explained_segment(gone)
    assert result["segment"] is None
    assert (result["deletion"]["reason"], result["deletion"]["request_id"]) == ("by hand", "r-1")
    assert "purged; its last offset was 9" in log.shown("--offset", "5")


def test_offset_finds_the_present_or_deleted_segment(log: Log) -> None:
    assert log.explained("--offset", "15")["segment_id"] == uuid_to_text(id_of(log.segments[1]))
    move(log.rlmm.client, log.segments[1], DELETE_STARTED, DELETE_FINISHED)
    result = log.explained("--offset", "15")
    assert result["segment_id"] == uuid_to_text(id_of(log.segments[1]))
    assert result["verdict"].startswith("deleted: ")


def test_a_partition_that_is_marked_takes_its_segments_with_it(log: Log) -> None:
    put_deletion(log.rlmm.client, log.tp, MARKED)
    result = log.explained_segment(log.segments[2])
    verdict = result["verdict"]
    assert verdict.startswith("goes with its partition: DELETE_PARTITION_MARKED, marked at")
    for text in ("any RLM removes all of it", "not before", "partitions undelete", "holds set"):
        assert text in verdict
    assert log.explained()["delete_state"] == "DELETE_PARTITION_MARKED"
    put_deletion(log.rlmm.client, log.tp, PARTITION_STARTED)
    verdict = log.explained_segment(log.segments[2])["verdict"]
    assert "any RLM removes all of it" in verdict
    assert "undelete" not in verdict


def test_a_topic_that_is_disabled_takes_its_segments_with_it(log: Log) -> None:
    disabled = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
    log.set(**disabled)
    verdict = log.explained_segment(log.segments[2])["verdict"]
    assert verdict.startswith("goes with its partition: remote.storage.enable=false")
    assert "its leader's RLM deletes all of it" in verdict
    assert "remote.storage.enable=false" in log.shown()
    (note,) = log.due()["notes"]
    assert "its leader's RLM deletes all of it" in note
    assert note in log.rlmm.sediment("retention", log.text).stderr
    log.set(remote_storage_enable="false")
    assert log.explained_segment(log.segments[2])["verdict"].startswith("kept: ")


def test_of_a_removed_partition_the_events_are_left(log: Log) -> None:
    for each in log.segments:
        move(log.rlmm.client, each, DELETE_STARTED, DELETE_FINISHED)
    put_deletion(log.rlmm.client, log.tp, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
    result = log.explained()
    assert result["delete_state"] == "removed"
    assert [event["to_state"] for event in result["events"]] == [
        "DELETE_PARTITION_MARKED",
        "DELETE_PARTITION_STARTED",
        "DELETE_PARTITION_FINISHED",
    ]
    assert log.explained_segment(log.segments[0])["verdict"].startswith("deleted: ")


# What is not known


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        (32, "LOST_BEFORE_COPY, offsets 30-34"),
        (40, "it was not copied; `sediment partitions`"),
        (99, "the log ended at 45"),
    ],
)
def test_an_offset_that_is_nowhere_says_why(log: Log, offset: int, why: str) -> None:
    log.rlmm.client.record_gap(log.tp, OffsetGap(30, 34), BROKER)
    assert why in log.rlmm.refusal("explain", log.text, "--offset", offset)


def test_an_offset_that_was_lost_right_behind_an_emptied_tier_says_so(log: Log) -> None:
    log.set(retention_ms="1")
    log.delete_what_is_due()
    log.rlmm.client.record_gap(log.tp, OffsetGap(30, 34), BROKER)
    assert log.explained()["log_start_offset"] == 30
    line = log.rlmm.refusal("explain", log.text, "--offset", "32")
    assert "holds offset 32: LOST_BEFORE_COPY, offsets 30-34" in line
