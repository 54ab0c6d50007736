"""Test `sediment status`: what it shows of services and tier, and its exit codes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.api.errors import PermissionDeniedError
from services.api.operations import (
    Anomaly,
    AnomalyKind,
    RunCounts,
    RunKind,
    RunOutcome,
    ToolRun,
)
from services.api.remote_log_manager import CopyLag
from services.api.segment_batches import MAX_LEASE_MS
from services.common.release import release
from services.rlm.partition import Lag
from services.rlm.servicer import RemoteLogManagerServicer
from services.rpc.client.probe import Note, ServiceState
from services.views.documents import as_json
from services.views.endpoints import Endpoint, Severity
from services.views.tier import (
    Line,
    Status,
    disk_line,
    lag_line,
    service_lines,
    tier_lines,
    with_next,
)
from services.views.tier_facts import Bounds, TierFacts, tier_facts
from tests.contract.rlmm.segments import DELETE_STARTED, MARKED, add, finished, move, put_deletion
from tests.contract.rlmm.segments import segment as started
from tests.harness import served_fixtures
from tests.harness.holds import hold
from tests.harness.processes import RlmmProcess
from tests.harness.retained_log import AT_ONCE, HOUR_MS, hourly_log
from tests.harness.served import ServedRsm, served, served_rlm
from tests.harness.ship_stack import running_stack
from tests.harness.tier import a_topic, now_ms
from tieredstorage.v1 import remote_log_manager_pb2 as rlm_pb
from tieredstorage.v1 import remote_log_manager_pb2_grpc as rlm_grpc

AWAY = "127.0.0.1:9"

rlmm, rsm, store = served_fixtures.rlmm_with_rsm, served_fixtures.rsm, served_fixtures.store


def status(rlmm: RlmmProcess, *options: str) -> tuple[int, dict[str, Any]]:
    done = rlmm.sediment("status", *options, "-o", "json")
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def severity_of(what: str, facts: TierFacts) -> Severity:
    return {line.what: line.severity for line in tier_lines(Status(facts, (), 0))}[what]


def severities(document: dict[str, Any]) -> dict[str, str]:
    return {line["what"]: line["severity"] for line in document["lines"]}


def test_a_tier_that_is_well_is_ok_on_one_screen(rlmm: RlmmProcess, rsm: ServedRsm) -> None:
    orders, audit = a_topic("orders", 1)[0], a_topic("audit", 1)[0]
    for number in range(3):
        finished(rlmm.client, orders, number, number, segment_size_in_bytes=1 << 30)
    finished(rlmm.client, audit, 0, 0, segment_size_in_bytes=5)
    held = hold(rlmm.client, audit, first_offset=3)
    run = ToolRun(RunKind.SCRUB, "run")
    rlmm.client.report_tool_run(run, [RunCounts(orders.topic_id, 3, 3, 3 << 30)])
    code, document = status(rlmm)
    assert (code, document["severity"]) == (0, "OK")
    found = severities(document)
    unknown = {what for what, severity in found.items() if severity == "UNKNOWN"}
    assert unknown == {"rlm", "reconcile", "maintenance"}
    assert set(found.values()) == {"OK", "UNKNOWN"}
    services = {each["service"]: each for each in document["services"]}
    assert (services["rsm"]["address"], services["rsm"]["version"]) == (rsm.address, release())
    assert (services["rlmm"]["ready"], services["rlm"]["address"]) == (True, "")
    tier = document["tier"]
    assert (tier["topics"], tier["partitions"], tier["finished_segments"]) == (2, 2, 4)
    assert (tier["topics_on_hold"], tier["holds"]) == (["audit"], 1)
    assert tier["oldest_hold"] == as_json(held)
    scrub = tier["verifications"]["SCRUB"]
    assert (scrub["oldest_topic"], scrub["unverified_topics"]) == ("orders", 1)
    assert tier["verifications"]["RECONCILE"] == {
        "oldest_ended_ms": None,
        "oldest_topic": None,
        "unverified_topics": 2,
    }
    shown = rlmm.sediment("status")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_what_is_stuck_is_a_warning_and_named(rlmm: RlmmProcess) -> None:
    (orders,) = a_topic("orders", 1)
    old_ms = now_ms() - 3 * HOUR_MS
    add(rlmm.client, started(orders, 0, 9, event_timestamp_ms=old_ms))
    add(rlmm.client, started(orders, 20, 29, event_timestamp_ms=now_ms()))
    leased = started(orders, 10, 19, event_timestamp_ms=old_ms)
    rlmm.client.add_remote_log_segment_metadata(leased, lease_ms=MAX_LEASE_MS)
    gone = finished(rlmm.client, orders, 30, 39)
    move(rlmm.client, gone, DELETE_STARTED, event_timestamp_ms=old_ms + HOUR_MS)
    code, document = status(rlmm)
    assert (code, document["severity"]) == (1, "WARNING")
    assert [(each["state"], each["start_offset"]) for each in document["tier"]["stuck"]] == [
        ("COPY_SEGMENT_STARTED", 0),
        ("DELETE_SEGMENT_STARTED", 30),
    ]
    assert document["tier"]["unfinished_segments"] == 4
    assert "orders-0" in rlmm.sediment("status").stdout
    code, _ = status(rlmm, "--stuck-after", "4h")
    assert code == 0


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (AnomalyKind.ORPHAN_OBJECTS, 0),
        (AnomalyKind.UNREFERENCED_COMPLETE, 1),
        (AnomalyKind.CORRUPT_OBJECT, 2),
    ],
)
def test_damage_is_critical_and_what_a_run_repairs_is_not(
    rlmm: RlmmProcess, kind: AnomalyKind, code: int
) -> None:
    (orders,) = a_topic("orders", 1)
    segment_id = finished(rlmm.client, orders, 0, 9).remote_log_segment_id.id
    rlmm.client.report_anomalies([Anomaly(kind, orders.topic_id, 0, segment_id)], "run")
    found, document = status(rlmm)
    assert (found, document["tier"]["anomalies"][kind.value]) == (code, 1)


def test_damage_is_seen_behind_any_number_of_other_anomalies(
    rlmm: RlmmProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.views.tier_facts.MAX_PAGE_SIZE", 2)
    (orders,) = a_topic("orders", 1)
    kinds = [AnomalyKind.ORPHAN_OBJECTS] * 3 + [AnomalyKind.CORRUPT_OBJECT]
    for number, kind in enumerate(kinds):
        segment_id = finished(rlmm.client, orders, number, number).remote_log_segment_id.id
        rlmm.client.report_anomalies([Anomaly(kind, orders.topic_id, 0, segment_id)], "run")
    facts = tier_facts(rlmm.client, Bounds(HOUR_MS, HOUR_MS))
    assert severity_of("anomalies", facts) is Severity.CRITICAL
    assert facts.has_more_anomalies
    assert facts.anomalies[AnomalyKind.ORPHAN_OBJECTS] == 2


class RefusingServicer(RemoteLogManagerServicer):
    def GetCopyLag(
        self, request: rlm_pb.GetCopyLagRequest, context: grpc.ServicerContext
    ) -> rlm_pb.GetCopyLagResponse:
        raise PermissionDeniedError("GetCopyLag needs the role auditor")


def test_a_call_that_a_ready_service_refuses_is_named_beside_the_rest(
    rlmm: RlmmProcess, database_url: str, tmp_path: Path
) -> None:
    with running_stack(database_url, tmp_path / "own") as stack:
        refusing = RefusingServicer(stack.tier_reader())

        def add_to(server: grpc.Server) -> None:
            rlm_grpc.add_RemoteLogManagerServicer_to_server(refusing, server)

        with served(add_to, "tieredstorage.v1.RemoteLogManager") as (_, address):
            found, document = status(rlmm, "--rlm", address)
    assert (found, severities(document)["copying"]) == (2, "CRITICAL")
    assert severities(document)["tier"] == "OK"
    texts = {line["what"]: line["text"] for line in document["lines"]}
    assert "needs the role auditor" in texts["copying"]


def test_a_service_that_is_away_is_critical(rlmm: RlmmProcess) -> None:
    code, document = status(rlmm, "--rsm", AWAY)
    assert (code, severities(document)["rsm"]) == (2, "CRITICAL")
    assert document["tier"] is not None
    code, document = status(rlmm, "--rlmm", AWAY)
    assert (code, document["tier"]) == (2, None)


def test_partitions_that_are_marked_are_counted(rlmm: RlmmProcess) -> None:
    (orders,) = a_topic("orders", 1)
    finished(rlmm.client, orders, 0, 9)
    put_deletion(rlmm.client, orders, MARKED)
    code, document = status(rlmm)
    assert (code, document["tier"]["deleting_partitions"]) == (0, 1)


def test_an_rlm_reports_what_waits_to_be_copied(
    rlmm: RlmmProcess, database_url: str, tmp_path: Path, log_dir: Path
) -> None:
    hourly_log(log_dir)
    with running_stack(database_url, tmp_path / "own") as stack:
        rlm = stack.rlm(log_dir, limits=AT_ONCE)
        [led] = rlm.led_partitions()
        led.copy.lag = Lag(2, 3 * 1024, 1_000, None)
        with served_rlm(rlm) as (_, address):
            code, document = status(rlmm, "--rlm", address)
    [lag] = document["copy_lags"]
    assert (code, lag["severity"], lag["broker_id"]) == (0, "OK", rlm.broker_id)
    assert (lag["partitions"], lag["lagging_partitions"]) == (1, 1)
    assert (lag["lag_segments"], lag["lag_bytes"]) == (2, 3 * 1024)
    assert lag["oldest_timestamp_ms"] == 1_000


def test_an_rlm_that_leads_nothing_is_not_said_to_have_copied_everything() -> None:
    assert "copies nothing" in lag_line(CopyLag(-1, 0), 0).text
    assert "everything" in lag_line(CopyLag(7, 1), 0).text
    assert "everything" not in lag_line(CopyLag(7, 1, unchecked_partitions=1), 0).text


@pytest.mark.parametrize(
    ("lag", "severity"),
    [
        (CopyLag(7, 1, local_retention_used=0.49), Severity.OK),
        (CopyLag(7, 1, local_retention_used=0.5), Severity.WARNING),
        (CopyLag(7, 1, blocked_partitions=1), Severity.WARNING),
        (CopyLag(7, 1, local_retention_used=1.0), Severity.CRITICAL),
    ],
)
def test_copies_are_judged_by_how_much_local_retention_has_passed(
    lag: CopyLag, severity: Severity
) -> None:
    assert lag_line(lag, 0).severity is severity


def test_a_removal_is_a_warning_after_a_day() -> None:
    day_ms = 24 * HOUR_MS
    older = TierFacts(now_ms=day_ms + 1, oldest_mark_ms=0)
    assert severity_of("removal", TierFacts(now_ms=day_ms, oldest_mark_ms=0)) is Severity.OK
    assert severity_of("removal", older) is Severity.WARNING


def test_sweeps_are_shown_and_one_that_did_not_end_well_is_a_warning(rlmm: RlmmProcess) -> None:
    code, document = status(rlmm)
    assert (code, document["tier"]["sweeps"]) == (0, [])
    done, counts = ToolRun(RunKind.RETENTION, "run-1"), [RunCounts(done_segments=1_234)]
    rlmm.client.report_tool_run(done, counts)
    assert status(rlmm)[0] == 0
    refused = replace(done, topics=("orders",), outcome=RunOutcome.REFUSED)
    rlmm.client.report_tool_run(refused, counts)
    code, document = status(rlmm)
    assert (code, severities(document)["sweeps"]) == (1, "WARNING")
    first, second = document["tier"]["sweeps"]
    assert (first["topics"], first["outcome"], second["topics"]) == (["orders"], "REFUSED", [])
    shown = rlmm.sediment("status").stdout
    assert "retention of orders: refused 0 s ago" in " ".join(shown.split())
    rlmm.client.report_tool_run(replace(done, run_id="run-2"), counts)
    assert status(rlmm)[0] == 0  # It swept orders too.


def test_top_shows_each_topic_as_often_as_asked(rlmm: RlmmProcess) -> None:
    finished(rlmm.client, a_topic("orders", 1)[0], 0, 9, segment_size_in_bytes=1 << 30)
    shown = rlmm.sediment("top", "--count", "2", "--interval", "0.5")
    assert (shown.returncode, shown.stderr) == (0, "")
    rows = [line.split() for line in shown.stdout.splitlines() if line.startswith("orders")]
    assert rows == [["orders", "1.0", "GiB", "-", "0", "B", "0"]] * 2


def test_what_a_store_does_by_itself_is_one_line_the_worst_first() -> None:
    notes = (
        Note("OK", "versioning is off"),
        Note("UNKNOWN", "not said"),
        Note("CRITICAL", "it deletes"),
    )
    ready = ServiceState(release(), is_ready=True, notes=notes)
    both = [Endpoint("rsm", address, ready) for address in ("rsm:1", "rsm:2")]
    *_, line = service_lines(both)
    assert line == Line("store", Severity.CRITICAL, "it deletes; versioning is off; not said")
    away = Endpoint("rsm", "rsm:1", ServiceState(release(), unready="no bucket"))
    [line] = service_lines([away])
    assert line.text == f"rsm:1: {release()}, not ready: no bucket"
    assert line.next == "sediment doctor"


def test_what_no_check_looked_at_is_not_ok(rlmm: RlmmProcess) -> None:
    finished(rlmm.client, a_topic("orders", 1)[0], 0, 9)
    code, document = status(rlmm)
    lines = {each["what"]: each for each in document["lines"]}
    for what in ("anomalies", "reconcile", "scrub"):
        line, command = lines[what], "scrub" if what == "scrub" else "reconcile"
        assert (line["severity"], line["text"]) == ("UNKNOWN", "never looked")
        assert line["next"] == f"sediment {command}"
    assert (code, document["severity"]) == (0, "OK")
    listed = rlmm.sediment("anomalies")
    assert (listed.stdout, listed.stderr) == ("", "never looked: run `sediment reconcile`\n")
    run = ToolRun(RunKind.RECONCILE, "run")
    rlmm.client.report_tool_run(run, [RunCounts(a_topic("orders", 1)[0].topic_id)])
    shown = rlmm.sediment("status").stdout
    assert "never looked; next: sediment scrub" in shown


def test_the_age_of_the_maintenance_is_judged() -> None:
    day_ms = 24 * HOUR_MS
    never, late = TierFacts(now_ms=9), TierFacts(now_ms=2 * day_ms + 1, maintained_ms=0)
    assert severity_of("maintenance", never) is Severity.UNKNOWN
    assert severity_of("maintenance", late) is Severity.WARNING
    recent = TierFacts(now_ms=2 * day_ms, maintained_ms=0)
    assert severity_of("maintenance", recent) is Severity.OK


def test_a_disk_that_is_nearly_full_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk_line(tmp_path).text.startswith(f"{tmp_path}: ")
    monkeypatch.setattr("services.views.tier._LOW_DISK_BYTES", (0, 0))
    assert disk_line(tmp_path).severity is Severity.OK
    monkeypatch.setattr("services.views.tier._LOW_DISK_BYTES", (1 << 60, 1 << 60))
    line = disk_line(tmp_path)
    assert (line.severity, bool(line.next)) == (Severity.WARNING, True)


def test_a_text_and_what_comes_next_share_a_line_that_has_room() -> None:
    text, command = "never looked", "sediment scrub"
    assert with_next(text, command, 40) == ["never looked; next: sediment scrub"]
    assert with_next(text, command, 20) == ["never looked", "next: sediment scrub"]
    assert with_next("fine", "", 20) == ["fine"]
    assert with_next("", "", 20) == [""]


def test_top_names_a_service_that_does_not_answer(rlmm: RlmmProcess) -> None:
    finished(rlmm.client, a_topic("orders", 1)[0], 0, 9)
    shown = rlmm.sediment("top", "--count", "1", "--rlm", AWAY)
    assert shown.returncode == 0, shown.stderr
    assert f"rlm critical: {AWAY}: UNAVAILABLE" in shown.stdout
    assert "next: sediment doctor" in shown.stdout
    assert "orders" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    gone = rlmm.sediment("top", "--count", "1", "--rlmm", AWAY)
    assert f"rlmm critical: {AWAY}" in gone.stdout
    assert "  - in the tier, lag 0 B" in gone.stdout  # Nothing is known, which is not 0 B.
