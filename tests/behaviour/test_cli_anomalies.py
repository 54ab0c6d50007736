"""Test `sediment anomalies`, which lists differences between metadata and store."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from services.api.ids import TopicIdPartition, random_uuid, uuid_to_text
from services.api.operations import Anomaly, AnomalyKind
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.local.postgres import EmbeddedPostgres
from tests.harness.processes import RlmmProcess, running_rlmm

# Tests are named after them: they are the same in every process of a run.
ORDERS, UNKNOWN = UUID(int=1), UUID(int=2)
ORPHAN = Anomaly(AnomalyKind.ORPHAN_OBJECTS, UNKNOWN, 3, random_uuid(), "a/b.log", "1 of 3 objects")
MISSING = Anomaly(AnomalyKind.MISSING_OBJECTS, ORDERS, 0, random_uuid())


@pytest.fixture(scope="module")
def rlmm(
    postgres: EmbeddedPostgres, migrated_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RlmmProcess]:
    """Provide an RLMM with an orphan of an unknown topic, and missing objects of topic orders."""
    url = postgres.create_database("cli_anomalies", template=migrated_database)
    with running_rlmm(url, tmp_path_factory.mktemp("rlmm")) as made:
        known = PartitionLeadership(TopicIdPartition(ORDERS, "orders", 0))
        made.client.on_partition_leadership_changes([known], [], 1)
        for anomaly, run in ((ORPHAN, "run-1"), (MISSING, "run-1"), (ORPHAN, "run-2")):
            made.client.report_anomalies([anomaly], run)
        yield made
    postgres.drop_database("cli_anomalies")


def test_they_are_printed_for_scripts_the_first_seen_first(rlmm: RlmmProcess) -> None:
    first, second = rlmm.answers("anomalies")
    assert (first["kind"], first["topic_id"]) == ("ORPHAN_OBJECTS", uuid_to_text(UNKNOWN))
    assert (first["partition"], first["object_key"]) == (3, "a/b.log")
    assert (first["detail"], first["times_seen"], first["run_id"]) == ("1 of 3 objects", 2, "run-2")
    assert first["segment_id"] == uuid_to_text(ORPHAN.segment_id)
    assert 0 < first["first_seen_ms"] <= first["last_seen_ms"]
    assert (second["kind"], second["object_key"]) == ("MISSING_OBJECTS", "")


def test_they_are_printed_for_people(rlmm: RlmmProcess) -> None:
    done = rlmm.sediment("anomalies")
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


def test_unknown_kind_or_topic_is_refused_in_one_line(rlmm: RlmmProcess) -> None:
    line = rlmm.refusal("anomalies", "--kind=ODD")
    assert line.startswith("sediment: --kind: unknown kind 'ODD'; use one of ORPHAN_OBJECTS, ")
    assert "the tier has no topic nowhere" in rlmm.refusal("anomalies", "--topic=nowhere")


@pytest.mark.deep
def test_escapes_in_keys_and_details_are_shown_escaped(rlmm: RlmmProcess) -> None:
    odd = Anomaly(
        AnomalyKind.CORRUPT_OBJECT, UUID(int=3), 0, random_uuid(), "a\x1b[2J", "\u202ex\r"
    )
    rlmm.client.report_anomalies([odd], "run\x07")
    of_it = f"--topic={uuid_to_text(odd.topic_id)}"
    done = rlmm.sediment("anomalies", of_it)
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert all(text in done.stdout for text in (r"a\x1b[2J", r"\u202ex\r", r"run\x07"))
    (document,) = rlmm.answers("anomalies", of_it)
    assert (document["object_key"], document["detail"]) == (odd.object_key, odd.detail)
