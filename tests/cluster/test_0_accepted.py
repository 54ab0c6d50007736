"""The API server takes everything that the chart renders, without anything being made of it."""

import json
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.helm.chart import Object, Values, minimal, render, values_files

pytestmark = pytest.mark.cluster

_NAMESPACE = "accepted"
_OF_OPERATORS = ("cert-manager.io/", "monitoring.coreos.com/")
"""API groups of objects whose definitions their operators bring, which are not here."""

_AUTOSCALERS: dict[str, Any] = {
    "rsm": {
        "autoscaling": {
            "enabled": True,
            "maxReplicas": 8,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
        }
    },
    "rlmm": {
        "autoscaling": {
            "enabled": True,
            "targetCPUUtilizationPercentage": None,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": "sediment_rpc_calls"},
                        "target": {"type": "AverageValue", "averageValue": "50"},
                    },
                }
            ],
        }
    },
}
_VALUES: dict[str, Values] = {
    **values_files(),
    "autoscalers": minimal(_AUTOSCALERS),
    "trial": {"trial": True},
}


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> str:
    cluster.kubectl("create", "namespace", _NAMESPACE)
    return _NAMESPACE


@pytest.mark.parametrize("name", _VALUES)
def test_every_object_is_taken(name: str, cluster: Cluster, namespace: str) -> None:
    """Leave out pods, of which the server asks for the service account, which is not made."""
    objects = [
        _moved(found, namespace)
        for found in render(_VALUES[name]).objects
        if found["kind"] != "Pod" and not found["apiVersion"].startswith(_OF_OPERATORS)
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    dry = ["apply", "--dry-run=server", "--filename=-", "--output=name"]
    taken = cluster.kubectl(*dry, stdin=json.dumps(listed)).split()
    assert len(taken) == len(objects) > 0


def test_an_autoscaler_for_each_service_is_taken() -> None:
    scalers = render(_VALUES["autoscalers"]).of_kind("HorizontalPodAutoscaler")
    names = {scaler["metadata"]["name"] for scaler in scalers}
    assert names == {"sediment-rsm", "sediment-rlmm"}


def _moved(found: Object, namespace: str) -> Object:
    return {**found, "metadata": {**found["metadata"], "namespace": namespace}}
