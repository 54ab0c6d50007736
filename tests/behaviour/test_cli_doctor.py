"""Test `sediment doctor`: what it finds wrong, the next step that it names, and its exit codes."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from services.api.remote_log_manager import CopyLag, Problem, ProblemKind
from services.cli.doctor import run_checks
from services.cli.doctor_findings import Check, Finding, Level, clock_finding, store_findings
from services.cli.doctor_services import (
    broker_findings,
    expiry_finding,
    plaintext_finding,
    state_findings,
)
from services.cli.output import CommandError
from services.common.release import release
from services.rpc.client.probe import Note, ServiceState
from services.views.endpoints import Endpoint
from tests.contract.rlmm.segments import finished
from tests.harness import served_fixtures
from tests.harness.holds import REBUILD
from tests.harness.processes import RlmmProcess
from tests.harness.secured import Secrets, make_secrets, serving_rsm
from tests.harness.sediment_command import sediment
from tests.harness.tier import a_topic

AWAY = "127.0.0.1:9"
OF_RLM = {"RLM_RSM_ADDRESS": AWAY, "RLM_RLMM_ADDRESS": AWAY}

rlmm = served_fixtures.rlmm


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    return make_secrets(tmp_path / "tls")


def diagnosis(*options: object, **environment: str) -> tuple[int, list[dict[str, str]]]:
    done = sediment(*options, "--timeout", 120, "-o", "json", environment=environment)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert ["OK", "WARN", "FAIL"][done.returncode] == document["level"]
    found: list[dict[str, str]] = document["findings"]
    assert all(each["next"] for each in found if each["level"] in ("WARN", "FAIL")), found
    return done.returncode, found


def of(check: str, findings: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(each["level"], each["text"]) for each in findings if each["check"] == check]


def test_services_that_are_well_are_ok_within_80_columns(rlmm: RlmmProcess) -> None:
    finished(rlmm.client, a_topic("orders", 1)[0], 0, 9)
    code, found = diagnosis("doctor", "--rlmm", rlmm.address)
    assert (code, [level for level, _ in of("rlmm", found)]) == (0, ["OK"])
    assert {level for level, _ in of("rsm", found)} == {"SKIP"}
    clocks = [text.partition(":")[0] for level, text in of("clocks", found) if level == "OK"]
    assert clocks == ["rlmm at 127.0.0.1", "the database"]
    shown = sediment("doctor", "--timeout", 120, "--rlmm", rlmm.address)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_a_service_that_is_away_fails_beside_the_rest(rlmm: RlmmProcess) -> None:
    code, found = diagnosis("doctor", "--rlmm", rlmm.address, "--rsm", AWAY, "--rlm", AWAY)
    assert (code, of("rlmm", found)[0][0], of("rsm", found)[0][0]) == (2, "OK", "FAIL")
    [(level, text)] = of("brokers", found)
    assert (level, text.startswith("because of rlm: ")) == ("SKIP", True)
    assert of("anomalies", found) == [("SKIP", "never looked")]


def test_settings_database_and_bucket_are_checked_where_the_services_run(
    empty_database_url: str, tmp_path: Path
) -> None:
    marker = {"format_version": 1, "deployment_id": "theirs", "location_id": 1}
    (tmp_path / ".sediment").write_text(json.dumps(marker))
    code, found = diagnosis(
        "doctor",
        RLMM_DATABASE_URL=empty_database_url,
        RSM_BACKEND="filesystem",
        RSM_DIRECTORY=str(tmp_path),
        RSM_DEPLOYMENT_ID="ours",
        CONSOLE_RLMM_ADDRESS=AWAY,
        CONSOLE_LISTEN_ADRESS="127.0.0.1:0",
        RLM_RSM_ADRESS=AWAY,
    )
    assert code == 2
    assert ("FAIL", "schema revision") in [
        (level, text[:15]) for level, text in of("database", found)
    ]
    assert "sediment db upgrade" in {each["next"] for each in found}
    [(level, text)] = of("bucket", found)
    assert (level, "'theirs'" in text) == ("FAIL", True)
    assert ("OK", "RSM_*: valid") in of("settings", found)
    [unknown] = [text for level, text in of("settings", found) if level == "FAIL"]
    assert "CONSOLE_LISTEN_ADRESS (did you mean CONSOLE_LISTEN_ADDRESS?)" in unknown
    typo = "unknown setting: RLM_RSM_ADRESS (did you mean RLM_RSM_ADDRESS?)"
    assert ("WARN", typo) in of("settings", found)


def test_variables_of_other_programs_are_not_judged(rlmm: RlmmProcess) -> None:
    theirs = {"CONSOLE_LOG_LEVEL": "verbose", "CONSOLE_COLOR": "always", "RSM_HOME": "/opt"}
    code, found = diagnosis("doctor", "--rlmm", rlmm.address, **theirs)
    [(level, text)] = of("settings", found)
    assert (code, level, text[:11]) == (0, "SKIP", "no settings")
    typed = {**theirs, "CONSOLE_RLMM_ADRESS": AWAY}
    code, found = diagnosis("doctor", "--rlmm", rlmm.address, **typed)
    typo = "unknown setting: CONSOLE_RLMM_ADRESS (did you mean CONSOLE_RLMM_ADDRESS?)"
    assert (code, of("settings", found)[0]) == (1, ("WARN", typo))


def test_a_frozen_database_and_what_settings_leave_open_are_warnings(
    rlmm: RlmmProcess, secrets: Secrets, database_url: str, tmp_path: Path
) -> None:
    rlmm.client.set_hold(REBUILD)
    soon = secrets.authority.issue("soon", valid_until=datetime.now(UTC) + timedelta(days=3))
    policy = tmp_path / "policy.toml"
    policy.write_text("[[grant]]\n")
    code, found = diagnosis(
        "doctor",
        RLMM_DATABASE_URL=database_url,
        RSM_BACKEND="filesystem",
        RSM_DIRECTORY=str(tmp_path),
        RSM_TLS_CERTIFICATE_FILE=str(soon.certificate),
        RSM_TLS_KEY_FILE=str(soon.key),
        RSM_TLS_CLIENT_CA_FILE=str(secrets.authority.certificate),
        RSM_POLICY_FILE=str(policy),
    )
    assert [level for level, _ in of("bucket", found)] == ["OK", "WARN"]
    assert [level for level, _ in of("files", found)] == ["WARN", "FAIL"]
    steps = {each["next"] for each in found}
    assert {"sediment db confirm-rebuild", "sediment db deployment-id"} <= steps
    assert (code, f"sediment policy check {policy}" in steps) == (2, True)


@pytest.mark.parametrize(
    ("check", "settings"),
    [
        ("database", {"RLMM_DATABASE_URL": f"postgresql://someone@{AWAY}/nothing"}),
        ("log directories", {**OF_RLM, "RLM_LOG_DIRS": "/nowhere/logs"}),
        (
            "cluster",
            {
                **OF_RLM,
                "RLM_PARTITION_SOURCE": "poller",
                "RLM_BOOTSTRAP_SERVERS": AWAY,
                "RLM_CLUSTER_ID": "some-cluster-id",
            },
        ),
    ],
)
def test_what_settings_name_and_is_away_fails(check: str, settings: dict[str, str]) -> None:
    code, found = diagnosis("doctor", **settings)
    assert (code, [level for level, _ in of(check, found)]) == (2, ["FAIL"])
    assert {level for level, _ in of("settings", found)} == {"OK"}


def test_the_consoles_files_are_checked() -> None:
    files = ("TLS_CERTIFICATE", "TLS_KEY", "TLS_CLIENT_CA", "POLICY")
    named = {f"CONSOLE_{file}_FILE": "/nowhere/file" for file in files}
    code, found = diagnosis("doctor", CONSOLE_RLMM_ADDRESS=AWAY, **named)
    assert code == 2
    assert of("settings", found) == [("OK", "CONSOLE_*: valid")]
    assert [level for level, _ in of("files", found)] == ["FAIL", "FAIL"]


def test_certificates_are_checked_in_files_and_at_the_services(
    secrets: Secrets, tmp_path: Path
) -> None:
    soon = datetime.now(UTC) + timedelta(days=3)
    server = secrets.authority.issue("ends-soon", valid_until=soon)
    files = secrets.security()
    with serving_rsm(secrets.settings(server), tmp_path / "objects") as ports:
        options = ("--tls-ca", files.ca, "--tls-certificate", files.certificate)
        code, found = diagnosis(*options, "--tls-key", files.key, "doctor", "--rsm", ports.address)
        status = sediment(*options, "--tls-key", files.key, "status", "--rsm", ports.address)
    assert (code, of("rsm", found)[0][0]) == (1, "OK")
    [(_, own), (level, shown)] = of("certificates", found)
    assert str(files.certificate) in own
    assert (level, "2 days" in shown) == ("WARN", True)
    assert (status.returncode, "ready" in status.stdout) == (0, True)


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (clock_finding("clocks", "x", 5_900, 1_000), Level.OK),
        (clock_finding("clocks", "x", -7_000, 1_000), Level.WARN),
        (clock_finding("clocks", "x", 400_000, 1_000), Level.FAIL),
        (expiry_finding("certificates", "x", datetime.now(UTC)), Level.FAIL),
        (expiry_finding("certificates", "x", datetime.now(UTC) + timedelta(15)), Level.OK),
    ],
)
def test_clocks_and_certificates_are_judged_by_how_far_off_they_are(
    finding: Finding, level: Level
) -> None:
    assert finding.level is level


def endpoint(version: str, address: str = "rsm:1", problem: str = "") -> Endpoint:
    return Endpoint("rsm", address, ServiceState(version, not problem, problem))


def test_several_releases_are_named_and_one_is_no_finding() -> None:
    assert len(list(state_findings([endpoint(release()), endpoint(release(), "rsm:2")]))) == 2
    *_, other = state_findings([endpoint("0.0.7")])
    assert (other.check, other.level, "0.0.7" in other.text) == ("services", Level.WARN, True)


def test_a_client_without_rights_is_shown_how_to_check_the_policy() -> None:
    [denied] = state_findings([endpoint("", problem="PERMISSION_DENIED: no role")])
    [away] = state_findings([endpoint("", problem="UNAVAILABLE: refused")])
    assert "sediment policy check" in denied.next
    assert "RSM runs there" in away.next


def test_plaintext_is_a_warning_beyond_this_machine() -> None:
    here = ["127.0.0.1:1", "localhost:2", "[::1]:3"]
    assert plaintext_finding("certificates", here).level is Level.OK
    found = plaintext_finding("certificates", [*here, "broker-1:1"])
    assert (found.level, "docs/run/security.md" in found.next) == (Level.WARN, True)


@pytest.mark.parametrize(
    ("lag", "level"),
    [
        (CopyLag(7, 3, local_retention_used=0.49), Level.OK),
        (CopyLag(7, 3, local_retention_used=0.5), Level.WARN),
        (CopyLag(7, 3, local_retention_used=1.0), Level.FAIL),
        (CopyLag(7, 3, blocked_partitions=1), Level.WARN),
        (CopyLag(7, 0), Level.OK),
    ],
)
def test_copies_and_problems_of_a_broker_are_judged(lag: CopyLag, level: Level) -> None:
    problem = Problem(ProblemKind.UNREADABLE, "/logs/x-0", "cannot be read")
    copies, unreadable = broker_findings("rlm:1", lag, [problem])
    assert (copies.level, unreadable.level) == (level, Level.WARN)
    assert unreadable.text == "/logs/x-0: cannot be read"
    assert unreadable.next == "sediment partitions --rlm rlm:1"


def test_what_takes_long_is_named_while_it_lasts() -> None:
    named = Event()

    def slow() -> Iterator[Finding]:
        assert named.wait(60)
        yield Finding("bucket", Level.OK, "here at last")

    def quick() -> Iterator[Finding]:
        yield Finding("database", Level.OK, "here at once")

    reported: list[str] = []

    def report(text: str) -> None:
        reported.append(text)
        if text == "still checking: bucket":
            named.set()

    found = list(
        run_checks([Check("bucket", slow), Check("database", quick)], report, silent_s=0.05)
    )
    assert [each.text for each in found] == ["here at once", "here at last"]
    assert reported[-1] == "still checking: bucket"


def test_a_check_without_an_end_hides_no_finding() -> None:
    never = Event()

    def hung() -> Iterator[Finding]:
        yield Finding("bucket", Level.OK, "its first answer")
        never.wait()

    found = list(run_checks([Check("bucket", hung)], timeout_s=0.1))
    never.set()
    assert [(each.level, each.text) for each in found] == [
        (Level.OK, "its first answer"),
        (Level.FAIL, "no answer within 0 s"),
    ]


def failing(check: str, *after: Event) -> Check:
    """Return a check that fails without an answer, once these events came."""

    def run() -> Iterator[Finding]:
        for each in after:
            assert each.wait(60)
        raise CommandError(f"no {check}")
        yield

    return Check(check, run)


@pytest.mark.parametrize("is_last", [False, True])
def test_what_follows_from_another_check_is_skipped_whichever_ends_first(is_last: bool) -> None:
    first = Event()

    def database() -> Iterator[Finding]:
        if is_last:
            assert first.wait(60)
        raise CommandError("hangs")
        yield

    def other() -> Iterator[Finding]:
        yield Finding("other", Level.OK, "fine")
        first.set()

    checks = [failing("brokers"), failing("upkeep"), Check("other", other)]
    found = list(run_checks([*checks, Check("database", database)]))
    levels = {each.check: (each.level, each.text) for each in found}
    assert levels == {
        "other": (Level.OK, "fine"),
        "database": (Level.FAIL, "hangs"),
        "brokers": (Level.SKIP, "because of database: no brokers"),
        "upkeep": (Level.SKIP, "because of database: no upkeep"),
    }
    assert [each.check for each in found if each.next == ""] == [
        each.check for each in found if each.level is not Level.FAIL
    ]


def test_what_a_check_found_itself_does_not_follow_from_another() -> None:
    def bucket() -> Iterator[Finding]:
        yield Finding("bucket", Level.FAIL, "no such bucket")

    def services() -> Iterator[Finding]:
        yield from state_findings([endpoint("", problem="UNAVAILABLE: refused")])
        unready = ServiceState("1", unready="no bucket")
        yield from state_findings([Endpoint("rsm", "rsm:2", unready)])

    found = list(run_checks([Check("services", services), Check("bucket", bucket)]))
    texts = {each.text: each.level for each in found if each.check == "rsm"}
    assert [*texts.values()] == [Level.FAIL, Level.SKIP]


def test_a_check_that_hangs_is_the_cause_of_those_that_hang_for_it() -> None:
    never = Event()

    def hung() -> Iterator[Finding]:
        never.wait()
        yield from ()

    names = ("brokers", "services", "database")
    found = list(run_checks([Check(each, hung) for each in names], timeout_s=0.1))
    never.set()
    assert {each.check: each.level for each in found} == {
        "database": Level.FAIL,
        "services": Level.SKIP,
        "brokers": Level.SKIP,
    }


def test_what_a_store_does_by_itself_is_judged() -> None:
    notes = [Note(level, level.lower()) for level in ("OK", "UNKNOWN", "WARNING", "CRITICAL")]
    found = {each.text: each for each in store_findings("bucket", notes)}
    assert {text: each.level for text, each in found.items()} == {
        "ok": Level.OK,
        "unknown": Level.SKIP,
        "warning": Level.WARN,
        "critical": Level.FAIL,
    }
    assert "docs/run/object-locations.md" in found["critical"].next
