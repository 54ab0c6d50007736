"""What a value changes, and what is refused."""

from typing import Any

import pytest
import yaml

from services.cli.output import EXIT_REFUSED, EXIT_USAGE
from services.local.stack import PROCESS_VARIABLES
from services.rsm.deadline import CLEAN_UP_S
from services.rsm.settings import RsmSettings
from tests.helm.chart import (
    ChartRefusedError,
    Object,
    changed,
    lint,
    minimal,
    pod_spec,
    render,
    values_files,
)
from tests.helm.test_chart_objects import Record

pytestmark = pytest.mark.helm

DATA_VOLUME = {
    "name": "data",
    "mountPath": "/kafka",
    "source": {"hostPath": {"path": "/mnt", "type": "Directory"}},
}
RLM = {"enabled": True, "logDirs": ["/kafka/log"], "logVolumes": [DATA_VOLUME]}
CA_VOLUME = {"name": "ca", "secret": {"secretName": "ca"}}
CA_MOUNT = {"name": "ca", "mountPath": "/etc/ca"}

TYPOS: list[tuple[dict[str, Any], str]] = [
    ({"databse": {}}, "additional properties 'databse' not allowed"),
    ({"rsm": {"replica": 3}}, "'replica' not allowed"),
    ({"rsm": {"settings": {"RSM_COPY_THREAD": 3}}}, "'RSM_COPY_THREAD' not allowed"),
    ({"rlmm": {"settings": {"RSM_COPY_THREADS": 3}}}, "'RSM_COPY_THREADS' not allowed"),
    ({"defaults": {"securityContext": {"privileged": True}}}, "'privileged' not allowed"),
    ({"defaults": {"tolerations": [{"keys": "a"}]}}, "'keys' not allowed"),
    ({"sweeps": {"retention": {"cron": "@daily"}}}, "'cron' not allowed"),
    ({"objectStore": {"secretKey": "hunter2"}}, "'secretKey' not allowed"),
    ({"rlm": {"logVolumes": [{**DATA_VOLUME, "readOnly": False}]}}, "'readOnly' not allowed"),
    ({"defaults": {"extraVolumes": [{"name": "ca", "hostPath": {}}]}}, "'hostPath' not allowed"),
    ({"sweeps": {"extraVolumeMounts": [{**CA_MOUNT, "path": "/"}]}}, "'path' not allowed"),
]
OUT_OF_BOUNDS: list[tuple[dict[str, Any], str]] = [
    ({"rsm": {"replicas": 0}}, "at '/rsm/replicas': minimum"),
    ({"rsm": {"replicas": "two"}}, "at '/rsm/replicas'"),
    ({"rsm": {"settings": {"RSM_COPY_THREADS": 0}}}, "at '/rsm/settings/RSM_COPY_THREADS'"),
    ({"rlmm": {"settings": {"RLMM_LOG_LEVEL": "LOUD"}}}, "at '/rlmm/settings/RLMM_LOG_LEVEL'"),
    ({"defaults": {"podSecurityContext": {"runAsUser": 0}}}, "at '/defaults/podSecurityContext"),
    ({"objectStore": {"bucket": "Not_A_Bucket"}}, "at '/objectStore/bucket'"),
    ({"objectStore": {"endpoint": "https://s3"}}, "at '/objectStore/endpoint'"),
    ({"sweeps": {"master": "local"}}, "at '/sweeps/master'"),
    ({"sweeps": {"removal": {"maxSegments": -1}}}, "at '/sweeps/removal/maxSegments'"),
    ({"maintenance": {"eventsDays": 0}}, "at '/maintenance/eventsDays'"),
    ({"rlm": {"logDirs": ["kafka/log"]}}, "at '/rlm/logDirs/0'"),
    ({"rlm": {"logDirs": ["/kafka/a,/kafka/b"]}}, "at '/rlm/logDirs/0'"),
]
IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"image": {"repository": ""}}, "image.repository is empty: name the image built"),
    ({"sparkImage": {"repository": ""}}, "sparkImage.repository is empty: name the image built"),
    (
        {"database": {"existingSecret": ""}},
        "database.existingSecret is empty: name the secret that has the PostgreSQL URL.",
    ),
    (
        {"objectStore": {"existingSecret": ""}},
        "objectStore.existingSecret is empty: name the secret that has the S3 keys, or choose",
    ),
    ({"objectStore": {"bucket": ""}}, "objectStore.bucket is empty: name the bucket"),
    ({"objectStore": {"endpoint": ""}}, "objectStore.endpoint is empty: give the store's"),
    ({"objectStore": {"region": ""}}, "objectStore.region is empty: give the store's region"),
    ({"fullnameOverride": "x" * 29}, "has 29 characters, and with -partition-removal-sweep"),
    (
        {"rlm": {"enabled": True, "logDirs": ["/kafka/log"]}},
        "rlm has no log volume: give rlm.logVolumes",
    ),
    ({"rlm": {**RLM, "logDirs": []}}, "rlm.logDirs is empty: give the broker's log.dirs"),
    (
        {"rlm": {**RLM, "logDirs": ["/kafka/log", "/kafkas/log"]}},
        "/kafkas/log is on none of rlm.logVolumes",
    ),
    (
        {"rlm": {**RLM, "logVolumes": [{"name": "data", "mountPath": "/kafka"}]}},
        "the volume data needs one source, hostPath or persistentVolumeClaim",
    ),
    (
        {"rlm": {**RLM, "sidecar": {"enabled": True}}},
        "two RLMs would ship the same directories: choose one.",
    ),
    (
        {"rlm": {"sidecar": {"enabled": True}, "logDirs": ["/kafka"]}},
        "rlm has no log volume",
    ),
    (
        {"rsm": {"podDisruptionBudget": {"maxUnavailable": 0}}},
        "rsm.podDisruptionBudget.maxUnavailable is 0, so that no node",
    ),
    (
        {"rlmm": {"replicas": 1, "podDisruptionBudget": {"maxUnavailable": "0%"}}},
        "rlmm.podDisruptionBudget.maxUnavailable is 0%, so that no node",
    ),
    (
        {"rsm": {"settings": {"RSM_DRAIN_TIMEOUT_MS": 25_000}}},
        "rsm.terminationGracePeriodSeconds is 90, and rsm would be killed while it drains: "
        "more than 90 are needed",
    ),
    (
        {"rsm": {"settings": {"RSM_READ_TIMEOUT_MS": 60_000}}},
        "more than 105 are needed, preStopSeconds plus RSM_DRAIN_TIMEOUT_MS, twice "
        "RSM_CONNECT_TIMEOUT_MS, RSM_READ_TIMEOUT_MS and 20 s.",
    ),
    (
        {"rlmm": {"terminationGracePeriodSeconds": 25}},
        "rlmm.terminationGracePeriodSeconds is 25",
    ),
    (
        {"rsm": {"extraEnv": [{"name": "RSM_COPY_THREADS", "value": "9"}]}},
        "rsm.extraEnv has RSM_COPY_THREADS, a setting",
    ),
    (
        {"defaults": {"extraVolumes": [{**CA_VOLUME, "name": "scratch"}]}},
        "defaults.extraVolumes: the name scratch is that of a volume of the chart's own",
    ),
    (
        {"rlm": {**RLM, "extraVolumes": [{**CA_VOLUME, "name": "index-cache"}]}},
        "rlm.extraVolumes: the name index-cache is that of a volume of the chart's own",
    ),
    (
        {"rlm": {**RLM, "extraVolumes": [{**CA_VOLUME, "name": "data"}]}},
        "rlm.extraVolumes: the name data is that of a volume of the chart's own",
    ),
    (
        {"rsm": {"extraVolumes": [CA_VOLUME, CA_VOLUME]}},
        "rsm.extraVolumes: two volumes have the name ca: choose another for one.",
    ),
    (
        {"rsm": {"extraVolumes": [{"name": "ca"}]}},
        "rsm.extraVolumes: the volume ca needs one source: secret, configMap,",
    ),
    (
        {"defaults": {"extraVolumeMounts": [CA_MOUNT]}},
        "defaults.extraVolumeMounts: /etc/ca mounts the volume ca, which is not in "
        "defaults.extraVolumes: add it.",
    ),
    (
        {"rsm": {"autoscaling": {"enabled": True, "minReplicas": 7}}},
        "rsm.autoscaling.minReplicas is 7, more than maxReplicas, 6: lower one.",
    ),
    (
        {"rlmm": {"autoscaling": {"enabled": True, "targetCPUUtilizationPercentage": None}}},
        "rlmm.autoscaling has no metric: set targetCPUUtilizationPercentage or metrics.",
    ),
    (
        {"rsm": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}},
        "rsm.autoscaling goes by the share of resources.requests.cpu, which is not set: set it",
    ),
    (
        {"monitoring": {"podMonitor": {"enabled": True, "selector": {"app": "kafka"}}}},
        "monitoring.podMonitor.enabled is for RLM in the brokers' pods: set rlm.sidecar.enabled",
    ),
    (
        {"monitoring": {"podMonitor": {"enabled": True}}},
        "monitoring.podMonitor.selector is empty: give the labels of the brokers' pods.",
    ),
    (
        {
            "defaults": {"extraVolumes": [CA_VOLUME], "extraVolumeMounts": [CA_MOUNT]},
            "migration": {"extraVolumes": []},
        },
        "mounts the volume ca, which is not in migration.extraVolumes: add it.",
    ),
    (
        {
            "rlm": {
                **RLM,
                "extraVolumes": [CA_VOLUME],
                "extraVolumeMounts": [{**CA_MOUNT, "mountPath": "/kafka/"}],
            }
        },
        "rlm.extraVolumeMounts: something else is mounted at /kafka/: choose another mountPath.",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), [*TYPOS, *OUT_OF_BOUNDS, *IMPOSSIBLE])
