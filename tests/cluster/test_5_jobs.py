"""Jobs of the chart: maintenance and check when made by hand, and a migration that cannot work."""

import json
from typing import Any

import pytest
import yaml

from tests.cluster.brokers import Broker
from tests.cluster.cluster import CommandFailedError
from tests.cluster.guide import blocks
from tests.cluster.release import TIER, Release

pytestmark = pytest.mark.cluster

_AWAY = "away"
"""A namespace for a release whose database is not there."""


def test_the_maintenance_runs(release: Release) -> None:
    release.shell(blocks("Maintenance of the database", "sh")[0])
    assert last_line(release, "maintenance-now")["tombstones"] == 0


def test_reconcile_finds_nothing_wrong(release: Release, shipped: Broker) -> None:
    checks = blocks("Checks of the object store", "yaml")[0]
    release.upgrade(yaml.safe_load(checks))
    create = ["create", "job", "reconcile-now", "--from=cronjob/sediment-reconcile"]
    release.cluster.kubectl("--namespace", TIER, *create)
    report = last_line(release, "reconcile-now")
    assert report["objects"] > 0
    assert report["segments"] > 0
    assert set(report["anomalies"].values()) == {0}


def test_the_log_of_a_failed_migration_names_the_database(release: Release) -> None:
    cluster = release.cluster
    host = f"postgres.{_AWAY}.svc:5432/sediment"
    cluster.kubectl("create", "namespace", _AWAY)
    parts = [f"--from-literal=url=postgresql://rlmm@{host}", "--from-literal=password=any"]
    secret = ["create", "secret", "generic", "sediment-database", *parts]
    cluster.kubectl("--namespace", _AWAY, *secret)
    once = ["--namespace", _AWAY, "--values", "values.yaml", "--set=migration.backoffLimit=0"]
    with pytest.raises(CommandFailedError, match="sediment-migration"):
        cluster.run(["helm", "install", "sediment", "helm", *once], release.directory)
    log = cluster.kubectl("--namespace", _AWAY, "logs", "job/sediment-migration")
    assert host in log
    assert f"failed to resolve host 'postgres.{_AWAY}.svc'" in log


def last_line(release: Release, job: str) -> dict[str, Any]:
    """Wait until a job has completed, and return its report."""
    wait = ["wait", f"job/{job}", "--for=condition=Complete", "--timeout=120s"]
    release.cluster.kubectl("--namespace", TIER, *wait)
    log = release.cluster.kubectl("--namespace", TIER, "logs", f"job/{job}")
    report: dict[str, Any] = json.loads(log.splitlines()[-1])
    return report
