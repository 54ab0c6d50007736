"""The commands of the guide install a release that works."""

import json

import pytest

from tests.cluster.guide import blocks
from tests.cluster.release import TIER, Release

pytestmark = pytest.mark.cluster


def test_every_pod_is_ready(release: Release) -> None:
    """Look at what `helm upgrade --install --wait` and `kubectl rollout status` waited for."""
    deployments = release.cluster.get("--namespace", TIER, "deployments")["items"]
    counts = {
        d["metadata"]["name"]: (d["spec"]["replicas"], d["status"].get("readyReplicas"))
        for d in deployments
    }
    assert counts == {"sediment-rsm": (2, 2), "sediment-rlmm": (2, 2)}


def test_no_pod_was_restarted(release: Release) -> None:
    pods = release.cluster.get("--namespace", TIER, "pods")["items"]
    restarts = {
        pod["metadata"]["name"]: status["restartCount"]
        for pod in pods
        for status in pod["status"]["containerStatuses"]
    }
    assert restarts == dict.fromkeys(restarts, 0)


def test_the_namespace_enforces_the_restricted_standard(release: Release) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "root", "namespace": TIER},
        "spec": {"containers": [{"name": "root", "image": "localhost/pause:1"}]},
    }
    with pytest.raises(AssertionError, match='violates PodSecurity "restricted'):
        release.cluster.kubectl("apply", "--filename=-", stdin=json.dumps(pod))


def test_helm_test_passes(release: Release) -> None:
    """Run `sediment selftest` in a pod of the release, with the guide's command."""
    printed = release.shell(blocks("Install", "sh")[1])
    assert "Phase:          Succeeded" in printed
    assert '"deleted"' in printed or '"delete"' in printed
