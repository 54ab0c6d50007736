"""A trial brings all it needs, also in a namespace whose pod security standard is `restricted`."""

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.guide import blocks, builds
from tests.cluster.images import ensure_image
from tests.cluster.release import TRIAL, Release
from tests.helm.chart import CHART
from tests.helm.dockerfile import ROOT

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def commands() -> list[str]:
    """The guide's commands to try the chart: two that give an image to the cluster, two of Helm."""
    return blocks("To try it", "sh")[0].splitlines()


@pytest.fixture(scope="module")
def trial(cluster: Cluster, commands: list[str]) -> Release:
    _, load, install, _ = commands
    (build,) = builds(commands[0])
    assert load.endswith(f" {build.name}")
    # A name without a registry is one of Docker Hub.
    name = f"docker.io/library/{build.name}"
    cluster.load(ensure_image(ROOT / "docker" / build.dockerfile, name, build.arguments))
    directory = cluster.directory / "trial"
    directory.mkdir()
    (directory / "helm").symlink_to(CHART)
    made = Release(cluster, directory)
    cluster.kubectl("create", "namespace", TRIAL)
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", TRIAL, label)
    made.shell(install)
    return made


def test_a_segment_goes_through_a_trial(trial: Release, commands: list[str]) -> None:
    assert "Phase:          Succeeded" in trial.shell(commands[3])


def test_an_upgrade_keeps_the_passwords_and_the_data(trial: Release) -> None:
    """Upgrade with other values: the pod with the data is not replaced."""
    secret = ["--namespace", TRIAL, "secret", "sediment-trial"]
    pods = ["--namespace", TRIAL, "pods", "--selector=app.kubernetes.io/component=trial"]
    cluster = trial.cluster
    before = [cluster.get(*secret)["data"], cluster.get(*pods)["items"][0]["metadata"]["uid"]]
    change = "--set=trial=true,maintenance.suspend=true"
    trial.shell(f"helm upgrade sediment helm --namespace {TRIAL} {change} --wait")
    after = [cluster.get(*secret)["data"], cluster.get(*pods)["items"][0]["metadata"]["uid"]]
    assert after == before


def test_nothing_of_a_trial_is_left(trial: Release) -> None:
    cluster = trial.cluster
    cluster.run(["helm", "uninstall", "sediment", "--namespace", TRIAL])
    wait = ["wait", "pod", "--for=delete", "--all", "--timeout=300s"]
    cluster.kubectl(
        "--namespace", TRIAL, "delete", "pod", "sediment-selftest", "--ignore-not-found"
    )
    cluster.kubectl("--namespace", TRIAL, *wait)
    left = cluster.kubectl("--namespace", TRIAL, "get", "all,secrets", "--output=name")
    assert left.split() == []
