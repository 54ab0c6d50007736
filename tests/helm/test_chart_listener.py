"""Test what the chart makes of `rlm.listener`."""

import pytest

from tests.helm.chart import (
    ChartRefusedError,
    Rendered,
    Values,
    changed,
    pod_spec,
    render,
    values_files,
)

pytestmark = pytest.mark.helm

FILES = values_files()
SERVICE = "kafka-tier-rlm.tier.svc:9192"


def with_listener(values: Values, **settings: object) -> Rendered:
    return render(changed(values, {"rlm": {"listener": {"enabled": True, **settings}}}))


def test_the_listener_has_a_port_and_is_closed_until_a_peer_is_named() -> None:
    found = with_listener(FILES["full"])
    config = found.one("ConfigMap", "kafka-tier-rlm")["data"]
    assert config["RLM_CONSUMER_LISTEN_ADDRESS"] == "[::]:9192"
    assert config["RLM_CONSUMER_ADVERTISED_ADDRESS"] == SERVICE
    (container,) = pod_spec(found.one("DaemonSet", "kafka-tier-rlm"))["containers"]
    assert {"name": "kafka", "containerPort": 9192} in container["ports"]
    ports = found.one("Service", "kafka-tier-rlm")["spec"]["ports"]
    (port,) = [port for port in ports if port["name"] == "kafka"]
    assert (port["port"], port["targetPort"]) == (9192, "kafka")
    assert "kafka" not in allowed(found)


def test_named_peers_reach_the_listener_only() -> None:
    peers = [{"podSelector": {"matchLabels": {"app": "reports"}}}]
    values = changed(FILES["full"], {"networkPolicy": {"enabled": True}})
    assert allowed(with_listener(values, **{"from": peers}))["kafka"] == peers


def allowed(found: Rendered) -> dict[str, object]:
    """Return who may connect to each port of RLM."""
    policies = [o for o in found.of_kind("NetworkPolicy") if o["metadata"]["name"].endswith("-rlm")]
    rules = [rule for policy in policies for rule in policy["spec"]["ingress"]]
    return {port["port"]: rule["from"] for rule in rules for port in rule["ports"]}


def test_it_is_off_by_default() -> None:
    config = render(FILES["full"]).one("ConfigMap", "kafka-tier-rlm")["data"]
    assert not [name for name in config if "CONSUMER" in name]


def test_a_sidecar_needs_an_address_that_consumers_reach() -> None:
    with pytest.raises(ChartRefusedError, match="advertisedAddress is missing"):
        with_listener(FILES["sidecar"])
    found = with_listener(FILES["sidecar"], advertisedAddress="tier.example:9192")
    patch = found.one("ConfigMap", "sediment-rlm-sidecar")["data"]["patch.yaml"]
    assert "tier.example:9192" in patch
    assert "rlm-kafka" in patch


@pytest.mark.parametrize("port", [50051, 50054])
def test_a_port_of_rlms_own_is_refused(port: int) -> None:
    with pytest.raises(ChartRefusedError, match="rlm/listener/port"):
        with_listener(FILES["full"], port=port)


def test_the_certificate_has_the_advertised_host() -> None:
    found = with_listener(FILES["cert-manager"], advertisedAddress="tier.example:9192")
    names = found.one("Certificate", "sediment-rlm-tls")["spec"]["dnsNames"]
    assert "tier.example" in names
