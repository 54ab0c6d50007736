"""Test what the chart makes of `sweeps.engine` and `sweeps.executors`."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

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
from tests.helm.local_cluster import selects
from tests.helm.test_chart_objects import KUBERNETES_VERSIONS, Record
from tests.helm.test_chart_tls import mounted_at

pytestmark = pytest.mark.helm

FILES = values_files()
EXECUTORS = FILES["executors"]
DRIVERS = ("sediment-retention-sweep", "sediment-partition-removal-sweep")
ON_A_CLAIM: dict[str, Any] = {
    "workDir": "/work/sweeps",
    "executors": {"count": 2},
    "extraVolumes": [{"name": "work", "persistentVolumeClaim": {"claimName": "sweeps"}}],
    "extraVolumeMounts": [{"name": "work", "mountPath": "/work"}],
}


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    return render(EXECUTORS)


def arguments(found: Rendered, driver: str = DRIVERS[0]) -> list[str]:
    (container,) = pod_spec(found.one("CronJob", driver))["containers"]
    given: list[str] = container["args"]
    return given


def properties(found: Rendered, driver: str = DRIVERS[0]) -> dict[str, str]:
    """Return Spark's properties of a driver."""
    texts = [a.removeprefix("--conf=") for a in arguments(found, driver) if "--conf=" in a]
    return dict(text.split("=", 1) for text in texts)


def executor_pod(found: Rendered, fullname: str = "sediment") -> Object:
    """Return the pod from which Spark makes executors."""
    data = found.one("ConfigMap", f"{fullname}-sweep-executor")["data"]
    pod: Object = yaml.safe_load(data["pod.yaml"])
    return pod


@pytest.mark.parametrize(
    ("engine", "image", "options"),
    [
        ("auto", "sediment-spark", ["--engine=auto"]),
        ("local", "sediment", ["--engine=local"]),
        ("spark", "sediment-spark", ["--engine=spark", "--master=local[2]"]),
    ],
)
def test_the_engine_of_the_sweeps_is_chosen(engine: str, image: str, options: list[str]) -> None:
    found = render(minimal({"sweeps": {"engine": engine}}))
    given = arguments(found)
    assert [a for a in given if a.split("=")[0] in ("--engine", "--master")] == options
    assert ("--driver-memory=1g" in given) == (engine == "spark")
    (container,) = pod_spec(found.one("CronJob", DRIVERS[0]))["containers"]
    assert container["image"].split(":")[0].endswith(f"/{image}")
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    chosen_by_the_sweep = {"SPARK_DRIVER_MEMORY": "1g", "MASTER": "local[2]"}
    assert (chosen_by_the_sweep.items() <= env.items()) == (engine == "auto")
    assert found.of_kind("Role", "RoleBinding") == []


def test_without_spark_no_spark_image_is_needed() -> None:
    render(minimal({"sparkImage": {"repository": ""}, "sweeps": {"engine": "local"}}))


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_starts_executors_from_the_pod_of_the_chart(
    rendered: Rendered, driver: str
) -> None:
    given, conf = arguments(rendered, driver), properties(rendered, driver)
    assert {
        "--engine=spark",
        "--master=k8s://https://kubernetes.default.svc",
        "--work-dir=s3a://sweeps-work/sweeps",
    } <= set(given)
    file = rendered.one("ConfigMap", "sediment-sweep-executor")["data"]
    volume = mounted_at(rendered.one("CronJob", driver))["/etc/sediment/executors"]
    assert volume["configMap"] == {"name": "sediment-sweep-executor"}
    path = conf["spark.kubernetes.executor.podTemplateFile"]
    assert path.removeprefix("/etc/sediment/executors/") in file
    assert conf["spark.executor.instances"] == "4"
    assert conf["spark.kubernetes.executor.request.cores"] == "1"
    (container,) = executor_pod(rendered)["spec"]["containers"]
    assert conf["spark.kubernetes.container.image"] == container["image"]
    assert conf["spark.kubernetes.executor.podTemplateContainerName"] == container["name"]
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"


