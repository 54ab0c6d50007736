"""What the chart renders if RSM, RLMM or both are another release's."""

from typing import Any

import pytest

from tests.helm.chart import (
    ChartRefusedError,
    Rendered,
    changed,
    lint,
    minimal,
    pod_spec,
    render,
    values_files,
)
from tests.helm.test_chart_objects import Record
from tests.helm.test_chart_tls import mounted_at

pytestmark = pytest.mark.helm

FILES = values_files()
RSM_AWAY: dict[str, Any] = {"rsm": {"enabled": False, "address": "rsm.example.com:443"}}
RLMM_AWAY: dict[str, Any] = {"rlmm": {"enabled": False, "address": "rlmm.example.com:8443"}}
NO_SWEEPS: dict[str, Any] = {
    "sweeps": {"retention": {"enabled": False}, "removal": {"enabled": False}}
}
NO_CLIENTS: dict[str, Any] = {**NO_SWEEPS, "selftest": {"enabled": False}}
NO_STORE = {"endpoint": "", "region": "", "bucket": "", "existingSecret": ""}
OF_RLMM = {"rlmm", "migration", "maintenance"}


SWEEPS_WITH_TOKENS: dict[str, Any] = {
    "tls": {"tokens": {"enabled": True, "existingConfigMap": "keys", "issuer": "https://k8s"}},
    "sweeps": {"credentials": "token"},
}


def token_address(service: str) -> dict[str, Any]:
    """Return the values of a service that is elsewhere, and takes tokens there."""
    addresses = {
        "address": f"{service}.example.com:443",
        "tokenAddress": f"{service}.example.com:444",
    }
    return {service: {"enabled": False, **addresses}}


def components(found: Rendered) -> set[str]:
    labels = [each["metadata"]["labels"] for each in found.objects]
    return {each["app.kubernetes.io/component"] for each in labels}


def callers(found: Rendered) -> list[list[str]]:
    """Return the arguments of each container that calls RSM."""
    workloads = found.of_kind("CronJob")
    specs = [pod_spec(each) for each in workloads] + [p["spec"] for p in found.of_kind("Pod")]
    arguments = [spec["containers"][0]["args"] for spec in specs]
    return [each for each in arguments if any(text.startswith("--rsm=") for text in each)]


def egress_ports(found: Rendered, component: str) -> set[int]:
    rules = found.one("NetworkPolicy", f"sediment-{component}")["spec"]["egress"]
    return {port["port"] for rule in rules for port in rule["ports"]}


@pytest.mark.parametrize(
    ("away", "there", "gone"), [(RSM_AWAY, "rlmm", {"rsm"}), (RLMM_AWAY, "rsm", OF_RLMM)]
)
def test_nothing_of_a_part_that_is_elsewhere_is_there(
    away: dict[str, Any], there: str, gone: set[str]
) -> None:
    scaling = {name: {"autoscaling": {"enabled": True}} for name in ("rsm", "rlmm")}
    found = render(minimal(scaling, away, {"networkPolicy": {"enabled": True}}))
    assert there in components(found)
    assert components(found).isdisjoint(gone)
    names = {f"-{part}" for part in gone}
    assert not [o for o in found.objects if o["metadata"]["name"].endswith(tuple(names))]
    assert f"rollout status deployment/sediment-{there}" in found.notes
    assert "example.com" in found.notes
    assert not any(f"deployment/sediment{name}" in found.notes for name in names)


def test_a_part_that_is_elsewhere_needs_no_store_and_no_database() -> None:
    render(minimal(RSM_AWAY, {"objectStore": NO_STORE}))
    render(minimal(RLMM_AWAY, {"database": {"existingSecret": ""}}))


@pytest.mark.parametrize(
    ("away", "option"),
    [(RSM_AWAY, "--rsm=rsm.example.com:443"), (RLMM_AWAY, "--rlmm=rlmm.example.com:8443")],
)
def test_every_client_calls_the_part_that_is_elsewhere(away: dict[str, Any], option: str) -> None:
    checks = {"checks": {"reconcile": {"enabled": True}, "scrub": {"enabled": True}}}
    found = render(minimal(away, checks))
    assert len(callers(found)) == 5
    assert all(option in arguments for arguments in callers(found))


