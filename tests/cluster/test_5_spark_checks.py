"""The checks of the chart on Spark: on the threads of their pods, and with executors in others."""

from typing import Any

import pytest

from tests.cluster.brokers import Broker
from tests.cluster.executors import Seen, watched, with_an_executor
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


@pytest.fixture(scope="module")
def with_executors(on_spark: Release) -> Release:
    on_spark.upgrade(with_an_executor(on_spark.cluster, "checks"))
    return on_spark


@pytest.fixture(scope="module", params=["reconcile", "scrub"])
def checked(with_executors: Release, request: pytest.FixtureRequest) -> Seen:
    """What was seen of a check with an executor's pod, which found nothing wrong."""
    check = str(request.param)
    seen = watched(with_executors, f"{check}-executors", check, "check-executor")
    report = report_of(with_executors, seen.job)
    assert report.get("verified", report["segments"]) == report["segments"] > 0
    assert set(report["anomalies"].values()) == {0}
    return seen


def test_executors_of_a_check_are_restricted_pods_of_the_release(checked: Seen) -> None:
    checked.require_executors_of_the_release()
    checked.require_restricted_executors()


def test_a_check_and_its_executors_may_open_what_they_open(
    checked: Seen, with_executors: Release
) -> None:
    checked.require_allowed_connections(with_executors.cluster)


def test_no_executor_of_a_check_is_left(checked: Seen, with_executors: Release) -> None:
    checked.require_no_executor_left(with_executors.cluster)
