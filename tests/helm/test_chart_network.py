"""Each pod has a network policy, and RLM's listener is open to named peers only."""

from typing import Any

import pytest

from tests.helm.chart import (
    ChartRefusedError,
    Object,
    Rendered,
    Values,
    changed,
    minimal,
    pod_spec,
    render,
    values_files,
)

pytestmark = pytest.mark.helm

FILES = values_files()
COMPONENT = "app.kubernetes.io/component"
SERVED = [(50051, "own")]
DATABASE = [(5432, "anywhere")]
SPARK = [(7078, "own"), (7079, "own"), (443, "anywhere"), (6443, "anywhere"), (9000, "anywhere")]


def pod_labels(workload: Object) -> dict[str, str]:
    if workload["kind"] == "Pod":
        labels = workload["metadata"]["labels"]
    elif workload["kind"] == "CronJob":
        labels = workload["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    else:
        labels = workload["spec"]["template"]["metadata"]["labels"]
    return dict(labels)


def policies(rendered: Rendered) -> dict[str, dict[str, Any]]:
    """Return the policies by the component that each selects."""
    found = [o["spec"] for o in rendered.of_kind("NetworkPolicy")]
    return {spec["podSelector"]["matchLabels"][COMPONENT]: spec for spec in found}


def reached(spec: dict[str, Any]) -> list[tuple[int, str]]:
    """List the ports besides DNS, and whether they are reached in the release or anywhere."""
    return [
        (port["port"], "own" if "podSelector" in str(rule.get("to")) else "anywhere")
        for rule in spec["egress"][1:]
        for port in rule["ports"]
    ]


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_pod_is_selected_by_one_policy(name: str) -> None:
    found = render(changed(FILES[name], {"networkPolicy": {"enabled": True}}))
    restricted = policies(found)
    workloads = found.of_kind("Deployment", "DaemonSet", "CronJob", "Job", "Pod")
    components = {pod_labels(workload)[COMPONENT] for workload in workloads}
    assert components - {"sweep-executor"} == restricted.keys() - {"sweep-executor"}
    assert len(found.of_kind("NetworkPolicy")) == len(restricted)
    assert {tuple(spec["policyTypes"]) for spec in restricted.values()} == {("Ingress", "Egress")}


def test_they_are_there_by_default() -> None:
    assert {"rsm", "rlmm", "migration", "selftest"} < policies(render(minimal())).keys()
    off = minimal({"networkPolicy": {"enabled": False}})
    assert policies(render(off)) == {}


def test_that_of_the_migration_is_there_before_its_job() -> None:
    found = render(minimal())
    policy = found.one("NetworkPolicy", "sediment-migration")["metadata"]["annotations"]
    job = found.one("Job", "sediment-migration")["metadata"]["annotations"]
    assert policy["helm.sh/hook"] == job["helm.sh/hook"]
    assert int(policy["helm.sh/hook-weight"]) < int(job["helm.sh/hook-weight"])


@pytest.mark.parametrize(
    ("component", "expected"),
    [
        ("migration", DATABASE),
        ("maintenance", DATABASE),
        ("retention-sweep", SERVED),
        ("partition-removal-sweep", SERVED),
        ("reconcile", SERVED),
        ("scrub", SERVED),
        ("selftest", SERVED),
    ],
)
def test_a_job_reaches_what_it_needs_and_nothing_reaches_it(
    component: str, expected: list[tuple[int, str]]
) -> None:
    checks = {"checks": {"reconcile": {"enabled": True}, "scrub": {"enabled": True}}}
    spec = policies(render(minimal(checks)))[component]
    assert spec["ingress"] == []
    assert reached(spec) == expected


def test_a_maintenance_that_keeps_the_state_reaches_rsm() -> None:
    kept = minimal({"maintenance": {"keepState": True}})
    assert reached(policies(render(kept))["maintenance"]) == [*DATABASE, *SERVED]


def test_drivers_and_executors_reach_each_other_the_api_and_the_work_directory() -> None:
    conf = {"spark.hadoop.fs.s3a.bucket.sweeps-work.endpoint": "http://minio.storage.svc:9000"}
    sweeps = {"workDir": "s3a://sweeps-work/a", "executors": {"count": 2}, "sparkConf": conf}
    restricted = policies(render(minimal({"sweeps": sweeps})))
    for component in ("retention-sweep", "sweep-executor"):
        assert reached(restricted[component]) == [*SERVED, *SPARK]


@pytest.mark.parametrize(
    ("place", "ports"),
    [
        ({"workDir": "hdfs://name-node:8020/sweeps"}, {8020, 9866, 443}),
        ({"sparkConf": {"spark.hadoop.fs.s3a.endpoint": "minio.storage:9000"}}, {9000, 443}),
    ],
)
def test_the_ports_of_a_work_directory_are_reached(place: Any, ports: set[int]) -> None:
    found = policies(render(minimal({"sweeps": {"engine": "spark", **place}})))
    reachable = {port for port, where in reached(found["retention-sweep"]) if where == "anywhere"}
    assert reachable == ports


def test_peers_and_ports_of_spark_come_from_the_values() -> None:
    egress = {"sparkTo": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "sparkPorts": [6444]}
    values = changed(FILES["executors"], {"networkPolicy": {"egress": egress}})
    (rule,) = [
        rule
        for rule in policies(render(values))["sweep-executor"]["egress"]
        if rule.get("to") == egress["sparkTo"]
    ]
    assert rule["ports"] == [{"port": 6444, "protocol": "TCP"}]


def test_jobs_with_a_token_reach_the_port_for_tokens() -> None:
    spec = policies(render(FILES["tokens"]))["retention-sweep"]
    assert {port for port, where in reached(spec) if where == "own"} >= {50051, 50054}


def test_a_monitor_whose_scrapes_the_policies_would_refuse_is_refused() -> None:
    monitor = {"monitoring": {"serviceMonitor": {"enabled": True}}}
    with pytest.raises(ChartRefusedError, match=r"networkPolicy\.metricsFrom is empty"):
        render(minimal(monitor))
    named: dict[str, Any] = {"networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]}}
    assert render(minimal(monitor, named)).of_kind("ServiceMonitor")


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
