"""Switch TLS, tokens and the policy on for all three services as docs/run/security.md says."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from hatch_build import ROOT
from services.local.stack import ServiceProcess, rlm_settings, rlmm_settings, settings_of
from tests.harness.certificates import TokenIssuer, account
from tests.harness.eventually import eventually
from tests.harness.world import linked_log

PAGE = (ROOT / "docs/run/security.md").read_text()
_KUBECTL = """\
#!/bin/sh
# As a cluster answers the commands of the page.
case "$*" in
  "get --raw /openid/v1/jwks") cat cluster-jwks.json ;;
  "create token sediment-sweep --namespace jobs --audience sediment") cat cluster-token ;;
  *) exit 1 ;;
esac
"""


def commands(beginning: str) -> str:
    """Return the block of commands that begins so."""
    (found,) = re.findall(rf"```sh\n({re.escape(beginning)}.*?)```", PAGE, re.DOTALL)
    return str(found)


@dataclass
class Host:
    """A directory and the variables of a shell in it."""

    directory: Path
    environment: dict[str, str]

    def run(self, script: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", script],
            cwd=self.directory,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def do(self, script: str, **more: str) -> str:
        done = self.run(script, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def export(self, script: str) -> None:
        """Run commands that must succeed, and keep the variables that they export."""
        self.do(f"{script}\nenv -0 > environment")
        lines = (self.directory / "environment").read_text().split("\0")
        self.environment = dict(line.split("=", 1) for line in lines if line)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Provide a host with the page's certificates, beside a cluster of Kubernetes."""
    missing = [name for name in ("openssl", "curl") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"the commands of the page need {' and '.join(missing)}")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").write_text(_KUBECTL)
    (programs / "kubectl").chmod(0o755)
    issuer = TokenIssuer()
    issuer.write_jwks(tmp_path / "cluster-jwks.json")
    token = issuer.token(account("jobs", "sediment-sweep"), exp=2**33)
    (tmp_path / "cluster-token").write_text(token)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    host = Host(tmp_path, {**os.environ, "PATH": path, "RSM_PLAINTEXT": "true"})
    host.do(commands("openssl "))
    return host


def named(address: str) -> str:
    """Return the address under the name that the page's certificates have."""
    return f"localhost:{address.rpartition(':')[2]}"


@pytest.fixture
def addresses(host: Host, database_url: str) -> Iterator[Mapping[str, str]]:
    """Provide the addresses of three services that have the page's variables."""
    host.export(commands("sediment policy check"))
    rsm = {"RSM_BACKEND": "filesystem", "RSM_DIRECTORY": str(host.directory / "objects")}
    (host.directory / "objects").mkdir()
    with ExitStack() as cleanup:

        def start(name: str, own: Mapping[str, str]) -> ServiceProcess:
            # The page's port is another service's, too: all are on one host here.
            tokens = {f"{name.upper()}_TOKEN_LISTEN_ADDRESS": "127.0.0.1:0"}
            of_page = settings_of(name, host.environment)
            service = ServiceProcess(name, {**of_page, **own, **tokens}, host.directory / name)
            cleanup.callback(service.kill)
            service.start()
            return service

        rsm_process, rlmm_process = start("rsm", rsm), start("rlmm", rlmm_settings(database_url))
        log_dirs = [linked_log(host.directory)]
        at_rsm, at_rlmm = named(rsm_process.address), named(rlmm_process.address)
        cache = host.directory / "cache"
        rlm_process = start("rlm", rlm_settings(at_rsm, at_rlmm, log_dirs, 500, cache))
        announced = rsm_process.announcement
        yield {
            "SEDIMENT_RSM": at_rsm,
            "SEDIMENT_RLMM": at_rlmm,
            "SEDIMENT_RLM": named(rlm_process.address),
            "TOKENS_RSM": named(announced.tokens),
            "TOKENS_RLMM": named(rlmm_process.announcement.tokens),
            "METRICS": named(announced.metrics),
        }


def test_twelve_lines_of_the_page_switch_everything_on(
    host: Host, addresses: Mapping[str, str]
) -> None:
    assert len(commands("sediment policy check").splitlines()) == 12
    seen = host.do(commands("sediment topics list"), **addresses)
    assert seen.endswith("sediment_plaintext 0.0\n")
    # RLM reaches RSM and RLMM with its own certificate.
    eventually(
        lambda: "clicks" in host.do("sediment topics list -o json", **addresses),
        deadline_ms=120_000,
        poll_ms=500,
    )
    refused = host.run("sediment fetch clicks-0 --offset 0", **addresses)
    assert refused.returncode != 0
    assert "spiffe://example.org/oncall may not call RemoteLogManager/Fetch" in refused.stderr
    assert "needs one of the roles reader" in refused.stderr
    nobody = f"https://{addresses['METRICS']}/metrics"
    assert host.run(f"curl --fail --silent --cacert ca.crt {nobody}").returncode != 0
