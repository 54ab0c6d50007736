"""What a value changes that no case in tests/helm/cases says: times, checksums, every pod."""

from typing import Any

import pytest
import yaml

from services.cli.output import EXIT_REFUSED, EXIT_USAGE
from services.rsm.deadline import CLEAN_UP_S
from services.rsm.settings import RsmSettings
from tests.helm.chart import (
    BASES,
    ChartRefusedError,
    changed,
    lint,
    minimal,
    pod_spec,
    render,
    values_files,
)

pytestmark = pytest.mark.helm


def test_everything_missing_is_reported_together() -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render({})
    assert str(refused.value).count(" is empty: ") == 7


def test_a_mistake_in_the_defaults_is_reported_once_and_not_for_every_pod() -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render(minimal({"defaults": {"extraVolumes": [{"name": "scratch", "emptyDir": {}}]}}))
    assert str(refused.value).count("the name scratch") == 1


def test_helm_lint_finds_a_mistake() -> None:
    assert lint(minimal({"databse": {}}))
    assert lint(minimal({"rsm": {"replicas": 0}}))


@pytest.mark.parametrize(
    "values",
    [{"trial": True}, changed(BASES["rsm-elsewhere"], BASES["rlmm-elsewhere"])],
    ids=["of a trial", "of parts that are elsewhere"],
)
def test_helm_lint_finds_nothing(values: dict[str, Any]) -> None:
    assert lint(values) == []


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


def test_a_setting_restarts_its_own_service_and_no_other() -> None:
    def checksums(values: dict[str, Any]) -> dict[str, str]:
        return {
            o["metadata"]["name"]: o["spec"]["template"]["metadata"]["annotations"][
                "checksum/config"
            ]
            for o in render(values).of_kind("Deployment")
        }

    before = checksums(minimal())
    after = checksums(minimal({"rsm": {"settings": {"RSM_COPY_THREADS": 9}}}))
    assert before["sediment-rsm"] != after["sediment-rsm"]
    assert before["sediment-rlmm"] == after["sediment-rlmm"]


def test_a_cron_job_never_runs_twice_at_once_and_is_never_repeated_by_itself() -> None:
    jobs = render(minimal()).of_kind("CronJob")
    assert len(jobs) == 3
    for job in jobs:
        spec = job["spec"]["jobTemplate"]["spec"]
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        assert job["spec"]["startingDeadlineSeconds"]
        assert (spec["backoffLimit"], pod_spec(job)["restartPolicy"]) == (0, "Never")
        assert spec["activeDeadlineSeconds"]


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


AMOUNTS = ["512Mi", "1.5Gi", "1073741824", "1G", "1e9", ".5Gi", "1Ei"]
SCHEDULES = ["@hourly", "@midnight", "@every 1h", "*/5 0-6 * * 1,2", "0  3 * * * "]


def test_amounts_of_kubernetes_and_schedules_of_cron_are_accepted() -> None:
    for amount in AMOUNTS:
        render(minimal({"rsm": {"resources": {"limits": {"memory": amount}}}}))
    for schedule in SCHEDULES:
        render(minimal({"maintenance": {"schedule": schedule}}))


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
