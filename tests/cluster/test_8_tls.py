"""A trial with TLS, certificates of secrets and the console, as the guide says."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from services.local.certificates import CertificateAuthority
from tests.cluster.cluster import Cluster, CommandFailedError
from tests.cluster.guide import blocks, builds
from tests.cluster.images import ensure_image
from tests.cluster.jobs import create, report_of
from tests.cluster.release import SECURE, TIER, Release
from tests.helm.chart import CHART, changed
from tests.helm.dockerfile import ROOT

pytestmark = pytest.mark.cluster

_OWN = "Secrets of your own"
_NAMES = {"rsm": "sediment-rsm", "rlmm": "sediment-rlmm", "console": "sediment-console"}
_READER = "oncall"
_RLMM = f"sediment-rlmm.{SECURE}.svc:50051"


def identity(name: str) -> str:
    return f"spiffe://example.org/{name}"


@pytest.fixture(scope="module")
def secure(cluster: Cluster) -> Release:
    (build,) = builds(blocks("To try it", "sh")[0])
    name = f"docker.io/library/{build.name}"
    cluster.load(ensure_image(ROOT / "docker" / build.dockerfile, name, build.arguments))
    directory = cluster.directory / SECURE
    directory.mkdir()
    (directory / "helm").symlink_to(CHART)
    authority = CertificateAuthority(directory)
    for service, host in _NAMES.items():
        hosts = [f"{host}.{SECURE}.svc", "localhost"]
        authority.issue(service, hosts=hosts, uris=[identity(service)])
    for client in ("sweeps", "selftest", _READER, "stranger"):
        authority.issue(client, hosts=(), uris=[identity(client)])
    made = Release(cluster, directory)
    cluster.kubectl("create", "namespace", SECURE)
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", SECURE, label)
    made.shell(_here(blocks(_OWN, "sh")[0]))
    values = changed(yaml.safe_load(blocks(_OWN, "yaml")[0]), {"trial": True})
    (directory / "values.yaml").write_text(yaml.safe_dump(values))
    made.shell(_here(blocks("Install", "sh")[0].splitlines()[1]))
    return made


def test_a_segment_goes_through_services_with_tls(secure: Release) -> None:
    assert "Phase:          Succeeded" in secure.shell(_here(blocks("Install", "sh")[1]))


def test_a_sweep_shows_its_certificate(secure: Release) -> None:
    create(secure, "look", "sediment-retention-sweep", SECURE)
    assert report_of(secure, "look", SECURE)["apply"] is False


def test_the_state_of_the_tier_is_one_command_away(secure: Release) -> None:
    """A service that is away or refuses the console's certificate would end the command with 2."""
    printed = secure.shell(_here(blocks(_OWN, "sh")[1]))
    for line in ("rsm", "rlmm", "tier"):
        assert re.search(rf"\b{line}\W+ok\b", printed, re.IGNORECASE)


def test_a_client_without_tls_is_refused(secure: Release) -> None:
    into = ["--namespace", SECURE, "exec", "deployment/sediment-rlmm", "--"]
    command = ["sediment", "--plaintext", "topics", "list"]
    with pytest.raises(CommandFailedError, match="UNAVAILABLE"):
        secure.cluster.kubectl(*into, *command, f"--rlmm={_RLMM}")


def test_the_console_knows_its_reader(secure: Release) -> None:
    with console(secure) as address:
        page = fetch(secure, f"{address}/", _READER)
        assert "<html" in page
        about = yaml.safe_load(fetch(secure, f"{address}/api/about", _READER))
        assert about["identity"] == identity(_READER)
        assert about["has_tls"] is True
        health = yaml.safe_load(fetch(secure, f"{address}/api/health", _READER))
        states = {one["service"]: one["severity"] for one in health["services"]}
        assert (states["rsm"], states["rlmm"]) == ("OK", "OK")


@pytest.mark.parametrize(
    ("who", "reason"), [("stranger", "403"), (None, "certificate required|Empty reply")]
)
def test_the_console_serves_nobody_else(secure: Release, who: str | None, reason: str) -> None:
    with console(secure) as address, pytest.raises(CommandFailedError, match=reason):
        fetch(secure, f"{address}/", who)


@contextmanager
def console(release: Release) -> Iterator[str]:
    """Forward a port to the console as the guide does, and yield the console's address."""
    command = ["kubectl", f"--namespace={SECURE}", "port-forward", "service/sediment-console"]
    with subprocess.Popen(
        release.cluster.inside([*command, ":443"], release.directory),
        stdout=subprocess.PIPE,
        text=True,
    ) as forwarding:
        try:
            assert forwarding.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", forwarding.stdout.readline())
            assert found
            yield f"https://localhost:{found[1]}"
        finally:
            forwarding.kill()


def fetch(release: Release, url: str, who: str | None) -> str:
    """Fetch a page with a person's certificate, or with none.

    Raises:
        CommandFailedError: it was refused.
    """
    own = ["--cert", f"{who}.crt", "--key", f"{who}.key"] if who else []
    command = ["curl", "--silent", "--show-error", "--fail", "--cacert", "ca.crt", *own, url]
    return release.cluster.run(command, release.directory)


def _here(command: str) -> str:
    """Return a command of the guide for the namespace of this release."""
    assert f"-n {TIER} " in command
    return command.replace(f"-n {TIER} ", f"-n {SECURE} ").replace(f".{TIER}.", f".{SECURE}.")
