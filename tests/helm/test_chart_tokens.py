"""A rendered sweep and a rendered check, run with a token."""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from services.local.certificates import CertificateAuthority
from tests.harness.certificates import TokenIssuer, account
from tests.harness.databases import Store
from tests.harness.eventually import eventually
from tests.helm.chart import BASES, NAMESPACE, changed, render
from tests.helm.local_cluster import LocalCluster, released, values_of
from tests.helm.test_chart_objects import Record

pytestmark = pytest.mark.helm

START_TIMEOUT_MS = 60_000
SERVICES = ("rsm", "rlmm")


@dataclass(frozen=True)
class Deployed:
    """A release whose RSM and RLMM are ready."""

    cluster: LocalCluster
    issuer: TokenIssuer

    def run(self, job: str, signer: TokenIssuer, **claims: Any) -> subprocess.CompletedProcess[str]:
        """Run a CronJob's job with a token by `signer`; `claims` replace the usual ones."""

        def sign(name: str, audience: str, seconds: int) -> str:
            now = int(time.time())
            usual = {"aud": [audience], "exp": now + seconds}
            return signer.token(account(NAMESPACE, name), **{**usual, **claims})

        self.cluster.sign = sign
        return self.cluster.run("CronJob", job)


@pytest.fixture(scope="module")
def deployed(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    directory = tmp_path_factory.mktemp("release")
    authority, issuer = CertificateAuthority(directory / "tls"), TokenIssuer()
    ca = {"ca.crt": authority.certificate.read_text()}
    secrets = {"sediment-database": {"url": store.database_url}, "sediment-ca": ca}
    for service in SERVICES:
        made = authority.issue(service)
        pair = {"tls.crt": made.certificate.read_text(), "tls.key": made.key.read_text()}
        secrets[f"{service}-tls"] = {**ca, **pair}
    keys = issuer.write_jwks(directory / "jwks.json").read_text()
    maps = {"sediment-token-keys": {"jwks.json": keys}}
    found = render(changed(BASES["tokens"], values_of(store)))
    with released(found, store, directory, secrets, maps) as cluster:
        for service in SERVICES:
            cluster.start("Deployment", f"sediment-{service}")
        for service in SERVICES:
            probe = ("Deployment", f"sediment-{service}", "readinessProbe")
            eventually(partial(cluster.passes, *probe), START_TIMEOUT_MS)
        yield Deployed(cluster, issuer)


@pytest.mark.parametrize(
    ("job", "printed"),
    [("retention-sweep", ("outcome", "PLANNED")), ("reconcile", ("segments", 0))],
)
def test_a_job_runs_with_its_pods_token(
    deployed: Deployed, job: str, printed: tuple[str, object], record_property: Record
) -> None:
    done = deployed.run(f"sediment-{job}", deployed.issuer)
    assert done.returncode == 0, done.stderr
    assert printed in json.loads(done.stdout).items()
    record_property("process", f"{job} with a token")


@pytest.mark.parametrize(
    ("claims", "key", "sentence"),
    [
        (
            {"sub": account(NAMESPACE, "default")},
            None,
            f"{account(NAMESPACE, 'default')} may not call",
        ),
        ({"aud": ["kubernetes"]}, None, "is for another audience"),
        ({}, "key-of-another-cluster", "is signed by a key that the JWKS file does not have"),
    ],
    ids=["another account", "another audience", "another cluster"],
)
def test_a_token_of_another_sweeps_nothing(
    deployed: Deployed, claims: dict[str, Any], key: str | None, sentence: str
) -> None:
    signer = TokenIssuer(key) if key else deployed.issuer
    done = deployed.run("sediment-retention-sweep", signer, **claims)
    assert done.returncode == 3, done.stderr
    assert sentence in done.stderr
