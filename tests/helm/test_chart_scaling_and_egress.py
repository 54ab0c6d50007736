"""What the chart renders to scale, to bound the egress of services, and to watch a sidecar."""

from typing import Any

import pytest
import yaml

from tests.helm.chart import Object, changed, minimal, pod_spec, render, values_files

pytestmark = pytest.mark.helm

FILES = values_files()
DNS = [(53, "UDP"), (53, "TCP")]
ENFORCED = {"networkPolicy": {"enabled": True}}


def test_an_autoscaler_decides_instead_of_replicas() -> None:
    found = render(minimal({"rsm": {"autoscaling": {"enabled": True}}}))
    (scaler,) = found.of_kind("HorizontalPodAutoscaler")
    deployment = found.one("Deployment", "sediment-rsm")
    assert "replicas" not in deployment["spec"]
    assert found.one("Deployment", "sediment-rlmm")["spec"]["replicas"] == 2
    assert scaler["spec"]["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": "Deployment",
        "name": "sediment-rsm",
    }
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (2, 6)
    (metric,) = scaler["spec"]["metrics"]
    assert metric["resource"]["target"] == {"type": "Utilization", "averageUtilization": 80}
    assert pod_spec(deployment)["containers"][0]["resources"]["requests"]["cpu"]


def test_metrics_and_behaviour_of_an_autoscaler_are_passed_on() -> None:
    target = {"type": "AverageValue", "averageValue": "50"}
    metric = {"type": "Pods", "pods": {"metric": {"name": "calls"}, "target": target}}
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 600}}
    own = {"targetCPUUtilizationPercentage": None, "metrics": [metric], "behavior": behavior}
    both = {name: {"autoscaling": {"enabled": True, **own}} for name in ("rsm", "rlmm")}
    found = render(minimal(both))
    for name in ("sediment-rsm", "sediment-rlmm"):
        spec = found.one("HorizontalPodAutoscaler", name)["spec"]
        assert (spec["metrics"], spec["behavior"]) == ([metric], behavior)
        assert "replicas" not in found.one("Deployment", name)["spec"]


def egress(values: dict[str, Any], component: str) -> list[Object]:
    found = render(values)
    (policy,) = (
        each["spec"]
        for each in found.of_kind("NetworkPolicy")
        if each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component
    )
    assert ("Egress" in policy["policyTypes"]) == ("egress" in policy)
    rules: list[Object] = policy.get("egress", [])
    return rules


def ports(rule: Object) -> list[tuple[int, str]]:
    return [(port["port"], port["protocol"]) for port in rule["ports"]]


@pytest.mark.parametrize(
    ("component", "expected"), [("rsm", [(9000, "TCP")]), ("rlmm", [(5432, "TCP")])]
)
def test_a_service_reaches_dns_and_what_it_needs_anywhere(
    component: str, expected: list[tuple[int, str]]
) -> None:
    store = {"objectStore": {"endpoint": "minio.storage.svc:9000"}}
    dns, own = egress(minimal(ENFORCED, store), component)
    assert (ports(dns), ports(own)) == (DNS, expected)
    assert "to" not in dns
    assert "to" not in own


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ({"endpoint": "s3.example.com"}, {443}),
        ({"endpoint": "s3.example.com", "secure": False}, {80}),
        ({"endpoint": "[fd00::1]:9000", "credentials": "web-identity"}, {9000, 443}),
        ({"endpoint": "s3.example.com", "credentials": "aws"}, {443, 80}),
    ],
)
def test_ports_of_the_store_follow_from_its_address_and_credentials(
    store: dict[str, Any], expected: set[int]
) -> None:
    _, own = egress(minimal(ENFORCED, {"objectStore": store}), "rsm")
    assert {port for port, _ in ports(own)} == expected


