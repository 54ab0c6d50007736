"""Test the records of sweeps: the last one of each kind and topics is kept."""

from dataclasses import replace
from uuid import uuid4

import pytest

from services.api.errors import InvalidRequestError
from services.api.operations import (
    MAX_SWEPT_TOPICS,
    RecordedSweep,
    SweepKind,
    SweepOutcome,
    SweepRecord,
)
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rlmm.operations.runs import KEPT_SWEEPS
from tests.contract.rlmm.segments import RlmmContractPart

DONE, PARTIAL = SweepOutcome.DONE, SweepOutcome.PARTIAL
RETENTION, REMOVAL = SweepKind.RETENTION, SweepKind.REMOVAL


def kept(rlmm: RemoteLogMetadataManager, *topics: str) -> list[RecordedSweep]:
    return [each for each in rlmm.list_sweep_runs() if each.record.topics == topics]


class SweepRuns(RlmmContractPart):
    def test_the_last_sweep_of_a_kind_and_topics_is_kept(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        a, b = sorted((f"a{uuid4().hex}", f"b{uuid4().hex}"))
        first = SweepRecord(RETENTION, (b, a), "run-1", PARTIAL, 9_000, 10, 8, 800, 2)
        rlmm.report_sweep_run(first)
        assert [each.record for each in kept(rlmm, a, b)] == [replace(first, topics=(a, b))]
        last = replace(first, topics=(a, b, a), run_id="run-2", outcome=DONE, failed_segments=0)
        rlmm.report_sweep_run(last)
        rlmm.report_sweep_run(replace(first, kind=REMOVAL))
        rlmm.report_sweep_run(replace(first, topics=(a,)))
        removal, retention = kept(rlmm, a, b)
        assert (removal.record.kind, removal.record.run_id) == (REMOVAL, "run-1")
        assert retention.record == replace(last, topics=(a, b))
        assert removal.ended_ms >= retention.ended_ms > 0
        assert rlmm.list_sweep_runs()[0].record.topics == (a,)

    def test_the_latest_sweeps_of_a_kind_are_kept(self, rlmm: RemoteLogMetadataManager) -> None:
        rlmm.report_sweep_run(SweepRecord(RETENTION, (), "of all", DONE))
        topics = [f"{number}-{uuid4().hex}" for number in range(KEPT_SWEEPS)]
        for topic in topics:
            rlmm.report_sweep_run(SweepRecord(REMOVAL, (topic,), "run", DONE))
        rlmm.report_sweep_run(SweepRecord(REMOVAL, (topics[0],), "again", DONE))
        rlmm.report_sweep_run(SweepRecord(REMOVAL, ("one-more",), "run", DONE))
        removals = [each for each in rlmm.list_sweep_runs() if each.record.kind is REMOVAL]
        named = {topic for each in removals for topic in each.record.topics}
        assert named == {"one-more", *topics} - {topics[1]}
        assert kept(rlmm)[0].record.run_id == "of all"

    def test_a_record_that_cannot_be_kept_is_refused(self, rlmm: RemoteLogMetadataManager) -> None:
        for topics in (("",), ("x" * 250,), ("nul\0",), ("x",) * (MAX_SWEPT_TOPICS + 1)):
            with pytest.raises(InvalidRequestError, match="topics"):
                rlmm.report_sweep_run(SweepRecord(RETENTION, topics, "run", DONE))
        with pytest.raises(InvalidRequestError, match="failed_segments"):
            rlmm.report_sweep_run(SweepRecord(RETENTION, (), "run", DONE, failed_segments=-1))