def test_impossible_values_are_refused_with_a_sentence(
    change: dict[str, Any], sentence: str, record_property: Record
) -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render(minimal(change))
    assert sentence in str(refused.value)
    record_property("refusal", sentence)


def test_everything_missing_is_reported_together() -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render({})
    assert str(refused.value).count(" is empty: ") == 7


def test_a_mistake_in_the_defaults_is_reported_once_and_not_for_every_pod() -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render(minimal({"defaults": {"extraVolumes": [{**CA_VOLUME, "name": "scratch"}]}}))
    assert str(refused.value).count("the name scratch") == 1


@pytest.mark.parametrize("change", [TYPOS[0][0], OUT_OF_BOUNDS[0][0]])
def test_helm_lint_finds_a_mistake(change: dict[str, Any]) -> None:
    assert lint(minimal(change))


def test_one_more_second_of_grace_is_enough() -> None:
    values = {"settings": {"RLMM_DRAIN_TIMEOUT_MS": 20_000}, "terminationGracePeriodSeconds": 46}
    rlmm = render(minimal({"rlmm": values})).one("Deployment", "sediment-rlmm")
    assert pod_spec(rlmm)["terminationGracePeriodSeconds"] == 46


def test_rsm_has_the_grace_that_a_silent_store_may_take() -> None:
    fields = RsmSettings.model_fields
    drain_ms, connect_ms, read_ms = (
        fields[name].default
        for name in ("drain_timeout_ms", "connect_timeout_ms", "read_timeout_ms")
    )
    request_and_clean_up_s = (2 * connect_ms + read_ms) // 1000 + 2 * int(CLEAN_UP_S)
    least_s = 5 + drain_ms // 1000 + request_and_clean_up_s
    with pytest.raises(ChartRefusedError, match=f"more than {least_s} are needed"):
        render(minimal({"rsm": {"terminationGracePeriodSeconds": least_s}}))
    render(minimal({"rsm": {"terminationGracePeriodSeconds": least_s + 1}}))