@pytest.mark.parametrize("driver", DRIVERS)
def test_executors_find_the_driver_of_their_run_by_its_name(
    rendered: Rendered, driver: str
) -> None:
    job = rendered.one("CronJob", driver)
    spec, pod = job["spec"]["jobTemplate"]["spec"], pod_spec(job)
    # With Indexed, and only then, the pod's host name is JOB-0.
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", 1)
    env = {e["name"]: e.get("valueFrom", {}) for e in pod["containers"][0]["env"]}
    label = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-name']"}}
    assert env["JOB_NAME"] == label
    conf = properties(rendered, driver)
    assert conf["spark.driver.host"] == f"$(JOB_NAME)-0.{pod['subdomain']}.tier.svc"
    assert conf["spark.kubernetes.executor.useDriverPodIP"] == "false"
    service = rendered.one("Service", pod["subdomain"])["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert [d for d in DRIVERS if selects(service["selector"], _template(rendered, d))] == [driver]
    ports = {entry["name"]: entry["containerPort"] for entry in pod["containers"][0]["ports"]}
    assert [str(ports[e["targetPort"]]) for e in service["ports"]] == [
        conf["spark.driver.port"],
        conf["spark.driver.blockManager.port"],
    ]


def _template(found: Rendered, driver: str) -> Object:
    job: Object = found.one("CronJob", driver)["spec"]["jobTemplate"]
    return job


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_host_name_of_the_longest_release_is_allowed(driver: str) -> None:
    suffix = driver.removeprefix("sediment-")
    values = changed(EXECUTORS, {"fullnameOverride": "x" * 28})
    name = render(values).one("CronJob", f"{'x' * 28}-{suffix}")["metadata"]["name"]
    assert len(f"{name}-29876543-0") <= 63


def test_the_driver_alone_has_the_api_and_rights_on_pods_only(rendered: Rendered) -> None:
    (role,), (binding,) = rendered.of_kind("Role"), rendered.of_kind("RoleBinding")
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "verbs": ["create", "get", "list", "watch", "delete", "deletecollection"],
        }
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    for job in rendered.of_kind("CronJob"):
        is_driver = job["metadata"]["name"] in DRIVERS
        assert pod_spec(job)["automountServiceAccountToken"] is is_driver
        assert (pod_spec(job)["serviceAccountName"] == subject["name"]) is is_driver
    conf = properties(rendered)
    for what in ("executor.disableConfigMap=true", "driver.service.deleteOnTermination=false"):
        key, value = what.split("=")
        assert conf[f"spark.kubernetes.{key}"] == value


def test_an_executor_is_as_restricted_as_every_pod_and_sees_what_its_driver_sees(
    rendered: Rendered,
) -> None:
    pod, driver = executor_pod(rendered), rendered.one("CronJob", DRIVERS[0])
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == pod_spec(driver)["serviceAccountName"]
    assert spec["securityContext"] == pod_spec(driver)["securityContext"]
    (container,), (of_driver,) = spec["containers"], pod_spec(driver)["containers"]
    assert container["securityContext"] == of_driver["securityContext"]
    assert container["resources"] == {"requests": {"cpu": 1}, "limits": {"cpu": 2}}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/tmp", "/etc/sediment/tls"}
    labels = pod["metadata"]["labels"]
    assert labels["app.kubernetes.io/instance"] == "sediment"
    assert labels["app.kubernetes.io/part-of"] == "sediment"
    assert labels["app.kubernetes.io/component"] == "sweep-executor"


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_the_pod_of_executors_is_valid(version: str, rendered: Rendered) -> None:
    kubernetes_validate.validate(executor_pod(rendered), version, strict=True)


def test_secret_properties_are_files_of_the_driver(rendered: Rendered) -> None:
    driver = rendered.one("CronJob", DRIVERS[0])
    secret = mounted_at(driver)["/etc/sediment/spark"]["secret"]
    assert secret["secretName"] == "sweeps-spark-defaults"
    assert secret["items"] == [{"key": "spark-defaults.conf", "path": "spark-defaults.conf"}]
    (container,) = pod_spec(driver)["containers"]
    assert {"name": "SPARK_CONF_DIR", "value": "/etc/sediment/spark"} in container["env"]
    assert "sweeps-spark-defaults" not in str(executor_pod(rendered))


def test_properties_of_the_values_win_over_those_of_the_chart() -> None:
    own = {"spark.driver.port": 8000, "spark.ui.enabled": True, "spark.sql.shuffle.partitions": 7}
    conf = properties(render(changed(EXECUTORS, {"sweeps": {"sparkConf": own}})))
    assert conf["spark.driver.port"] == "8000"
    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.sql.shuffle.partitions"] == "7"
    assert conf["spark.blockManager.port"] == "7079"


