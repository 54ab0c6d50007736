"""What the chart renders: valid for every Kubernetes that we name, and consistent in itself."""

import json
import re
from collections.abc import Callable
from copy import deepcopy

import kubernetes_validate
import pytest
import yaml

from services.local.stack import PROCESS_VARIABLES
from tests.helm.chart import (
    CHART,
    Object,
    Rendered,
    changed,
    executor_pod,
    lint,
    minimal,
    pod_spec,
    render,
    values_files,
)
from tests.helm.local_cluster import selects

pytestmark = pytest.mark.helm

KUBERNETES_VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
OLDEST_AND_NEWEST = (KUBERNETES_VERSIONS[0], KUBERNETES_VERSIONS[-1])
FILES = values_files()
OF_OPERATORS = ("cert-manager.io/v1", "monitoring.coreos.com/v1")
SERVED = ("Deployment", "DaemonSet")
COMPONENT = "app.kubernetes.io/component"
POD_MAKERS = (*SERVED, "Job", "CronJob")
A_STATEFUL_SET: Object = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "kafka"},
    "spec": {
        "serviceName": "kafka",
        "selector": {"matchLabels": {"app": "kafka"}},
        "template": {
            "metadata": {"labels": {"app": "kafka"}},
            "spec": {"containers": [{"name": "kafka", "image": "kafka"}]},
        },
    },
}

Record = Callable[[str, object], None]


@pytest.fixture(params=FILES)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(FILES[request.param])


@pytest.mark.parametrize("file", FILES)
def test_helm_lint_finds_nothing(file: str) -> None:
    assert lint(FILES[file]) == []


@pytest.mark.parametrize(
    ("file", "version"),
    [
        *(("full", version) for version in KUBERNETES_VERSIONS),
        *((file, version) for file in FILES for version in OLDEST_AND_NEWEST if file != "full"),
    ],
)
def test_every_object_is_valid_in_every_kubernetes(
    file: str, version: str, record_property: Record
) -> None:
    # Not those of operators: cases in tests/helm/cases hold what they say.
    objects = [o for o in render(FILES[file]).objects if o["apiVersion"] not in OF_OPERATORS]
    for found in objects:
        # The schema of the version itself, not of the newest one that is older.
        assert kubernetes_validate.validate(found, version, strict=True) == version
    record_property("kubernetes version", version)
    record_property("values file", file)
    for found in objects:
        record_property("object", f"{file}/{found['kind']}/{found['metadata']['name']}")