@pytest.mark.parametrize("where", ["defaults", "rsm"])
def test_without_seconds_there_is_no_pre_stop_hook(where: str) -> None:
    assert _lifecycle({}) == {"preStop": {"sleep": {"seconds": 5}}}
    # API servers before 1.33 refuse a sleep of 0; their schemas do not say so.
    assert _lifecycle({where: {"preStopSeconds": 0}}) is None


def test_without_sweeps_no_spark_image_is_needed() -> None:
    off = {"enabled": False}
    values = {"sparkImage": {"repository": ""}, "sweeps": {"retention": off, "removal": off}}
    jobs = render(minimal(values)).of_kind("CronJob")
    assert [job["metadata"]["name"] for job in jobs] == ["sediment-maintenance"]


def test_a_key_of_a_component_wins_over_the_default_and_maps_are_merged() -> None:
    rendered = render(values_files()["full"])
    selectors = {
        name: pod_spec(rendered.one("Deployment", f"kafka-tier-{name}"))["nodeSelector"]
        for name in ("rsm", "rlmm")
    }
    shared = {"kubernetes.io/arch": "amd64"}
    assert selectors == {"rsm": shared, "rlmm": {**shared, "example.com/zone": "a"}}
    (rlmm,) = pod_spec(rendered.one("Deployment", "kafka-tier-rlmm"))["containers"]
    secrets = ["RLMM_DATABASE_URL", "RLMM_DATABASE_PASSWORD_FILE"]
    assert [entry["name"] for entry in rlmm["env"]] == [*PROCESS_VARIABLES, *secrets]


