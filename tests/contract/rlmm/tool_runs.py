"""Test runs of tools: the last ones of each kind, of topics and as a whole, listed in pages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.operations import (
    CHECKS,
    MAX_PARTS,
    MAX_RUN_COUNTS,
    MAX_RUN_TOPICS,
    RecordedRun,
    RunCounts,
    RunKind,
    RunOutcome,
    ToolRun,
)
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    all_tool_runs,
)
from services.api.validation import INT64_MAX
from services.rlmm.operations.tool_runs import KEPT_RUNS
from tests.contract.rlmm.segments import RlmmContractPart

RECONCILE, SCRUB = RunKind.RECONCILE, RunKind.SCRUB
RETENTION, REMOVAL = RunKind.RETENTION, RunKind.REMOVAL
DONE, PARTIAL = RunOutcome.DONE, RunOutcome.PARTIAL


def a_topic(rlmm: RemoteLogMetadataManager, name: str = "") -> UUID:
    """Make a topic known that no other test has."""
    topic_id = uuid4()
    tp = TopicIdPartition(topic_id, name or f"t{topic_id.hex}", 0)
    rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 0)], [], 1)
    return topic_id


def name_of(topic_id: UUID) -> str:
    return f"t{topic_id.hex}"


def report(
    rlmm: RemoteLogMetadataManager, topic_id: UUID, part: int, parts: int, **fields: Any
) -> None:
    listed_at_ms = fields.pop("listed_at_ms", None)
    kind, run_id = fields.pop("kind", SCRUB), fields.pop("run_id", "run")
    run = ToolRun(kind, run_id, part=part, parts=parts, listed_at_ms=listed_at_ms)
    rlmm.report_tool_run(run, [RunCounts(topic_id, **fields)])


def of_topic(rlmm: RemoteLogMetadataManager, topic_id: UUID) -> list[RecordedRun]:
    return list(all_tool_runs(rlmm, name_of(topic_id)))


def swept(
    rlmm: RemoteLogMetadataManager,
    topics: Sequence[str] = (),
    kind: RunKind = RETENTION,
    run_id: str = "run",
    **counts: Any,
) -> None:
    rlmm.report_tool_run(ToolRun(kind, run_id, topics=tuple(topics)), [RunCounts(**counts)])


def sweeps(rlmm: RemoteLogMetadataManager, *topics: str) -> list[RecordedRun]:
    of_all = (each for each in all_tool_runs(rlmm) if each.counts.topic_id is None)
    return [each for each in of_all if each.topics == topics]


class ToolRuns(RlmmContractPart):
    def test_a_run_over_a_topic_is_the_sum_of_its_parts(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        topic_id = a_topic(rlmm)
        counts = {"segments": 4, "done_segments": 3, "done_bytes": 300}
        report(rlmm, topic_id, 1, 2, run_id="run-1", failed_segments=1, **counts)
        [half] = of_topic(rlmm, topic_id)
        assert (half.topics, half.kind, half.ended_parts, half.parts, half.run_id) == (
            *((name_of(topic_id),), SCRUB),
            *(1, 2, "run-1"),
        )
        assert half.counts == RunCounts(topic_id, 4, 3, 300, 1)
        assert half.ended_ms == half.last_ended_ms > 0
        report(rlmm, topic_id, 2, 2, run_id="run-2", **counts)
        [whole] = of_topic(rlmm, topic_id)
        assert (whole.ended_parts, whole.parts, whole.run_id) == (2, 2, "run-2")
        assert whole.counts == RunCounts(topic_id, 8, 6, 600, 1)
        assert half.ended_ms == whole.ended_ms <= whole.last_ended_ms

    def test_a_part_that_is_read_again_is_replaced(self, rlmm: RemoteLogMetadataManager) -> None:
        topic_id = a_topic(rlmm)
        report(rlmm, topic_id, 1, 1, run_id="run-1", segments=9, failed_segments=2)
        [first] = of_topic(rlmm, topic_id)
        report(rlmm, topic_id, 1, 1, run_id="run-2", segments=5, done_segments=5)
        [second] = of_topic(rlmm, topic_id)
        assert second.counts == RunCounts(topic_id, 5, 5, 0, 0)
        assert (second.run_id, second.ended_ms >= first.ended_ms) == ("run-2", True)

    def test_a_run_is_as_old_as_the_list_of_the_objects(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        topic_id = a_topic(rlmm)
        report(rlmm, topic_id, 1, 1, run_id="of-a-list", listed_at_ms=7)
        [found] = of_topic(rlmm, topic_id)
        assert (found.ended_ms, found.last_ended_ms, found.run_id) == (7, 7, "of-a-list")
        report(rlmm, topic_id, 1, 1, run_id="now")
        [now] = of_topic(rlmm, topic_id)
        assert now.run_id == "now"
        # A list that is older than the latest run changes nothing.
        report(rlmm, topic_id, 1, 1, run_id="of-a-list-2", listed_at_ms=8)
        assert of_topic(rlmm, topic_id) == [now]
        report(rlmm, topic_id, 1, 1, run_id="of-the-future", listed_at_ms=INT64_MAX)
        [last] = of_topic(rlmm, topic_id)
        assert last.run_id == "of-the-future"
        assert now.ended_ms <= last.ended_ms < INT64_MAX

    def test_kinds_are_apart(self, rlmm: RemoteLogMetadataManager) -> None:
        topic_id = a_topic(rlmm)
        report(rlmm, topic_id, 1, 1, segments=1)
        report(rlmm, topic_id, 1, 1, kind=RECONCILE, segments=2)
        found = [(each.kind, each.counts.segments) for each in of_topic(rlmm, topic_id)]
        assert found == [(RECONCILE, 2), (SCRUB, 1)]

    def test_whole_sets_of_parts_come_first_then_the_largest_share(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        topic_id = a_topic(rlmm)
        for part, parts, shown in ((1, 3, 3), (1, 2, 2), (3, 3, 3), (2, 3, 3), (1, 1, 1)):
            report(rlmm, topic_id, part, parts)
            assert [each.parts for each in of_topic(rlmm, topic_id)] == [shown]
        # The set of three parts is as old as its oldest part.
        report(rlmm, topic_id, 1, 3)
        assert [each.parts for each in of_topic(rlmm, topic_id)] == [1]
        for part in (2, 3):
            report(rlmm, topic_id, part, 3)
        assert [each.parts for each in of_topic(rlmm, topic_id)] == [3]

    def test_unknown_topics_are_omitted(self, rlmm: RemoteLogMetadataManager) -> None:
        known, unknown = a_topic(rlmm), uuid4()
        rlmm.report_tool_run(ToolRun(SCRUB, "run"), [RunCounts(unknown), RunCounts(known)])
        assert [each.counts.topic_id for each in of_topic(rlmm, known)] == [known]
        assert unknown not in {each.counts.topic_id for each in all_tool_runs(rlmm)}

    @pytest.mark.parametrize(
        "fields",
        [
            {"run_id": ""},
            {"run_id": "NUL \0"},
            {"part": 0},
            {"part": 3, "parts": 2},
            {"parts": MAX_PARTS + 1},
            {"listed_at_ms": -1},
        ],
    )
    def test_a_run_that_cannot_be_is_refused(
        self, rlmm: RemoteLogMetadataManager, fields: dict[str, Any]
    ) -> None:
        topic_id = a_topic(rlmm)
        with pytest.raises(InvalidRequestError):
            report(rlmm, topic_id, **{"part": 1, "parts": 1, **fields})
        assert of_topic(rlmm, topic_id) == []

    @pytest.mark.parametrize("count", [0, MAX_RUN_COUNTS + 1])
    def test_no_counts_and_too_many_are_refused(
        self, rlmm: RemoteLogMetadataManager, count: int
    ) -> None:
        with pytest.raises(InvalidRequestError, match="counts"):
            rlmm.report_tool_run(ToolRun(SCRUB, "run"), [RunCounts(uuid4())] * count)


class SweepRuns(RlmmContractPart):
    def test_the_last_sweep_of_a_kind_and_topics_is_stored(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        a, b = sorted((f"a{uuid4().hex}", f"b{uuid4().hex}"))
        counts = RunCounts(None, 10, 8, 800, 2)
        first = ToolRun(RETENTION, "run-1", PARTIAL, (b, a), duration_ms=9_000)
        rlmm.report_tool_run(first, [counts])
        [stored] = sweeps(rlmm, a, b)
        assert (stored.kind, stored.run_id, stored.outcome) == (RETENTION, "run-1", PARTIAL)
        assert (stored.duration_ms, stored.counts) == (9_000, counts)
        last = replace(first, topics=(a, b, a), run_id="run-2", outcome=DONE)
        rlmm.report_tool_run(last, [RunCounts()])
        rlmm.report_tool_run(replace(first, kind=REMOVAL), [counts])
        rlmm.report_tool_run(replace(first, topics=(a,)), [counts])
        removal, retention = sweeps(rlmm, a, b)
        assert (removal.kind, removal.run_id) == (REMOVAL, "run-1")
        assert (retention.run_id, retention.outcome, retention.counts) == (
            *("run-2", DONE),
            RunCounts(),
        )
        assert removal.ended_ms >= retention.ended_ms >= stored.ended_ms > 0
        assert len(sweeps(rlmm, a)) == 1

    def test_the_latest_sweeps_of_a_kind_are_stored(self, rlmm: RemoteLogMetadataManager) -> None:
        of_a_topic = a_topic(rlmm)
        report(rlmm, of_a_topic, 1, 1, kind=REMOVAL)
        swept(rlmm, run_id="of all")
        topics = [f"{number}-{uuid4().hex}" for number in range(KEPT_RUNS)]
        for topic in topics:
            swept(rlmm, [topic], REMOVAL)
        swept(rlmm, [topics[0]], REMOVAL, "again")
        swept(rlmm, ["one-more"], REMOVAL)
        removals = [each for each in all_tool_runs(rlmm) if each.kind is REMOVAL]
        named = {topic for each in removals for topic in each.topics}
        assert named == {"one-more", name_of(of_a_topic), *topics} - {topics[1]}
        assert sweeps(rlmm)[0].run_id == "of all"

    def test_a_record_that_cannot_be_stored_is_refused(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        for topics in (("",), ("x" * 250,), ("nul\0",), ("x",) * (MAX_RUN_TOPICS + 1)):
            with pytest.raises(InvalidRequestError, match="topics"):
                swept(rlmm, topics)
        with pytest.raises(InvalidRequestError, match="failed_segments"):
            swept(rlmm, failed_segments=-1)


class ToolRunLists(RlmmContractPart):
    def test_pages_of_runs_follow_each_other(self, rlmm: RemoteLogMetadataManager) -> None:
        name = f"n{uuid4().hex}"
        ids = sorted((a_topic(rlmm, name) for _ in range(3)), key=lambda each: each.bytes)
        for kind in (SCRUB, RECONCILE):
            counts = [RunCounts(topic_id) for topic_id in reversed(ids)]
            rlmm.report_tool_run(ToolRun(kind, "run"), counts)
        a_topic(rlmm, name)  # never verified
        seen, token = [], ""
        for expected in (4, 2):
            page = rlmm.list_tool_runs(name, page_size=4, page_token=token)
            assert len(page.runs) == expected
            seen += [(each.counts.topic_id, each.kind) for each in page.runs]
            token = page.next_page_token
        assert token == ""
        assert seen == [(topic_id, kind) for topic_id in ids for kind in (RECONCILE, SCRUB)]

    def test_tokens_of_runs_belong_to_one_query(self, rlmm: RemoteLogMetadataManager) -> None:
        topic_id = a_topic(rlmm)
        for kind in CHECKS:
            report(rlmm, topic_id, 1, 1, kind=kind)
        token = rlmm.list_tool_runs(name_of(topic_id), page_size=1).next_page_token
        with pytest.raises(InvalidRequestError, match="page_token"):
            rlmm.list_tool_runs(page_token=token)
        with pytest.raises(InvalidRequestError, match="page_size"):
            rlmm.list_tool_runs(page_size=-1)
