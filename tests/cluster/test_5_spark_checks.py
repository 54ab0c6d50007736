"""The checks of the chart on Spark, on the threads of their pods."""

from typing import Any

import pytest

from tests.cluster.brokers import Broker
from tests.cluster.jobs import create, report_of
from tests.cluster.release import Release

pytestmark = pytest.mark.cluster

_ON_SPARK: dict[str, Any] = {
    "checks": {
        "engine": "spark",
        "resources": {"limits": {"memory": "3Gi"}},
        "reconcile": {"enabled": True},
        "scrub": {"enabled": True},
    }
}


@pytest.fixture(scope="module")
def on_spark(release: Release, shipped: Broker, spark_image: None) -> Release:
    release.upgrade(_ON_SPARK)
    return release


def test_reconcile_on_spark_finds_nothing_wrong(on_spark: Release) -> None:
    create(on_spark, "reconcile-spark", "sediment-reconcile")
    report = report_of(on_spark, "reconcile-spark")
    assert report["objects"] > 0
    assert report["segments"] > 0
    assert set(report["anomalies"].values()) == {0}


def test_scrub_on_spark_finds_nothing_wrong(on_spark: Release) -> None:
    create(on_spark, "scrub-spark", "sediment-scrub")
    report = report_of(on_spark, "scrub-spark")
    assert report["verified"] == report["segments"] > 0
    assert set(report["anomalies"].values()) == {0}
