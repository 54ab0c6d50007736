"""Test what the chart makes of `tls.tokens`, and run a rendered sweep with a token."""

import json
import subprocess
import time
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from services.local.certificates import CertificateAuthority
from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from services.rpc.server.policy import parse_policy
from tests.harness.certificates import TokenIssuer, account
from tests.harness.eventually import eventually
from tests.helm.chart import (
    NAMESPACE,
    ChartRefusedError,
    Rendered,
    changed,
    pod_spec,
    render,
    values_files,
)
from tests.helm.local_cluster import LocalCluster
from tests.helm.test_chart_objects import Record
from tests.helm.test_chart_tls import mounted_at

pytestmark = pytest.mark.helm

FILES = values_files()
TOKENS = FILES["tokens"]
SWEEPS = ("sediment-retention-sweep", "sediment-partition-removal-sweep")
SWEEPER = account(NAMESPACE, "sediment-sweeps")
CHECKER = account(NAMESPACE, "sediment-checks")
SELF_TESTER = account(NAMESPACE, "sediment-selftest")
START_TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    return render(TOKENS)


def granted(found: Rendered) -> dict[str, list[str]]:
    """Return the roles of each identity in the rendered policy."""
    text = found.one("ConfigMap", "sediment-policy")["data"]["policy.toml"]
    parse_policy(text.encode())  # as strict as the services
    return {grant["identities"][0]: grant["roles"] for grant in tomllib.loads(text)["grant"]}