def test_the_validation_refuses_a_field_that_kubernetes_does_not_know() -> None:
    deployment = deepcopy(render(minimal()).one("Deployment", "sediment-rsm"))
    pod_spec(deployment)["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(deployment, KUBERNETES_VERSIONS[0], strict=True)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_the_sidecar_patch_fits_a_stateful_set(version: str) -> None:
    data = render(FILES["sidecar"]).one("ConfigMap", "sediment-rlm-sidecar")["data"]
    patch = yaml.safe_load(data["patch.yaml"])
    pod = patch["spec"]["template"]["spec"]
    (container,), volumes = pod.pop("containers"), pod.pop("volumes")
    assert patch == {"spec": {"template": {"spec": {}}}}
    # The log's volume is the StatefulSet's own.
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted - {volume["name"] for volume in volumes} == {"data"}
    patched = deepcopy(A_STATEFUL_SET)
    pod_spec(patched)["containers"].append(container)
    pod_spec(patched)["volumes"] = volumes
    kubernetes_validate.validate(patched, version, strict=True)


def test_the_sidecar_gets_the_settings_of_the_daemon_set() -> None:
    # Its PodMonitor is for the sidecar alone.
    values = {**FILES["sidecar"], "rlm": {**FILES["sidecar"]["rlm"], "sidecar": {}}}
    values["monitoring"] = {**values["monitoring"], "podMonitor": {"enabled": False}}
    values["rlm"]["enabled"] = True
    values["rlm"]["logVolumes"] = [
        {**volume, "source": {"hostPath": {"path": "/mnt"}}}
        for volume in values["rlm"]["logVolumes"]
    ]
    daemon_settings = render(values).one("ConfigMap", "sediment-rlm")["data"]
    data = render(FILES["sidecar"]).one("ConfigMap", "sediment-rlm-sidecar")["data"]
    (container,) = pod_spec(yaml.safe_load(data["patch.yaml"]) | {"kind": ""})["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert env == {**daemon_settings, **PROCESS_VARIABLES}


def test_each_selector_finds_the_pods_of_one_workload(rendered: Rendered) -> None:
    jobs = [*rendered.of_kind("Job"), *map(_job, rendered.of_kind("CronJob"))]
    pods = [{"metadata": o["metadata"], "spec": {"template": o}} for o in rendered.of_kind("Pod")]
    workloads = [*rendered.of_kind(*SERVED), *jobs, *pods]
    selectors = {
        **{
            f"Service {o['metadata']['name']}": o["spec"]["selector"]
            for o in rendered.of_kind("Service")
        },
        **{
            f"{o['kind']} {o['metadata']['name']}": o["spec"]["selector"]["matchLabels"]
            for o in rendered.of_kind("PodDisruptionBudget", *SERVED)
        },
        **{
            f"NetworkPolicy {o['metadata']['name']}": o["spec"]["podSelector"]["matchLabels"]
            for o in rendered.of_kind("NetworkPolicy")
            # Executors are made by Spark.
            if not o["metadata"]["name"].endswith("-executor")
        },
    }
    for owner, selector in selectors.items():
        found = [o["metadata"]["name"] for o in workloads if selects(selector, o)]
        assert found == [owner.split()[1]], owner


@pytest.mark.parametrize("file", FILES)
def test_every_pod_is_selected_by_one_policy(file: str) -> None:
    found = render(changed(FILES[file], {"networkPolicy": {"enabled": True}}))
    policies = [o["spec"] for o in found.of_kind("NetworkPolicy")]
    restricted = [each["podSelector"]["matchLabels"][COMPONENT] for each in policies]
    assert len(restricted) == len(set(restricted))
    pods = found.of_kind(*POD_MAKERS, "Pod")
    components = {pod["metadata"]["labels"][COMPONENT] for pod in pods}
    # Executors are made by Spark.
    assert components == set(restricted) - {"sweep-executor", "check-executor"}
    assert {tuple(each["policyTypes"]) for each in policies} == {("Ingress", "Egress")}


def _job(cron_job: Object) -> Object:
    """Return the job that a CronJob makes, with the CronJob's name."""
    return {"metadata": cron_job["metadata"], **cron_job["spec"]["jobTemplate"]}


def test_the_pods_of_jobs_are_behind_no_service_but_that_of_a_driver(rendered: Rendered) -> None:
    jobs = [*rendered.of_kind("Job"), *map(_job, rendered.of_kind("CronJob"))]
    found = {
        (job["metadata"]["name"], o["metadata"]["name"])
        for job in jobs
        for o in rendered.of_kind("Service")
        if selects(o["spec"]["selector"], job)
    }
    drivers = {o["metadata"]["name"] for o in rendered.of_kind("CronJob") if _is_driver(o)}
    assert found == {(name, name) for name in drivers}


def _is_driver(workload: Object) -> bool:
    """Whether the pod is a driver of Spark with executors in pods of their own."""
    args = pod_spec(workload)["containers"][0].get("args", ())
    return any(argument.startswith("--master=k8s://") for argument in args)


def test_probes_ask_the_health_port_and_services_lead_to_named_ports(rendered: Rendered) -> None:
    for workload in rendered.of_kind(*SERVED):
        if workload["metadata"]["name"].endswith("-console"):  # tests/helm/cases/console.yaml
            continue
        (container,) = pod_spec(workload)["containers"]
        ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
        probes = {
            probe: container[probe]["grpc"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        assert probes == {
            "startupProbe": {"port": ports["health"], "service": "liveness"},
            "livenessProbe": {"port": ports["health"], "service": "liveness"},
            "readinessProbe": {"port": ports["health"], "service": ""},
        }
        service = rendered.one("Service", workload["metadata"]["name"])
        targets = {entry["targetPort"] for entry in service["spec"]["ports"]}
        assert targets == {*ports} - {"health"} >= {"grpc", "metrics"}


def test_objects_referred_to_by_a_pod_are_rendered_or_given(rendered: Rendered) -> None:
    accounts = {o["metadata"]["name"] for o in rendered.of_kind("ServiceAccount")} | {"migrator"}
    for workload in rendered.of_kind(*POD_MAKERS):
        pod = pod_spec(workload)
        assert pod["serviceAccountName"] in accounts
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container.get("volumeMounts", ())} == volumes


def test_every_pod_is_restricted(rendered: Rendered) -> None:
    for workload in rendered.of_kind(*POD_MAKERS):
        pod = pod_spec(workload)
        assert pod["automountServiceAccountToken"] is _is_driver(workload)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]
        sources = {next(iter(set(volume) - {"name"})) for volume in pod.get("volumes", ())}
        assert ("hostPath" in sources) == (workload["kind"] == "DaemonSet")


def test_a_volume_of_the_defaults_is_in_every_pod_beside_the_charts_own() -> None:
    rendered = render(FILES["full"])
    found = {
        workload["metadata"]["name"].removeprefix("kafka-tier-"): {
            mount["mountPath"] for mount in pod_spec(workload)["containers"][0]["volumeMounts"]
        }
        for workload in rendered.of_kind(*POD_MAKERS)
    }
    database = "/etc/sediment/database"
    ca, logs = "/etc/private-ca", {"/var/lib/kafka/data-0", "/var/lib/kafka/data-1"}
    assert found == {
        "rsm": {ca, "/etc/sediment/object-store"},
        "rlmm": {ca, database, "/tmp"},
        "rlm": {ca, "/var/cache/sediment", *logs},
        "migration": {ca, database},
        "maintenance": {ca, database},
        "retention-sweep": {ca, "/tmp"},
        "partition-removal-sweep": {ca, "/tmp"},
        "reconcile": {ca},
        "scrub": {ca},
    }


def test_secret_files_are_for_the_group_of_the_pod_only(rendered: Rendered) -> None:
    for workload in rendered.of_kind(*POD_MAKERS):
        pod = pod_spec(workload)
        is_rlm = workload["metadata"]["labels"][COMPONENT] == "rlm"
        group = pod["securityContext"].get("fsGroup")
        assert is_rlm or group == pod["securityContext"]["runAsGroup"]
        for volume in pod.get("volumes", ()):
            if "secret" in volume and volume["name"] != "private-ca":
                assert volume["secret"]["defaultMode"] == (0o444 if group is None else 0o440)


def test_only_rsm_has_store_keys_and_only_rlmm_and_its_jobs_the_database(
    rendered: Rendered,
) -> None:
    seen = {}
    for workload in rendered.of_kind(*POD_MAKERS):
        component = workload["metadata"]["labels"][COMPONENT]
        variables = re.findall(r'"secretKeyRef": {"name": "([^"]+)"', json.dumps(workload))
        files = [
            volume["secret"]["secretName"]
            for volume in pod_spec(workload).get("volumes", ())
            if volume["name"] in ("object-store-keys", "database-password")
        ]
        seen[component] = {*variables, *files}
    of_release = [name in seen for name in ("rsm", "rlmm")]
    stores, databases = seen.pop("rsm", set()), seen.pop("rlmm", set())
    assert [len(stores), len(databases)] == of_release
    owners = set().union(*(seen.pop(job, databases) for job in ("migration", "maintenance")))
    assert len(owners) == len(databases)
    assert stores.isdisjoint(databases | owners)
    assert set().union(*seen.values()) == set()


def test_every_object_has_the_recommended_labels_and_the_release_namespace(
    rendered: Rendered,
) -> None:
    recommended = {"name", "instance", "component", "part-of", "version", "managed-by"}
    for found in rendered.objects:
        labels = found["metadata"]["labels"]
        assert {f"app.kubernetes.io/{label}" for label in recommended} <= set(labels)
        assert found["metadata"]["namespace"] == "tier"


def test_the_objects_that_the_guide_names_exist() -> None:
    guide = (CHART.parent / "docs" / "run" / "kubernetes.md").read_text()
    named = set(re.findall(r"\b(?:deployment|service|job|cronjob)/(sediment-[a-z-]+)", guide))
    named |= set(re.findall(r"\b(sediment-[a-z-]+)\.tier\.svc:50051", guide))
    named |= set(re.findall(r"configmap (sediment-[a-z-]+)", guide))
    rendered = [*render(FILES["sidecar"]).objects, *render(FILES["cert-manager"]).objects]
    assert len(named) >= 5
    assert named <= {o["metadata"]["name"] for o in rendered}


def test_the_values_that_the_guide_gives_are_taken() -> None:
    first, *others = [values for values in _yaml_of_the_guide() if "kind" not in values]
    assert others
    for values in others:
        render({**first, **values})


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_the_objects_of_the_guide_and_the_pod_of_executors_are_valid(version: str) -> None:
    for executor in ("sweep-executor", "check-executor"):
        pod = executor_pod(render(FILES["executors"]), executor)
        kubernetes_validate.validate(pod, version, strict=True)
    objects = [found for found in _yaml_of_the_guide() if "kind" in found]
    assert objects
    for found in objects:
        kubernetes_validate.validate(found, version, strict=True)


def _yaml_of_the_guide() -> list[Object]:
    guide = (CHART.parent / "docs" / "run" / "kubernetes.md").read_text()
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", guide, re.S)]
