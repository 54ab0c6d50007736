"""Each party does its work with the roles that docs/run/security.md names for it.

Runs `sediment up --tls`: RLM ships with its own roles, and the operator's commands run with one set
of roles after the other.
"""

import json
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from demos.stage import link_log_dir
from services.api.roles import Role
from services.cli.output import EXIT_USAGE
from services.local.stack_tls import BROKER, OPERATOR, RLM
from tests.harness.eventually import eventually
from tests.harness.running_up import SEGMENTS, Up, running_up
from tests.harness.world import BUNDLED_LOG

TOPIC = "telemetry"
PARTITION = f"{TOPIC}-0"
OF_RLM = (Role.SHIPPER, Role.READER, Role.DELETER)

# Commands, and the roles that they need.
COMMANDS: dict[str, tuple[Sequence[str], set[Role]]] = {
    "segments": (["segments", PARTITION], {Role.READER}),
    "segments of an auditor": (["segments", PARTITION], {Role.AUDITOR}),
    "events": (["events", PARTITION], {Role.AUDITOR}),
    "explain": (["explain", PARTITION], {Role.AUDITOR}),
    "retention": (["retention", PARTITION], {Role.AUDITOR}),
    "anomalies": (["anomalies"], {Role.AUDITOR}),
    "verified": (["verified"], {Role.AUDITOR}),
    "partitions": (["partitions"], {Role.AUDITOR}),
    "status": (["status"], {Role.AUDITOR}),
    "fetch": (["fetch", PARTITION, "--offset", "0", "--max-records", "1"], {Role.READER}),
    "topics list": (["topics", "list"], {Role.ADMIN}),
    "topics set": (["topics", "set", TOPIC, "retention.ms=-1"], {Role.ADMIN}),
    "topics delete": (["topics", "delete", TOPIC, "--yes"], {Role.ADMIN}),
    "partitions undelete": (
        ["partitions", "undelete", PARTITION, "--reason", "test"],
        {Role.ADMIN},
    ),
    "reconcile": (["reconcile"], {Role.SWEEPER, Role.READER}),
    "scrub": (["scrub"], {Role.SWEEPER, Role.READER}),
    "scrub --repair": (["scrub", "--repair"], {Role.SWEEPER, Role.READER, Role.ADMIN}),
    "db rebuild": (["db", "rebuild"], {Role.AUDITOR, Role.READER}),
    "db rebuild --apply": (
        ["db", "rebuild", "--apply"],
        {Role.AUDITOR, Role.READER, Role.ADMIN, Role.SHIPPER},
    ),
    "db confirm-rebuild": (["db", "confirm-rebuild", "--reason", "test"], {Role.ADMIN}),
}


@pytest.fixture(scope="module")
def up(server_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running_with_roles(server_directory / "up-with-roles", tmp_path_factory) as made:
        yield made


@pytest.fixture
def untouched(server_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Run one to which no operator's command has written."""
    with running_with_roles(server_directory / "up-untouched", tmp_path_factory) as made:
        yield made


@contextmanager
def running_with_roles(directory: Path, paths: pytest.TempPathFactory) -> Iterator[Up]:
    log_dir = paths.mktemp("roles") / "log"
    link_log_dir(BUNDLED_LOG, log_dir)
    with running_up(directory, "--tls", "--log-dir", log_dir) as made:
        yield made


def test_rlm_ships_with_its_own_roles_and_is_the_actor(untouched: Up) -> None:
    up = untouched
    eventually(
        lambda: sum(each["remote_segments"] for each in up.lines("partitions")) >= SEGMENTS,
        deadline_ms=200_000,
    )
    actors = {event["actor"] for event in up.lines("events", PARTITION)}
    assert actors == {RLM}
    ours = ssl.create_default_context(cafile=up.endpoints.tls_ca)
    for address in (up.endpoints.rsm_metrics, up.endpoints.rlmm_metrics):
        with urlopen(f"https://{address}/metrics", timeout=30, context=ours) as answer:
            page = str(answer.read(), "utf-8")
        assert "sediment_rpc_seconds_count" in page
        denied = {line for line in page.splitlines() if "sediment_denied_calls_total{" in line}
        # RLM copies more segments at once than one identity may, and waits for its share.
        assert {line for line in denied if 'reason="share"' not in line} == set()


def policy_of(up: Up) -> Path:
    return Path(up.endpoints.tls_ca).with_name("policy.toml")


def grant(up: Up, roles: set[Role]) -> None:
    """Let the operator have these roles, in force when this returns."""
    grants = [([RLM, BROKER], OF_RLM), ([OPERATOR], sorted(roles))]
    text = "\n".join(
        f"[[grant]]\nidentities = {json.dumps(names)}\nroles = {json.dumps(list(each))}\n"
        'topics = ["*"]\n'
        for names, each in grants
    )
    making = policy_of(up).with_suffix(".new")
    making.write_text(text)
    making.replace(policy_of(up))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_needs_no_other_roles(up: Up, name: str) -> None:
    arguments, roles = COMMANDS[name]
    grant(up, roles)

    def is_served() -> bool:
        done = up.run(*arguments)
        # 1: some items have problems, which commands report.
        assert done.returncode in (0, 1), done.stderr
        assert "may not call" not in done.stderr + done.stdout
        return True

    eventually(is_served, deadline_ms=30_000)


def test_a_command_without_its_role_names_identity_call_and_role(up: Up) -> None:
    grant(up, {Role.READER})

    def refusal() -> str:
        done = up.run("topics", "set", TOPIC, "retention.ms=-1")
        # A call that runs while the policy changes is cancelled.
        is_refused = done.returncode == EXIT_USAGE and "CANCELLED" not in done.stderr
        return done.stderr if is_refused else ""

    assert eventually(refusal) == (
        f"sediment: {OPERATOR} may not call RemoteLogMetadataManager/PutTopicConfig: needs one of "
        "the roles admin, overrider; add a grant to the policy file\n"
    )
