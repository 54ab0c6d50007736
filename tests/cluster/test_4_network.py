"""The network policies allow every connection that the pods of the release have open.

The cluster enforces no policy: what would be cut off elsewhere works here, and is seen here.
"""

import pytest
import yaml

from services.local.trial import POSTGRES_PORT, STORE_PORT
from tests.cluster.brokers import Broker
from tests.cluster.clients import load
from tests.cluster.cluster import NODE_IP
from tests.cluster.guide import blocks
from tests.cluster.network import Connection, observed, open_connections
from tests.cluster.release import STOCK_BROKERS, TIER, Release
from tests.harness.eventually import eventually

pytestmark = pytest.mark.cluster

_NODE = [{"ipBlock": {"cidr": f"{NODE_IP}/32"}}]
_STORES = {"storeTo": _NODE, "databaseTo": _NODE}
_EXPECTED = {
    ("rsm", True, 50051),
    ("rsm", False, STORE_PORT),
    ("rlmm", True, 50051),
    ("rlmm", False, POSTGRES_PORT),
}
"""What is open under load: component, whether it accepted, port."""


@pytest.fixture(scope="module")
def restricted(release: Release) -> Release:
    """The release with policies that admit the guide's brokers and name the stores' node."""
    (brokers,) = [text for text in blocks(STOCK_BROKERS, "yaml") if "networkPolicy:" in text]
    release.upgrade(yaml.safe_load(brokers))
    release.upgrade({"networkPolicy": {"egress": _STORES}})
    return release


def test_every_open_connection_is_allowed(restricted: Release, rlm_beside: Broker) -> None:
    cluster = restricted.cluster
    network = observed(cluster)
    seen: set[tuple[str, bool, int]] = set()
    forbidden: set[tuple[str, Connection]] = set()

    def everything_was_seen() -> bool:
        for pod in cluster.get("--namespace", TIER, "pods")["items"]:
            component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
            for one in open_connections(pod):
                seen.add((component, one.accepted, one.port))
                if not network.is_allowed(pod, one):
                    forbidden.add((component, one))
        return seen >= _EXPECTED

    with load(rlm_beside):
        eventually(everything_was_seen, poll_ms=100)
    assert not forbidden


def test_every_pod_of_the_release_is_restricted(restricted: Release) -> None:
    """Look also at pods that have ended: those of the self-test and of the jobs before."""
    pods = restricted.cluster.get("--namespace", TIER, "pods")["items"]
    network = observed(restricted.cluster)
    assert "sediment-selftest" in {pod["metadata"]["name"] for pod in pods}
    assert [pod["metadata"]["name"] for pod in pods if not network.is_restricted(pod)] == []


@pytest.mark.parametrize("service", ["rsm", "rlmm"])
def test_the_self_test_may_reach_the_services(service: str, restricted: Release) -> None:
    cluster = restricted.cluster
    selector = f"--selector=app.kubernetes.io/component={service}"
    served = cluster.get("--namespace", TIER, "pods", selector)["items"]
    pod = cluster.get("--namespace", TIER, "pod/sediment-selftest")
    for address in {each["status"]["podIP"] for each in served}:
        assert observed(cluster).is_allowed(pod, Connection(False, address, 50051))


@pytest.mark.parametrize(
    ("component", "connection"),
    [
        ("rsm", Connection(False, NODE_IP, POSTGRES_PORT)),
        ("rlmm", Connection(False, NODE_IP, STORE_PORT)),
        ("rlmm", Connection(False, "10.1.2.3", POSTGRES_PORT)),
        ("rsm", Connection(True, "10.1.2.3", 50051)),
        ("selftest", Connection(False, NODE_IP, STORE_PORT)),
        ("selftest", Connection(True, "10.1.2.3", 50051)),
    ],
)
def test_other_connections_are_not_allowed(
    component: str, connection: Connection, restricted: Release
) -> None:
    selector = f"--selector=app.kubernetes.io/component={component}"
    pods = restricted.cluster.get("--namespace", TIER, "pods", selector)["items"]
    network = observed(restricted.cluster)
    assert pods
    assert not any(network.is_allowed(pod, connection) for pod in pods)