def test_a_variable_of_the_process_may_be_set_to_something_else() -> None:
    shown = [{"name": "GRPC_VERBOSITY", "value": "INFO"}]
    rsm = render(minimal({"rsm": {"extraEnv": shown}})).one("Deployment", "sediment-rsm")
    (container,) = pod_spec(rsm)["containers"]
    # Once: an API server refuses a name that is there twice.
    assert [e for e in container["env"] if e["name"] == "GRPC_VERBOSITY"] == shown


def test_a_setting_restarts_its_own_service_and_no_other() -> None:
    before = _checksums(minimal())
    after = _checksums(minimal({"rsm": {"settings": {"RSM_COPY_THREADS": 9}}}))
    assert before["sediment-rsm"] != after["sediment-rsm"]
    assert before["sediment-rlmm"] == after["sediment-rlmm"]


@pytest.mark.parametrize("owner", ["", "sediment-owner"])
def test_the_owner_of_the_tables_may_have_a_secret_of_its_own(owner: str) -> None:
    rendered = render(minimal({"database": {"passwordKey": "password", "ownerSecret": owner}}))
    for kind, name in [
        ("Deployment", "rlmm"),
        ("Job", "migration"),
        ("CronJob", "maintenance"),
    ]:
        spec = pod_spec(rendered.one(kind, f"sediment-{name}"))
        (volume,) = [v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v]
        (url,) = [e for e in spec["containers"][0]["env"] if e["name"] == "RLMM_DATABASE_URL"]
        used = {volume, url["valueFrom"]["secretKeyRef"]["name"]}
        assert used == {"sediment-database" if name == "rlmm" or not owner else owner}


def test_secrets_are_files_if_a_program_reads_files() -> None:
    rendered = render(minimal({"database": {"passwordKey": "password"}}))
    for kind, name, secret, path, items in [
        ("Deployment", "rsm", "object-store", "object-store", ["access-key", "secret-key"]),
        ("Deployment", "rlmm", "database", "database", ["password"]),
        ("Job", "migration", "database", "database", ["password"]),
        ("CronJob", "maintenance", "database", "database", ["password"]),
    ]:
        spec = pod_spec(rendered.one(kind, f"sediment-{name}"))
        (volume,) = [v for v in spec["volumes"] if "secret" in v]
        assert volume["secret"]["secretName"] == f"sediment-{secret}"
        assert [item["path"] for item in volume["secret"]["items"]] == items
        mounts = spec["containers"][0]["volumeMounts"]
        (mount,) = [each for each in mounts if each["name"] == volume["name"]]
        # Not a subPath, which would keep the files as they were at the start.
        assert mount == {
            "name": volume["name"],
            "mountPath": f"/etc/sediment/{path}",
            "readOnly": True,
        }
    assert "RSM_SECRET_KEY:" not in str(rendered.objects)


