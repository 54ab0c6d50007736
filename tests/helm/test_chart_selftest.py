"""What the chart makes of `selftest`: the pod of `helm test`."""

import tomllib
from typing import Any

import kubernetes_validate
import pytest

from tests.helm.chart import Object, Rendered, changed, minimal, render, values_files
from tests.helm.test_chart_objects import OLDEST_AND_NEWEST

pytestmark = pytest.mark.helm

FILES = values_files()
NAME = "sediment-selftest"


def pod(found: Rendered) -> Object:
    return found.one("Pod", NAME)


def grants(found: Rendered) -> list[dict[str, Any]]:
    """Return the grants that name the self-test's service account."""
    policy = tomllib.loads(found.one("ConfigMap", "sediment-policy")["data"]["policy.toml"])
    return [each for each in policy["grant"] if any(NAME in one for one in each["identities"])]


@pytest.mark.parametrize("version", OLDEST_AND_NEWEST)
@pytest.mark.parametrize("file", ["minimal", "full", "cert-manager", "tokens"])
def test_the_pod_is_valid(file: str, version: str) -> None:
    (found,) = render(FILES[file]).of_kind("Pod")
    assert kubernetes_validate.validate(found, version, strict=True) == version


def test_helm_runs_the_command_in_a_restricted_pod() -> None:
    found = pod(render(minimal()))
    assert found["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }
    assert found["spec"]["restartPolicy"] == "Never"
    assert found["spec"]["securityContext"]["runAsNonRoot"] is True
    assert found["spec"]["automountServiceAccountToken"] is False
    (container,) = found["spec"]["containers"]
    assert container["command"] == ["sediment", "selftest"]
    assert container["args"] == [
        "--rsm=sediment-rsm.tier.svc:50051",
        "--rlmm=sediment-rlmm.tier.svc:50051",
        "--output=json",
    ]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["env"] == [{"name": "SEDIMENT_PLAINTEXT", "value": "true"}]


def test_a_certificate_of_cert_manager_has_the_roles_for_its_topic_only() -> None:
    found = render(FILES["cert-manager"])
    identity = f"spiffe://cluster.local/ns/tier/sa/{NAME}"
    assert found.one("Certificate", f"{NAME}-tls")["spec"]["uris"] == [identity]
    assert grants(found) == [
        {
            "identities": [identity],
            "roles": ["shipper", "reader", "deleter"],
            "topics": [NAME],
        }
    ]
    volumes = {each["name"]: each for each in pod(found)["spec"]["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == f"{NAME}-tls"


def test_a_token_is_sent_to_the_port_for_tokens() -> None:
    found = render(FILES["tokens"])
    (container,) = pod(found)["spec"]["containers"]
    assert container["args"][:2] == [
        "--rsm=sediment-rsm.tier.svc:50054",
        "--rlmm=sediment-rlmm.tier.svc:50054",
    ]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/etc/sediment/token"}
    (granted,) = grants(found)
    assert granted["identities"] == [f"system:serviceaccount:tier:{NAME}"]


def test_without_a_secret_of_its_own_there_is_no_pod() -> None:
    assert render(FILES["tls"]).of_kind("Pod") == []
    secrets = {"tls": {"existingSecrets": {"selftest": "selftest-tls"}}}
    found = pod(render(changed(FILES["tls"], secrets)))
    assert found["spec"]["volumes"][0]["secret"]["secretName"] == "selftest-tls"


def test_the_pod_can_be_left_out() -> None:
    found = render(minimal({"selftest": {"enabled": False}}))
    assert found.of_kind("Pod") == []
    assert NAME not in {o["metadata"]["name"] for o in found.of_kind("ServiceAccount")}
