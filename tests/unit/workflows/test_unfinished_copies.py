"""Copies that never finished, and which of them a finished copy replaces."""

from dataclasses import replace
from typing import Any

import pytest

from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.workflows.unfinished_copies import CopyKind, UnfinishedCopies
from tests.harness.tier import a_topic, segment

STUCK, SUPERSEDED = CopyKind.STUCK_COPY, CopyKind.SUPERSEDED_COPY
[TP] = a_topic()
BEGAN_AT_MS = 1_000


def started(number: int, **fields: Any) -> RemoteLogSegmentMetadata:
    return replace(segment(TP, number, event_timestamp_ms=BEGAN_AT_MS), **fields)


def finished(number: int, **fields: Any) -> RemoteLogSegmentMetadata:
    return started(number, state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED, **fields)


def kinds(*segments: RemoteLogSegmentMetadata, before_ms: int = BEGAN_AT_MS) -> list[CopyKind]:
    copies = UnfinishedCopies(before_ms)
    for each in segments:
        copies.add(each)
    return [kind for kind, _ in copies.unfinished()]


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ((started(1),), [STUCK]),
        ((started(1, copy_leased=True),), []),
        ((finished(1), finished(2)), []),
        ((finished(1), started(1)), [SUPERSEDED]),
        ((started(1), finished(1)), [SUPERSEDED]),
        ((finished(0), started(1)), [STUCK]),
        ((finished(0, end_offset=499), finished(1), started(2)), [SUPERSEDED]),
        ((finished(1, end_offset=150), started(1)), [STUCK]),
        (
            (finished(1, segment_leader_epochs=segment_leader_epochs([(7, 100)])), started(1)),
            [STUCK],
        ),
    ],
)
def test_a_copy_is_superseded_if_a_finished_one_has_all_of_it(
    segments: tuple[RemoteLogSegmentMetadata, ...], expected: list[CopyKind]
) -> None:
    assert kinds(*segments) == expected


def test_a_copy_that_began_later_may_be_under_way() -> None:
    assert kinds(started(1), before_ms=BEGAN_AT_MS - 1) == []