def test_only_drivers_and_executors_reach_each_other(rendered: Rendered) -> None:
    components = {name.removeprefix("sediment-") for name in DRIVERS} | {"sweep-executor"}
    for component in components:
        policy = rendered.one("NetworkPolicy", f"sediment-{component}")["spec"]
        selected = policy["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        assert selected == component
        (rule,) = policy["ingress"]
        ports = [7079] if component == "sweep-executor" else [7078, 7079]
        assert [entry["port"] for entry in rule["ports"]] == ports
        (peer,) = rule["from"]
        (expression,) = peer["podSelector"]["matchExpressions"]
        assert set(expression["values"]) == components
        assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "sediment"


def test_a_sweep_that_is_off_has_no_driver() -> None:
    found = render(changed(EXECUTORS, {"sweeps": {"removal": {"enabled": False}}}))
    names = {o["metadata"]["name"] for o in found.of_kind("Service", "NetworkPolicy", "CronJob")}
    assert DRIVERS[0] in names
    assert DRIVERS[1] not in names
    off = {"retention": {"enabled": False}, "removal": {"enabled": False}}
    assert render(changed(EXECUTORS, {"sweeps": off})).of_kind("Role") == []


def test_a_work_directory_on_a_shared_claim_is_taken() -> None:
    found = render(minimal({"sweeps": ON_A_CLAIM}))
    assert "--work-dir=/work/sweeps" in arguments(found)
    (container,) = executor_pod(found)["spec"]["containers"]
    assert {"name": "work", "mountPath": "/work"} in container["volumeMounts"]


def _on(volume: dict[str, Any], mount: dict[str, Any] | None = None) -> dict[str, Any]:
    mounts = [{"name": "work", "mountPath": "/work", **(mount or {})}]
    return {**ON_A_CLAIM, "extraVolumes": [{"name": "work", **volume}], "extraVolumeMounts": mounts}


@pytest.mark.parametrize(
    ("sweeps", "sentence"),
    [
        ({"executors": {"count": 2}}, "sweeps.workDir is empty and sweeps.executors.count is not"),
        (
            {"executors": {"count": 2}, "workDir": "/tmp/work"},
            "sweeps.workDir is /tmp/work, which every pod would have of its own: give a URI",
        ),
        (
            {"executors": {"count": 2}, "workDir": "file:/tmp/work"},
            "sweeps.workDir is file:/tmp/work, which every pod would have of its own",
        ),
        (_on({"emptyDir": {}}), "/work/sweeps, which every pod would have of its own"),
        (
            _on({"persistentVolumeClaim": {"claimName": "sweeps"}}, {"readOnly": True}),
            "/work/sweeps, which every pod would have of its own",
        ),
        ({**ON_A_CLAIM, "workDir": "/works"}, "/works, which every pod would have of its own"),
        ({**ON_A_CLAIM, "engine": "local"}, "sweeps.engine is local and sweeps.executors.count"),
        (
            {**ON_A_CLAIM, "serviceAccount": {"create": False}},
            "so that every pod could start pods: name another in sweeps.serviceAccount.name",
        ),
        (
            {"workDir": "s3a://bucket/sweeps"},
            "sweeps.workDir is s3a://bucket/sweeps and sweeps.engine is auto: only Spark writes",
        ),
        ({"workDir": "/work"}, "sweeps.workDir is /work, and the pods cannot write there"),
        (
            {"sparkConf": {"spark.ui.enabled": True}},
            "sweeps.sparkConf has properties and sweeps.engine is auto: only Spark has them",
        ),
        (
            {"engine": "spark", "sparkConf": {"spark.master": "local[1]"}},
            "sweeps.sparkConf has spark.master, which the chart sets itself",
        ),
        ({"sparkConf": {"master": "local[1]"}}, "'master' does not match pattern"),
        ({"engine": "flink"}, "at '/sweeps/engine'"),
        ({"executors": {"count": -1}}, "at '/sweeps/executors/count'"),
        ({"executors": {"memory": "1Gi"}}, "at '/sweeps/executors/memory'"),
        ({"executors": {"resources": {"limits": {"memory": "1Gi"}}}}, "'memory' not allowed"),
        ({"workDir": "work"}, "at '/sweeps/workDir'"),
        (
            {"extraVolumes": [{"name": "executors", "emptyDir": {}}]},
            "sweeps.extraVolumes: the name executors is that of a volume of the chart's own",
        ),
    ],
)
def test_sweeps_that_could_not_work_are_refused(
    sweeps: dict[str, Any], sentence: str, record_property: Record
) -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render(minimal({"sweeps": sweeps}))
    assert sentence in str(refused.value)
    record_property("refusal", sentence)
