"""Test which sweeps that did not end well are a warning."""

import pytest

from services.api.operations import RecordedSweep, SweepKind, SweepOutcome, SweepRecord
from services.views.endpoints import Severity
from services.views.tier_facts import TierFacts

RETENTION, REMOVAL = SweepKind.RETENTION, SweepKind.REMOVAL


def swept(
    ended_ms: int, outcome: SweepOutcome, *topics: str, kind: SweepKind = RETENTION
) -> RecordedSweep:
    return RecordedSweep(SweepRecord(kind, topics, "run", outcome), ended_ms)


@pytest.mark.parametrize(
    ("topics", "later", "severity"),
    [
        (("orders",), swept(2, SweepOutcome.DONE), Severity.OK),
        (("orders",), swept(2, SweepOutcome.DONE, "clicks", "orders"), Severity.OK),
        (("orders",), swept(2, SweepOutcome.DONE, "clicks"), Severity.WARNING),
        (("orders",), swept(2, SweepOutcome.DONE, kind=REMOVAL), Severity.WARNING),
        (("orders",), swept(2, SweepOutcome.PARTIAL), Severity.WARNING),
        ((), swept(2, SweepOutcome.DONE, "orders"), Severity.WARNING),
    ],
)
def test_only_a_later_sweep_of_its_kind_and_topics_makes_up_for_a_refused_one(
    topics: tuple[str, ...], later: RecordedSweep, severity: Severity
) -> None:
    refused = swept(1, SweepOutcome.REFUSED, *topics)
    assert TierFacts(sweeps=[later, refused]).sweep_severity is severity
