"""Test `sediment anomalies`, which lists differences between metadata and store."""

from uuid import UUID

import pytest

from services.api.ids import TopicIdPartition, random_uuid, uuid_to_text
from services.api.operations import Anomaly, AnomalyKind
from services.api.remote_log_metadata_manager import PartitionLeadership
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess

# Tests are named after them: they are the same in every process of a run.
ORDERS, UNKNOWN = UUID(int=1), UUID(int=2)
ORPHAN = Anomaly(AnomalyKind.ORPHAN_OBJECTS, UNKNOWN, 3, random_uuid(), "a/b.log", "1 of 3 objects")
MISSING = Anomaly(AnomalyKind.MISSING_OBJECTS, ORDERS, 0, random_uuid())

empty_rlmm = served_fixtures.rlmm


@pytest.fixture
def rlmm(empty_rlmm: RlmmProcess) -> RlmmProcess:
    """Provide an RLMM with an orphan of an unknown topic, and missing objects of topic orders."""
    known = PartitionLeadership(TopicIdPartition(ORDERS, "orders", 0))
    empty_rlmm.client.on_partition_leadership_changes([known], [], 1)
    for anomaly, run in ((ORPHAN, "run-1"), (MISSING, "run-1"), (ORPHAN, "run-2")):
        empty_rlmm.client.report_anomalies([anomaly], run)
    return empty_rlmm


def test_they_are_printed_for_scripts_the_first_seen_first(rlmm: RlmmProcess) -> None:
    first, second = rlmm.answers("anomalies")
    assert (first["kind"], first["topic_id"]) == ("ORPHAN_OBJECTS", uuid_to_text(UNKNOWN))
    assert (first["partition"], first["object_key"]) == (3, "a/b.log")
    assert (first["detail"], first["times_seen"], first["run_id"]) == ("1 of 3 objects", 2, "run-2")
    assert first["segment_id"] == uuid_to_text(ORPHAN.segment_id)
    assert 0 < first["first_seen_ms"] <= first["last_seen_ms"]
    assert (second["kind"], second["object_key"]) == ("MISSING_OBJECTS", "")


def test_they_are_printed_for_people(rlmm: RlmmProcess) -> None:
    done = rlmm.sediment("anomalies", "-o", "wide")
    assert done.returncode == 0
    for text in ("ORPHAN_OBJECTS", "a/b.log", "1 of 3 objects", "run-2"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (["--kind=missing_objects"], ["MISSING_OBJECTS"]),
        (
            ["--kind=MISSING_OBJECTS", "--kind=ORPHAN_OBJECTS"],
            ["ORPHAN_OBJECTS", "MISSING_OBJECTS"],
        ),
        (["--kind=CORRUPT_OBJECT"], []),
        (["--topic=orders"], ["MISSING_OBJECTS"]),
        ([f"--topic={uuid_to_text(ORDERS)}:orders"], ["MISSING_OBJECTS"]),
        ([f"--topic={uuid_to_text(UNKNOWN)}"], ["ORPHAN_OBJECTS"]),
        (["--topic=orders", "--kind=ORPHAN_OBJECTS"], []),
    ],
    ids=str,
)
def test_some_of_them_may_be_asked_for(
    rlmm: RlmmProcess, options: list[str], kinds: list[str]
) -> None:
    assert [found["kind"] for found in rlmm.answers("anomalies", *options)] == kinds


@pytest.mark.deep
def test_escapes_in_keys_and_details_are_shown_escaped(rlmm: RlmmProcess) -> None:
    odd = Anomaly(
        AnomalyKind.CORRUPT_OBJECT, UUID(int=3), 0, random_uuid(), "a\x1b[2J", "\u202ex\r"
    )
    rlmm.client.report_anomalies([odd], "run\x07")
    of_it = f"--topic={uuid_to_text(odd.topic_id)}"
    done = rlmm.sediment("anomalies", of_it, "-o", "wide")
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert all(text in done.stdout for text in (r"a\x1b[2J", r"\u202ex\r", r"run\x07"))
    (document,) = rlmm.answers("anomalies", of_it)
    assert (document["object_key"], document["detail"]) == (odd.object_key, odd.detail)
