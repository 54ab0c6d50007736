"""After the guide's commands nothing of the release is left."""

import pytest

from tests.cluster.guide import blocks
from tests.cluster.release import TIER, Release

pytestmark = pytest.mark.cluster

_SECRETS = {"sediment-database", "sediment-object-store"}
_OF_AN_OPERATOR = {"persistentvolumeclaim/checks", "persistentvolumeclaim/sweeps"}
"""test_5_spark_checks and test_5_sweeps make them, as the guide lets an operator make one."""

_OF_THE_NAMESPACE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}


def test_nothing_of_the_release_is_left(release: Release) -> None:
    before = objects(release)
    assert "deployment.apps/sediment-rsm" in before
    for command in blocks("Uninstall", "sh"):
        release.shell(command)
    selector = "app.kubernetes.io/instance=sediment"
    wait = ["wait", "pod", "--for=delete", f"--selector={selector}", "--timeout=300s"]
    release.cluster.kubectl("--namespace", TIER, *wait)
    kept = {f"secret/{name}" for name in _SECRETS} | _OF_THE_NAMESPACE | _OF_AN_OPERATOR
    assert objects(release) - kept == set()


def objects(release: Release) -> set[str]:
    """Return all objects in the release's namespace, without events, which expire by themselves."""
    listed = ["api-resources", "--namespaced", "--verbs=list", "--output=name"]
    kinds = [kind for kind in release.cluster.kubectl(*listed).split() if "events" not in kind]
    get = ["get", ",".join(kinds), "--output=name", "--ignore-not-found"]
    return set(release.cluster.kubectl("--namespace", TIER, *get).split())