def test_a_role_needs_no_secret() -> None:
    store = {"credentials": "aws", "existingSecret": ""}
    rendered = render(minimal({"objectStore": store}))
    data = rendered.one("ConfigMap", "sediment-rsm")["data"]
    assert data["RSM_CREDENTIALS"] == "aws"
    assert "RSM_SECRET_KEY_FILE" not in data
    assert "volumes" not in pod_spec(rendered.one("Deployment", "sediment-rsm"))


def test_large_numbers_are_written_out() -> None:
    data = render(values_files()["full"]).one("ConfigMap", "kafka-tier-rlm")["data"]
    assert data["RLM_REMOTE_LOG_INDEX_CACHE_MEMORY_BYTES"] == "268435456"


def test_sweeps_only_report_unless_set_to_apply() -> None:
    assert all("--apply" not in arguments for arguments in _sweeps("minimal"))
    assert all("--apply" in arguments for arguments in _sweeps("sweeps-applied"))


def test_a_sweep_has_the_budget_that_it_is_given_or_its_own() -> None:
    for arguments in _sweeps("minimal"):
        budgets = [argument for argument in arguments if argument.startswith("--max-")]
        assert budgets == ["--max-segments=10000"]
    budget = {"--max-segments=1000000", "--max-bytes=1099511627776"}
    assert any(budget <= set(arguments) for arguments in _sweeps("full"))
    for given, passed in [(0, ["--max-segments=0"]), (None, [])]:
        values = minimal({"sweeps": {"retention": {"maxSegments": given}}})
        job = render(values).one("CronJob", "sediment-retention-sweep")
        arguments = pod_spec(job)["containers"][0]["args"]
        assert [text for text in arguments if text.startswith("--max-")] == passed


def test_maintenance_keeps_rows_for_the_configured_times() -> None:
    for file, name, kept in [
        ("minimal", "sediment-maintenance", ("86400000", "90")),
        ("full", "kafka-tier-maintenance", ("604800000", "365")),
    ]:
        job = render(values_files()[file]).one("CronJob", name)
        (container,) = pod_spec(job)["containers"]
        assert container["command"] == ["sediment", "db", "maintain"]
        assert container["args"] == [
            f"--delete-retention-ms={kept[0]}",
            f"--events-days={kept[1]}",
            "--anomalies-days=90",
            "--output=json",
        ]


def test_the_maintenance_keeps_state_in_the_bucket_as_a_keeper() -> None:
    keeps = {"maintenance": {"keepState": True}}
    plain = pod_spec(render(minimal(keeps)).one("CronJob", "sediment-maintenance"))
    assert "--rsm=sediment-rsm.tier.svc:50051" in plain["containers"][0]["args"]
    assert {"name": "SEDIMENT_PLAINTEXT", "value": "true"} in plain["containers"][0]["env"]
    found = render(changed(values_files()["cert-manager"], keeps))
    pod = pod_spec(found.one("CronJob", "sediment-maintenance"))
    assert {v["name"]: v for v in pod["volumes"]}["tls"]["secret"]["secretName"] == (
        found.one("Certificate", "sediment-maintenance-tls")["spec"]["secretName"]
    )
    policy = found.one("ConfigMap", "sediment-policy")["data"]["policy.toml"]
    assert '/sa/sediment-maintenance"]\nroles = ["keeper"]' in policy


def test_without_the_maintenance_nothing_of_it_is_rendered() -> None:
    for values in (minimal({"maintenance": {"enabled": False}}), values_files()["sweeps-applied"]):
        names = [o["metadata"]["name"] for o in render(values).objects]
        assert [name for name in names if "maintenance" in name] == []


def test_a_cron_job_never_runs_twice_at_once_and_is_never_repeated_by_itself() -> None:
    jobs = render(minimal()).of_kind("CronJob")
    assert len(jobs) == 3
    for job in jobs:
        spec = job["spec"]["jobTemplate"]["spec"]
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        assert job["spec"]["startingDeadlineSeconds"]
        assert (spec["backoffLimit"], pod_spec(job)["restartPolicy"]) == (0, "Never")
        assert spec["activeDeadlineSeconds"]


