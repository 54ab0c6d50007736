"""Test which sweeps that did not end well are still open."""

import pytest

from services.api.operations import RecordedRun, RunCounts, RunKind, RunOutcome
from services.views.tier_facts import TierFacts

RETENTION, REMOVAL = RunKind.RETENTION, RunKind.REMOVAL


def swept(
    ended_ms: int, outcome: RunOutcome, *topics: str, kind: RunKind = RETENTION
) -> RecordedRun:
    return RecordedRun(kind, "run", outcome, topics, 1, 1, ended_ms, ended_ms, 0, RunCounts())


@pytest.mark.parametrize(
    ("topics", "later", "is_open"),
    [
        (("orders",), swept(2, RunOutcome.DONE), False),
        (("orders",), swept(2, RunOutcome.DONE, "clicks", "orders"), False),
        (("orders",), swept(2, RunOutcome.DONE, "clicks"), True),
        (("orders",), swept(2, RunOutcome.DONE, kind=REMOVAL), True),
        (("orders",), swept(2, RunOutcome.PARTIAL), True),
        ((), swept(2, RunOutcome.DONE, "orders"), True),
    ],
)
def test_only_a_later_sweep_of_its_kind_and_topics_makes_up_for_a_refused_one(
    topics: tuple[str, ...], later: RecordedRun, is_open: bool
) -> None:
    refused = swept(1, RunOutcome.REFUSED, *topics)
    assert (refused in TierFacts(sweeps=[later, refused]).open_sweeps) is is_open