@pytest.mark.parametrize("service", ["rsm", "rlmm"])
def test_a_service_has_a_port_for_tokens(rendered: Rendered, service: str) -> None:
    name, prefix = f"sediment-{service}", service.upper()
    config = rendered.one("ConfigMap", name)["data"]
    assert {key: value for key, value in config.items() if "_TOKEN_" in key} == {
        f"{prefix}_TOKEN_LISTEN_ADDRESS": "0.0.0.0:50054",
        f"{prefix}_TOKEN_JWKS_FILE": "/etc/sediment/token-keys/jwks.json",
        f"{prefix}_TOKEN_ISSUER": TOKENS["tls"]["tokens"]["issuer"],
        f"{prefix}_TOKEN_AUDIENCE": "sediment",
    }
    deployment = rendered.one("Deployment", name)
    volume = mounted_at(deployment)["/etc/sediment/token-keys"]
    assert volume["configMap"]["name"] == "sediment-token-keys"
    (container,) = pod_spec(deployment)["containers"]
    assert {"name": "tokens", "containerPort": 50054} in container["ports"]
    (port,) = [p for p in rendered.one("Service", name)["spec"]["ports"] if p["name"] == "tokens"]
    assert (port["port"], port["targetPort"], port["appProtocol"]) == (50054, "tokens", "https")
    rules = rendered.one("NetworkPolicy", name)["spec"]["ingress"]
    assert [entry["port"] for entry in rules[0]["ports"]] == ["grpc", "tokens"]


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_has_a_token_and_no_key(rendered: Rendered, name: str) -> None:
    sweep = rendered.one("CronJob", name)
    mounts = mounted_at(sweep)
    (source,) = mounts["/etc/sediment/token"]["projected"]["sources"]
    assert source == {
        "serviceAccountToken": {
            "audience": "sediment",
            "expirationSeconds": 7200,
            "path": "token",
        }
    }
    secret = mounts["/etc/sediment/tls"]["secret"]
    assert secret["secretName"] == "sediment-ca"
    assert secret["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    (container,) = pod_spec(sweep)["containers"]
    env = {e["name"]: e["value"] for e in container["env"] if e["name"].startswith("SEDIMENT_")}
    assert env == {
        "SEDIMENT_TLS_CA_FILE": "/etc/sediment/tls/ca.crt",
        "SEDIMENT_TOKEN_FILE": "/etc/sediment/token/token",
    }
    assert container["args"][:2] == [
        "--rsm=sediment-rsm.tier.svc:50054",
        "--rlmm=sediment-rlmm.tier.svc:50054",
    ]


def test_the_policy_grants_the_service_accounts_of_sweeps_and_checks(rendered: Rendered) -> None:
    account_of_pod = pod_spec(rendered.one("CronJob", SWEEPS[0]))["serviceAccountName"]
    assert account(NAMESPACE, account_of_pod) == SWEEPER
    own = {grant["identities"][0]: grant["roles"] for grant in TOKENS["tls"]["policy"]["grants"]}
    roles = {
        SWEEPER: ["sweeper"],
        CHECKER: ["sweeper", "reader"],
        SELF_TESTER: ["shipper", "reader", "deleter"],
    }
    assert granted(rendered) == {**roles, **own}


def test_with_cert_manager_the_sweeps_need_no_certificate() -> None:
    tokens = {**TOKENS["tls"]["tokens"], "audience": "tier"}
    token = {"credentials": "token"}
    changes = {"tls": {"tokens": tokens}, "sweeps": token, "selftest": token}
    found = render(changed(FILES["cert-manager"], changes))
    names = {o["metadata"]["name"] for o in found.of_kind("Certificate")}
    services = ("rsm", "rlmm", "rlm", "console")
    assert names == {f"sediment-{service}-tls" for service in services}
    mounts = mounted_at(found.one("CronJob", SWEEPS[0]))
    # The authority's certificate is that of a service, without the service's key.
    secret = mounts["/etc/sediment/tls"]["secret"]
    assert secret["secretName"] in names
    assert secret["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    (source,) = mounts["/etc/sediment/token"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "tier"
    assert found.one("ConfigMap", "sediment-rsm")["data"]["RSM_TOKEN_AUDIENCE"] == "tier"
    assert granted(found)[SWEEPER] == ["sweeper"]


def test_without_tokens_there_is_no_port_and_no_volume_for_them() -> None:
    text = str(render(FILES["cert-manager"]).objects)
    for word in ("TOKEN", "50054", "serviceAccountToken"):
        assert word not in text


def test_tokens_may_be_for_others_while_the_sweeps_have_a_certificate() -> None:
    found = render(changed(TOKENS, {"sweeps": {"credentials": "certificate"}}))
    sweep = found.one("CronJob", SWEEPS[0])
    assert "/etc/sediment/token" not in mounted_at(sweep)
    assert "--rsm=sediment-rsm.tier.svc:50051" in pod_spec(sweep)["containers"][0]["args"]
    assert "RSM_TOKEN_LISTEN_ADDRESS" in found.one("ConfigMap", "sediment-rsm")["data"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"tls": {"tokens": {"existingConfigMap": ""}}},
            r"\.existingConfigMap is empty: name",
        ),
        ({"tls": {"tokens": {"issuer": ""}}}, r"tls\.tokens\.issuer is empty: give the issuer"),
        ({"tls": {"enabled": False}}, r"tls\.tokens\.enabled is true and tls\.enabled is not"),
        ({"tls": {"tokens": {"enabled": False}}}, "is token, and no port takes tokens"),
        ({"tls": {"tokens": {"expirationSeconds": 60}}}, "minimum: got 60, want 600"),
        ({"tls": {"tokens": {"audience": ""}}}, "at '/tls/tokens/audience'"),
        ({"tls": {"existingSecrets": {"sweeps": ""}}}, r"sweeps is empty: .* with ca\.crt, or"),
        ({"sweeps": {"serviceAccount": {"create": False}}}, "have the service account default"),
        ({"sweeps": {"credentials": "password"}}, "at '/sweeps/credentials'"),
        (
            {"defaults": {"extraVolumes": [{"name": "token", "emptyDir": {}}]}},
            "the name token is that of a volume of the chart's own",
        ),
        ({"rsm": {"settings": {"RSM_TOKEN_ISSUER": "a"}}}, "'RSM_TOKEN_ISSUER' not allowed"),
    ],
)
def test_impossible_values_are_refused(
    change: dict[str, Any], sentence: str, record_property: Record
) -> None:
    with pytest.raises(ChartRefusedError, match=sentence):
        render(changed(TOKENS, change))
    record_property("refusal", sentence)


