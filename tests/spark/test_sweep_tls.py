"""Sweeps over TLS, by certificate and by service-account token, with the policy in force."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from services.api.errors import PermissionDeniedError
from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events
from services.api.roles import Role
from services.common.client_security import ClientSecurity, SecurityOptions
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from spark_jobs.connections import Services
from tests.harness.certificates import account
from tests.harness.databases import Stores
from tests.harness.eventually import eventually
from tests.harness.secured import Deployment, spiffe
from tests.harness.tier import HOUR_MS, Tier, a_topic
from tests.spark.commands import Swept, command, ended, start, traces_of_children
from tests.spark.jobs import Jobs, spark_engine
from tests.spark.tiers import new_tier

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
SEGMENTS = 3


@dataclass(frozen=True)
class Sweeper:
    """An identity with the role sweeper, and how it connects.

    Attributes:
        identity: as the audit trail has it.
        rsm, rlmm: HOST:PORT of the ports that take its credentials.
        secrets: of which no part may show up anywhere.
    """

    identity: str
    rsm: str
    rlmm: str
    security: ClientSecurity
    secrets: tuple[bytes, ...]

    @property
    def addresses(self) -> list[str]:
        return ["--rsm", self.rsm, "--rlmm", self.rlmm]

    @property
    def variables(self) -> dict[str, str]:
        return SecurityOptions(self.security).to_environment()


@dataclass(frozen=True)
class Secured:
    """A tier of processes with TLS, token ports and a policy; its own clients may do everything."""

    tier: Tier
    deployment: Deployment

    def sweeper(self, kind: str, name: str = "sweeps") -> Sweeper:
        """Return a sweeper with a certificate or a token."""
        rsm, rlmm = (process.announcement for process in self.tier.processes)
        if kind == "certificate":
            security = self.deployment.client(name)
            assert security.key is not None
            secret = security.key.read_bytes()
            # Each line of its PEM: a file might have them apart.
            lines = tuple(secret.splitlines()[2:-1])
            return Sweeper(spiffe(name), rsm.address, rlmm.address, security, lines)
        identity = account("jobs", name)
        token = self.deployment.issuer.token(identity)
        security = self.deployment.with_token(token)
        signature = token.rpartition(".")[2].encode()
        return Sweeper(identity, rsm.tokens, rlmm.tokens, security, (signature,))

    def fill(self, sweep: str) -> TopicIdPartition:
        """Make a partition of which a sweep deletes every segment."""
        [tp] = a_topic()
        self.tier.fill(tp, SEGMENTS)
        if sweep == "retention":
            self.tier.report(tp, SEGMENTS)
            self.tier.settings(tp.topic_id, {"retention.ms": str(HOUR_MS)})
        else:
            self.tier.mark_deleted(tp)
        return tp

    def deleted_by(self, tp: TopicIdPartition, plan_id: str) -> set[str]:
        """Return the actors of a sweep's events, which the partition must have."""
        events = all_events(self.tier.rlmm, EventQuery(tp, plan_id=plan_id))
        return {event.actor for event in events}


@pytest.fixture(scope="module")
def secured(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    deployment = Deployment(directory / "tls")
    deployment.grant(spiffe("tests"), *Role)
    for identity in (spiffe("sweeps"), account("jobs", "sweeps")):
        deployment.grant(identity, Role.SWEEPER)
    deployment.grant(spiffe("exports"), Role.READER, Role.EXPORTER)
    settings = deployment.environment("RSM") | deployment.environment("RLMM")
    own = deployment.client("tests")
    with new_tier(directory, stores, settings, own) as tier:
        yield Secured(tier, deployment)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "sweep"), [("certificate", "retention"), ("token", "removal")])
def test_a_sweep_deletes_and_its_secrets_reach_no_process_and_no_file_of_spark(
    secured: Secured, tmp_path: Path, events: Path, kind: str, sweep: str
) -> None:
    tp, sweeper = secured.fill(sweep), secured.sweeper(kind)
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    scratch.mkdir()
    options = [*sweeper.addresses, "--topic", tp.topic, "--work-dir", str(work), "--apply"]
    options += [] if sweep == "retention" else ["--grace", "0"]
    spark = {"SPARK_CONF_DIR": str(tmp_path), "TMPDIR": str(scratch)}
    process = start(command(secured.tier, sweep, *options), {**sweeper.variables, **spark})
    with secured.tier.held_up(tp):  # it has planned and waits to mark
        eventually(
            lambda: list(work.glob("*/plan")) or process.poll() is not None, deadline_ms=300_000
        )
        assert process.poll() is None, ended(process).stderr
        found = {**traces_of_children(process.pid), **contents(tmp_path)}
    swept = ended(process)
    assert swept.exit_code == 0, swept.stderr
    assert set(swept.outcomes.values()) == {"DELETED"}
    assert len(swept.outcomes) == SEGMENTS
    assert secured.tier.objects(tp.topic_id) == {}
    assert secured.deleted_by(tp, swept.report["plan_id"]) == {sweeper.identity}
    found |= contents(tmp_path)
    found["output"] = f"{swept.stderr}{swept.report}".encode()
    assert any(Path(name).is_relative_to(events) for name in found)
    # The names of the files are there, so that the search finds what is there.
    assert any(b"/tls/ca.crt" in content for content in found.values())
    for secret in sweeper.secrets:
        assert [name for name, content in found.items() if secret in content] == []


