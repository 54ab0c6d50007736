"""Check that each check behind the verdict of `python -m demos kafka` can fail."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Message

from demos.kafka_client import Record
from demos.kafka_report import DemoKafkaReport, Reading, SegmentRead, summary
from demos.records import READ_COMMITTED, READ_UNCOMMITTED, Sent, differences
from demos.tier import Segment, View
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.rlm.kafka_log.partition_dir import LocalSegment

NAME = TopicIdPartition(UUID(int=7), "orders", 0)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED


def sent(offset: int, transaction: str | None = None) -> Sent:
    record = Record(b"key", str(offset).encode(), 1000 + offset, [("h", b"1")])
    return Sent(offset, record, transaction)


def message(offset: int, value: bytes | None = None) -> Message:
    return Message(
        topic="orders",
        partition=0,
        offset=offset,
        key=b"key",
        value=str(offset).encode() if value is None else value,
        timestamp=(1, 1000 + offset),
        headers=[("h", b"1")],
    )


SENT = [sent(0), sent(1, "committed"), sent(3, "aborted"), sent(5)]


def test_all_that_was_sent_and_nothing_else_is_no_difference() -> None:
    messages = [message(offset) for offset in (0, 1, 3, 5)]
    assert differences(SENT, messages, READ_UNCOMMITTED) == []


def test_aborted_records_must_not_reach_a_read_committed_consumer() -> None:
    assert differences(SENT, [message(0), message(1), message(5)], READ_COMMITTED) == []
    assert differences(SENT, [message(0), message(1), message(3), message(5)], READ_COMMITTED) == [
        "offset 3: no consumer of read_committed should get it"
    ]


@pytest.mark.parametrize(
    ("messages", "difference"),
    [
        ([message(0), message(1), message(5)], "offset 3: did not come"),
        ([message(0), message(1, b"x"), message(3), message(5)], "offset 1: is not as it was sent"),
        ([message(1), message(0), message(3), message(5)], "offset 0: came after offset 1"),
        (
            [message(0), message(1), message(1), message(3), message(5)],
            "offset 1: came after offset 1",
        ),
        (
            [message(0), message(1), message(2), message(3), message(5)],
            "offset 2: no consumer of read_uncommitted should get it",
        ),
    ],
)
def test_each_difference_is_named(messages: Sequence[Message], difference: str) -> None:
    assert differences(SENT, messages, READ_UNCOMMITTED) == [difference]


def row(first: int, last: int, state: RemoteLogSegmentState = FINISHED) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(NAME, UUID(int=first + 1)),
        start_offset=first,
        end_offset=last,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_leader_epochs=segment_leader_epochs([(0, first)]),
        segment_size_in_bytes=100,
        state=state,
    )


def view(disk_from: int, rows: Sequence[RemoteLogSegmentMetadata]) -> View:
    """Return segments of ten records up to offset 29, and an active one."""
    bases = [base for base in (0, 10, 20) if base >= disk_from]
    rolled = [LocalSegment(Path("orders-0"), base, 100, base + 10) for base in bases]
    disk = [*rolled, LocalSegment(Path("orders-0"), 30, 50, None)]
    objects = {
        f"{r.remote_log_segment_id.id.hex}.{kind}": 10
        for r in rows
        for kind in ("log", "indexes", "manifest")
    }
    return View(disk, rows, objects)


def test_segment_deleted_locally_after_its_copy_finished_is_not_lost() -> None:
    assert view(20, [row(0, 9), row(10, 19)]).lost_offset() is None
    assert view(20, [row(0, 9), row(10, 19), row(20, 29, STARTED)]).lost_offset() is None
    assert view(0, []).lost_offset() is None


def test_segment_deleted_locally_before_its_copy_finished_is_lost() -> None:
    assert view(20, [row(0, 9), row(10, 19, STARTED)]).lost_offset() == 10
    assert view(20, [row(10, 19)]).lost_offset() == 0
    assert view(30, [row(0, 9), row(20, 29)]).lost_offset() == 10


def test_a_segment_is_listed_once_wherever_it_is() -> None:
    segments = view(10, [row(0, 9), row(10, 19)]).segments
    assert segments == [
        Segment(0, 9, 100, on_disk=False, in_tier=True),
        Segment(10, 19, 100, on_disk=True, in_tier=True),
        Segment(20, 29, 100, on_disk=True, in_tier=False),
        Segment(30, None, 50, on_disk=True, in_tier=False),
    ]


def test_an_object_too_few_or_too_many_is_seen() -> None:
    whole = view(20, [row(0, 9), row(10, 19)])
    assert whole.is_each_finished_segment_stored
    first = min(whole.objects)
    fewer = {name: size for name, size in whole.objects.items() if name != first}
    assert not replace(whole, objects=fewer).is_each_finished_segment_stored
    more = {**whole.objects, "of nobody": 1}
    assert not replace(whole, objects=more).is_each_finished_segment_stored


def reading(on_disk: Sequence[bool], rsm_fetches: int, failures: Sequence[str] = ()) -> Reading:
    segments = [
        SegmentRead(Segment(number, number, 100, on_disk=disk, in_tier=True), 0.1)
        for number, disk in enumerate(on_disk)
    ]
    return Reading("now", READ_UNCOMMITTED, 0, 2, failures, segments, rsm_fetches, 0.2)


@pytest.mark.parametrize(
    ("on_disk", "rsm_fetches", "right"),
    [
        ([False, False, True], 2, True),
        ([False, False, True], 5, True),
        ([False, False, True], 1, False),
        ([True, True], 0, True),
        ([True, True], 1, False),
    ],
)
def test_reads_of_the_tier_alone_go_through_rsm(
    on_disk: Sequence[bool], rsm_fetches: int, right: bool
) -> None:
    assert reading(on_disk, rsm_fetches).is_from_where_it_should is right


@pytest.mark.parametrize(
    ("on_disk", "right"), [([False, False, True], True), ([True, True], False)]
)
def test_reading_from_the_plugins_cache_needs_no_call_of_rsm(
    on_disk: Sequence[bool], right: bool
) -> None:
    held = replace(reading(on_disk, 1), may_be_held=True)
    assert held.is_from_where_it_should is right
    assert replace(held, rsm_fetches=0).is_from_where_it_should


def good_report() -> DemoKafkaReport:
    return DemoKafkaReport(
        "4.4.0",
        records=2,
        offloaded=[Segment(0, 1, 100, on_disk=False, in_tier=True)],
        is_each_segment_stored=True,
        readings=[reading([False], 1)],
        expired_as_set=True,
        left_after_deletion=0,
    )


def test_a_show_in_which_all_was_right_ends_with_zero_and_one_line() -> None:
    report = good_report()
    assert report.exit_code == 0
    assert len(summary(report)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"readings": []},
        {"readings": [reading([False], 1, ["offset 1: did not come"])]},
        {"readings": [reading([False], 0)]},
        {"offloaded": [Segment(0, 1, 100, on_disk=True, in_tier=True)]},
        {"lost_offsets": [1]},
        {"is_each_segment_stored": False},
        {"expired_as_set": False},
        {"left_after_deletion": 3},
        {"left_after_deletion": -1},
    ],
    ids=str,
)
def test_each_fault_sets_exit_code_one_and_is_named(wrong: dict[str, Any]) -> None:
    report = replace(good_report(), **wrong)
    assert report.exit_code == 1
    assert any(line.startswith("NOT SO: ") for line in summary(report))
