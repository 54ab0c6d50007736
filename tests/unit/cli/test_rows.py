"""Test the rows of lists at their widest: 10,000 partitions of 40 characters, in 80 columns."""

from dataclasses import replace
from uuid import UUID

import pytest

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.operations import (
    Anomaly,
    AnomalyKind,
    RecordedAnomaly,
    RecordedRun,
    RunCounts,
    RunKind,
    RunOutcome,
)
from services.api.partitions import NO_SEGMENTS, PartitionEvent
from services.api.remote_log_manager import PartitionDescription, Problem, ProblemKind
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.api.topic_config import StoredTopicConfig
from services.cli import partitions, reconcile, segments, topics, verify
from services.cli.tables import table_lines
from services.views.topics import TopicFigures

OFFSET = 10**10
TOPIC = "customer.orders.completed.by-region"
LONG_TOPIC = "t" * 40
NAME = f"{TOPIC}-1000"
TP = TopicIdPartition(UUID(int=1), TOPIC, 1_000)
NOW_MS = 1_800_000_000_000
LARGE_BYTES = (1 << 50) - 1
WHY = "retention.ms breached: 604800000 ms < 691200000 ms"

DESCRIBED = PartitionDescription(
    TP,
    7,
    12,
    0,
    OFFSET,
    OFFSET,
    OFFSET,
    OFFSET,
    100,
    LARGE_BYTES,
    9_999,
    LARGE_BYTES,
    9_999,
    LARGE_BYTES,
    (Problem(ProblemKind.CORRUPT_BATCH, "/log", "why", 5, 9_999),),
)
SEGMENT = RemoteLogSegmentMetadata(
    remote_log_segment_id=RemoteLogSegmentId(TP, UUID(int=2)),
    start_offset=OFFSET,
    end_offset=OFFSET + 9,
    max_timestamp_ms=NOW_MS,
    broker_id=1,
    event_timestamp_ms=NOW_MS,
    segment_size_in_bytes=(1 << 31) - 1,
    state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    segment_leader_epochs=segment_leader_epochs([(0, OFFSET)]),
)
EVENT = PartitionEvent(
    1,
    NOW_MS,
    "SEGMENT",
    "COPY_SEGMENT_FINISHED",
    "DELETE_SEGMENT_STARTED",
    UUID(int=2),
    f"x:0:{OFFSET}:1",
    "spiffe://example.org/ns/kafka/sa/broker-1",
    reason="retention",
    rule_detail=WHY,
    broker_id=1,
)
ANOMALY = RecordedAnomaly(
    Anomaly(AnomalyKind.UNREFERENCED_COMPLETE, TP.topic_id, 1_000, UUID(int=2), "key" * 40, WHY),
    NOW_MS,
    NOW_MS,
    3,
    "run",
)


def figures() -> TopicFigures:
    made = TopicFigures(TP.topic_id, LONG_TOPIC)
    made.totals = replace(NO_SEGMENTS, finished_segments=99_999)
    return made


STORED = StoredTopicConfig(TP.topic_id, TOPIC, {"remote.storage.enable": "true"}, 1)
COUNTS = RunCounts(TP.topic_id, 99_999, 99_999, LARGE_BYTES, 99)
RUN = RecordedRun(
    RunKind.RECONCILE, "r", RunOutcome.DONE, (TOPIC,), 1, 1, NOW_MS, NOW_MS, 1, COUNTS
)
LATER_MS = NOW_MS + 99 * 86_400_000
LISTS = {
    "partitions": (partitions._as_row(DESCRIBED), NAME),
    "segments": (segments._segment_as_row(SEGMENT), f"{OFFSET}-{OFFSET + 9}"),
    "events": (segments._event_as_row(EVENT), str(OFFSET)),
    "anomalies": (reconcile._anomaly_as_row(ANOMALY, {TP.topic_id: TOPIC}, LATER_MS), NAME),
    "topics": (topics._as_row(figures(), STORED, False), LONG_TOPIC),
    "verified": (
        verify._verified_as_row(figures(), RunKind.RECONCILE, RUN, LATER_MS),
        LONG_TOPIC,
    ),
}
"""A row at its widest, and what may not be cut in it."""


@pytest.mark.parametrize("count", [10, 10_000])
@pytest.mark.parametrize("name", LISTS)
def test_a_list_fits_with_names_of_40_characters(name: str, count: int) -> None:
    cells, whole = LISTS[name]
    columns, row = list(cells), list(cells.values())
    lines = table_lines(columns, [row] * count, width=80, encoding="ascii")
    assert max(map(len, lines)) <= 80
    assert sum(whole in line for line in lines) == count
    assert len(table_lines(columns, [row] * count)) == count + 1