def test_rlm_and_the_console_call_the_parts_that_are_elsewhere() -> None:
    settings = render(FILES["elsewhere"]).one("ConfigMap", "sediment-rlm")["data"]
    assert settings["RLM_RSM_ADDRESS"] == "rsm.tier.example.com:443"
    assert settings["RLM_RLMM_ADDRESS"] == "rlmm.tier.example.com:8443"
    console = {"console": {"enabled": True}}
    found = render(changed(FILES["cert-manager"], RSM_AWAY, RLMM_AWAY, console))
    (container,) = pod_spec(found.one("Deployment", "sediment-console"))["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert env["CONSOLE_RSM_ADDRESS"] == "rsm.example.com:443"
    assert env["CONSOLE_RLMM_ADDRESS"] == "rlmm.example.com:8443"


def test_clients_may_reach_the_parts_that_are_elsewhere() -> None:
    enforced = {"networkPolicy": {"enabled": True}}
    assert egress_ports(render(minimal(enforced)), "retention-sweep") == {53, 50051}
    one = render(minimal(enforced, RSM_AWAY))
    assert egress_ports(one, "retention-sweep") == {53, 50051, 443}
    assert egress_ports(one, "rlmm") == {53, 5432}
    both = render(minimal(enforced, RSM_AWAY, RLMM_AWAY))
    assert egress_ports(both, "selftest") == {53, 443, 8443}
    rules = render(FILES["elsewhere"]).one("NetworkPolicy", "sediment-rlm")["spec"]["egress"]
    (rule,) = (rule for rule in rules if {"port": 443, "protocol": "TCP"} in rule["ports"])
    assert rule["to"] == FILES["elsewhere"]["networkPolicy"]["egress"]["servicesTo"]


def test_a_token_is_sent_to_the_ports_that_take_tokens() -> None:
    found = render(changed(FILES["cert-manager"], SWEEPS_WITH_TOKENS, token_address("rsm")))
    job = found.one("CronJob", "sediment-retention-sweep")
    arguments = pod_spec(job)["containers"][0]["args"]
    assert "--rsm=rsm.example.com:444" in arguments
    assert "--rlmm=sediment-rlmm.tier.svc:50054" in arguments
    secret = mounted_at(job)["/etc/sediment/tls"]["secret"]["secretName"]
    assert found.one("Certificate", secret)["metadata"]["name"] == "sediment-rlmm-tls"


def test_a_release_whose_parts_call_nothing_needs_no_address() -> None:
    found = render(minimal(NO_CLIENTS, {"rsm": {"enabled": False}}))
    assert components(found) >= OF_RLMM
    assert "RSM:  none" in found.notes


def test_the_settings_of_a_part_that_is_elsewhere_are_no_problem() -> None:
    assert lint(minimal(RSM_AWAY, RLMM_AWAY)) == []


@pytest.mark.parametrize(
    ("base", "changes", "sentence"),
    [
        (
            "minimal",
            {"rsm": {"enabled": False}},
            "rsm.enabled is false and rsm.address is empty: give the HOST:PORT of the RSM that "
            "this release calls (sweeps, selftest), or set rsm.enabled.",
        ),
        (
            "minimal",
            {"rlmm": {"enabled": False}},
            "rlmm.enabled is false and rlmm.address is empty: give the HOST:PORT of the RLMM",
        ),
        (
            "minimal",
            {"rsm": {"address": "rsm.example.com:443"}},
            "rsm.address and rsm.tokenAddress are those of another release's, and rsm.enabled is "
            "true: remove them, or set it to false.",
        ),
        ("minimal", {"rsm": {"enabled": False, "address": "rsm"}}, "at '/rsm/address'"),
        (
            "tokens",
            RLMM_AWAY,
            "sweeps.credentials is token and rlmm.tokenAddress is empty: give the HOST:PORT",
        ),
        (
            "cert-manager",
            {**SWEEPS_WITH_TOKENS, **token_address("rsm"), **token_address("rlmm")},
            "this release has neither RSM nor RLMM, whose secret would have their ca.crt",
        ),
        (
            "elsewhere",
            {
                "sparkImage": {"repository": "registry.example.com/sediment-spark"},
                "checks": {
                    "engine": "spark",
                    "resources": {"limits": {"memory": "3Gi"}},
                    "reconcile": {"enabled": True, "inventory": "s3a://lists/today.parquet"},
                },
            },
            "checks.reconcile.inventoryBucket is empty, and so is objectStore.bucket: name",
        ),
    ],
)
def test_parts_that_could_not_find_each_other_are_refused(
    base: str, changes: dict[str, Any], sentence: str, record_property: Record
) -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render(changed(FILES[base], changes))
    assert sentence in str(refused.value)
    record_property("refusal", sentence)


@pytest.mark.parametrize("service", ["rsm", "rlmm"])
def test_a_trial_has_both_services(service: str) -> None:
    with pytest.raises(ChartRefusedError, match=f"trial is true and {service}.enabled is false"):
        render({"trial": True, service: {"enabled": False}})
