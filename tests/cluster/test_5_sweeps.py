"""The sweeps of the chart delete what is due, also with executors of Spark in pods of their own."""

import json

import pytest
import yaml

from tests.cluster.brokers import Broker
from tests.cluster.executors import Seen, watched, with_an_executor
from tests.cluster.guide import blocks
from tests.cluster.jobs import create, report_of
from tests.cluster.release import BROKERS, RLMM, Release

pytestmark = pytest.mark.cluster

_EXPIRED = ("clicks", "payments")
"""Topics that get a retention of 1 ms, one for each run that deletes."""


@pytest.fixture(scope="module")
def alone(release: Release, shipped: Broker, spark_image: None) -> Release:
    """The release without its brokers: only the sweeps change the tier."""
    scale = ["scale", "statefulset/kafka", "--replicas=0"]
    release.cluster.kubectl("--namespace", BROKERS, *scale)
    wait = ["wait", "pod", "--for=delete", "--selector=app=kafka", "--timeout=300s"]
    release.cluster.kubectl("--namespace", BROKERS, *wait)
    return release


def test_a_retention_sweep_only_reports_at_first(alone: Release) -> None:
    expire(alone, _EXPIRED[0])
    before = segments(alone, _EXPIRED[0])
    look, _ = blocks("Sweeps", "sh")
    alone.shell(look)
    report = report_of(alone, "retention-look")
    assert report["apply"] is False
    assert report["totals"]["planned_segments"] == before > 0
    assert segments(alone, _EXPIRED[0]) == before


def test_a_retention_sweep_deletes_when_it_may(alone: Release) -> None:
    alone.upgrade(yaml.safe_load(blocks("Sweeps", "yaml")[0]))
    create(alone, "retention-now", "sediment-retention-sweep")
    report = report_of(alone, "retention-now")
    assert report["totals"]["deleted_segments"] == report["totals"]["planned_segments"] > 0
    assert segments(alone, _EXPIRED[0]) == 0


@pytest.fixture(scope="module")
def swept(alone: Release) -> Seen:
    """What was seen of a sweep with an executor's pod, which deleted all that had expired."""
    expire(alone, _EXPIRED[1])
    alone.upgrade(with_an_executor(alone.cluster, "sweeps"))
    seen = watched(alone, "spark-now", "retention-sweep", "sweep-executor")
    report = report_of(alone, seen.job)
    assert report["engine"] == "spark"
    assert report["totals"]["deleted_segments"] == report["totals"]["planned_segments"] > 0
    assert segments(alone, _EXPIRED[1]) == 0
    return seen


def test_executors_are_pods_of_the_release(swept: Seen) -> None:
    swept.require_executors_of_the_release()


def test_executors_are_as_restricted_as_their_driver(swept: Seen) -> None:
    swept.require_restricted_executors()


def test_driver_and_executors_may_talk_to_each_other(swept: Seen, alone: Release) -> None:
    swept.require_allowed_connections(alone.cluster)


def test_no_executor_is_left(swept: Seen, alone: Release) -> None:
    swept.require_no_executor_left(alone.cluster)


def expire(release: Release, topic: str) -> None:
    settings = ["retention.ms=1", "sediment.retention.owner=sweep", "--now"]
    release.sediment("topics", "set", topic, *settings, f"--rlmm={RLMM}")


def segments(release: Release, topic: str) -> int:
    """Count the finished segments of a topic's two partitions."""
    found = [
        json.loads(line)
        for partition in (0, 1)
        for line in release.sediment(
            "segments", f"{topic}-{partition}", f"--rlmm={RLMM}", "--output=json"
        ).splitlines()
    ]
    return sum(one["state"] == "COPY_SEGMENT_FINISHED" for one in found)