def test_the_ports_of_an_sts_and_of_the_stores_public_address_are_reached() -> None:
    settings = {
        "RSM_STS_ENDPOINT": "https://sts.storage.svc:8443",
        "RSM_PUBLIC_STORE_ENDPOINT": "https://s3.example.org:9443",
    }
    _, own = egress(minimal(ENFORCED, {"rsm": {"settings": settings}}), "rsm")
    assert {8443, 9443} <= {port for port, _ in ports(own)}


def test_rlm_reaches_the_release_and_the_brokers_that_it_asks() -> None:
    rlm = {
        **FILES["full"]["rlm"],
        "settings": {"RLM_BOOTSTRAP_SERVERS": "kafka-0.kafka:9092, kafka-1.kafka:9093"},
    }
    _, release, brokers = egress(minimal(ENFORCED, {"rlm": rlm}), "rlm")
    assert ports(release) == [(50051, "TCP")]
    assert release["to"][0]["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/instance": "sediment",
        "app.kubernetes.io/part-of": "sediment",
    }
    assert ports(brokers) == [(9092, "TCP"), (9093, "TCP")]


def test_peers_and_ports_of_the_values_restrict_egress() -> None:
    given = FILES["full"]["networkPolicy"]["egress"]
    dns, store, extra = egress(FILES["full"], "rsm")
    assert (dns["to"], store["to"]) == (given["dnsTo"], given["storeTo"])
    assert (ports(store), extra) == ([(443, "TCP")], given["extra"][0])
    _, database, _ = egress(FILES["full"], "rlmm")
    assert (database["to"], ports(database)) == (given["databaseTo"], [(6432, "TCP")])
    *_, brokers, _ = egress(FILES["full"], "rlm")
    assert (brokers["to"], ports(brokers)) == (given["brokersTo"], [(9092, "TCP")])


def test_direct_reads_and_a_collector_of_traces_can_be_reached() -> None:
    settings = {
        "RLM_DIRECT_READS": True,
        "RLM_TRACES_ENDPOINT": "http://collector.observe:4317",
    }
    rlm = {**FILES["full"]["rlm"], "settings": settings}
    _, _, store, collector = egress(minimal(ENFORCED, {"rlm": rlm}), "rlm")
    assert store == egress(minimal(ENFORCED), "rsm")[1]
    assert (ports(collector), "to" in collector) == ([(4317, "TCP")], False)


def test_without_ports_of_a_database_none_is_reached() -> None:
    none: dict[str, Any] = {"networkPolicy": {"egress": {"databasePorts": []}}}
    assert len(egress(minimal(ENFORCED, none), "rlmm")) == 1


def test_egress_is_free_if_asked() -> None:
    free = {"networkPolicy": {"egress": {"enabled": False}}}
    assert egress(minimal(ENFORCED, free), "rsm") == []


def test_a_pod_monitor_finds_rlm_in_the_brokers_pods() -> None:
    found = render(FILES["sidecar"])
    (monitor,) = found.of_kind("PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"] == {"app": "kafka"}
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["kafka"]}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][0]["replacement"] == "sediment-rlm"
    patch = found.one("ConfigMap", "sediment-rlm-sidecar")["data"]["patch.yaml"]
    (container,) = pod_spec(yaml.safe_load(patch) | {"kind": ""})["containers"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    assert "scheme" not in endpoint


def test_metrics_of_the_sidecar_over_tls_are_scraped_with_its_authority() -> None:
    certificates = {**FILES["tls"]["tls"], "metricsPlaintext": False}
    certificates["existingSecrets"] = {**certificates["existingSecrets"], "rlm": "rlm-tls"}
    tls = {"tls": {**certificates, "plaintext": False}, "sweeps": FILES["tls"]["sweeps"]}
    found = render(changed(FILES["sidecar"], tls))
    (endpoint,) = found.one("PodMonitor", "sediment-rlm-sidecar")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "serverName": "sediment-rlm.tier.svc",
        "ca": {"secret": {"name": "rlm-tls", "key": "ca.crt"}},
    }
