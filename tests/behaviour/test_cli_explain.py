"""Test `sediment explain`: why a segment stays, expires or was deleted; nothing is changed."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import pytest

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition, random_uuid, uuid_to_text
from services.api.lineage import Lineage
from services.api.partitions import OffsetGap, PartitionReport, PolledLog
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from services.local.postgres import EmbeddedPostgres
from services.views.partition_facts import read_partition
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
    segment,
)
from tests.harness.processes import RlmmProcess, running_rlmm

pytestmark = pytest.mark.deep

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def database_url(postgres: EmbeddedPostgres, migrated_database: str) -> Iterator[str]:
    yield postgres.create_database("cli_explain", template=migrated_database)
    postgres.drop_database("cli_explain")


@pytest.fixture(scope="module")
def rlmm(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RlmmProcess]:
    with running_rlmm(database_url, tmp_path_factory.mktemp("rlmm")) as made:
        yield made


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
        self.rlmm.client.put_topic_config(self.tp.topic_id, entries)

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
        result = PartitionReport(
            topic_id_partition=self.tp,
            broker_id=BROKER,
            leader_epoch=0,
            report_number=1,
            lineage=Lineage(segment_leader_epochs([(0, 0)])),
            local_log_start_offset=0,
            log_end_offset=45,
            high_watermark=45,
            last_stable_offset=45,
            only_local_bytes=50,
            copied_through_offset=29,
        )
        self.rlmm.client.report_partition_state([result])

    def delete_what_is_due(self) -> None:
        """Delete due segments as retention does, with its reasons, but not their objects."""
        topic, snapshot = read_partition(self.rlmm.client, self.tp)
        plan = snapshot.plan(topic.config)
        deleter = Deleter(BROKER, plan_id="plan-7")
        begin_deletion(
            self.rlmm.client,
            self.tp,
            plan.deletions,
            plan.log_start_offset,
            None,
            deleter,
            self.now_ms,
        )

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
    while uuid_to_text(topic_id := random_uuid()).startswith("-"):
        pass
    tp = TopicIdPartition(topic_id, f"orders-{topic_id.hex[:8]}", 0)
    rlmm.client.on_partition_leadership_changes([PartitionLeadership(tp)], [], broker_id=BROKER)
    now_ms = rlmm.client.partition_state(tp).value.read_at_ms
    log = Log(rlmm, tp, now_ms, [])
    for start, age_ms in ((0, 2 * HOUR_MS), (10, 2 * HOUR_MS), (20, 0)):
        log.segments.append(log.copied(start, start + 9, now_ms - age_ms))
    log.report()
    return log


# A partition


def test_explain_shows_due_segments_and_the_next_one(log: Log) -> None:
    log.set(retention_ms=str(HOUR_MS))
    result = log.explained()
    (retention,) = log.rlmm.answers("retention", log.text)
    assert [(d["start_offset"], d["reason"]) for d in result["due"]] == [
        (d["start_offset"], d["reason"]) for d in retention["deletions"]
    ]
    assert len(result["due"]) == 2
    assert result["next"]["segment"]["start_offset"] == 20
    assert result["next"]["standing"] == "LATER"
    assert result["next"]["due"]["at_ms"] == log.now_ms + HOUR_MS + 1


def test_explain_shows_whether_each_setting_is_set(log: Log) -> None:
    log.set(retention_ms="3600000")
    settings = log.explained()["settings"]
    assert settings["retention.ms"] == {"value": "3600000", "is_set": True}
    assert settings["sediment.retention.owner"] == {"value": "rlm", "is_set": False}


def test_the_bytes_that_the_size_rule_lacks_make_the_next_one_due(log: Log) -> None:
    log.set(retention_bytes="251")
    # 350 bytes are 99 too many, and a segment has 100.
    result = log.explained()
    assert (result["due"], result["next"]["bytes_missing"]) == ([], 1)
    log.set(retention_bytes="250")
    assert [d["reason"] for d in log.explained()["due"]] == ["retention.bytes breached"]


def test_a_size_rule_that_cannot_be_applied_says_why(log: Log) -> None:
    log.copied(30, 39, log.now_ms)
    log.set(retention_bytes="0")
    result = log.explained()
    assert result["due"] == []
    assert result["size_note"].startswith("retention.bytes not applied: copied through 39")


def test_explain_shows_segments_kept_by_a_hold(log: Log) -> None:
    log.set(retention_ms=str(HOUR_MS), sediment_hold="true")
    result = log.explained()
    assert (result["due"], len(result["on_hold"])) == ([], 2)
    assert result["next"]["standing"] == "OBSTRUCTED"
    assert "Due now, kept by the hold" in log.shown()


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
    log.set(retention_ms=str(HOUR_MS), sediment_retention_owner="sweep")
    log.set(
        retention_ms=str(HOUR_MS), sediment_retention_owner="sweep", sediment_sweep_paused="true"
    )
    shown = log.shown()
    for text in ("30-34 LOST_BEFORE_COPY", "`sediment.sweep.paused`", "2 segments, 200 B"):
        assert text in shown
    assert "set for the topic, settings of revision 2" in shown


def test_an_export_is_shown_with_what_it_keeps_until_its_lease_is_ended(log: Log) -> None:
    name = ("partitions", "release-export", log.tp.topic, "0", "lake")
    kept = log.rlmm.client.set_export_position(log.tp, "lake", 15, HOUR_MS)
    assert kept is not None
    log.set(retention_ms=str(HOUR_MS))
    assert log.explained()["export_positions"] == [asdict(kept)]
    assert [each["start_offset"] for each in log.explained()["due"]] == [0]
    assert "export lake keeps offsets from 15 on until" in log.shown()
    assert [log.rlmm.answers(*name)[0]["applied"] for _ in range(2)] == [True, False]
    assert log.explained()["export_positions"] == []
    assert len(log.explained()["due"]) == 2


def test_without_a_report_nothing_is_due_and_it_says_why(rlmm: RlmmProcess) -> None:
    tp = TopicIdPartition(random_uuid(), f"silent-{uuid4().hex[:8]}", 0)
    one = finished(rlmm.client, tp, 0, 9)
    (result,) = rlmm.answers("explain", f"{tp.topic}-0", str(id_of(one)))
    assert result["retention"]["standing"] == "NOT_JUDGED"
    assert result["verdict"].startswith("no leader has reported")


def test_of_a_topic_that_a_broker_tiers_it_shows_kafkas_log_and_lineage(rlmm: RlmmProcess) -> None:
    tp = TopicIdPartition(random_uuid(), f"plugin-{uuid4().hex[:8]}", 0)
    old, new = (finished(rlmm.client, tp, start, start + 9) for start in (0, 10))
    lineage = Lineage(segment_leader_epochs([(0, 0), (4, 12)]))
    rlmm.client.report_partition_state([], [PolledLog(tp, 3, 7, lineage, 10, 25)])
    text = f"{tp.topic}-0"
    (result,) = rlmm.answers("explain", text)
    assert result["polled_log"]["leader_epochs"] == [[0, 0], [4, 12]]
    assert result["due"] == []
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
    purge = ("db", "maintain", "--database-url", database_url, "--delete-retention-ms", "0")
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
    for text in ("any RLM removes all of it", "not before", "partitions undelete", "sediment.hold"):
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
    log.set(remote_storage_enable="false")
    assert log.explained_segment(log.segments[2])["verdict"].startswith("kept: ")
    log.set(**disabled, sediment_hold="true")
    assert "goes with" not in log.explained_segment(log.segments[2])["verdict"]


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


@pytest.mark.parametrize("name", ["nowhere-0", "nowhere", "AAAAAAAAAAAAAAAAAAAAAQ:nowhere-0"])
def test_unknown_partition_is_refused(rlmm: RlmmProcess, name: str) -> None:
    assert name.rpartition(":")[2] in rlmm.refusal("explain", name)


def test_unknown_segment_is_refused(log: Log) -> None:
    line = log.rlmm.refusal("explain", log.text, str(random_uuid()))
    assert "list the segments with `sediment segments`" in line


def test_an_offset_that_is_nowhere_says_why(log: Log) -> None:
    log.rlmm.client.record_gap(log.tp, OffsetGap(30, 34), BROKER)
    refusals = {
        offset: log.rlmm.refusal("explain", log.text, "--offset", offset)
        for offset in ("32", "40", "99")
    }
    assert "LOST_BEFORE_COPY, offsets 30-34" in refusals["32"]
    assert "it was not copied; `sediment partitions`" in refusals["40"]
    assert "the log ended at 45" in refusals["99"]


def test_an_offset_that_was_lost_right_behind_an_emptied_tier_says_so(log: Log) -> None:
    log.set(retention_ms="1")
    log.delete_what_is_due()
    log.rlmm.client.record_gap(log.tp, OffsetGap(30, 34), BROKER)
    assert log.explained()["log_start_offset"] == 30
    line = log.rlmm.refusal("explain", log.text, "--offset", "32")
    assert "holds offset 32: LOST_BEFORE_COPY, offsets 30-34" in line


@pytest.mark.deep
@pytest.mark.parametrize("arguments", [["no-id"], [str(random_uuid()), "--offset", "1"]])
def test_wrong_arguments_are_refused(log: Log, arguments: list[str]) -> None:
    assert log.rlmm.refusal("explain", log.text, *arguments).startswith("sediment: ")
