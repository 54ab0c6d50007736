"""Jobs of the chart: maintenance and check when made by hand, and a migration that cannot work."""

import pytest
import yaml

from tests.cluster.brokers import Broker
from tests.cluster.cluster import CommandFailedError
from tests.cluster.guide import blocks
from tests.cluster.jobs import create, report_of
from tests.cluster.release import Release

pytestmark = pytest.mark.cluster

_AWAY = "away"
"""A namespace for a release whose database is not there."""


def test_the_maintenance_runs(release: Release) -> None:
    release.shell(blocks("Maintenance of the database", "sh")[0])
    assert report_of(release, "maintenance-now")["tombstones"] == 0


def test_reconcile_finds_nothing_wrong(release: Release, shipped: Broker) -> None:
    checks = blocks("Checks of the object store", "yaml")[0]
    release.upgrade(yaml.safe_load(checks))
    create(release, "reconcile-now", "sediment-reconcile")
    report = report_of(release, "reconcile-now")
    assert report["objects"] > 0
    assert report["segments"] > 0
    assert set(report["anomalies"].values()) == {0}


def test_scrub_finds_nothing_wrong(release: Release, shipped: Broker) -> None:
    create(release, "scrub-now", "sediment-scrub")
    report = report_of(release, "scrub-now")
    assert report["verified"] == report["segments"] > 0
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
