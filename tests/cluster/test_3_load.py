"""Calls of clients succeed while the release is upgraded, rolled back, and loses pods."""

import pytest

from tests.cluster.brokers import Broker
from tests.cluster.clients import load
from tests.cluster.cluster import Cluster
from tests.cluster.release import TIER, Release

pytestmark = pytest.mark.cluster


def test_no_call_fails_during_an_upgrade_and_a_rollback(release: Release, shipped: Broker) -> None:
    before = pods(release.cluster)
    with load(shipped):
        release.upgrade({"defaults": {"podAnnotations": {"example.com/changed": "yes"}}})
        upgraded = pods(release.cluster)
        release.cluster.run(["helm", "rollback", "sediment", "--namespace", TIER, "--wait"])
        after = pods(release.cluster)
    assert not before & upgraded
    assert not upgraded & after


@pytest.mark.parametrize("component", ["rsm", "rlmm"])
def test_no_call_fails_while_pods_are_deleted(
    component: str, release: Release, shipped: Broker
) -> None:
    """Delete one pod after the other, as the drain of a node does."""
    cluster = release.cluster
    names = sorted(name for name in pods(cluster) if name.startswith(f"sediment-{component}-"))
    assert len(names) == 2
    with load(shipped):
        for name in names:
            cluster.kubectl("--namespace", TIER, "delete", "pod", name)
            status = ["rollout", "status", f"deployment/sediment-{component}"]
            cluster.kubectl("--namespace", TIER, *status)
    assert not set(names) & pods(cluster)


def pods(cluster: Cluster) -> set[str]:
    """Return the names of the pods of both services that do not end."""
    selector = "--selector=app.kubernetes.io/component in (rsm,rlmm)"
    found = cluster.get("--namespace", TIER, "pods", selector)["items"]
    return {p["metadata"]["name"] for p in found if "deletionTimestamp" not in p["metadata"]}