@dataclass(frozen=True)
class Deployed:
    """A release whose RSM and RLMM are ready."""

    cluster: LocalCluster
    issuer: TokenIssuer

    def sweep(self, signer: TokenIssuer, **claims: Any) -> subprocess.CompletedProcess[str]:
        """Run the retention sweep with a token by `signer`; `claims` replace the usual ones."""
        return self.run(SWEEPS[0], signer, **claims)

    def run(self, job: str, signer: TokenIssuer, **claims: Any) -> subprocess.CompletedProcess[str]:
        """Run a CronJob's job with such a token."""

        def sign(name: str, audience: str, seconds: int) -> str:
            now = int(time.time())
            usual = {"aud": [audience], "exp": now + seconds}
            return signer.token(account(NAMESPACE, name), **{**usual, **claims})

        self.cluster.sign = sign
        return self.cluster.run("CronJob", job)


def wait_until_ready(cluster: LocalCluster, name: str) -> None:
    eventually(lambda: cluster.passes("Deployment", name, "readinessProbe"), START_TIMEOUT_MS)


@pytest.fixture(scope="module")
def deployed(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, s3: S3Endpoint
) -> Iterator[Deployed]:
    directory = tmp_path_factory.mktemp("release")
    name = f"helm-{uuid.uuid4().hex[:12]}"
    s3.ensure_bucket(name)
    store = {"endpoint": s3.endpoint, "region": s3.region, "secure": s3.secure, "bucket": name}
    found = render(changed(TOKENS, {"objectStore": store}))
    authority, issuer = CertificateAuthority(directory / "tls"), TokenIssuer()
    ca = {"ca.crt": authority.certificate.read_text()}
    certificates = {service: authority.issue(service) for service in ("rsm", "rlmm")}
    secrets = {
        "sediment-database": {"url": postgres.create_database(name)},
        "sediment-object-store": {"access-key": s3.access_key, "secret-key": s3.secret_key},
        "sediment-ca": ca,
        **{
            f"{service}-tls": {
                **ca,
                "tls.crt": made.certificate.read_text(),
                "tls.key": made.key.read_text(),
            }
            for service, made in certificates.items()
        },
    }
    keys = issuer.write_jwks(directory / "jwks.json").read_text()
    maps = {"sediment-token-keys": {"jwks.json": keys}}
    cluster = LocalCluster(found, secrets, directory, maps)
    try:
        migration = cluster.run("Job", "sediment-migration")
        assert migration.returncode == 0, migration.stderr
        for service in certificates:
            cluster.start("Deployment", f"sediment-{service}")
        for service in certificates:
            wait_until_ready(cluster, f"sediment-{service}")
        yield Deployed(cluster, issuer)
    finally:
        cluster.stop()
        postgres.drop_database(name)
        s3.remove_bucket(name)


def test_a_sweep_runs_with_its_pods_token(deployed: Deployed, record_property: Record) -> None:
    done = deployed.sweep(deployed.issuer)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "PLANNED"
    record_property("process", "retention-sweep with a token")


def test_a_check_runs_with_its_pods_token(deployed: Deployed, record_property: Record) -> None:
    done = deployed.run("sediment-reconcile", deployed.issuer)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["segments"] == 0
    record_property("process", "reconcile with a token")


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"sub": account(NAMESPACE, "default")}, f"{account(NAMESPACE, 'default')} may not call"),
        ({"aud": ["kubernetes"]}, "is for another audience"),
    ],
)
def test_a_token_of_another_account_or_audience_sweeps_nothing(
    deployed: Deployed, claims: dict[str, Any], sentence: str
) -> None:
    done = deployed.sweep(deployed.issuer, **claims)
    assert done.returncode == 3, done.stderr
    assert sentence in done.stderr


def test_a_token_of_another_cluster_sweeps_nothing(deployed: Deployed) -> None:
    done = deployed.sweep(TokenIssuer("key-of-another-cluster"))
    assert done.returncode == 3, done.stderr
    assert "is signed by a key that the JWKS file does not have" in done.stderr
