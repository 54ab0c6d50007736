"""An installation that cannot work says why, and leaves nothing that runs."""

import re

import pytest

from services.local.stack import DATABASE, LOGIN
from services.local.trial import POSTGRES_PORT
from tests.cluster.cluster import Cluster, CommandFailedError
from tests.cluster.release import TIER, Release
from tests.cluster.stores import NAMESPACE, Stores
from tests.harness.eventually import eventually

pytestmark = pytest.mark.cluster

_AWAY = "away"
"""A namespace for a release whose database is not there."""

_SECOND = "second"
"""A namespace for a release that is given the bucket of the first."""

_RUNNING = "deployments,daemonsets,cronjobs,services,configmaps"
_OF_THE_NAMESPACE = {"configmap/kube-root-ca.crt"}
_DATABASE = f"postgres.{NAMESPACE}.svc:{POSTGRES_PORT}/{DATABASE}"


def test_the_log_of_a_failed_migration_names_the_database(release: Release) -> None:
    cluster = release.cluster
    host = f"postgres.{_AWAY}.svc:5432/sediment"
    cluster.kubectl("create", "namespace", _AWAY)
    create_database_secret(cluster, _AWAY, f"rlmm@{host}", "any")
    with pytest.raises(CommandFailedError, match="sediment-migration"):
        install(release, _AWAY, "--set=migration.backoffLimit=0")
    log = cluster.kubectl("--namespace", _AWAY, "logs", "job/sediment-migration")
    assert host in log
    assert f"failed to resolve host 'postgres.{_AWAY}.svc'" in log
    assert left(cluster, _AWAY) == set()


@pytest.fixture(scope="module")
def second(release: Release) -> Cluster:
    release.cluster.kubectl("create", "namespace", _SECOND)
    return release.cluster


def test_a_missing_secret_is_named(release: Release, second: Cluster) -> None:
    """Let Helm give up while the pod of the migration still waits for its password's file."""
    with pytest.raises(CommandFailedError, match="sediment-migration"):
        install(release, _SECOND, "--timeout=10s")
    pods = ["--namespace", _SECOND, "describe", "pod"]
    named = r'(?i)secret "sediment-database" not found'
    eventually(lambda: re.search(named, second.kubectl(*pods)) is not None, poll_ms=500)
    assert left(second, _SECOND) == set()


def test_the_bucket_of_another_deployment_is_refused(
    release: Release, second: Cluster, stores: Stores
) -> None:
    """Give what was missing before, and then a prefix of its own: the guide's command goes on."""
    create_database_secret(second, _SECOND, f"{LOGIN}@{_DATABASE}", stores.password)
    keys = stores.keys
    parts = [f"access-key={keys.access_key}", f"secret-key={keys.secret_key}"]
    create_secret(second, _SECOND, "sediment-object-store", *parts)
    with pytest.raises(CommandFailedError, match="sediment-rsm"):
        install(release, _SECOND, "--timeout=30s")
    log = second.kubectl("--namespace", _SECOND, "logs", "deployment/sediment-rsm")
    assert f"deployment '{TIER}.sediment'" in log
    assert f"of deployment '{_SECOND}.sediment'" in log
    assert "use another bucket or prefix" in log
    install(release, _SECOND, "--set=objectStore.prefix=second/")
    second.run(["helm", "uninstall", "sediment", "--namespace", _SECOND, "--wait"])
    assert left(second, _SECOND) == set()


def install(release: Release, namespace: str, *options: str) -> str:
    """Install into another namespace, with the values of the guide.

    Raises:
        CommandFailedError: Helm gave up.
    """
    command = ["helm", "upgrade", "--install", "sediment", "helm", "--namespace", namespace]
    own = ["--values=values.yaml", "--wait", *options]
    return release.cluster.run([*command, *own], release.directory)


def left(cluster: Cluster, namespace: str) -> set[str]:
    """Return what would run, be called or be read."""
    get = ["--namespace", namespace, "get", _RUNNING, "--output=name"]
    return set(cluster.kubectl(*get).split()) - _OF_THE_NAMESPACE


def create_database_secret(cluster: Cluster, namespace: str, url: str, password: str) -> None:
    parts = [f"url=postgresql://{url}", f"password={password}"]
    create_secret(cluster, namespace, "sediment-database", *parts)


def create_secret(cluster: Cluster, namespace: str, name: str, *parts: str) -> None:
    literals = [f"--from-literal={part}" for part in parts]
    cluster.kubectl("--namespace", namespace, "create", "secret", "generic", name, *literals)