@pytest.mark.parametrize(
    ("kind", "sweep"),
    [
        pytest.param("certificate", "removal", marks=pytest.mark.long),
        ("token", "retention"),
    ],
)
def test_executors_in_processes_of_their_own_connect_by_the_same_files(
    secured: Secured, spark: SparkSession, tmp_path: Path, kind: str, sweep: str
) -> None:
    tp, sweeper = secured.fill(sweep), secured.sweeper(kind)
    jobs = Jobs(partial(spark_engine, spark), secured.tier, tmp_path)
    run = jobs.retention if sweep == "retention" else jobs.removal
    security = SecurityOptions(sweeper.security)
    done = run([tp.topic], apply=True, rsm=sweeper.rsm, rlmm=sweeper.rlmm, security=security)
    assert done.outcome == "DONE"
    assert done.totals["deleted_segments"] == SEGMENTS
    assert secured.tier.objects(tp.topic_id) == {}
    assert secured.deleted_by(tp, done.plan_id) == {sweeper.identity}


@pytest.mark.parametrize("kind", ["certificate", "token"])
def test_who_has_no_grant_sweeps_nothing_and_is_named(secured: Secured, kind: str) -> None:
    tp, outsider = secured.fill("removal"), secured.sweeper(kind, "outsider")
    swept = sweep_as(secured, outsider, tp)
    assert swept.exit_code == 3, swept.stderr
    assert outsider.identity in swept.stderr
    assert "may not call RemoteLogMetadataManager/ListPartitions" in swept.stderr
    assert "starting Spark" not in swept.stderr
    assert len(secured.tier.rows(tp)) == SEGMENTS


def test_an_export_starts_with_the_roles_of_its_page(secured: Secured) -> None:
    """They let it read and keep offsets, not delete; a sweep must not start with them."""
    exports = secured.sweeper("certificate", "exports")
    services = Services(exports.rlmm, exports.rsm, 5.0, SecurityOptions(exports.security))
    services.require_reachable(may_only_read=True)
    with pytest.raises(PermissionDeniedError, match="DeleteLogSegmentDataBatch"):
        services.require_reachable()


def test_a_certificate_does_not_open_the_port_for_tokens(secured: Secured) -> None:
    tp, sweeper = secured.fill("removal"), secured.sweeper("certificate")
    token = secured.sweeper("token")
    mistaken = Sweeper(sweeper.identity, token.rsm, token.rlmm, sweeper.security, ())
    swept = sweep_as(secured, mistaken, tp)
    assert swept.exit_code == 3, swept.stderr
    assert "the call has no identity" in swept.stderr
    assert len(secured.tier.rows(tp)) == SEGMENTS


def test_a_grant_that_ends_while_a_sweep_runs_stops_it(
    secured: Secured, spark: SparkSession, tmp_path: Path
) -> None:
    deployment, leaver = secured.deployment, secured.sweeper("certificate", "leaver")
    deployment.grant(leaver.identity, Role.SWEEPER)
    tp = secured.fill("retention")

    def may_list() -> bool:
        with open_channel(leaver.rlmm, leaver.security) as channel:
            try:
                RemoteLogMetadataManagerClient(channel, leaver.rlmm).list_partitions(page_size=1)
            except PermissionDeniedError:
                return False
            return True

    def leave() -> None:
        deployment.grant(leaver.identity)
        eventually(lambda: not may_list())

    eventually(may_list)
    security = SecurityOptions(leaver.security)
    jobs = Jobs(partial(spark_engine, spark), secured.tier, tmp_path)
    done = jobs.retention(
        [tp.topic],
        {"marking": leave},
        apply=True,
        rsm=leaver.rsm,
        rlmm=leaver.rlmm,
        security=security,
    )
    assert done.outcome == "PARTIAL"
    [error] = done.errors
    assert leaver.identity in error
    assert len(secured.tier.rows(tp)) == SEGMENTS


def sweep_as(secured: Secured, sweeper: Sweeper, tp: TopicIdPartition) -> Swept:
    options = [*sweeper.addresses, "--topic", tp.topic, "--apply", "--grace", "0"]
    process = start(command(secured.tier, "removal", *options), sweeper.variables)
    return ended(process)


def contents(directory: Path) -> dict[str, bytes]:
    """Return what is in each file below a directory, by its path."""
    found = {}
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # Spark deletes some of its own
            if path.is_file():
                found[str(path)] = path.read_bytes()
    return found