def test_the_migration_and_its_account_come_before_everything_else() -> None:
    rendered = render(minimal())
    hooks = {
        kind: rendered.one(kind, "sediment-migration")["metadata"]["annotations"]
        for kind in ("ServiceAccount", "Job")
    }
    assert {hook["helm.sh/hook"] for hook in hooks.values()} == {"pre-install,pre-upgrade"}
    weights = {kind: int(hook["helm.sh/hook-weight"]) for kind, hook in hooks.items()}
    assert weights["ServiceAccount"] < weights["Job"]
    # Else Helm takes the account from a job that still goes on when Helm has stopped waiting.
    policy = hooks["ServiceAccount"]["helm.sh/hook-delete-policy"]
    assert policy == "before-hook-creation"


def test_only_rlm_mounts_the_secret_of_its_kafka_client() -> None:
    where = "/etc/sediment/kafka"
    mount = {"name": "kafka-client", "mountPath": where, "readOnly": True}
    values = {
        **RLM,
        "extraVolumes": [{"name": "kafka-client", "secret": {"secretName": "rlm-kafka-client"}}],
        "extraVolumeMounts": [mount],
        "settings": {
            "RLM_PARTITION_SOURCE": "poller",
            "RLM_BOOTSTRAP_SERVERS": "kafka:9093",
            "RLM_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "RLM_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
            "RLM_KAFKA_USERNAME": "rlm",
            "RLM_KAFKA_PASSWORD_FILE": f"{where}/password",
        },
    }
    rendered = render(minimal({"rlm": values}))
    config = rendered.one("ConfigMap", "sediment-rlm")["data"]
    assert config["RLM_KAFKA_PASSWORD_FILE"] == f"{where}/password"
    (container,) = pod_spec(rendered.one("DaemonSet", "sediment-rlm"))["containers"]
    assert mount in container["volumeMounts"]
    for other in rendered.of_kind("Deployment"):
        assert "kafka-client" not in str(other)


def test_notes_name_the_service_addresses_and_dry_run_sweeps() -> None:
    notes = render(minimal()).notes
    assert "sediment-rsm.tier.svc:50051" in notes
    assert "Set sweeps.retention.apply=true" in notes
    applied = render(values_files()["sweeps-applied"]).notes
    assert "only reports" not in applied


