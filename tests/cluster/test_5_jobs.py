"""Jobs of the chart, made by hand: maintenance and checks."""

import pytest
import yaml

from tests.cluster.brokers import Broker
from tests.cluster.guide import blocks
from tests.cluster.jobs import create, report_of
from tests.cluster.release import Release

pytestmark = pytest.mark.cluster


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
