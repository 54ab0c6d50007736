"""Test what the chart makes of `tls`: files, settings, certificates and the policy."""

import tomllib
from copy import deepcopy
from typing import Any

import pytest
import yaml

from services.rpc.server.policy import parse_policy
from tests.helm.chart import (
    ChartRefusedError,
    Object,
    Rendered,
    changed,
    minimal,
    pod_spec,
    render,
    values_files,
)

pytestmark = pytest.mark.helm

FILES = values_files()
CERT_MANAGER = FILES["cert-manager"]
SERVICES = ("rsm", "rlmm")


@pytest.fixture(scope="module")
def issued() -> Rendered:
    """The chart with certificates of cert-manager."""
    return render(CERT_MANAGER)


def mounted_at(workload: Object) -> dict[str, Any]:
    """Return the volumes of the only container by their mount paths."""
    pod = pod_spec(workload)
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}


@pytest.mark.parametrize(
    ("tls", "sentence"),
    [
        ({"plaintext": False}, r"tls\.enabled and tls\.plaintext are both false: set tls\.enabled"),
        ({"enabled": True}, r"tls\.enabled and tls\.plaintext are both true: choose one"),
    ],
)
def test_neither_tls_nor_plaintext_or_both_are_refused(tls: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ChartRefusedError, match=sentence):
        render(minimal({"tls": tls}))


def test_without_a_choice_nothing_is_rendered() -> None:
    values = minimal()
    del values["tls"]
    with pytest.raises(ChartRefusedError, match="anyone who can reach the services can read and"):
        render(values)


@pytest.mark.parametrize("name", FILES)
def test_secret_files_are_for_the_group_of_the_pod_only(name: str) -> None:
    rendered = render(FILES[name])
    workloads = rendered.of_kind("Deployment", "DaemonSet", "Job", "CronJob")
    for workload in workloads:
        pod = pod_spec(workload)
        is_rlm = workload["metadata"]["labels"]["app.kubernetes.io/component"] == "rlm"
        group = pod["securityContext"].get("fsGroup")
        assert is_rlm or group == pod["securityContext"]["runAsGroup"]
        for volume in pod.get("volumes", ()):
            if "secret" in volume and volume["name"] != "private-ca":
                assert volume["secret"]["defaultMode"] == (0o444 if group is None else 0o440)


def test_the_pod_of_rlm_gives_no_volume_of_a_broker_to_a_group() -> None:
    found = render(minimal({"rlm": deepcopy(FILES["full"]["rlm"])}))
    assert "fsGroup" not in pod_spec(found.one("DaemonSet", "sediment-rlm"))["securityContext"]
    patch = render(CERT_MANAGER).one("ConfigMap", "sediment-rlm-sidecar")["data"]["patch.yaml"]
    volumes = yaml.safe_load(patch)["spec"]["template"]["spec"]["volumes"]
    (keys,) = (volume["secret"] for volume in volumes if "secret" in volume)
    assert keys["defaultMode"] == 0o444  # the group of the broker's pod is not known


def test_plaintext_is_explicit_and_warned_of() -> None:
    rendered = render(minimal({"tls": {"enabled": False, "plaintext": True}}))
    for service in SERVICES:
        config = rendered.one("ConfigMap", f"sediment-{service}")["data"]
        assert config[f"{service.upper()}_PLAINTEXT"] == "true"
    assert "WARNING: TLS is off" in rendered.notes
    assert rendered.of_kind("Certificate") == []
    for sweep in rendered.of_kind("CronJob"):
        env = pod_spec(sweep)["containers"][0].get("env", [])
        if "sweep" in sweep["metadata"]["name"]:
            assert {"name": "SEDIMENT_PLAINTEXT", "value": "true"} in env


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_the_files_that_its_settings_name(issued: Rendered, service: str) -> None:
    workload = issued.one("Deployment", f"sediment-{service}")
    config = issued.one("ConfigMap", f"sediment-{service}")["data"]
    prefix = service.upper()
    assert (
        config.items()
        >= {
            f"{prefix}_TLS_CERTIFICATE_FILE": "/etc/sediment/tls/tls.crt",
            f"{prefix}_TLS_KEY_FILE": "/etc/sediment/tls/tls.key",
            f"{prefix}_TLS_CLIENT_CA_FILE": "/etc/sediment/tls/ca.crt",
            f"{prefix}_POLICY_FILE": "/etc/sediment/policy/policy.toml",
        }.items()
    )
    assert f"{prefix}_PLAINTEXT" not in config
    mounts = mounted_at(workload)
    secret = mounts["/etc/sediment/tls"]["secret"]["secretName"]
    assert secret == issued.one("Certificate", secret)["spec"]["secretName"]
    assert mounts["/etc/sediment/policy"]["configMap"]["name"] == "sediment-policy"
    assert "WARNING" not in issued.notes