def _checksums(values: dict[str, Any]) -> dict[str, str]:
    def checksum(o: Object) -> str:
        return str(o["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    return {o["metadata"]["name"]: checksum(o) for o in render(values).of_kind("Deployment")}


def _lifecycle(change: dict[str, Any]) -> object:
    rsm = render(minimal(change)).one("Deployment", "sediment-rsm")
    return pod_spec(rsm)["containers"][0].get("lifecycle")


def _sweeps(file: str) -> list[list[str]]:
    """The arguments of each sweep's CronJob."""
    jobs = [
        job
        for job in render(values_files()[file]).of_kind("CronJob")
        if job["metadata"]["name"].endswith("-sweep")
    ]
    assert len(jobs) == 2
    return [pod_spec(job)["containers"][0]["args"] for job in jobs]


def test_a_migration_that_no_retry_helps_fails_at_once_and_is_deleted_in_time() -> None:
    spec = render(minimal()).one("Job", "sediment-migration")["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    codes = rule["onExitCodes"]
    assert codes["values"] == [EXIT_USAGE, EXIT_REFUSED]
    (container,) = spec["template"]["spec"]["containers"]
    assert codes["containerName"] == container["name"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["ttlSecondsAfterFinished"] == 7 * 24 * 3600


@pytest.mark.parametrize(
    ("values", "place", "value"),
    [
        (
            {"rsm": {"resources": {"limits": {"memory": "1GB"}}}},
            "rsm/resources/limits/memory",
            "1GB",
        ),
        ({"maintenance": {"schedule": "hourly"}}, "maintenance/schedule", "hourly"),
        (
            {"sweeps": {"retention": {"schedule": "0 3 * *"}}},
            "sweeps/retention/schedule",
            "0 3 * *",
        ),
    ],
)
def test_an_amount_or_a_schedule_that_kubernetes_would_refuse_is_named(
    values: dict[str, Any], place: str, value: str
) -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render(minimal(values))
    assert f"at '/{place}': '{value}' does not match pattern" in str(refused.value)


@pytest.mark.parametrize("amount", ["512Mi", "1.5Gi", "1073741824", "1G", "1e9", ".5Gi", "1Ei"])
def test_amounts_of_kubernetes_are_taken(amount: str) -> None:
    render(minimal({"rsm": {"resources": {"limits": {"memory": amount}}}}))


def test_disk_of_the_node_may_be_requested_and_limited_for_every_pod() -> None:
    """Look at executors, too, of whose resources Spark sets CPU and memory only."""
    disk = {"requests": {"ephemeral-storage": "1Gi"}, "limits": {"ephemeral-storage": "4Gi"}}
    pods = ("rsm", "rlmm", "migration", "maintenance", "sweeps", "checks", "selftest")
    given: dict[str, Any] = {name: {"resources": disk} for name in pods}
    given["sweeps"]["executors"] = {"resources": disk}
    given["checks"]["reconcile"] = {"enabled": True}
    found = render(changed(values_files()["executors"], given))
    workloads = found.of_kind("Deployment", "Job", "CronJob")
    specs = [pod_spec(workload) for workload in workloads]
    template = found.one("ConfigMap", "sediment-sweep-executor")["data"]["pod.yaml"]
    for spec in [*specs, yaml.safe_load(template)["spec"]]:
        (container,) = spec["containers"]
        assert container["resources"]["requests"]["ephemeral-storage"] == "1Gi"
        assert container["resources"]["limits"]["ephemeral-storage"] == "4Gi"


@pytest.mark.parametrize("component", ["rlmm", "sweeps"])
def test_a_limit_of_disk_that_the_scratch_volume_alone_reaches_is_refused(component: str) -> None:
    def limit(amount: str) -> dict[str, Any]:
        resources = {"limits": {"ephemeral-storage": amount}}
        return minimal({component: {"resources": resources, "scratchSizeLimit": "2Gi"}})

    render(limit("3Gi"))
    render(minimal({component: {"resources": None}}))
    sentence = f"{component}.resources.limits.ephemeral-storage is 2Gi and"
    with pytest.raises(ChartRefusedError, match=sentence):
        render(limit("2Gi"))


def test_a_limit_of_disk_of_executors_is_larger_than_their_volume() -> None:
    def limit(amount: str) -> dict[str, Any]:
        executors = {"resources": {"limits": {"ephemeral-storage": amount}}}
        sweeps = {"scratchSizeLimit": "20Gi", "executors": executors}
        return changed(values_files()["executors"], {"sweeps": sweeps})

    render(limit("21Gi"))
    sentence = "sweeps.executors.resources.limits.ephemeral-storage is 20Gi and sweeps.scratch"
    with pytest.raises(ChartRefusedError, match=sentence):
        render(limit("20Gi"))


@pytest.mark.parametrize("name", ["elsewhere", "sidecar"])
def test_a_limit_of_disk_of_rlm_is_larger_than_its_index_cache(name: str) -> None:
    def limit(amount: str, cache: dict[str, Any]) -> dict[str, Any]:
        resources = {"limits": {"ephemeral-storage": amount}}
        rlm = {"resources": resources, "indexCache": {"totalSizeBytes": 2**30}}
        return changed(values_files()[name], {"rlm": rlm}, {"rlm": {"indexCache": cache}})

    render(limit("2Gi", {}))
    render(limit("1Gi", {"totalSizeBytes": 0}))
    render(limit("1Gi", {"source": {"hostPath": {"path": "/mnt/cache"}}}))
    sentence = r"rlm.resources.limits.ephemeral-storage is 1Gi .* is 1358954496, which counts"
    with pytest.raises(ChartRefusedError, match=sentence):
        render(limit("1Gi", {}))


@pytest.mark.parametrize(
    "schedule", ["@hourly", "@midnight", "@every 1h", "*/5 0-6 * * 1,2", "0  3 * * * "]
)
def test_schedules_of_cron_are_taken(schedule: str) -> None:
    render(minimal({"maintenance": {"schedule": schedule}}))