def test_sweep_has_its_own_certificate(issued: Rendered) -> None:
    for name in ("sediment-retention-sweep", "sediment-partition-removal-sweep"):
        sweep = issued.one("CronJob", name)
        env = {
            entry["name"]: entry.get("value") for entry in pod_spec(sweep)["containers"][0]["env"]
        }
        assert env["SEDIMENT_TLS_CA_FILE"] == "/etc/sediment/tls/ca.crt"
        assert env["SEDIMENT_TLS_CERTIFICATE_FILE"] == "/etc/sediment/tls/tls.crt"
        assert env["SEDIMENT_TLS_KEY_FILE"] == "/etc/sediment/tls/tls.key"
        assert "SEDIMENT_PLAINTEXT" not in env
        secret = mounted_at(sweep)["/etc/sediment/tls"]["secret"]["secretName"]
        assert secret == "sediment-sweeps-tls"


def test_a_certificate_names_the_addresses_by_which_the_service_is_called(
    issued: Rendered,
) -> None:
    config = issued.one("ConfigMap", "sediment-rlm-sidecar")["data"]["patch.yaml"]
    for service in SERVICES:
        names = issued.one("Certificate", f"sediment-{service}-tls")["spec"]["dnsNames"]
        assert f"sediment-{service}.tier.svc" in names
        assert f"sediment-{service}.tier.svc:50051" in config
    assert "localhost" in issued.one("Certificate", "sediment-rlm-tls")["spec"]["dnsNames"]


def test_policy_grants_the_needed_roles_to_the_charts_clients(issued: Rendered) -> None:
    text = issued.one("ConfigMap", "sediment-policy")["data"]["policy.toml"]
    parse_policy(text.encode())  # as strict as the services
    policy = tomllib.loads(text)
    granted = {grant["identities"][0]: grant["roles"] for grant in policy["grant"]}
    for component in ("rlm", "sweeps", "selftest", "console"):
        (identity,) = issued.one("Certificate", f"sediment-{component}-tls")["spec"]["uris"]
        assert granted.pop(identity)
    assert granted == {
        grant["identities"][0]: grant["roles"] for grant in CERT_MANAGER["tls"]["policy"]["grants"]
    }
    _selftest, broker = (grant for grant in policy["grant"] if grant["topics"] != ["*"])
    assert broker["topics"] == ["orders-*"]


def test_existing_secrets_and_a_policy_of_ones_own_are_taken() -> None:
    rendered = render(FILES["tls"])
    assert rendered.of_kind("Certificate") == []
    mounts = mounted_at(rendered.one("Deployment", "sediment-rlmm"))
    assert mounts["/etc/sediment/tls"]["secret"]["secretName"] == "rlmm-tls"
    assert mounts["/etc/sediment/policy"]["configMap"]["name"] == "sediment-policy"
    assert not [
        o for o in rendered.of_kind("ConfigMap") if o["metadata"]["name"].endswith("policy")
    ]
    config = rendered.one("ConfigMap", "sediment-rlmm")["data"]
    assert config["RLMM_METRICS_PLAINTEXT"] == "true"
    ports = {
        port["name"]: port for port in rendered.one("Service", "sediment-rlmm")["spec"]["ports"]
    }
    assert ports["grpc"]["appProtocol"] == "https"
    assert ports["metrics"]["appProtocol"] == "http"


@pytest.mark.parametrize(
    ("tls", "sentence"),
    [
        ({"existingSecrets": {"rsm": ""}}, r"tls\.existingSecrets\.rsm is empty"),
        ({"policy": {"existingConfigMap": ""}}, r"tls\.policy is empty, so every call would"),
        (
            {"policy": {"grants": [{"identities": ["a"], "roles": ["admin"], "topics": ["*"]}]}},
            "are both set",
        ),
        (
            {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}},
            r"tls\.existingSecrets\.rsm and tls\.certManager\.enabled are both set",
        ),
        (
            {
                "certManager": {"enabled": True},
                "existingSecrets": {"rsm": "", "rlmm": ""},
            },
            r"tls\.certManager\.issuerRef\.name is empty",
        ),
    ],
)
def test_incomplete_values_are_refused(tls: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ChartRefusedError, match=sentence):
        render(changed(FILES["tls"], {"tls": tls}))


def test_an_unknown_role_is_refused() -> None:
    grant = {"identities": ["spiffe://a/b"], "roles": ["owner"], "topics": ["*"]}
    with pytest.raises(ChartRefusedError, match="value must be one of 'shipper', 'reader'"):
        render(minimal({"tls": {"enabled": True, "policy": {"grants": [grant]}}}))


def test_a_grant_without_topics_is_refused() -> None:
    grant = {"identities": ["spiffe://a/b"], "roles": ["admin"]}
    with pytest.raises(ChartRefusedError, match="topics"):
        render(minimal({"tls": {"enabled": True, "policy": {"grants": [grant]}}}))
